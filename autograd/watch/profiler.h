// Where a program's time goes: by op, by the user's line, by module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/error.h"

namespace tapir {

/// How Profiler's tables are grouped and sorted.
struct ProfileTable {
    enum class By : std::uint8_t { op, line, module };
    enum class Sort : std::uint8_t { self_time, total_time, calls, flops, bytes };
    By by = By::op;
    Sort sort = Sort::self_time;
    int rows = 20;  ///< the others are summed up in one
};

/// What a group of events took. Of times on a device see device_seconds.
struct ProfileRow {
    std::string name;  ///< "matmul", "matmul backward", "tree.cpp:42 matmul", "encoder.cell"
    std::int64_t calls = 0;
    double total_seconds = 0;   ///< with what ran inside
    double self_seconds = 0;    ///< without
    double device_seconds = 0;  ///< between CUDA events on the op's stream; 0 on the CPU
    int device = -1;            ///< the CUDA device that these were on
    double flops = 0;           ///< of products and convolutions exact (of scopes: those inside), of other ops one per element
    double bytes = 0;           ///< of all inputs and outputs, each once
};

/// While it lives (or until stop()), this thread's ops and backward rules are timed, and what other threads do in ProfileScopes,
/// as the workers of DataLoaders do. Scopes of the library's own: "backward", "SGD.step" (ops: "sgd") and so on, "clip_grad_norm_",
/// "DataLoader: wait" in the loop, "DataLoader: batch", "... sample" and "... collate" where batches are made, "weight gradients"
/// where products that rules have left for later are computed together.
///
///     Profiler profiler;
///     train_step();
///     profiler.stop();
///     profiler.print();                             // by op; print({ProfileTable::By::line}) by line
///     profiler.export_chrome_trace("trace.json");   // for ui.perfetto.dev or chrome://tracing
///
/// On CUDA ops and copies are marked with events on their streams, and ops, rules and scopes with NVTX ranges for Nsight. One at a
/// time: a second one throws ValueError. An op costs 30 to 60 ns more, without a Profiler nothing (bench/profiler_cost.cpp).
class Profiler {
 public:
    [[nodiscard]] explicit Profiler(Loc loc = Loc::current());
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    /// Ends the measurement; waits for devices. Called again it does nothing. ValueError on another thread, while its own lives.
    void stop(Loc loc = Loc::current());
    /// The groups, the largest first. Like all below, throws ValueError before stop().
    std::vector<ProfileRow> rows(ProfileTable::By by = ProfileTable::By::op, ProfileTable::Sort sort = ProfileTable::Sort::self_time,
                                 Loc loc = Loc::current()) const;
    /// A table for the screen. The last column is the share of this machine's peak that was reached, of its arithmetic or of its
    /// memory's bandwidth (above 100% from caches), whichever is more. The first call measures the peaks, the best of 0.3 s of
    /// products and of copies; that of arithmetic is at least what an op here has reached. On CUDA they are the device's.
    std::string table(ProfileTable table = {}, Loc loc = Loc::current()) const;
    /// Writes the table to stdout.
    void print(ProfileTable table = {}, Loc loc = Loc::current()) const;
    /// A trace in Chrome's JSON format: this thread with its scopes, modules, ops (their shapes and lines) and rules, an arrow from
    /// each op to its rule; other threads' scopes; each CUDA stream; and where a MemoryProfiler lives at stop(), the bytes over
    /// time. Threads have the names of pthread_setname_np(). Throws FileError.
    void export_chrome_trace(const TextArg& path, Loc loc = Loc::current()) const;
    /// From its making to stop().
    double seconds(Loc loc = Loc::current()) const;

    class Data;

 private:
    Data* data_;
};

/// A part of the program with a name of its own in profiles: PyTorch's record_function. On any thread; costs a few nanoseconds
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
    std::int64_t inside_ = 0;  // on other threads: what ended before it inside of the scope around it
    std::uint64_t run_ = 0;    // of the profiler that it began under; 0: none
};

namespace detail {
/// Whether a Profiler is running: for names of scopes that are put together.
bool is_profiling() noexcept;
}  // namespace detail

}  // namespace tapir
