// MemoryBound limits the memory of trial runs that would take more than they are worth.
#pragma once

#include <cstdint>

namespace tapir::detail {

/// While it lives, its thread gets no large blocks (above 64 KiB) of CPU memory if it would then hold `bytes` more than now:
/// OutOfMemory. The outermost of several counts; inner ones may set a smaller limit.
class MemoryBound {
 public:
    explicit MemoryBound(std::int64_t bytes) noexcept;
    ~MemoryBound();
    MemoryBound(const MemoryBound&) = delete;
    MemoryBound& operator=(const MemoryBound&) = delete;

 private:
    std::int64_t before_;
};

}  // namespace tapir::detail
