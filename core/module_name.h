// The path of a module in a model, as records, errors, profiles and drawings show it.
#pragma once

#include <string_view>

namespace tapir {

struct ModuleName {
    const char* path;  // "encoder.cell"; "" for the model itself, and for modules whose place is not known
    const char* type;  // "LSTMCell"

    const ModuleName* next = nullptr;  // links all names, for gdb

    /// Returns the path, or the type if there is no path.
    const char* shown() const noexcept { return *path ? path : type; }
};

namespace detail {

/// Returns the unique name for this path and type. It lives as long as the program.
const ModuleName* module_name(std::string_view path, std::string_view type);
/// Returns the unique copy of a text. It lives as long as the program.
const char* interned(std::string_view text);

}  // namespace detail
}  // namespace tapir
