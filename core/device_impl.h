// What the core asks of the CUDA device: memory, copies, streams, events. Defined in cuda/; a build without it has
// core/no_cuda.cpp instead. Streams and events are passed as opaque pointers; a null stream is never one of the device's.
#pragma once

#include <cstddef>
#include <string>

#include "tapir/core/allocator.h"
#include "tapir/core/storage.h"
#include "tapir/core/thread_impl.h"

namespace tapir::device_api {

/// How many devices there are, and where there is none, why.
int count() noexcept;
const char* problem() noexcept;
std::string name(int device);

/// Memory for storage.nbytes bytes (not 0) on storage.device, to be used on the thread's current stream. Sets data, stream,
/// release and context. Throws OutOfMemory.
void allocate(Storage& storage, const Loc& loc);
/// The device becomes the one that the thread's CUDA calls go to.
void select(Device device);
/// Notes that the bytes are used on the thread's current stream: they are not given to others before that is done.
void used_here(Storage& storage);

/// What comes next on the thread's current stream comes after everything that other streams were given which the bytes were
/// used on. `wait`: the caller waits for these, and errors of theirs are thrown.
void after_other_streams(const Storage& storage, bool wait, const Loc& loc);

/// Page-locked host memory for storage.nbytes bytes: as allocate().
void allocate_pinned(Storage& storage, const Loc& loc);
bool is_pinned(const Storage& storage) noexcept;
/// Notes that the device's current stream reads or writes them: they are kept until it is through.
void pinned_used(Storage& storage, Device device);

/// Puts a copy on the current stream of the device that is one of the two. Host memory that is not page-locked may be
/// written to again when it returns. `wait`: returns when the bytes are there.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, bool wait);
/// Whether kernels of the device can use this address of memory that somebody else allocated.
bool can_use(Device device, const void* address);
/// Sets bytes to 0, on the current stream.
void zero(void* to, Device device, std::size_t bytes);
/// Launches `count` kernels that do nothing, on the current stream, and nothing else: what an op's time is measured against.
void launch_empty(Device device, int count);

void* new_stream(int device);
void* default_stream(int device);
void* current_stream(int device) noexcept;
void set_current_stream(void* stream) noexcept;
Device device_of(void* stream) noexcept;
void* native(void* stream) noexcept;
bool is_done(void* stream);
/// Waits, and throws what went wrong meanwhile.
void wait(void* stream, const Loc& loc);
void wait_for_all(int device, const Loc& loc);
/// Work on `stream` waits for what is on `other` now.
void order_after(void* stream, void* other);

void* new_event(int device, bool timing);
void free_event(void* event) noexcept;
void record_event(void* event, void* stream);
void order_after_event(void* stream, void* event);
bool is_event_done(void* event);
void wait_event(void* event, const Loc& loc);
double milliseconds(void* begin, void* end);

/// A range of this thread's time with a name, for Nsight (NVTX); ranges nest. The name is copied.
void begin_range(const char* name) noexcept;
void end_range() noexcept;

MemoryStats memory_stats(int device);
void reset_peak_memory(int device);
void empty_cache(int device);
void set_memory_limit(std::size_t bytes, int device);

}  // namespace tapir::device_api

namespace tapir::detail {

/// Throws DeviceError "op: cuda:0: ..." when the device is not there.
void check_device(const char* op, Device device, const Loc& loc);

/// Tells the thread's watchers of a copy that is made while it lives; is_queued() when it is on its stream.
class CopyTold {
 public:
    CopyTold(Device to, Device from, std::size_t bytes);
    ~CopyTold();
    CopyTold(const CopyTold&) = delete;
    CopyTold& operator=(const CopyTold&) = delete;
    void is_queued();

 private:
    bool is_told_;
};

}  // namespace tapir::detail
