// The place of a module in a model, as records, errors, profiles and drawings name it.
#pragma once

#include <string_view>

namespace tapir {

struct ModuleName {
    const char* path;  // "encoder.cell"; "" for the model itself, and for modules whose place is not known
    const char* type;  // "LSTMCell"

    const ModuleName* next = nullptr;  // of all of them, for gdb

    /// The path, or the type where there is none.
    const char* shown() const noexcept { return *path ? path : type; }
};

namespace detail {

/// The one name of this path and type. It lives as long as the program.
const ModuleName* module_name(std::string_view path, std::string_view type);
/// The one copy of a text that lives as long as the program.
const char* interned(std::string_view text);

}  // namespace detail
}  // namespace tapir
