// Makes parameters.
#pragma once

#include "tapir/core/make_impl.h"
#include "tapir/core/stream.h"
#include "tapir/core/thread_impl.h"
#include "tapir/nn/init.h"

namespace tapir::nn {

/// Returns a leaf of the default dtype on the default device, with uninitialized elements.
inline Tensor empty_parameter(const Shape& shape, const Loc& loc) {
    Tensor made = tapir::detail::make_empty(shape, default_dtype(), default_device(), loc);
    return made.requires_grad_(true, loc);
}

/// Returns a leaf that is uniform on [-bound, bound].
inline Tensor uniform_parameter(const Shape& shape, double bound, const Loc& loc) {
    return init::uniform_(empty_parameter(shape, loc), -bound, bound, loc);
}

}  // namespace tapir::nn
