#include "glove.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tree_lstm {

namespace {

std::string lower_case(std::string text) {
    // ASCII only: other letters are left as they are, which at worst misses a word.
    std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
}

std::string_view trimmed(std::string_view line) {
    const std::size_t end = line.find_last_not_of(" \t");
    return end == std::string_view::npos ? std::string_view() : line.substr(0, end + 1);
}

bool is_number(std::string_view text) {
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return end == text.data() + text.size() && error != std::errc::invalid_argument;
}

bool is_count(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int count_spaces(std::string_view line) { return static_cast<int>(std::count(line.begin(), line.end(), ' ')); }

// Where the last `count` space-separated fields of the line begin; npos when there are not so many after a first one.
std::size_t start_of_last(std::string_view line, int count) {
    std::size_t at = line.size();
    for (int i = 0; i < count; ++i) {
        if (at == 0 || at == std::string_view::npos) return std::string_view::npos;
        at = line.rfind(' ', at - 1);
    }
    return at == std::string_view::npos ? at : at + 1;
}

class GloveReader {
 public:
    GloveReader(const std::filesystem::path& file, const Vocabulary& vocabulary, int dim)
        : reader_(file, "read_glove"), vocabulary_(vocabulary), wanted_dim_(dim) {}

    WordVectors read(const ReadProgress& progress) {
        constexpr std::uint64_t kReportEvery = 4 << 20;
        std::uint64_t next_report = kReportEvery;
        while (reader_.next()) {
            if (!reader_.is_blank()) take_line(trimmed(reader_.line()));
            if (progress && reader_.bytes_read() >= next_report) {
                progress(reader_.bytes_read(), reader_.bytes_total());
                next_report = reader_.bytes_read() + kReportEvery;
            }
        }
        if (!has_vectors_) throw DataError(reader_.path(), 1, 1, "the file holds no word vectors");
        if (progress) progress(reader_.bytes_read(), reader_.bytes_total());
        return std::move(result_);
    }

 private:
    enum class Match : char { kNone, kLowerCase, kExact };

    void take_line(std::string_view line) {
        if (result_.dim == 0 && take_header(line)) return;
        if (result_.dim == 0) set_dim(count_spaces(line));
        has_vectors_ = true;

        // Some words of glove.840B hold spaces ("at name@domain.com"), so the values are counted from the end.
        const int fields = count_spaces(line) + 1;
        const std::size_t values = start_of_last(line, result_.dim);
        if (values == std::string_view::npos || values < 2) fail_count(line, fields - 1);
        const std::string_view word = line.substr(0, values - 1);
        if (fields > result_.dim + 1 && is_number(word.substr(word.rfind(' ') + 1))) fail_count(line, fields - 1);
        keep(word, line, values);
    }

    bool take_header(std::string_view line) {
        if (count_spaces(line) != 1) return false;
        const std::size_t space = line.find(' ');
        if (!is_count(line.substr(0, space)) || !is_count(line.substr(space + 1))) return false;
        int dim = 0;
        const auto [end, error] = std::from_chars(line.data() + space + 1, line.data() + line.size(), dim);
        if (error != std::errc() || dim < 1) reader_.fail_at(space + 1, "the header's dimension is not usable");
        set_dim(dim);
        return true;
    }

    void set_dim(int dim) {
        constexpr int kLargest = 1 << 16;
        if (dim < 1) reader_.fail_at(0, "expected a word and its values, separated by spaces");
        if (wanted_dim_ > 0 && dim != wanted_dim_) {
            reader_.fail_at(0, fmt::format("the vectors have {} values, {} are wanted", dim, wanted_dim_));
        }
        if (dim > kLargest) reader_.fail_at(0, fmt::format("{} values a word are not plausible", dim));
        result_.dim = dim;
        const auto rows = static_cast<std::size_t>(vocabulary_.size());
        result_.rows.assign(rows * static_cast<std::size_t>(dim), 0.0F);
        result_.found.assign(rows, false);
        matches_.assign(rows, Match::kNone);
        for (int id = 1; id < vocabulary_.size(); ++id) {
            const std::string lower = lower_case(vocabulary_.word(id));
            if (lower != vocabulary_.word(id)) capitalised_[lower].push_back(id);
        }
    }

    void keep(std::string_view word, std::string_view line, std::size_t values) {
        if (const int id = vocabulary_.id(word); id != Vocabulary::kUnknown) take(id, Match::kExact, line, values);
        const auto others = capitalised_.find(std::string(word));
        if (others == capitalised_.end()) return;
        for (const int id : others->second) take(id, Match::kLowerCase, line, values);
    }

    // A better match replaces the vector; an equal one comes too late.
    void take(int id, Match match, std::string_view line, std::size_t values) {
        Match& best = matches_[static_cast<std::size_t>(id)];
        if (match <= best) return;
        const std::vector<float> vector = parse(line, values);
        std::copy(vector.begin(), vector.end(), result_.rows.begin() + static_cast<std::ptrdiff_t>(id) * result_.dim);
        if (best == Match::kNone) ++result_.found_count;
        result_.found[static_cast<std::size_t>(id)] = true;
        best = match;
    }

    std::vector<float> parse(std::string_view line, std::size_t at) const {
        std::vector<float> vector;
        vector.reserve(static_cast<std::size_t>(result_.dim));
        while (at <= line.size()) {
            const std::size_t end = std::min(line.find(' ', at), line.size());
            const std::string_view field = line.substr(at, end - at);
            float value = 0;
            const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
            // Values too small for a float are zero; from_chars calls them out of range like those too large.
            const bool is_tiny = error == std::errc::result_out_of_range && field.find("e-") != field.npos;
            if ((error != std::errc() && !is_tiny) || stop != field.data() + field.size() || !std::isfinite(value)) {
                reader_.fail_at(at, fmt::format("{} is not a finite number", in_quotes(field)));
            }
            vector.push_back(is_tiny ? 0.0F : value);
            at = end + 1;
        }
        return vector;
    }

    [[noreturn]] void fail_count(std::string_view line, int count) const {
        const std::string word = in_quotes(line.substr(0, line.find(' ')));
        reader_.fail_at(0, fmt::format("{} has {} values, not {}", word, count, result_.dim));
    }

    LineReader reader_;
    const Vocabulary& vocabulary_;
    int wanted_dim_;
    bool has_vectors_ = false;
    std::vector<Match> matches_;                                     // by row of the vocabulary
    std::unordered_map<std::string, std::vector<int>> capitalised_;  // rows of words, by their lower-case form
    WordVectors result_;
};

}  // namespace

WordVectors read_glove(const std::filesystem::path& file, const Vocabulary& vocabulary, int dim, const ReadProgress& progress) {
    return GloveReader(file, vocabulary, dim).read(progress);
}

}  // namespace tree_lstm
