// Checks of the inputs and sizes of layers with floating weights.
#pragma once

#include "tapir/core/fail_impl.h"
#include "tapir/core/tensor.h"

namespace tapir::nn {

/// Limit for stacks. A larger number is a mistake, and building that many layers would fill the memory.
inline constexpr std::int64_t kMostLayers = 100'000;

/// Keeps multiples of hidden_size from overflowing. Throws ValueError and OutOfMemory.
inline void check_hidden(std::int64_t hidden, const Loc& loc) {
    if (hidden < 0) fail<ValueError>(loc, "a size must not be negative: hidden_size {}", hidden);
    if (hidden > std::int64_t{1} << 56) fail<OutOfMemory>(loc, "weights of hidden_size {} are larger than any memory", hidden);
}

[[noreturn]] void fail_not_floating(const char* layer, const In& x);

/// Throws DTypeError for integers; the message says what to do about images of bytes and about indices.
inline void check_floating(const char* layer, const In& x) {
    if (x.tensor.defined() && !is_floating(x.tensor.dtype())) [[unlikely]]
        fail_not_floating(layer, x);
}

}  // namespace tapir::nn
