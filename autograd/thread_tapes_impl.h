// The tapes and scopes of one thread, and which tapes are alive in the process.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/thread_impl.h"

namespace tapir {

class ApartScope;
class Tape;
struct Log;

/// The tapes of a thread. A tape that ends on another thread reaches those of its own thread through this.
struct ThreadTapes {
    Tape* innermost = nullptr;
    ApartScope* apart = nullptr;  // the innermost one
    Log* joined = nullptr;        // the log of the thread's TapeScope
    Log* walking = nullptr;       // the log whose records this thread's innermost backward walks
    int no_grad_scopes = 0;
    detail::ThreadState* state = nullptr;  // set by the first tape

    static ThreadTapes& own() noexcept;
    /// Records ops on `paused` again, the log that a scope had paused; not if that log's tapes have ended meanwhile.
    void resume(Log* paused) noexcept;
    /// To be called after tapes or scopes have begun or ended.
    void note_apart() noexcept;
    void take_out(Tape& tape) noexcept;
    /// For a thread that ends before its tapes.
    void forget_tapes() noexcept;

 private:
    void forget(Tape* innermost_of_chain) noexcept;
    bool take_out_of(Tape*& innermost_of_chain, Tape& tape) noexcept;
};

namespace detail {
/// Throws TapeError in an instance of batch(): `what` needs records that no other instance's are mixed with.
void refuse_in_instance(const char* what, const Loc& loc);
}  // namespace detail

/// Returns a log for a TapeScope of this thread, and gives it a number.
Log* open_joined_log(const Loc& loc);

/// Closes the logs of threads that have joined this one, which has just ended.
void drop_joined(Log& log) noexcept;

/// Releases the records of a log whose tapes have ended and which nobody walks any more.
void close_log(Log* log) noexcept;

/// True if a tape of this number is alive, on any thread.
bool is_live(std::uint32_t tape) noexcept;
/// The number of the tape that has begun last. Numbers rise in the order of beginning.
std::uint32_t last_tape() noexcept;

/// True if the tensor or write with this mark (NodeRef::tape, RecordedWrite::tape) was computed elsewhere while the log's tape was alive. See Note
/// [Computed elsewhere] in elsewhere.cpp.
bool was_missed(std::uint32_t mark, const Log& log) noexcept;
/// Where a marked tensor was computed, " at model.cpp:12"; "" if that is not known.
std::string computed_at(const TensorImpl* marked);

}  // namespace tapir
