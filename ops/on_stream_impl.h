// What an op passes to a kernel of a device.
#pragma once

#include "tapir/core/device_impl.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// The elements of a device's tensor for a kernel on the thread's current stream there: the device becomes the selected one,
/// and the memory is kept until that stream is through with it.
inline std::byte* on_stream(const TensorImpl* t) {
    device_api::select(t->device);
    device_api::used_here(*t->storage);
    return t->data;
}
/// The same; null for an undefined tensor.
template <class T = void>
T* on_stream(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(on_stream(t.impl())) : nullptr;
}

}  // namespace tapir
