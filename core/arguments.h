// Arguments that could be null in C++: texts and functions. A null one throws ValueError with the caller's line, before the call begins.
//
//     save_npy(std::getenv("OUT"), x);       // model.cpp:7: a text that is given here is a null pointer
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include "tapir/core/error.h"

namespace tapir {

namespace detail {

/// Throws ValueError for a null pointer.
std::string given_text(const char* text, const Loc& loc);
std::string given_text(std::string_view text, const Loc& loc);
std::string_view given_view(const char* text, const Loc& loc);
[[noreturn]] void fail_null_function(const char* what, const Loc& loc);

/// True if functions of this type can be null: a pointer, a std::function.
template <class Fn>
inline constexpr bool may_be_null = std::is_constructible_v<Fn, std::nullptr_t> && requires(const Fn& fn) { static_cast<bool>(fn == nullptr); };
template <class Fn>
constexpr bool is_null(const Fn& fn) {
    if constexpr (may_be_null<Fn>) {
        return fn == nullptr;
    } else {
        return false;
    }
}
/// Throws ValueError, "map: the function is null".
template <class Fn>
void check_function(const char* what, const Fn& fn, const Loc& loc) {
    if (is_null(fn)) fail_null_function(what, loc);
}

}  // namespace detail

/// Text argument of a function; takes any type that converts to a std::string or a std::string_view.
class TextArg : public std::string {
 public:
    TextArg() = default;
    template <class S>
        requires(std::is_convertible_v<const S&, std::string> || std::is_convertible_v<const S&, std::string_view>)
    TextArg(const S& text, Loc loc = Loc::current()) : std::string(made(text, loc)) {}  // NOLINT: implicit by design

 private:
    template <class S>
    static std::string made(const S& text, const Loc& loc) {
        if constexpr (std::is_convertible_v<const S&, const char*>) {
            return detail::given_text(static_cast<const char*>(text), loc);
        } else if constexpr (std::is_convertible_v<const S&, std::string_view>) {
            return detail::given_text(static_cast<std::string_view>(text), loc);
        } else {
            return text;
        }
    }
};

/// Like TextArg, for calls that only look at the text.
class TextViewArg : public std::string_view {
 public:
    TextViewArg() = default;
    template <class S>
        requires std::is_convertible_v<const S&, std::string_view>
    TextViewArg(const S& text, Loc loc = Loc::current()) : std::string_view(made(text, loc)) {}  // NOLINT: implicit by design

 private:
    template <class S>
    static std::string_view made(const S& text, const Loc& loc) {
        if constexpr (std::is_convertible_v<const S&, const char*>) {
            return detail::given_view(text, loc);
        } else {
            return text;
        }
    }
};

}  // namespace tapir
