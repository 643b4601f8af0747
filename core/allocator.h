// Memory: caching allocators with statistics.
//
// On the CPU, blocks up to 64 KiB come from free lists of the calling thread and cost a few nanoseconds; larger ones are kept in a
// pool that all threads share, because a fresh large block costs a page fault for every 4 KiB that is touched.
// Each CUDA device has its own: it takes memory from the device as needed, and keeps what tensors give back for the
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

/// Returns statistics of the CPU memory of all threads. Exact if no other thread allocates meanwhile.
MemoryStats memory_stats() noexcept;
void reset_peak_memory() noexcept;

/// Gives cached blocks larger than 64 KiB back to the system.
void empty_cache() noexcept;

// Overloads for any device. They throw DeviceError if it is not there.
MemoryStats memory_stats(Device device, Loc loc = Loc::current());
void reset_peak_memory(Device device, Loc loc = Loc::current());
void empty_cache(Device device, Loc loc = Loc::current());
/// Sets the most bytes that the allocator takes from a CUDA device; 0: no limit. Memory taken already stays until it is
/// given up. Asking for more throws OutOfMemory, after cached memory was given back.
void set_memory_limit(std::size_t bytes, Device device = cuda, Loc loc = Loc::current());

/// Sets the most bytes of large blocks that are kept for reuse (1 GiB until set).
void set_cache_limit(std::size_t bytes) noexcept;

namespace detail {

/// Every block begins at a multiple of this.
inline constexpr std::size_t kAlignment = 64;

/// Returns a block of at least `bytes`, or null if the system has none.
void* allocate(std::size_t bytes) noexcept;
/// `bytes` must be what allocate() was called with. Any thread may free.
void deallocate(void* block, std::size_t bytes) noexcept;

}  // namespace detail
}  // namespace tapir
