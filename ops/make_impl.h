// What the functions that make tensors share.
#pragma once

#include <utility>

#include "tapir/ops/make.h"

namespace tapir::detail {

[[noreturn]] void fail_options(const char* op, const TensorOptions& options, const Loc& loc);

/// Before anything is made: throws DTypeError for integers that shall require a gradient.
inline void check_options(const char* op, const TensorOptions& options, const Loc& loc) {
    if (options.requires_grad && !is_floating(options.dtype)) [[unlikely]]
        fail_options(op, options, loc);
}

inline Tensor with_gradient(Tensor t, const TensorOptions& options, const Loc& loc) {
    if (options.requires_grad) [[unlikely]]
        t.requires_grad_(true, loc);
    return t;
}

}  // namespace tapir::detail
