// What goes into layers with floating weights.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir::nn {

[[noreturn]] void fail_not_floating(const char* layer, const In& x);

/// Throws DTypeError for integers, with what to do about images of bytes and about indices.
inline void check_floating(const char* layer, const In& x) {
    if (x.tensor.defined() && !is_floating(x.tensor.dtype())) [[unlikely]]
        fail_not_floating(layer, x);
}

}  // namespace tapir::nn
