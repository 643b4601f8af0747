// What an op passes to a kernel of a device.
#pragma once

#include "tapir/core/device_impl.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// The elements of a device's tensor for a kernel on the thread's current stream there: the device becomes the selected one,
/// and the memory is kept until that stream is through with it. Null for an undefined tensor.
template <class T = void>
T* on_stream(const Tensor& t) {
    if (!t.defined()) return nullptr;
    TensorImpl* impl = t.impl();
    device_api::select(impl->device);
    device_api::used_here(*impl->storage);
    return reinterpret_cast<T*>(impl->data);
}

}  // namespace tapir
