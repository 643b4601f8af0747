// Memory: caching allocators with statistics.
//
// On the CPU, blocks up to 64 KiB come from free lists of the calling thread and cost a few nanoseconds; larger ones are kept in a
// pool that all threads share, because a fresh large block costs a page fault for every 4 KiB that is touched.
// CUDA devices have one each: memory is taken from the device as it is needed, and what tensors give back is kept for the
// next ones, in the order of the streams that use it (cuda/allocator.cpp).
//
// The environment variable TAPIR_ALLOCATOR=system turns caching off (for valgrind); address-sanitizer builds do too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {

struct MemoryStats {
    std::int64_t live_bytes = 0;    ///< bytes in blocks handed out
    std::int64_t peak_bytes = 0;    ///< the highest live_bytes since the last reset (CPU: of each thread, summed)
    std::int64_t cached_bytes = 0;  ///< bytes kept for reuse
    std::int64_t allocations = 0;   ///< blocks handed out so far
    std::int64_t system_calls = 0;  ///< blocks or slabs taken from the system so far
};

/// CPU memory of all threads. Exact when no other thread allocates meanwhile.
MemoryStats memory_stats() noexcept;
void reset_peak_memory() noexcept;

/// Gives cached blocks larger than 64 KiB back to the system.
void empty_cache() noexcept;

// The same of any device. They throw DeviceError when it is not there.
MemoryStats memory_stats(Device device, Loc loc = Loc::current());
void reset_peak_memory(Device device, Loc loc = Loc::current());
void empty_cache(Device device, Loc loc = Loc::current());
/// How many bytes the allocator takes from a CUDA device at most; 0: as many as there are. What is taken already stays until
/// it is given up; asking for more throws OutOfMemory, after what is cached was given back.
void set_memory_limit(std::size_t bytes, Device device = cuda, Loc loc = Loc::current());

/// How many bytes of large blocks are kept for reuse at most (1 GiB until set).
void set_cache_limit(std::size_t bytes) noexcept;

namespace detail {

/// Every block begins at a multiple of this.
inline constexpr std::size_t kAlignment = 64;

/// A block of at least `bytes`, or null when the system has none.
void* allocate(std::size_t bytes) noexcept;
/// `bytes` must be what allocate() was called with. Any thread may free.
void deallocate(void* block, std::size_t bytes) noexcept;

}  // namespace detail
}  // namespace tapir
