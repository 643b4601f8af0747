// Adds hints to errors of runs that the user did not ask for, to explain how they came about.
#pragma once

#include <exception>
#include <string_view>
#include <typeinfo>

#include "tapir/core/fail_impl.h"

namespace tapir::detail {

/// Rethrows the error. If it is exactly one of these types (not derived from one), the new error has that type and its line, and the hint
/// follows its message.
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
