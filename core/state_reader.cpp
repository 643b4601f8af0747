#include "tapir/core/state_reader_impl.h"

#include <cmath>

#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

constexpr std::size_t kMostNames = 20;   // listed in an error
constexpr double kMostCounted = 0x1p53;  // doubles count exactly up to here, and down to minus this

void append(std::string& list, const std::string& what) { list += (list.empty() ? "" : ", ") + what; }

std::string line(const char* what, const std::string& list) { return list.empty() ? "" : fmt::format("\n  {}: {}", what, list); }

}  // namespace

StateReader::StateReader(const char* owner, const NamedTensors& state, const Loc& loc) : owner_(owner), loc_(loc), state_(state) {
    for (const NamedTensor& t : state) given_.emplace(t.name, &t.tensor);
    left_ = given_;
}

const Tensor* StateReader::take(const std::string& name) {
    left_.erase(name);
    const auto found = given_.find(name);
    if (found == given_.end()) {
        append(missing_, name);
        return nullptr;
    }
    if (found->second->defined()) return found->second;
    append(different_, name);
    return nullptr;
}

const Tensor* StateReader::tensor(const std::string& name, const Shape& shape) {
    const Tensor* t = take(name);
    if (!t || t->shape() == shape) return t;
    append(different_, name);
    return nullptr;
}

const Tensor* StateReader::tensor_if_any(const std::string& name, const Shape& shape) { return has(name) ? tensor(name, shape) : nullptr; }

std::vector<double> StateReader::numbers(const std::string& name) {
    const Tensor* t = take(name);
    return t ? t->to_vector<double>(loc_) : std::vector<double>();
}

double StateReader::number(const std::string& name) {
    const Tensor* t = tensor(name, {});
    return t ? t->item<double>(loc_) : 0;
}

std::int64_t StateReader::integer(const std::string& name) {
    const Tensor* t = tensor(name, {});
    if (!t) return 0;
    if (!is_floating(t->dtype())) return t->item<std::int64_t>(loc_);
    const double value = t->item<double>(loc_);
    if (std::abs(value) < kMostCounted && value == std::trunc(value)) return static_cast<std::int64_t>(value);
    is_out_of_range(name);
    return 0;
}

std::int64_t StateReader::count(const std::string& name) {
    const std::int64_t value = integer(name);
    if (value >= 0) return value;
    is_out_of_range(name);
    return 0;
}

void StateReader::is_out_of_range(const std::string& name) { append(out_of_range_, name); }

void StateReader::finish(bool allow_more) {
    std::string unexpected;
    std::size_t listed = 0;
    for (const NamedTensor& t : state_) {
        if (!allow_more && left_.contains(t.name) && listed++ < kMostNames) append(unexpected, t.name);
    }
    if (listed > kMostNames) unexpected += fmt::format(", and {} more", listed - kMostNames);
    if (missing_.empty() && different_.empty() && out_of_range_.empty() && unexpected.empty()) return;
    fail<ValueError>(loc_, "load_state_dict: the state is not of this {}:{}{}{}{}", owner_, line("missing", missing_),
                     line("of another shape", different_), line("out of range", out_of_range_), line("unexpected", unexpected));
}

}  // namespace tapir
