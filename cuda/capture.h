// What the rest of cuda/ asks about captures (core/capture_impl.h).
#pragma once

#include <vector>

#include "tapir/core/capture_impl.h"
#include "tapir/cuda/context.h"

namespace tapir::gpu {

/// The pool that the thread's allocations come from, as it captures; null: it does not.
extern constinit thread_local device_api::CapturePool* capturing_into;
inline bool is_capturing() noexcept { return capturing_into != nullptr; }
/// As device_api::allocate, from the pool.
void allocate_captured(Storage& storage, const Loc& loc);

/// Slots that the ops captured so far report faults to: numbers, of the device's kept ones.
std::vector<int>& captured_faults() noexcept;
/// The work with these slots was put on the stream. (context.cpp)
void kept_slots_run(Stream& stream, const std::vector<int>& slots);
void give_kept_slots_back(int device, const std::vector<int>& slots) noexcept;

/// The thread's current stream of a device becomes another one; gives the one before. (context.cpp)
Stream* exchange_current(int device, Stream* stream) noexcept;

}  // namespace tapir::gpu
