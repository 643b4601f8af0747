// The thread's state that every op looks at: which tape records, and on whose behalf a composite op speaks.
#pragma once

#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {
struct Log;
struct TensorImpl;
class AutocastScope;

namespace detail {

struct ThreadState {
    Log* log = nullptr;  // where ops are recorded; null when no tape is alive (or recording is paused)
    Loc caller;          // line() == 0: ops name their own caller
    Device device;       // where tensors are made that name none
    AutocastScope* autocast = nullptr;  // the innermost one that is on
    // The op that runs, where it is watched or on a device other than the CPU: what messages speak of.
    const char* op = nullptr;
    Loc op_loc;
};

// initial-exec: one load to reach it, also from a shared library.
extern constinit thread_local ThreadState thread __attribute__((tls_model("initial-exec")));

/// The line to speak of: the innermost CallerScope's, or else the op's own caller.
inline const Loc& caller(const Loc& own) noexcept { return thread.caller.line() ? thread.caller : own; }

/// Ops write down where they run (LogPlacementScope).
extern constinit int watching_ops;

void begin_watched_op(const char* op, const TensorImpl* operand, const Loc& loc);
/// Writes the line of the op that was begun, at its first result.
void log_placement(const TensorImpl* result);

/// Nothing is recorded while it lives.
class PauseRecording {
 public:
    PauseRecording() noexcept : paused_(thread.log) { thread.log = nullptr; }
    ~PauseRecording() { thread.log = paused_; }
    PauseRecording(const PauseRecording&) = delete;
    PauseRecording& operator=(const PauseRecording&) = delete;

 private:
    Log* paused_;
};

}  // namespace detail
}  // namespace tapir
