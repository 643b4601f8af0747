// Throws OutOfMemory when operator new fails.
//
// Note [The line of a call without memory]
// Vectors, maps and functions that a call keeps beside its tensors come from operator new, which would throw
// std::bad_alloc: no type of the library's, and no line. So the library sets a std::new_handler (out_of_memory.cpp).
// While a call of the library has set the line to name, by a CallerScope, RecordedParts, UnrecordedPartsOf or
// CallLine, the handler throws OutOfMemory with that line. If no call has, the user's program asks for
// memory: the handler that was set before decides, or std::bad_alloc is thrown. Calls that are too short for a
// scope give their line to at_line(), which costs nothing until something is thrown.
//
// A user function that the library calls is the user's program again: OwnLines (own_lines_impl.h).
//
// C libraries call malloc, and report in their own ways.
#pragma once

#include <new>

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Throws OutOfMemory: no memory for the data that a call keeps beside its tensors. Needs no memory itself.
[[noreturn, gnu::cold]] void fail_no_memory(const Loc& loc);
/// Called by a handler of std::bad_alloc and OutOfMemory: rethrows with this line if the error has
/// none.
[[noreturn, gnu::cold]] void rethrow_at(const Loc& loc);

/// Calls body(); if memory runs out, the error names this line.
template <class Body>
[[gnu::always_inline]] inline decltype(auto) at_line(const Loc& loc, const Body& body) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        rethrow_at(loc);
    } catch (const OutOfMemory&) {
        rethrow_at(loc);
    }
}

/// Returns the line to name when memory runs out in something that was given this line: the caller's or, if there is none or it is in
/// the library's own sources, that of the CallLine around it.
Loc memory_line(const Loc& own) noexcept;

// The line of the innermost CallLine.
extern constinit thread_local Loc call_line __attribute__((tls_model("initial-exec")));

/// While it lives, a failure of operator new is an error of this line, unless a CallerScope gives another.
/// Other errors and records do not change. For calls that name the lines of others, as backward()
/// and graphs do, and for calls of the user's functions.
class CallLine {
 public:
    [[nodiscard]] explicit CallLine(const Loc& loc) noexcept : before_(call_line) { call_line = caller(loc); }
    ~CallLine() { call_line = before_; }
    CallLine(const CallLine&) = delete;
    CallLine& operator=(const CallLine&) = delete;

 private:
    Loc before_;
};

/// UnrecordedParts of an op that name its caller.
class UnrecordedPartsOf {
 public:
    explicit UnrecordedPartsOf(const Loc& loc) noexcept : before_(thread.caller) {
        if (before_.line() == 0) thread.caller = loc;
    }
    ~UnrecordedPartsOf() { thread.caller = before_; }
    UnrecordedPartsOf(const UnrecordedPartsOf&) = delete;
    UnrecordedPartsOf& operator=(const UnrecordedPartsOf&) = delete;

 private:
    Loc before_;
    UnrecordedParts parts_;
};

}  // namespace tapir::detail
