// Interface between the core and the CUDA device: memory, copies, streams, events. Defined in cuda/; a build without it has
// core/no_cuda.cpp instead. Streams and events are passed as opaque pointers; a null stream never belongs to a device.
#pragma once

#include <cstddef>
#include <string>

#include "tapir/core/allocator.h"
#include "tapir/core/storage.h"
#include "tapir/core/thread_impl.h"

namespace tapir::device_api {

/// Return the number of devices and, if there is none, the reason.
int count() noexcept;
const char* problem() noexcept;
std::string name(int device);

/// Allocates storage.nbytes bytes (not 0) on storage.device, for use on the thread's current stream. Sets data, stream,
/// release and context. Throws OutOfMemory.
void allocate(Storage& storage, const Loc& loc);
/// Selects the device for the thread's CUDA calls.
void select(Device device);
/// Notes that the thread's current stream uses the bytes: they are not reused before that work is done.
void used_here(Storage& storage);

/// Makes later work on the thread's current stream wait for all work so far on other streams that used the
/// bytes. `wait`: the caller waits for it too, and its errors are thrown.
void after_other_streams(const Storage& storage, bool wait, const Loc& loc);

/// Allocates storage.nbytes bytes of page-locked host memory, as allocate() does.
void allocate_pinned(Storage& storage, const Loc& loc);
bool is_pinned(const Storage& storage) noexcept;
/// Notes that the device's current stream reads or writes them: they are kept until it is done.
void pinned_used(Storage& storage, Device device);

/// Puts a copy on the current stream of the device that is one of the two. Host memory that is not page-locked may be
/// written to again when it returns. `wait`: returns only when the bytes have arrived.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, bool wait);
/// True if kernels of the device can use this address of memory that others allocated.
bool can_use(Device device, const void* address);
/// Sets bytes to 0, on the current stream.
void zero(void* to, Device device, std::size_t bytes);
/// Launches `count` empty kernels on the current stream, and nothing else: the baseline for an op's time.
void launch_empty(Device device, int count);

void* new_stream(int device);
void* default_stream(int device);
void* current_stream(int device) noexcept;
void set_current_stream(void* stream) noexcept;
Device device_of(void* stream) noexcept;
void* native(void* stream) noexcept;
bool is_done(void* stream);
/// Waits, and throws errors that occurred meanwhile.
void wait(void* stream, const Loc& loc);
void wait_for_all(int device, const Loc& loc);
/// Makes work on `stream` wait for what is on `other` now.
void order_after(void* stream, void* other);

void* new_event(int device, bool timing);
void free_event(void* event) noexcept;
void record_event(void* event, void* stream);
void order_after_event(void* stream, void* event);
bool is_event_done(void* event);
void wait_event(void* event, const Loc& loc);
double milliseconds(void* begin, void* end);

/// Begins a named range of this thread's time, for Nsight (NVTX); ranges nest. The name is copied.
void begin_range(const char* name) noexcept;
void end_range() noexcept;

MemoryStats memory_stats(int device);
void reset_peak_memory(int device);
void empty_cache(int device);
void set_memory_limit(std::size_t bytes, int device);

}  // namespace tapir::device_api

namespace tapir::detail {

/// Throws DeviceError "op: cuda:0: ..." if the device is not there.
void check_device(const char* op, Device device, const Loc& loc);

/// Tells the thread's watchers of a copy that is made while it lives. Call is_queued() when the copy is on its stream.
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
