// Finds tensors by name.
#include "tapir/core/named_tensor.h"

#include <algorithm>

#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Returns up to five names: those with the same end as the wrong one, else the first ones.
std::string names_near(const NamedTensors& list, std::string_view wrong) {
    constexpr std::size_t kShown = 5;
    std::vector<std::string_view> near;
    for (const NamedTensor& t : list) {
        if (last_part(t.name) == last_part(wrong)) near.push_back(t.name);
    }
    if (near.empty()) {
        for (const NamedTensor& t : list) near.push_back(t.name);
    }
    std::string text;
    for (std::size_t i = 0; i < std::min(near.size(), kShown); ++i) text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", near[i]);
    return text + (near.size() > kShown ? ", ..." : "");
}

}  // namespace

NamedTensors::const_iterator NamedTensors::find(TextViewArg name) const noexcept {
    return std::find_if(begin(), end(), [&](const NamedTensor& t) { return t.name == name; });
}

NamedTensors::iterator NamedTensors::find(TextViewArg name) noexcept {
    return std::find_if(begin(), end(), [&](const NamedTensor& t) { return t.name == name; });
}

const Tensor& NamedTensors::at(TextViewArg name, Loc loc) const {
    const auto found = find(name);
    if (found != end()) return found->tensor;
    if (empty()) fail<IndexError>(loc, "there is no tensor \"{}\": the list is empty", name);
    fail<IndexError>(loc, "there is no tensor \"{}\" among {}: {}", name, size(), names_near(*this, name));
}

}  // namespace tapir
