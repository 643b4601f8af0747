// The thread's state that every op looks at: which tape records, and on whose behalf a composite op speaks.
#pragma once

#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {
struct Log;
struct ModuleName;
struct TensorImpl;
struct Storage;
class AutocastScope;
class OpWatcher;
class Tensor;

namespace detail {

/// In Tapir::runtime nothing is recorded, watched or traced: what does that is left out.
#ifdef TAPIR_RUNTIME
inline constexpr bool is_runtime = true;
#else
inline constexpr bool is_runtime = false;
#endif

/// How many there are: threads look while others come and go.
struct SharedCount {
    int value = 0;
    operator int() const noexcept { return __atomic_load_n(&value, __ATOMIC_RELAXED); }
    void add(int more) noexcept { __atomic_fetch_add(&value, more, __ATOMIC_RELAXED); }
};

/// Threads' outermost tapes that are alive in the process.
extern constinit SharedCount live_tapes;

/// Whether ops say what they have done.
struct Observed {
    bool here = false;     // to a log, or a watcher who is told
    bool is_apart = true;  // the thread has no tape, nor is recording paused: results may be missed on another thread's tape
    /// Whether another thread's tape is to know them: see note_elsewhere().
    bool elsewhere() const noexcept { return !is_runtime && live_tapes && is_apart; }
    operator bool() const noexcept { return here || elsewhere(); }
};

struct ThreadState {
    Log* log = nullptr;             // where ops are recorded; null when no tape is alive (or recording is paused)
    OpWatcher* watchers = nullptr;  // who is told of ops that have run; null when there are none
    bool muted = false;             // they are not told of what runs now: of what they call, and what rules call
    Observed observed;
    std::uint16_t trace = 0;            // not 0: a graph is made of what runs. Ops made of others run as those, backward rules too
    Loc caller;                         // line() == 0: ops name their own caller
    Device device;                      // where tensors are made that name none
    AutocastScope* autocast = nullptr;  // the innermost one that is on
    // The innermost nn::ModuleScope's, which records take down: whose it is, and which of the thread's calls of modules.
    const ModuleName* module = nullptr;
    std::uint32_t module_call = 0, module_calls = 0;
    // The op that the user called, where it is watched or on a device other than the CPU: what messages speak of.
    const char* op = nullptr;
    Loc op_loc;
    bool is_placed = true;  // LogPlacementScope has written its line
    int parts = 0;          // above 0: ops that begin are parts of that one
    // A result that the user's last call of a layer left undefined, since it was not asked for, and the line of that call, or a
    // grad() that is undefined, without a line: the next error about an undefined tensor asks whether it is this one.
    const char* left_out = nullptr;
    Loc left_out_at;
    double flops = 0;  // of products and convolutions, while ops are watched
};

// initial-exec: one load to reach it, also from a shared library.
extern constinit thread_local ThreadState thread __attribute__((tls_model("initial-exec")));

/// The line to speak of: the innermost CallerScope's, or else the op's own caller.
inline const Loc& caller(const Loc& own) noexcept { return thread.caller.line() ? thread.caller : own; }

/// Above 0: ops take the ways that say what they do (LogPlacementScope, watchers).
extern constinit SharedCount watching_ops;
/// Of these, those that write down where ops run.
extern constinit SharedCount logging_placement;
/// TAPIR_LOG_OPS is set.
extern constinit bool logging_ops;
void log_ops_of_thread();
/// And those that follow memory (MemoryProfiler).
extern constinit SharedCount watching_memory;
/// Tells the memory profiler of a new storage.
void note_memory(Storage* storage, const Loc& loc);
/// Tell the thread's watchers.
void tell_begin(const char* op, Device operand, const Loc& loc);
void tell_write(const Tensor& self);
void tell_failure() noexcept;
/// Before the program reads elements: what(), by name. While tracing only.
void tell_read(const char* what, const Tensor& x, const Loc& loc);

void begin_watched_op(const char* op, const TensorImpl* operand, const Loc& loc);
/// What is done while it lives counts as so many multiplications and additions, and as no others.
class FlopsOf {
 public:
    explicit FlopsOf(double flops) noexcept : flops_(thread.flops + flops) {}
    ~FlopsOf() { thread.flops = flops_; }
    FlopsOf(const FlopsOf&) = delete;
    FlopsOf& operator=(const FlopsOf&) = delete;

 private:
    double flops_;
};

/// From here on it is the thread's op, unless it is part of one.
inline void name_op(const char* op, const Loc& loc) noexcept {
    if (thread.parts > 0) return;
    thread.op = op;
    thread.op_loc = caller(loc);
    thread.is_placed = logging_placement == 0;
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

/// Ops are recorded there from now on; null: nowhere.
inline void set_log(ThreadState& of, Log* log) noexcept {
    of.log = log;
    of.observed.here = log || (of.watchers && !of.muted);
}
inline void set_log(Log* log) noexcept { set_log(thread, log); }

/// Whether this thread has watchers who are told.
inline bool is_watched() noexcept { return !is_runtime && thread.watchers && !thread.muted; }

inline bool is_tracing() noexcept { return !is_runtime && thread.trace != 0; }

/// To be called before the program reads elements.
inline void note_read(const char* what, const Tensor& x, const Loc& loc) {
    if (is_tracing() && is_watched()) [[unlikely]]
        tell_read(what, x, loc);
}

/// While it lives watchers are told of nothing; with false, they are again.
class Muted {
 public:
    explicit Muted(bool on) noexcept : was_(thread.muted) { set(on); }
    ~Muted() { set(was_); }
    Muted(const Muted&) = delete;
    Muted& operator=(const Muted&) = delete;

 private:
    static void set(bool on) noexcept {
        thread.muted = on;
        set_log(thread.log);
    }
    bool was_;
};

/// A graph is made of the ops that are called while it lives.
class TracingScope {
 public:
    /// number: of the trace, not 0.
    explicit TracingScope(std::uint16_t number) noexcept { thread.trace = number; }
    ~TracingScope() { thread.trace = 0; }
    TracingScope(const TracingScope&) = delete;
    TracingScope& operator=(const TracingScope&) = delete;
};

/// Nothing is recorded while it lives, and nobody is told.
class PauseRecording {
 public:
    PauseRecording() noexcept : paused_(thread.log), was_muted_(thread.muted), was_apart_(thread.observed.is_apart) {
        thread.log = nullptr;
        thread.muted = true;
        thread.observed = {false, false};
    }
    ~PauseRecording() {
        thread.muted = was_muted_;
        thread.observed.is_apart = was_apart_;
        set_log(paused_);  // watchers may have come and gone
    }
    PauseRecording(const PauseRecording&) = delete;
    PauseRecording& operator=(const PauseRecording&) = delete;

 private:
    Log* paused_;
    bool was_muted_, was_apart_;
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
