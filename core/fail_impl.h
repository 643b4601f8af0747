// Throws typed errors with a formatted message, inside the library.
#pragma once

#include "tapir/core/format.h"

namespace tapir {

/// Throws E. `loc` is the caller's line; an enclosing CallerScope takes precedence.
template <class E, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Loc& loc, fmt::format_string<Args...> format, Args&&... args) {
    throw E(fmt::format(format, std::forward<Args>(args)...), loc);
}

/// Throws ValueError for an eps that cannot keep a variance away from 0: negative numbers and nan. `what` is the op or the layer.
inline void check_eps(const char* what, double eps, const Loc& loc) {
    if (!(eps >= 0)) [[unlikely]]
        fail<ValueError>(loc, "{}: eps must not be negative, got {}", what, eps);
}

namespace detail {

/// Returns "tree.cpp:42": the file's name without its folders.
std::string file_and_line(const Loc& loc);

/// Ends a message about an input whose dtype differs from the floating one of the weights that it meets.
inline std::string conversion_hint(DType input, DType weight) {
    return input == weight || !is_floating(weight) ? "" : fmt::format("; convert the input with x.to({})", name(weight));
}

/// Ends a message about an input that may lack this dimension, "time's", in front of all others.
inline std::string missing_hint(bool is_likely, const char* dimension) {
    return is_likely ? fmt::format("; is the {} dimension missing? x.unsqueeze(0) has it", dimension) : "";
}

}  // namespace detail

}  // namespace tapir
