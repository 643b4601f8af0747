// Errors of runs that the program's user has not asked for say how these came about.
#pragma once

#include <exception>
#include <string_view>
#include <typeinfo>

#include "tapir/core/fail_impl.h"

namespace tapir::detail {

/// Throws the error again: if it is one of these types, and not of one derived from it, of that type and with its line, and with the hint
/// behind what it says.
template <class... Types>
[[noreturn]] void rethrow_with_hint(const std::exception_ptr& error, std::string_view hint) {
    const auto add_to = [hint]<class Type>(const Type* own) {
        if (!own || typeid(*own) != typeid(Type)) return;
        const std::string line = file_and_line(own->where()) + ": ";
        std::string_view what = own->what();
        if (what.starts_with(line)) what.remove_prefix(line.size());
        fail<Type>(own->where(), "{}{}", what, hint);
    };
    try {
        std::rethrow_exception(error);
    } catch (const std::exception& any) {
        (add_to(dynamic_cast<const Types*>(&any)), ...);
        throw;
    }
}

}  // namespace tapir::detail
