#include "tapir/core/rename.h"

#include <algorithm>
#include <unordered_map>

#include "tapir/core/fail_impl.h"

namespace tapir {

Rename strip_prefix(TextArg prefix) { return replace_prefix(std::move(prefix), ""); }

Rename replace_prefix(TextArg prefix, TextArg to) {
    return [prefix = std::move(prefix), to = std::move(to)](const std::string& name) {
        return name.starts_with(prefix) ? to + name.substr(prefix.size()) : name;
    };
}

Rename only_prefix(TextArg prefix) {
    return [prefix = std::move(prefix)](const std::string& name) { return name.starts_with(prefix) ? name.substr(prefix.size()) : std::string(); };
}

Rename strip_wrappers() {
    return [](const std::string& name) {
        std::size_t at = 0;
        for (bool found = true; found;) {
            found = false;
            for (const std::string_view wrapper : {"module.", "_orig_mod."}) {
                if (name.compare(at, wrapper.size(), wrapper) != 0) continue;
                at += wrapper.size();
                found = true;
            }
        }
        return name.substr(at);
    };
}

NamedTensors rename(NamedTensors tensors, const Rename& to, Loc loc) {
    if (!to) fail<ValueError>(loc, "rename: the function is empty");
    NamedTensors result;
    std::unordered_map<std::string, std::string> taken;  // by new name
    for (NamedTensor& t : tensors) {
        std::string name = to(t.name);
        if (name.empty()) continue;
        const auto [place, is_new] = taken.emplace(name, t.name);
        if (!is_new) fail<ValueError>(loc, "rename: \"{}\" and \"{}\" would both be \"{}\"", place->second, t.name, name);
        result.push_back({std::move(name), std::move(t.tensor)});
    }
    return result;
}

NamedTensors rename(NamedTensors tensors, const std::vector<std::pair<std::string, std::string>>& names, Loc loc) {
    for (const auto& [old_name, new_name] : names) {
        const auto is_it = [&old = old_name](const NamedTensor& t) { return t.name == old; };
        if (std::none_of(tensors.begin(), tensors.end(), is_it)) fail<ValueError>(loc, "rename: there is no tensor \"{}\"", old_name);
    }
    const Rename one = [&names](const std::string& name) {
        for (const auto& [old_name, new_name] : names) {
            if (old_name == name) return new_name;
        }
        return name;
    };
    return rename(std::move(tensors), one, loc);
}

}  // namespace tapir
