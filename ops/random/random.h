// Tensors of random numbers, drawn from default_generator() unless one is given. Shapes, dtypes and devices are given as for the
// functions of make.h.
#pragma once

#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/make/make.h"

namespace tapir {

/// Draws uniformly from [0, 1).
Tensor rand(const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());
template <class... I>
    requires SizesOnly<I...>
Tensor rand(IndexArg first, IndexArg second, I... rest) {
    return rand(Shape(first.value, second.value, rest...), {}, first.loc);
}
Tensor rand(const Shape& shape, Generator& generator, TensorOptions options = {}, Loc loc = Loc::current());
/// Draws from the normal distribution, mean 0 and variance 1.
Tensor randn(const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());
template <class... I>
    requires SizesOnly<I...>
Tensor randn(IndexArg first, IndexArg second, I... rest) {
    return randn(Shape(first.value, second.value, rest...), {}, first.loc);
}
Tensor randn(const Shape& shape, Generator& generator, TensorOptions options = {}, Loc loc = Loc::current());
/// Draws integers in [low, high), int64 unless given. Throws ValueError when low >= high.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());
Tensor randint(std::int64_t high, const Shape& shape, TensorOptions options = {}, Loc loc = Loc::current());
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, Generator& generator, TensorOptions options = {}, Loc loc = Loc::current());
Tensor randint(std::int64_t high, const Shape& shape, Generator& generator, TensorOptions options = {}, Loc loc = Loc::current());
/// Returns 0 ... n-1 in random order, int64.
Tensor randperm(std::int64_t n, Loc loc = Loc::current());
Tensor randperm(std::int64_t n, Generator& generator, Loc loc = Loc::current());
Tensor rand_like(In x, TensorOptions options = {});   ///< as x in shape, device and, unless given, dtype; so are the next three
Tensor randn_like(In x, TensorOptions options = {});  ///< normal
Tensor randint_like(In x, std::int64_t low, std::int64_t high, TensorOptions options = {});  ///< integers in [low, high); ValueError when low >= high
Tensor randint_like(In x, std::int64_t high, TensorOptions options = {});                    ///< in [0, high)
/// Draws 1 with probability p (elementwise), else 0; p's dtype. Throws ValueError for p outside [0, 1], for a CUDA tensor
/// at the next call that waits for the device. Not differentiable.
Tensor bernoulli(In p);
Tensor bernoulli(In p, Generator& generator);
Tensor bernoulli(const Shape& shape, double p, TensorOptions options = {}, Loc loc = Loc::current());
Tensor bernoulli(const Shape& shape, double p, Generator& generator, TensorOptions options = {}, Loc loc = Loc::current());
/// Draws row indices with probability proportional to weights (n,) or (rows, n); int64 (samples,) or (rows, samples).
/// Throws ValueError for negative, infinite or all-zero weights and for more samples than there are when not replacing.
Tensor multinomial(In weights, std::int64_t samples, bool replacement = false);
Tensor multinomial(In weights, std::int64_t samples, bool replacement, Generator& generator);

}  // namespace tapir
