// Connects others to a MemoryProfiler: the library reports to it, and the Profiler takes its data for traces and can pause it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapir/core/memory_profiler.h"

namespace tapir {
struct Storage;
}

namespace tapir::detail {

/// Tells the active memory profiler that this storage's bytes are freed; it may not know the storage.
void note_released(const Storage* storage) noexcept;

/// A group of changes that follow each other at once: the most bytes that lived meanwhile, and the bytes after them.
struct MemoryMoment {
    double time;  // seconds from the profiler's beginning
    std::int64_t most, bytes;
};
struct MemoryLine {
    std::vector<MemoryMoment> moments;
    std::int64_t peak;
    double end;  // above 0
};
/// "model.cpp:12 linear (in encoder)"
std::string made_by(const MemorySite& site);
/// Write the texts of MemoryProfiler::to_svg and export_timeline (memory_drawing.cpp).
std::string draw_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak, int rows);
std::string trace_of_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak);

/// Returns the live bytes of the active MemoryProfiler at each change between these two times, and at the last change before them if
/// there is one: (steady clock, in nanoseconds; bytes). Empty without a profiler.
std::vector<std::pair<std::int64_t, std::int64_t>> memory_timeline(std::int64_t begin, std::int64_t end);

/// While it lives, tensors that this thread makes are not tracked.
class PauseMemoryProfiler {
 public:
    PauseMemoryProfiler() noexcept;
    ~PauseMemoryProfiler();
    PauseMemoryProfiler(const PauseMemoryProfiler&) = delete;
    PauseMemoryProfiler& operator=(const PauseMemoryProfiler&) = delete;
};

}  // namespace tapir::detail
