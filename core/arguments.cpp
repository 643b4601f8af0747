// Throws errors for arguments that no op takes.
#include "tapir/core/arguments.h"

#include "tapir/core/fail_impl.h"
#include "tapir/core/flat_map.h"

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

void fail_no_entry(const Loc& loc) { fail<IndexError>(loc, "FlatMap::at: there is no such key"); }

}  // namespace tapir::detail
