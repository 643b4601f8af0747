// The thread's state that every op looks at: which tape records, and on whose behalf a composite op speaks.
#pragma once

#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {
struct Log;
struct ModuleName;
struct TensorImpl;
class AutocastScope;

namespace detail {

struct ThreadState {
    Log* log = nullptr;  // where ops are recorded; null when no tape is alive (or recording is paused)
    Loc caller;          // line() == 0: ops name their own caller
    Device device;       // where tensors are made that name none
    AutocastScope* autocast = nullptr;  // the innermost one that is on
    // The innermost nn::ModuleScope's, which records take down: whose it is, and which of the thread's calls of modules.
    const ModuleName* module = nullptr;
    std::uint32_t module_call = 0, module_calls = 0;
    // The op that the user called, where it is watched or on a device other than the CPU: what messages speak of.
    const char* op = nullptr;
    Loc op_loc;
    bool is_placed = true;  // LogPlacementScope has written its line
    int parts = 0;          // above 0: ops that begin are parts of that one
    // A result that the user's last call of a layer left undefined, since it was not asked for, and the line of that call: the next
    // error about an undefined tensor asks whether it is this one.
    const char* left_out = nullptr;
    Loc left_out_at;
};

// initial-exec: one load to reach it, also from a shared library.
extern constinit thread_local ThreadState thread __attribute__((tls_model("initial-exec")));

/// The line to speak of: the innermost CallerScope's, or else the op's own caller.
inline const Loc& caller(const Loc& own) noexcept { return thread.caller.line() ? thread.caller : own; }

/// Ops write down where they run (LogPlacementScope).
extern constinit int watching_ops;

void begin_watched_op(const char* op, const TensorImpl* operand, const Loc& loc);
/// From here on it is the thread's op, unless it is part of one.
inline void name_op(const char* op, const Loc& loc) noexcept {
    if (thread.parts > 0) return;
    thread.op = op;
    thread.op_loc = caller(loc);
    thread.is_placed = watching_ops == 0;
}
/// Writes the line of the op that was begun, at its first result.
void log_placement(const TensorImpl* result);

/// Puts back what the thread's module is.
class ModuleRestore {
 public:
    ModuleRestore() noexcept : module_(thread.module), call_(thread.module_call) {}
    ~ModuleRestore() {
        thread.module = module_;
        thread.module_call = call_;
    }
    ModuleRestore(const ModuleRestore&) = delete;
    ModuleRestore& operator=(const ModuleRestore&) = delete;

 private:
    const ModuleName* module_;
    std::uint32_t call_;
};

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

/// No AutocastScope is on while it lives.
class PauseAutocast {
 public:
    PauseAutocast() noexcept : paused_(thread.autocast) { thread.autocast = nullptr; }
    ~PauseAutocast() { thread.autocast = paused_; }
    PauseAutocast(const PauseAutocast&) = delete;
    PauseAutocast& operator=(const PauseAutocast&) = delete;

 private:
    AutocastScope* paused_;
};

/// The ops that are called while it lives are parts of the one that has begun: messages go on to name that one.
class PartsOfOp {
 public:
    PartsOfOp() noexcept { ++thread.parts; }
    ~PartsOfOp() { --thread.parts; }
    PartsOfOp(const PartsOfOp&) = delete;
    PartsOfOp& operator=(const PartsOfOp&) = delete;
};

/// For an op whose parts are recorded in its place. They speak of its caller.
class RecordedParts {
 public:
    explicit RecordedParts(const Loc& loc) noexcept : caller_(loc) {}

 private:
    CallerScope caller_;
    PartsOfOp parts_;
};

/// For parts that are not recorded, because the op is.
class UnrecordedParts {
    PauseRecording pause_;
    PartsOfOp parts_;
};

}  // namespace detail
}  // namespace tapir
