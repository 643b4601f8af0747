// The thread's state that every op looks at: which tape records, and on whose behalf a composite op speaks.
#pragma once

#include "tapir/core/error.h"

namespace tapir {
struct Log;

namespace detail {

struct ThreadState {
    Log* log = nullptr;  // where ops are recorded; null when no tape is alive (or recording is paused)
    Loc caller;          // line() == 0: ops name their own caller
};

// initial-exec: one load to reach it, also from a shared library.
extern constinit thread_local ThreadState thread __attribute__((tls_model("initial-exec")));

/// The line to speak of: the innermost CallerScope's, or else the op's own caller.
inline const Loc& caller(const Loc& own) noexcept { return thread.caller.line() ? thread.caller : own; }

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
