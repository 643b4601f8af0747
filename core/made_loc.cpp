// A std::source_location is one pointer to data that the compiler lays down (its __builtin_source_location shows the members, with
// gcc and with clang). This file lays down the same data at run time.
#include "tapir/core/made_loc_impl.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "tapir/core/module_name.h"

namespace tapir::detail {
namespace {

struct Place {
    const char* file;
    const char* function;
    unsigned line, column;
};
static_assert(sizeof(Loc) == sizeof(const Place*));

}  // namespace

Loc made_loc(std::string_view file, std::string_view function, unsigned line) {
    if (line == 0) return Loc{};
    static std::mutex mutex;
    static auto& places = *new std::map<std::tuple<const char*, const char*, unsigned>, const Place*>;  // never freed: Locs point to them
    const char *name = interned(file), *of = interned(function);
    const std::lock_guard lock(mutex);
    const Place*& place = places[{name, of, line}];
    if (!place) place = new Place{name, of, line, 0};
    Loc loc;
    std::memcpy(static_cast<void*>(&loc), &place, sizeof(loc));
    return loc.line() == line && loc.file_name() == name ? loc : Loc{};
}

}  // namespace tapir::detail
