// TensorImpl::trace tells in which trace a tensor was made, so that a graph does not take for a constant a tensor that is new in each run.
#pragma once

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Set in the mark of a tensor made by a thread that traces nothing, while or after another thread traced; the other bits
/// are the number of the trace that began last.
inline constexpr std::uint16_t kOfOtherThread = 0x8000;

/// The number of the trace that began last in any thread, 1 ... 0x7fff and then 1 again; 0: none has. Read and written atomically.
extern constinit std::uint16_t last_trace;

/// This thread traces, but is making something that the graph shall take for a constant: it is not traced meanwhile.
extern constinit thread_local bool is_outside_trace;

/// Mark for a tensor that is made now. Asked only while ops are watched, as they are while any thread traces.
inline std::uint16_t trace_mark() noexcept {
    if (thread.trace) return thread.trace;
    if (is_outside_trace) return 0;
    const std::uint16_t last = __atomic_load_n(&last_trace, __ATOMIC_RELAXED);
    return last ? last | kOfOtherThread : 0;
}

/// True if another thread made it after this thread's trace began.
inline bool is_of_other_thread(std::uint16_t mark) noexcept { return (mark & kOfOtherThread) && ((mark - thread.trace) & 0x7fff) < 0x4000; }

}  // namespace tapir::detail
