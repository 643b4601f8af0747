// What the functions that make tensors share.
#pragma once

#include <utility>

#include "tapir/core/make_impl.h"
#include "tapir/ops/make.h"

namespace tapir::detail {

[[noreturn]] void fail_gradient(const char* op, DType dtype, const Loc& loc);

/// Where to make it.
inline Device device_for(const TensorOptions& options) { return options.device.value_or(thread.device); }

/// The dtype to make. Before anything is made: throws DTypeError for integers that shall require a gradient.
inline DType dtype_for(const char* op, const TensorOptions& options, DType unless_given, const Loc& loc) {
    begin_op(op, device_for(options), loc);
    const DType dtype = options.dtype.value_or(unless_given);
    if (options.requires_grad && !is_floating(dtype)) [[unlikely]]
        fail_gradient(op, dtype, loc);
    return dtype;
}

/// What was made on the CPU, where the options want it.
inline Tensor moved_to(Tensor t, const TensorOptions& options, const Loc& loc) {
    const Device device = device_for(options);
    if (device == cpu) [[likely]]
        return t;
    const PauseRecording pause;
    return t.to(device, loc);
}

inline Tensor with_gradient(Tensor t, const TensorOptions& options, const Loc& loc) {
    if (options.requires_grad) [[unlikely]]
        t.requires_grad_(true, loc);
    return t;
}

}  // namespace tapir::detail
