// Compares names and shapes.
#include "tapir/nn/state_diff_impl.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "tapir/core/format.h"

namespace tapir::nn {
namespace {

constexpr std::size_t kMostLines = 20;      // for each kind
constexpr std::size_t kMostCompared = 300;  // names that are searched for similar ones

std::string shape_of(const Tensor& t) { return t.defined() ? t.shape().str() : "undefined"; }

// Returns how many letters must be inserted, removed or changed (Levenshtein 1966).
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

// True if one name is the other with a prefix.
bool is_tail(std::string_view longer, std::string_view tail) {
    return longer.size() > tail.size() && longer.ends_with(tail) && longer[longer.size() - tail.size() - 1] == '.';
}

// Returns the unexpected name that was most likely meant, or null.
const NamedTensor* nearest(const NamedTensor& missing, const std::vector<const NamedTensor*>& unexpected) {
    const NamedTensor* best = nullptr;
    std::size_t least = missing.name.size() / 3 + 2;  // names further away are different names
    for (const NamedTensor* t : unexpected) {
        if (t->name.size() > 200) continue;
        const bool has_shape = t->tensor.defined() && t->tensor.shape() == missing.tensor.shape();
        std::size_t d = is_tail(t->name, missing.name) || is_tail(missing.name, t->name) ? 1 : distance(t->name, missing.name);
        if (!has_shape) d += 2;
        if (d >= least) continue;
        least = d;
        best = t;
    }
    return best;
}

// Returns the common prefix of all unexpected names, if each without it is a missing name and has its shape.
std::string common_prefix(const std::vector<const NamedTensor*>& missing, const std::vector<const NamedTensor*>& unexpected) {
    if (unexpected.empty() || missing.empty()) return "";
    std::unordered_map<std::string_view, const NamedTensor*> wanted;
    for (const NamedTensor* t : missing) wanted.emplace(t->name, t);
    const std::string_view first = unexpected[0]->name;
    for (std::size_t dot = first.find('.'); dot != std::string_view::npos; dot = first.find('.', dot + 1)) {
        const std::string_view prefix = first.substr(0, dot + 1);
        const bool fits = std::all_of(unexpected.begin(), unexpected.end(), [&](const NamedTensor* t) {
            if (!t->name.starts_with(prefix)) return false;
            const auto found = wanted.find(std::string_view(t->name).substr(prefix.size()));
            return found != wanted.end() && t->tensor.defined() && t->tensor.shape() == found->second->tensor.shape();
        });
        if (fits) return std::string(prefix);
    }
    return "";
}

class Lines {
 public:
    explicit Lines(const char* kind) : kind_(kind) {}
    void add(const std::string& line) {
        if (count_++ < kMostLines) text_ += fmt::format("\n  {}: {}", kind_, line);
    }
    std::string text() const { return count_ > kMostLines ? text_ + fmt::format("\n  ... and {} more {}", count_ - kMostLines, kind_) : text_; }

 private:
    const char* kind_;
    std::string text_;
    std::size_t count_ = 0;
};

}  // namespace

StateDiff state_diff(const NamedTensors& own, const NamedTensors& state, bool strict) {
    std::unordered_map<std::string_view, const Tensor*> given;
    for (const NamedTensor& t : state) given.emplace(t.name, &t.tensor);
    std::unordered_set<std::string_view> names;
    std::unordered_set<const void*> filled;  // by the given tensors, under any name
    Lines different("of another shape");
    for (const NamedTensor& t : own) {
        names.insert(t.name);
        const auto found = given.find(t.name);
        if (found == given.end()) continue;
        filled.insert(t.tensor.raw_data());
        if (!found->second->defined() || found->second->shape() != t.tensor.shape()) {
            different.add(fmt::format("{} is {}, not {}", t.name, t.tensor.shape(), shape_of(*found->second)));
        }
    }
    std::vector<const NamedTensor*> missing, unexpected;
    for (const NamedTensor& t : own) {
        if (!given.contains(t.name) && !filled.contains(t.tensor.raw_data())) missing.push_back(&t);
    }
    for (const NamedTensor& t : state) {
        if (!names.contains(t.name)) unexpected.push_back(&t);
    }
    StateDiff diff;
    for (const NamedTensor* t : missing) diff.keys.missing_keys.push_back(t->name);
    for (const NamedTensor* t : unexpected) diff.keys.unexpected_keys.push_back(t->name);
    if (!strict) {
        diff.text = different.text();
        return diff;
    }
    const std::string prefix = common_prefix(missing, unexpected);
    const bool searches = prefix.empty() && missing.size() <= kMostCompared && unexpected.size() <= kMostCompared;
    Lines lines("missing"), others("unexpected");
    for (const NamedTensor* t : missing) {
        const NamedTensor* near = searches ? nearest(*t, unexpected) : nullptr;
        lines.add(
            fmt::format("{} {}{}", t->name, shape_of(t->tensor), near ? fmt::format("; is it {} {}?", near->name, shape_of(near->tensor)) : ""));
    }
    for (const NamedTensor* t : unexpected) others.add(fmt::format("{} {}", t->name, shape_of(t->tensor)));
    diff.text = lines.text() + others.text() + different.text();
    if (!prefix.empty()) {
        diff.text += fmt::format("\n  all unexpected names would fit with strip_prefix(\"{}\") (tapir/core/rename.h)", prefix);
    }
    return diff;
}

std::string part_that_fits(const NamedTensors& own, const NamedTensors& file) {
    std::unordered_map<std::string_view, const Tensor*> given;
    for (const NamedTensor& t : file) given.emplace(t.name, &t.tensor);
    std::unordered_set<std::string_view> tried;
    for (const NamedTensor& t : file) {
        const std::string_view part = std::string_view(t.name).substr(0, t.name.find('.'));
        if (!tried.insert(part).second) continue;
        const bool fits = std::all_of(own.begin(), own.end(), [&](const NamedTensor& o) {
            const auto found = given.find(std::string(part) + "." + o.name);
            return found != given.end() && found->second->shape() == o.tensor.shape();
        });
        if (fits) return std::string(part);
    }
    return "";
}

}  // namespace tapir::nn
