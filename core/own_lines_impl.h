// Chooses the lines that errors and records name when the library calls user functions.
#pragma once

#include <string>
#include <utility>

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// While it lives, errors and records name the lines that they are given, not that of a CallerScope around it: mistakes in a
/// user function that backward calls must be fixed there.
class OwnLines {
 public:
    [[nodiscard]] OwnLines() noexcept : caller_(std::exchange(thread.caller, Loc{})) {}
    ~OwnLines() { thread.caller = caller_; }
    OwnLines(const OwnLines&) = delete;
    OwnLines& operator=(const OwnLines&) = delete;

 private:
    Loc caller_;
};

/// While it lives, errors and listings that would name a line of that header name `loc` instead. A template in a library header that
/// calls the user's function is not where anyone looks for a mistake, and that function may take the line that calls it. Unlike with
/// a CallerScope, the user's own lines are kept. `header` is the end of its path; it must live as long.
class StandInLine {
 public:
    [[nodiscard]] StandInLine(const char* header, const Loc& loc) noexcept;
    ~StandInLine();
    StandInLine(const StandInLine&) = delete;
    StandInLine& operator=(const StandInLine&) = delete;

 private:
    friend const Loc& users_line(const Loc& loc) noexcept;
    const char* header_;
    Loc loc_;
    const StandInLine* outer_;
};
/// Returns the line that stands in for this one, or the line itself.
const Loc& users_line(const Loc& loc) noexcept;

/// Returns what an Error made now with this message and line says, and its where().
std::string error_text(const std::string& message, const Loc& loc);
const Loc& error_place(const Loc& loc) noexcept;

}  // namespace tapir::detail
