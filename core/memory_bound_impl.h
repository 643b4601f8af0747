// MemoryBound: for what is tried out, and would take more memory than it is worth.
#pragma once

#include <cstdint>

namespace tapir::detail {

/// While it lives, its thread gets no large blocks (above 64 KiB) of CPU memory where it would hold `bytes` more than now:
/// OutOfMemory. Of several the outermost counts, and those inside may ask for less.
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
