// Reads tables.
#include "tapir/nn/data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/inflate_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/nn/data/text.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir::data {
namespace {

using std::int64_t;

// Scans row by row. Cells that begin with a quote go to its end; they are unquoted in place, because they only get shorter.
class Scanner {
 public:
    struct Cell {
        std::size_t begin, end;
        int64_t line, column;
    };

    Scanner(std::string& text, const std::string& path, const CsvOptions& options, const Loc& loc)
        : text_(text), path_(path), options_(options), loc_(loc) {
        if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    }

    /// Returns false at the end.
    bool next_row(std::vector<Cell>& cells) {
        while (at_end_of_line()) {  // skips empty lines
            if (at_ == text_.size()) return false;
            end_line();
        }
        cells.clear();
        while (true) {
            cells.push_back(options_.quote && at_ < text_.size() && text_[at_] == options_.quote ? quoted() : plain());
            if (at_end_of_line()) break;
            ++at_;  // skips a separator
        }
        if (at_ < text_.size()) end_line();
        return true;
    }

    [[noreturn]] void stop(int64_t line, int64_t column, const std::string& problem) const {
        fail<FileError>(loc_, "read_csv: {}:{}:{}: {}", path_, line, column, problem);
    }

 private:
    bool at_end_of_line() const {
        return at_ == text_.size() || text_[at_] == '\n' || (text_[at_] == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n'));
    }
    void end_line() {
        if (text_[at_] == '\r') ++at_;
        if (at_ < text_.size()) ++at_;
        ++line_;
        line_start_ = at_;
    }
    int64_t column() const { return static_cast<int64_t>(at_ - line_start_) + 1; }
    Cell plain() {
        const std::size_t begin = at_;
        const int64_t first = column();
        while (!at_end_of_line() && text_[at_] != options_.separator) ++at_;
        return {begin, at_, line_, first};
    }
    Cell quoted() {
        const int64_t line = line_, where = column();
        std::size_t out = ++at_;
        const std::size_t first = out;
        while (true) {
            if (at_ == text_.size()) stop(line, where, "this quote is not closed");
            const char c = text_[at_++];
            if (c == options_.quote) {
                if (at_ == text_.size() || text_[at_] != options_.quote) break;
                ++at_;  // doubled quote
            } else if (c == '\n') {
                ++line_;
                line_start_ = at_;
            }
            text_[out++] = c;
        }
        if (!at_end_of_line() && text_[at_] != options_.separator) {
            stop(line_, column(), "text after a closing quote");
        }
        return {first, out, line, where};
    }

    std::string& text_;
    const std::string& path_;
    const CsvOptions& options_;
    const Loc& loc_;
    std::size_t at_ = 0, line_start_ = 0;
    int64_t line_ = 1;
};

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    text = text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
    return text.size() > 1 && text[0] == '+' && text[1] != '-' ? text.substr(1) : text;  // from_chars accepts no plus
}

// Returns "" if it was read, else what is wrong with it.
template <class T>
const char* parse(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end != text.data() + text.size() || error == std::errc::invalid_argument) return "is not a number";
    if (error != std::errc::result_out_of_range) return "";
    if constexpr (std::is_floating_point_v<T>) {  // from_chars does not tell too small from too large: the exponent's sign does
        double wide = 0;
        if (std::from_chars(text.data(), text.data() + text.size(), wide).ec == std::errc()) {
            if (wide > -1 && wide < 1) value = static_cast<T>(wide);
            return wide > -1 && wide < 1 ? "" : "is out of range";
        }
        const std::size_t e = text.find_first_of("eE");
        if (e != std::string_view::npos && e + 1 < text.size() && text[e + 1] == '-') return value = 0, "";
    }
    return "is out of range";
}

template <class T>
const char* parse_into(std::string_view text, std::byte* to) {
    T value{};
    const char* problem = parse(text, value);
    std::memcpy(to, &value, sizeof value);
    return problem;
}

const char* parse_as(DType dtype, std::string_view text, std::byte* to) {
    switch (dtype) {
        case DType::boolean: {
            const bool on = text == "1" || text == "true" || text == "True" || text == "TRUE";
            const bool off = text == "0" || text == "false" || text == "False" || text == "FALSE";
            *to = std::byte{on};
            return on || off ? "" : "is not 0, 1, true or false";
        }
        case DType::uint8: return parse_into<std::uint8_t>(text, to);
        case DType::int32: return parse_into<std::int32_t>(text, to);
        case DType::int64: return parse_into<int64_t>(text, to);
        case DType::float32: return parse_into<float>(text, to);
        case DType::float64: return parse_into<double>(text, to);
        default: {
            double value = 0;
            const char* problem = parse(text, value);
            tapir::detail::store(dtype, to, value);
            return problem;
        }
    }
}

}  // namespace

Csv read_csv(const TextArg& path, const CsvOptions& options, Loc loc) {
    const CallerScope caller(loc);
    const auto is_end = [](char c) { return c == '\n' || c == '\r' || c == '\0'; };
    if (is_end(options.separator) || options.separator == options.quote || options.quote == '\n' || options.quote == '\r') {
        fail<ValueError>(loc, "read_csv: separator {} and quote {} cannot be", in_quotes({&options.separator, 1}), in_quotes({&options.quote, 1}));
    }
    Csv table;
    table.path_ = path;
    table.missing_ = options.missing;
    table.text_ = io::InputStream("read_csv", path, loc).read_all();
    Scanner scanner(table.text_, path, options, loc);
    std::vector<Scanner::Cell> row;
    bool is_first = true;
    while (scanner.next_row(row)) {
        if (is_first) {
            is_first = false;
            for (std::size_t i = 0; i < row.size(); ++i) {
                table.names_.push_back(options.header ? table.text_.substr(row[i].begin, row[i].end - row[i].begin) : std::to_string(i));
            }
            if (options.header) continue;
        }
        if (row.size() != table.names_.size()) {
            const Scanner::Cell& odd = row[std::min(row.size() - 1, table.names_.size())];
            scanner.stop(odd.line, odd.column, fmt::format("{} cells in a table of {} columns", row.size(), table.names_.size()));
        }
        for (const Scanner::Cell& cell : row) table.cells_.push_back({cell.begin, cell.end, cell.line, cell.column});
        ++table.rows_;
    }
    if (is_first) fail<FileError>(loc, "read_csv: {}:1:1: the file holds no table", path);
    return table;
}

int64_t Csv::column(const TextArg& name, Loc loc) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found != names_.end()) return found - names_.begin();
    std::string all;
    for (const std::string& other : names_) all += (all.empty() ? "" : ", ") + in_quotes(other);
    fail<ValueError>(loc, "Csv: {} has no column {}; it has {}", path_, in_quotes(name), all);
}

std::string_view Csv::cell(int64_t row, int64_t column, Loc loc) const {
    if (row < 0 || row >= rows() || column < 0 || column >= columns()) {
        fail<IndexError>(loc, "Csv: no cell {}, {} in a table of {} rows and {} columns", row, column, rows(), columns());
    }
    const Cell& c = cells_[static_cast<std::size_t>(row * columns() + column)];
    return std::string_view(text_).substr(c.begin, c.end - c.begin);
}

std::vector<std::string> Csv::text(const TextArg& name, Loc loc) const {
    const CallerScope caller(loc);
    const int64_t number = column(name, loc);
    std::vector<std::string> result;
    for (int64_t row = 0; row < rows(); ++row) result.emplace_back(cell(row, number));
    return result;
}

// True if a number of that dtype holds the value exactly (for floats: to the nearest).
static bool holds(DType dtype, double value) {
    if (is_floating(dtype)) return true;
    const bool is_wide = dtype == int64 || dtype == int32;
    const double most = dtype == int64 ? 0x1p63 : dtype == int32 ? 0x1p31 : dtype == uint8 ? 256 : 2;
    return value == std::trunc(value) && value >= (is_wide ? -most : 0) && value < most;
}

void Csv::read_number(int64_t row, int64_t column, DType dtype, std::byte* to, const Loc& loc) const {
    const std::string_view text = trimmed(cell(row, column));
    const char* problem = "is empty";
    if (!text.empty()) {
        problem = parse_as(dtype, text, to);
    } else if (missing_) {
        if (!holds(dtype, *missing_)) fail<ValueError>(loc, "Csv: {} cannot stand for missing numbers of {}", *missing_, name(dtype));
        tapir::detail::store(dtype, to, *missing_);
        return;
    }
    if (*problem == '\0') return;
    const Cell& place = cells_[static_cast<std::size_t>(row * columns() + column)];
    fail<FileError>(loc, "Csv: {}:{}:{}: column {}: {} {} ({})", path_, place.line, place.column, in_quotes(names_[static_cast<std::size_t>(column)]),
                    in_quotes(text), problem, name(dtype));
}

Tensor Csv::numbers_of(const std::vector<int64_t>& columns, const Shape& shape, DType dtype, const Loc& loc) const {
    tapir::detail::begin_op("numbers", cpu, loc);
    Tensor t = tapir::detail::make_empty(shape, dtype, cpu, loc);
    auto* to = static_cast<std::byte*>(t.raw_data());
    for (int64_t row = 0; row < rows(); ++row) {
        for (const int64_t column : columns) {
            read_number(row, column, dtype, to, loc);
            to += itemsize(dtype);
        }
    }
    return t;
}

Tensor Csv::numbers(const std::vector<std::string>& names, DType dtype, Loc loc) const {
    const CallerScope caller(loc);
    std::vector<int64_t> wanted;
    for (const std::string& name : names) wanted.push_back(column(name, loc));
    return numbers_of(wanted, {rows(), static_cast<int64_t>(wanted.size())}, dtype, loc);
}

Tensor Csv::numbers(DType dtype, Loc loc) const {
    const CallerScope caller(loc);
    std::vector<int64_t> all(static_cast<std::size_t>(columns()));
    std::iota(all.begin(), all.end(), 0);
    return numbers_of(all, {rows(), columns()}, dtype, loc);
}

Tensor Csv::numbers(const TextArg& name, DType dtype, Loc loc) const {
    const CallerScope caller(loc);
    return numbers_of({column(name, loc)}, {rows()}, dtype, loc);
}

}  // namespace tapir::data
