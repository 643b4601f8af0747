// Reports who holds memory: tensors by the lines that made them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {

/// Tensors that one line has made with one op.
struct MemorySite {
    std::string place;   ///< "tree.cpp:42"
    std::string op;      ///< "matmul"; "" if no op is known
    std::string module;  ///< the path of the module that the op ran for, or ""
    std::int64_t tensors = 0;
    std::int64_t bytes = 0;
};

/// While it lives, it tracks each storage that any thread makes: which line made it, and when it is freed. Views share a storage and
/// are not counted.
///
///     MemoryProfiler memory;
///     train_step();                        // what stays after the first step stays for good: parameters, optimizer state
///     const auto before = memory.now();
///     train_step();
///     std::cout << memory.table();         // what lives now, and what lived at the peak
///     std::cout << memory.leaks(before);   // what was made since `before` and still lives
///     std::ofstream("memory.svg") << memory.to_svg();   // the bytes over time, and what the peak was made of
///
/// It counts the bytes of tensors, not what the allocators keep for later (memory_stats()). A Profiler that stops while it lives has
/// the bytes in its trace. Tensors made before it began are not counted. Costs 0.1 us per tensor. Throws ValueError for a second one.
class MemoryProfiler {
 public:
    [[nodiscard]] explicit MemoryProfiler(Loc loc = Loc::current());
    ~MemoryProfiler();
    MemoryProfiler(const MemoryProfiler&) = delete;
    MemoryProfiler& operator=(const MemoryProfiler&) = delete;

    /// A point in time, for since().
    using Point = std::uint64_t;
    Point now() const;

    std::int64_t live_bytes() const;
    std::int64_t peak_bytes() const;
    /// Returns the tensors that live now, the largest site first.
    std::vector<MemorySite> live() const;
    /// Returns the tensors that lived when the most bytes did.
    std::vector<MemorySite> at_peak() const;
    /// Returns the tensors that were made since then and live now.
    std::vector<MemorySite> since(Point point) const;

    /// Formats live() and at_peak() for the screen.
    std::string table(int rows = 15) const;
    /// Formats since() for the screen, or says "nothing made since then is left".
    std::string leaks(Point since, int rows = 15) const;
    /// Draws the bytes over time, with the peak and the largest sites at it.
    std::string to_svg(int rows = 8) const;
    /// Writes the bytes over time as a trace in Chrome's JSON format. Throws FileError.
    void export_timeline(const TextArg& path, Loc loc = Loc::current()) const;

    class Data;

 private:
    Data* data_;
};

}  // namespace tapir
