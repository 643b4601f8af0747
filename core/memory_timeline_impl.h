// What others tell a MemoryProfiler, and what the Profiler wants of one: what it has seen, for traces, and to be left alone.
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

/// Tells the memory profiler that lives that this storage's bytes are given back; it may not have been told of the storage.
void note_released(const Storage* storage) noexcept;

/// Changes that follow each other at once are one: the most that lived meanwhile, and what did after them.
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
/// MemoryProfiler::to_svg and what export_timeline writes (memory_drawing.cpp).
std::string draw_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak, int rows);
std::string trace_of_memory(const MemoryLine& line, const std::vector<MemorySite>& at_peak);

/// The live bytes of the MemoryProfiler that lives, each time that they changed between these two times, and before the first where
/// there is one: (steady clock, in nanoseconds; bytes). Empty without one.
std::vector<std::pair<std::int64_t, std::int64_t>> memory_timeline(std::int64_t begin, std::int64_t end);

/// Tensors that this thread makes while it lives are not followed.
class PauseMemoryProfiler {
 public:
    PauseMemoryProfiler() noexcept;
    ~PauseMemoryProfiler();
    PauseMemoryProfiler(const PauseMemoryProfiler&) = delete;
    PauseMemoryProfiler& operator=(const PauseMemoryProfiler&) = delete;
};

}  // namespace tapir::detail
