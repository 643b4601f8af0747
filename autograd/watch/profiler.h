// Profiles a program: time by op, by the user's line, by module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/error.h"

namespace tapir {

/// Grouping and sorting of Profiler's tables.
struct ProfileTable {
    enum class By : std::uint8_t { op, line, module };
    enum class Sort : std::uint8_t { self_time, total_time, calls, flops, bytes };
    By by = By::op;
    Sort sort = Sort::self_time;
    int rows = 20;  ///< the other rows are summed up in one
};

/// Totals of a group of events. For times on a device see device_seconds.
struct ProfileRow {
    std::string name;  ///< "matmul", "matmul backward", "tree.cpp:42 matmul", "encoder.cell"
    std::int64_t calls = 0;
    double total_seconds = 0;   ///< including events inside
    double self_seconds = 0;    ///< excluding them
    double device_seconds = 0;  ///< between CUDA events on the op's stream; 0 on the CPU
    int device = -1;            ///< the CUDA device of device_seconds
    double flops = 0;           ///< exact for products and convolutions (for scopes: of those inside); one per element for other ops
    double bytes = 0;           ///< all inputs and outputs, each once
};

/// Totals of calls to other ranks (nn/parallel), which a thread beside the program makes. With ranks that are threads: of all of them.
struct CommunicationRow {
    std::string name;  ///< "all_reduce", or "train.cpp:42 all_reduce"
    std::int64_t calls = 0;
    double bytes = 0;            ///< of what this rank gives; of recv(), what it gets
    double waiting_seconds = 0;  ///< until all ranks had come to the call; of recv(), until the message was there
    double sending_seconds = 0;  ///< after that
    double hidden_seconds = 0;   ///< of both, while the program did not wait for calls, but computed
};

/// While it lives (or until stop()), it times this thread's ops and backward rules, and the ProfileScopes of other threads, like those
/// of DataLoader workers. The library's own scopes: "backward", "SGD.step" (ops: "sgd") and so on, "clip_grad_norm_",
/// "DataLoader: wait" in the loop, "DataLoader: batch", "... sample" and "... collate" for making batches, "weight gradients"
/// for products that rules have left for later and that are computed together, "Replicas: wait" for gradients that still travel
/// when backward() has computed them.
///
///     Profiler profiler;
///     train_step();
///     profiler.stop();
///     profiler.print();                             // by op; print({ProfileTable::By::line}) by line
///     profiler.export_chrome_trace("trace.json");   // for ui.perfetto.dev or chrome://tracing
///
/// On CUDA, ops and copies are marked with events on their streams, and ops, rules and scopes with NVTX ranges for Nsight. Only one
/// may live: a second one throws ValueError. It costs 30 to 60 ns per op; without a Profiler nothing (bench/profiler_cost.cpp).
class Profiler {
 public:
    [[nodiscard]] explicit Profiler(Loc loc = Loc::current());
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    /// Ends the measurement; waits for devices. Later calls do nothing. Throws ValueError on another thread, while its own lives.
    void stop(Loc loc = Loc::current());
    /// The groups, the largest first. Like all functions below, throws ValueError before stop().
    std::vector<ProfileRow> rows(ProfileTable::By by = ProfileTable::By::op, ProfileTable::Sort sort = ProfileTable::Sort::self_time,
                                 Loc loc = Loc::current()) const;
    /// Calls to other ranks, those that took the longest first. Grouped by op or line; by module: by op.
    std::vector<CommunicationRow> communication(ProfileTable::By by = ProfileTable::By::op, Loc loc = Loc::current()) const;
    /// A table for the screen, and a second one of calls to other ranks where there were any. The last column is the share of this machine's peak, of arithmetic or of memory bandwidth
    /// (above 100% from caches), whichever is larger. The first call measures the peaks: the best of 0.3 s of
    /// products and of copies; the peak of arithmetic is at least the best of the ops here. On CUDA they are the device's.
    std::string table(ProfileTable table = {}, Loc loc = Loc::current()) const;
    /// Writes the table to stdout.
    void print(ProfileTable table = {}, Loc loc = Loc::current()) const;
    /// A trace in Chrome's JSON format: this thread with its scopes, modules, ops (their shapes and lines) and rules, an arrow from
    /// each op to its rule; other threads' scopes; calls to other ranks (what they waited, what was hidden); each CUDA stream; and where a MemoryProfiler lives at stop(), the bytes over
    /// time. Threads have their names from pthread_setname_np(). Throws FileError.
    void export_chrome_trace(const TextArg& path, Loc loc = Loc::current()) const;
    /// The time from construction to stop().
    double seconds(Loc loc = Loc::current()) const;

    class Data;

 private:
    Data* data_;
};

/// A named part of the program in profiles, like PyTorch's record_function. On any thread; costs a few nanoseconds
/// without a Profiler.
///     ProfileScope scope("evaluate");
class ProfileScope {
 public:
    /// `name` must outlive the profiler: a literal. Throws ValueError for a null pointer.
    [[nodiscard]] explicit ProfileScope(const char* name, Loc loc = Loc::current());
    ~ProfileScope();
    ProfileScope(const ProfileScope&) = delete;
    ProfileScope& operator=(const ProfileScope&) = delete;

 private:
    const char* name_;
    Loc loc_;
    std::int64_t begin_ = 0;
    std::int64_t inside_ = 0;  // on other threads: the time of scopes that ended before it inside the scope around it
    std::uint64_t run_ = 0;    // the profiler that it began under; 0: none
};

namespace detail {
/// True if a Profiler is running: for scope names that must be composed.
bool is_profiling() noexcept;
}  // namespace detail

}  // namespace tapir
