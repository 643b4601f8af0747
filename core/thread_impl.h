// State of the thread that every op reads: which tape records, and which caller a composite op names.
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

/// Tapir::runtime records, watches and traces nothing: the code that does so is left out.
#ifdef TAPIR_RUNTIME
inline constexpr bool is_runtime = true;
#else
inline constexpr bool is_runtime = false;
#endif

/// A count that threads read while others change it.
struct SharedCount {
    int value = 0;
    operator int() const noexcept { return __atomic_load_n(&value, __ATOMIC_RELAXED); }
    void add(int more) noexcept { __atomic_fetch_add(&value, more, __ATOMIC_RELAXED); }
};

/// Number of threads' outermost tapes that are alive in the process.
extern constinit SharedCount live_tapes;

/// Tells whether ops must report what they did.
struct Observed {
    bool here = false;     // to a log, or to a watcher that is not muted
    bool is_apart = true;  // the thread has no tape, and recording is not paused: another thread's tape may need to know the results
    /// True if another thread's tape must know them: see note_elsewhere().
    bool elsewhere() const noexcept { return !is_runtime && live_tapes && is_apart; }
    operator bool() const noexcept { return here || elsewhere(); }
};

struct ThreadState {
    Log* log = nullptr;             // where ops are recorded; null when no tape is alive (or recording is paused)
    OpWatcher* watchers = nullptr;  // told of ops that have run; null when there are none
    bool muted = false;             // watchers are not told of what runs now: of their own calls, and of calls by rules
    Observed observed;
    std::uint16_t trace = 0;            // not 0: a graph is made of what runs. Composite ops are traced as their parts, backward rules too
    Loc caller;                         // line() == 0: ops name their own caller
    Device device;                      // device of tensors that name none
    AutocastScope* autocast = nullptr;  // the innermost one that is active
    // Module of the innermost nn::ModuleScope, for records: its name, and the number of this call among the thread's calls of modules.
    const ModuleName* module = nullptr;
    std::uint32_t module_call = 0, module_calls = 0;
    // The op that the user called, which messages name. Set only if it is watched or on a device other than the CPU.
    const char* op = nullptr;
    Loc op_loc;
    bool is_placed = true;  // LogPlacementScope has written its line
    int parts = 0;          // above 0: ops that begin are parts of that one
    // The result that the user's last layer call left undefined, because it was not asked for, with the line of that call; or an
    // undefined grad(), without a line. The next error about an undefined tensor checks if it is this one.
    const char* left_out = nullptr;
    Loc left_out_at;
    double flops = 0;  // of products and convolutions, while ops are watched
};

// initial-exec: one load to reach it, also from a shared library.
extern constinit thread_local ThreadState thread __attribute__((tls_model("initial-exec")));

/// Returns the line to name: the innermost CallerScope's, or else the op's own caller.
inline const Loc& caller(const Loc& own) noexcept { return thread.caller.line() ? thread.caller : own; }

/// Above 0: ops take the paths that report what they do (LogPlacementScope, watchers).
extern constinit SharedCount watching_ops;
/// What each batch() that runs adds to it, so that ops look whether they are in an instance. It is told of nothing.
inline constexpr int kBatchRuns = 1 << 16;
inline bool are_ops_watched() noexcept { return (watching_ops & (kBatchRuns - 1)) != 0; }
/// Of these, the number that log where ops run.
extern constinit SharedCount logging_placement;
/// TAPIR_LOG_OPS is set.
extern constinit bool logging_ops;
void log_ops_of_thread();
/// Of these, the number that track memory (MemoryProfiler).
extern constinit SharedCount watching_memory;
/// Tells the memory profiler of a new storage.
void note_memory(Storage* storage, const Loc& loc);
/// Tell the thread's watchers.
void tell_begin(const char* op, Device operand, const Loc& loc);
void tell_write(const Tensor& self);
void tell_failure() noexcept;
/// Tells of a read of elements, by what(), before it happens. Only while tracing.
void tell_read(const char* what, const Tensor& x, const Loc& loc);

void begin_watched_op(const char* op, const TensorImpl* operand, const Loc& loc);
/// While it lives, all work counts as this many multiplications and additions, and as no others.
class FlopsOf {
 public:
    explicit FlopsOf(double flops) noexcept : flops_(thread.flops + flops) {}
    ~FlopsOf() { thread.flops = flops_; }
    FlopsOf(const FlopsOf&) = delete;
    FlopsOf& operator=(const FlopsOf&) = delete;

 private:
    double flops_;
};

/// Makes this the thread's op, unless it is part of one.
inline void name_op(const char* op, const Loc& loc) noexcept {
    if (thread.parts > 0) return;
    thread.op = op;
    thread.op_loc = caller(loc);
    thread.is_placed = logging_placement == 0;
}
/// Writes the line of the op that was begun, at its first result.
void log_placement(const TensorImpl* result);

/// Restores the thread's module at its end.
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

/// Records ops there from now on; null: nowhere.
inline void set_log(ThreadState& of, Log* log) noexcept {
    of.log = log;
    of.observed.here = log || (of.watchers && !of.muted);
}
inline void set_log(Log* log) noexcept { set_log(thread, log); }

/// True if this thread has watchers that are not muted.
inline bool is_watched() noexcept { return !is_runtime && thread.watchers && !thread.muted; }

inline bool is_tracing() noexcept { return !is_runtime && thread.trace != 0; }

/// Must be called before the program reads elements.
inline void note_read(const char* what, const Tensor& x, const Loc& loc) {
    if (is_tracing() && is_watched()) [[unlikely]]
        tell_read(what, x, loc);
}

/// Mutes watchers while it lives; with false, it unmutes them.
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

/// While it lives, called ops are traced for a graph.
class TracingScope {
 public:
    /// `number` is the trace's, not 0.
    explicit TracingScope(std::uint16_t number) noexcept { thread.trace = number; }
    ~TracingScope() { thread.trace = 0; }
    TracingScope(const TracingScope&) = delete;
    TracingScope& operator=(const TracingScope&) = delete;
};

/// While it lives nothing is recorded, and no watcher is told.
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

/// While it lives no AutocastScope is active.
class PauseAutocast {
 public:
    PauseAutocast() noexcept : paused_(thread.autocast) { thread.autocast = nullptr; }
    ~PauseAutocast() { thread.autocast = paused_; }
    PauseAutocast(const PauseAutocast&) = delete;
    PauseAutocast& operator=(const PauseAutocast&) = delete;

 private:
    AutocastScope* paused_;
};

/// While it lives, called ops are parts of the op that has begun: messages name that one.
class PartsOfOp {
 public:
    PartsOfOp() noexcept { ++thread.parts; }
    ~PartsOfOp() { --thread.parts; }
    PartsOfOp(const PartsOfOp&) = delete;
    PartsOfOp& operator=(const PartsOfOp&) = delete;
};

/// For an op whose parts are recorded in its place. They name its caller.
class RecordedParts {
 public:
    explicit RecordedParts(const Loc& loc) noexcept : caller_(loc) {}

 private:
    CallerScope caller_;
    PartsOfOp parts_;
};

/// For parts that are not recorded, because the op itself is.
class UnrecordedParts {
    PauseRecording pause_;
    PartsOfOp parts_;
};

}  // namespace detail
}  // namespace tapir
