// OutOfMemory where operator new finds none.
//
// Note [The line of a call without memory]
// Vectors, maps and functions that a call keeps beside its tensors come from operator new, which would throw
// std::bad_alloc: no type of the library's, and no line. So the library sets a std::new_handler (out_of_memory.cpp).
// While a call of the library has said whose line it speaks for, in a CallerScope, RecordedParts, UnrecordedPartsOf or
// CallLine, the handler throws OutOfMemory with that line; where no call has, it is the user's program that asks for
// memory, and the handler that was set before decides, or std::bad_alloc is thrown. Calls that are too short for a
// scope say their line in at_line(), which costs nothing until something is thrown.
//
// What the user's functions do that the library calls is the user's program again: OwnLines (own_lines_impl.h).
//
// C libraries call malloc, and report in their own ways.
#pragma once

#include <new>

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Throws OutOfMemory: there is no memory for what a call keeps beside its tensors. Needs no memory itself.
[[noreturn, gnu::cold]] void fail_no_memory(const Loc& loc);
/// To be called by a handler of std::bad_alloc and OutOfMemory: goes on with an error that names this line, if the
/// error has none.
[[noreturn, gnu::cold]] void rethrow_at(const Loc& loc);

/// body(), where memory that runs out is an error of this line.
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

/// The line to speak of where memory is out in something that was given this line: the caller's, or, where that is none or one of the
/// library's own sources, that of the CallLine around it.
Loc memory_line(const Loc& own) noexcept;

// The line of the innermost CallLine.
extern constinit thread_local Loc call_line __attribute__((tls_model("initial-exec")));

/// While it lives, memory that operator new does not find is an error of this line, unless a CallerScope says another.
/// It changes nothing that other errors and records name: for calls that speak of the lines of others, as backward()
/// and graphs do, and for those that call the user's functions.
class CallLine {
 public:
    [[nodiscard]] explicit CallLine(const Loc& loc) noexcept : before_(call_line) { call_line = caller(loc); }
    ~CallLine() { call_line = before_; }
    CallLine(const CallLine&) = delete;
    CallLine& operator=(const CallLine&) = delete;

 private:
    Loc before_;
};

/// UnrecordedParts of an op, which speak of its caller.
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
