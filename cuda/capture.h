// Capture functions for the rest of cuda/ (core/capture_impl.h).
#pragma once

#include <vector>

#include "tapir/core/capture_impl.h"
#include "tapir/cuda/context.h"

namespace tapir::gpu {

/// The pool that a capturing thread allocates from; null if the thread does not capture.
extern constinit thread_local device_api::CapturePool* capturing_into;
inline bool is_capturing() noexcept { return capturing_into != nullptr; }
/// Like device_api::allocate, but takes the memory from the pool.
void allocate_captured(Storage& storage, const Loc& loc);

/// Returns the numbers of the kept slots of the device to which the ops captured so far report faults.
std::vector<int>& captured_faults() noexcept;
/// Notes that the work with these slots was put on the stream. (context.cpp)
void kept_slots_run(Stream& stream, const std::vector<int>& slots);
void give_kept_slots_back(int device, const std::vector<int>& slots) noexcept;

/// Replaces the thread's current stream of a device; returns the previous one. (context.cpp)
Stream* exchange_current(int device, Stream* stream) noexcept;

}  // namespace tapir::gpu
