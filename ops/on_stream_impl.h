// Functions that turn an op's tensors into a device kernel's arguments.
#pragma once

#include "tapir/core/device_impl.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// Returns the elements of a device's tensor for a kernel on the thread's current stream there: the device becomes the selected one,
/// and the memory is kept until that stream is done with it.
inline std::byte* on_stream(const TensorImpl* t) {
    device_api::select(t->device);
    device_api::used_here(*t->storage);
    return t->data;
}
/// Overload for a Tensor; null for an undefined one.
template <class T = void>
T* on_stream(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(on_stream(t.impl())) : nullptr;
}

/// Returns the elements of a tensor for a kernel where the tensor is, the CPU's or a GPU's; see TAPIR_LAUNCH.
inline std::byte* kernel_data(const TensorImpl* t) { return on_gpu(t) ? on_stream(t) : t->data; }
/// Overload for a Tensor; null for an undefined one.
template <class T = void>
T* kernel_data(const Tensor& t) {
    return t.defined() ? reinterpret_cast<T*>(kernel_data(t.impl())) : nullptr;
}

}  // namespace tapir
