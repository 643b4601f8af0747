// Prints the tape as a table.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/module_name.h"
#include "tapir/core/text_impl.h"

namespace tapir {
namespace listing {

std::string place(const Loc& loc) { return loc.line() == 0 ? "" : detail::file_and_line(loc); }

std::string op(const Log& log, std::size_t index) {
    const std::uint32_t maker = log.maker_of(static_cast<std::uint32_t>(index));
    const char* name = log.records[maker]->op->name;
    return index > maker ? fmt::format("{} #{}", name, index - maker) : name;
}

std::int64_t bytes_of(const Record& record) { return record.shape().numel() * static_cast<std::int64_t>(itemsize(record.dtype)); }

std::string output(const Record& record) { return fmt::format("{} {}", name(record.dtype), record.shape()); }

const char* parameter_name(const Record& record) {
    if (!(record.flags & Record::kLeaf) || record.flags & Record::kReleased) return "";
    const AutogradMeta* meta = record.saved()[0].impl->meta;
    const char* name = meta ? meta->name_now() : nullptr;
    return name ? name : "";
}

std::string module(const Record& record) {
    if (record.flags & Record::kLeaf) return parameter_name(record);
    return record.module ? record.module->shown() : "";
}

}  // namespace listing

namespace {

constexpr int kColumns = 7;
using Cells = std::array<std::string, kColumns>;

std::string inputs_of(const Record& record, std::size_t begin) {
    std::string text;
    for (int i = 0; i < record.input_count; ++i) {
        const std::uint32_t input = record.inputs()[i];
        if (i > 0) text += ", ";
        text += input == kNoValue || input < begin ? "-" : std::to_string(input - begin);
    }
    return text;
}

}  // namespace

std::string Tape::str(TextViewArg pattern) const {
    const Log& log = *log_;
    std::vector<Cells> rows = {{"#", "op", "output", "bytes", "inputs", "line", "module"}};
    std::int64_t bytes = 0;
    for (std::size_t i = begin_; i < log.records.size(); ++i) {
        const Record& record = *log.records[i];
        const bool is_leaf = record.flags & Record::kLeaf;
        if (!is_leaf) bytes += listing::bytes_of(record);
        Cells row = {std::to_string(i - begin_), listing::op(log, i),        listing::output(record), detail::size_text(listing::bytes_of(record)),
                     inputs_of(record, begin_),  listing::place(record.loc), listing::module(record)};
        const bool is_wanted = std::any_of(row.begin(), row.end(), [&](const std::string& cell) { return cell.find(pattern) != cell.npos; });
        if (is_wanted) rows.push_back(std::move(row));
    }
    std::array<std::size_t, kColumns> widths{};
    for (const Cells& row : rows) {
        for (int c = 0; c < kColumns; ++c)
            widths[static_cast<std::size_t>(c)] = std::max(widths[static_cast<std::size_t>(c)], row[static_cast<std::size_t>(c)].size());
    }
    std::string text =
        fmt::format("tape of {}: {} record{}, results of {}\n", listing::place(loc_), size(), size() == 1 ? "" : "s", detail::size_text(bytes));
    if (rows.size() == 1 && !pattern.empty()) return text + fmt::format("no record has \"{}\"\n", pattern);
    for (const Cells& row : rows) {
        std::string line;
        for (std::size_t c = 0; c < kColumns; ++c) {
            const bool is_number = c == 0 || c == 3;
            line += is_number ? fmt::format("{:>{}}  ", row[c], widths[c]) : fmt::format("{:<{}}  ", row[c], widths[c]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + '\n';
    }
    return text;
}

void Tape::print(TextViewArg pattern) const {
    const std::string text = str(pattern);
    std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace tapir
