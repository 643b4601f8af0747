// Throws errors for null arguments.
#include "tapir/core/arguments.h"

#include "tapir/core/fail_impl.h"

namespace tapir::detail {

std::string_view given_view(const char* text, const Loc& loc) {
    if (!text) fail<ValueError>(loc, "a text that is given here is a null pointer");
    return text;
}

std::string given_text(std::string_view text, const Loc& loc) {
    const CallerScope caller(loc);
    return std::string(text);
}

std::string given_text(const char* text, const Loc& loc) { return given_text(given_view(text, loc), loc); }

void fail_null_function(const char* what, const Loc& loc) { fail<ValueError>(loc, "{}: the function is null", what); }

}  // namespace tapir::detail
