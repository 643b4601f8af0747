// Lists and dictionaries of layers.
#include "tapir/nn/containers.h"

#include <algorithm>

#include "tapir/core/fail_impl.h"

namespace tapir::nn {

void ModuleList::members(Members& m) { m("", modules_); }

bool ModuleDict::contains(const TextArg& key) const noexcept {
    return std::any_of(modules_.begin(), modules_.end(), [&](const auto& one) { return one.first == key; });
}

ModuleDict& ModuleDict::insert(const TextArg& key, AnyModule module, Loc loc) {
    const CallerScope caller(loc);
    if (key.empty() || key.find('.') != std::string::npos) fail<ValueError>(loc, "ModuleDict: \"{}\" is no key: empty, or with a dot", key);
    if (contains(key)) fail<ValueError>(loc, "ModuleDict: there is a module \"{}\" already", key);
    modules_.emplace_back(key, std::move(module));
    return *this;
}

const AnyModule& ModuleDict::at(const TextArg& key, Loc loc) const {
    for (const auto& one : modules_) {
        if (one.first == key) return one.second;
    }
    std::string keys;
    for (const auto& one : modules_) keys += (keys.empty() ? "" : ", ") + one.first;
    fail<IndexError>(loc, "ModuleDict: there is no module \"{}\"; there are: {}", key, keys);
}

void ModuleDict::members(Members& m) { m("", modules_); }

}  // namespace tapir::nn
