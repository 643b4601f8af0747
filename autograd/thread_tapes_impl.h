// What the tapes and scopes of one thread know of each other, and which tapes are alive in the process.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/thread_impl.h"

namespace tapir {

class ApartScope;
class Tape;
struct Log;

/// Of a thread. A tape that ends on another thread reaches those of its own one by this.
struct ThreadTapes {
    Tape* innermost = nullptr;
    ApartScope* apart = nullptr;  // the innermost one
    Log* walking = nullptr;       // whose records this thread's innermost backward walks
    int no_grad_scopes = 0;
    detail::ThreadState* state = nullptr;  // set by the first tape

    static ThreadTapes& own() noexcept;
    /// Ops are recorded on `paused` again, what had been recorded on before a scope began; not if its tapes have ended in it.
    void resume(Log* paused) noexcept;
    /// To be called when tapes or scopes have come or gone.
    void note_apart() noexcept;
    void take_out(Tape& tape) noexcept;
    /// The thread ends before its tapes.
    void forget_tapes() noexcept;

 private:
    void forget(Tape* innermost_of_chain) noexcept;
    bool take_out_of(Tape*& innermost_of_chain, Tape& tape) noexcept;
};

/// Gives up the records of a log whose tapes have ended and which nobody walks any more.
void close_log(Log* log) noexcept;

/// Whether a tape of this number is alive, on any thread.
bool is_live(std::uint32_t tape) noexcept;
/// The number of the tape that has begun last; they begin in this order.
std::uint32_t last_tape() noexcept;

/// Of NodeRef::tape or RecordedWrite::tape: whether what has this mark was computed elsewhere while the log's tape was alive. See Note
/// [Computed elsewhere] in elsewhere.cpp.
bool was_missed(std::uint32_t mark, const Log& log) noexcept;
/// " at model.cpp:12": where a tensor that is marked was computed; "" where that is not known.
std::string computed_at(const TensorImpl* marked);

}  // namespace tapir
