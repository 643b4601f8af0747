// What the rest of cuda/ asks about captures (core/capture_impl.h).
#pragma once

#include "tapir/core/capture_impl.h"
#include "tapir/cuda/context.h"

namespace tapir::gpu {

/// The pool that the thread's allocations come from, as it captures; null: it does not.
extern constinit thread_local device_api::CapturePool* capturing_into;
inline bool is_capturing() noexcept { return capturing_into != nullptr; }
/// As device_api::allocate, from the pool.
void allocate_captured(Storage& storage, const Loc& loc);

/// The thread's current stream of a device becomes another one; gives the one before. (context.cpp)
Stream* exchange_current(int device, Stream* stream) noexcept;

}  // namespace tapir::gpu
