// Capturing what a thread puts on a device, to be run again as one (cuda/capture.cpp: CUDA Graphs). Only in builds with CUDA.
//
// What is captured reads and writes memory at the addresses that it was captured with. So memory that is taken meanwhile comes from a pool,
// which keeps it as long as the pool lives; within the pool it is used again in the order of the captured work.
#pragma once

#include <cstddef>
#include <memory>

#include "tapir/core/device.h"
#include "tapir/core/storage.h"

namespace tapir::device_api {

/// Thrown by what cannot be captured: what waits for the device, or copies from and to the host. No std::exception, so that
/// nobody takes it for an error.
struct CannotCapture {};

class CapturePool;
class CapturedWork;

std::shared_ptr<CapturePool> make_capture_pool(Device device);
/// Of memory that the pool took from the device.
std::size_t bytes_of(const CapturePool& pool) noexcept;

/// While it lives what the thread does on the device is captured, and not done. Throws DeviceError.
class CaptureScope {
 public:
    explicit CaptureScope(const std::shared_ptr<CapturePool>& pool);
    ~CaptureScope();
    CaptureScope(const CaptureScope&) = delete;
    CaptureScope& operator=(const CaptureScope&) = delete;
    /// Ends it. Null: it came to nothing, as a call was not allowed in it or CUDA cannot make a graph of it; or it is not worth it.
    std::shared_ptr<CapturedWork> end();

 private:
    struct State;
    std::unique_ptr<State> state_;
};

/// While it lives the thread's memory on the pool's device comes from the pool, though nothing is captured.
class CapturePoolScope {
 public:
    explicit CapturePoolScope(CapturePool& pool);
    ~CapturePoolScope();
    CapturePoolScope(const CapturePoolScope&) = delete;
    CapturePoolScope& operator=(const CapturePoolScope&) = delete;
};

/// Puts what was captured on the thread's current stream of the device. Throws DeviceError.
void run_again(CapturedWork& work);
/// Notes that the thread's current stream uses the pool's memory.
void use_here(CapturePool& pool);
/// Whether the bytes belong to a pool.
bool is_of_capture_pool(const Storage& storage) noexcept;
/// Throws CannotCapture where the thread captures.
void refuse_capture();

}  // namespace tapir::device_api
