#include "tapir/core/module_name.h"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace tapir {

// Head of the list of names, for gdb.
extern "C" {
[[gnu::used, gnu::retain]] constinit const ModuleName* tapir_gdb_modules = nullptr;
}

namespace detail {
namespace {

// Made at first use and never destroyed: a thread that outlives main() may have records that name modules.
struct Names {
    std::mutex mutex;
    std::set<std::string, std::less<>> texts;
    std::map<std::pair<const char*, const char*>, ModuleName> modules;

    const char* text(std::string_view wanted) {
        auto found = texts.find(wanted);
        if (found == texts.end()) found = texts.emplace(wanted).first;
        return found->c_str();
    }
};

Names& names() {
    static Names& all = *new Names;
    return all;
}

}  // namespace

const char* interned(std::string_view text) {
    const std::lock_guard lock(names().mutex);
    return names().text(text);
}

const ModuleName* module_name(std::string_view path, std::string_view type) {
    const std::lock_guard lock(names().mutex);
    const char *p = names().text(path), *t = names().text(type);
    const auto [place, is_new] = names().modules.try_emplace({p, t}, ModuleName{p, t});
    if (is_new) {
        place->second.next = tapir_gdb_modules;
        tapir_gdb_modules = &place->second;
    }
    return &place->second;
}

}  // namespace detail
}  // namespace tapir
