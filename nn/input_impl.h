// What goes into layers with floating weights, and what they are made with.
#pragma once

#include "tapir/core/fail_impl.h"
#include "tapir/core/tensor.h"

namespace tapir::nn {

/// Of stacks: a number beyond it is a mistake, for which layer after layer would fill the memory.
inline constexpr std::int64_t kMostLayers = 100'000;

/// So that some times hidden_size does not overflow. Throws ValueError and OutOfMemory.
inline void check_hidden(std::int64_t hidden, const Loc& loc) {
    if (hidden < 0) fail<ValueError>(loc, "a size must not be negative: hidden_size {}", hidden);
    if (hidden > std::int64_t{1} << 56) fail<OutOfMemory>(loc, "weights of hidden_size {} are larger than any memory", hidden);
}

[[noreturn]] void fail_not_floating(const char* layer, const In& x);

/// Throws DTypeError for integers, with what to do about images of bytes and about indices.
inline void check_floating(const char* layer, const In& x) {
    if (x.tensor.defined() && !is_floating(x.tensor.dtype())) [[unlikely]]
        fail_not_floating(layer, x);
}

}  // namespace tapir::nn
