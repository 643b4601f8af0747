// Captures the work that a thread puts on a device, to run it again as one (cuda/capture.cpp: CUDA Graphs). Only in builds with CUDA.
//
// Captured work reads and writes memory at the addresses of the capture. So memory allocated meanwhile comes from a pool,
// which keeps it as long as the pool lives. Within the pool it is reused in the order of the captured work.
#pragma once

#include <cstddef>
#include <memory>

#include "tapir/core/device.h"
#include "tapir/core/storage.h"

namespace tapir::device_api {

/// Thrown by operations that cannot be captured: those that wait for the device, or copy from and to the host. Not a std::exception,
/// so that no handler takes it for an error.
struct CannotCapture {};

class CapturePool;
class CapturedWork;

std::shared_ptr<CapturePool> make_capture_pool(Device device);
/// Returns the bytes of memory that the pool took from the device.
std::size_t bytes_of(const CapturePool& pool) noexcept;

/// While it lives, the thread's work on the device is captured, not run. Throws DeviceError.
class CaptureScope {
 public:
    explicit CaptureScope(const std::shared_ptr<CapturePool>& pool);
    ~CaptureScope();
    CaptureScope(const CaptureScope&) = delete;
    CaptureScope& operator=(const CaptureScope&) = delete;
    /// Ends the capture. Returns null if it failed, because a call was not allowed in it or CUDA cannot make a graph of it, or is not worth it.
    std::shared_ptr<CapturedWork> end();

 private:
    struct State;
    std::unique_ptr<State> state_;
};

/// While it lives, the thread's memory on the pool's device comes from the pool, though nothing is captured.
class CapturePoolScope {
 public:
    explicit CapturePoolScope(CapturePool& pool);
    ~CapturePoolScope();
    CapturePoolScope(const CapturePoolScope&) = delete;
    CapturePoolScope& operator=(const CapturePoolScope&) = delete;
};

/// Puts the captured work on the thread's current stream of the device. Throws DeviceError.
void run_again(CapturedWork& work);
/// Notes that the thread's current stream uses the pool's memory.
void use_here(CapturePool& pool);
/// True if the bytes belong to a pool.
bool is_of_capture_pool(const Storage& storage) noexcept;
/// Throws CannotCapture if the thread is capturing.
void refuse_capture();

}  // namespace tapir::device_api
