// Initialisers: each fills a tensor in place and returns it. They are never recorded, draw from default_generator() unless one is
// given, and throw ShapeError if a tensor of fewer than 2 dimensions has no fans, ValueError for impossible parameters.
//
//     nn::init::xavier_uniform_(model.a.weight);
//
// The fans of a weight (out, in, k...) are in * k... and out * k... .
#pragma once

#include "tapir/core/tensor.h"

namespace tapir::nn::init {

Tensor uniform_(const Tensor& t, double low = 0, double high = 1, Loc loc = Loc::current());
Tensor uniform_(const Tensor& t, double low, double high, Generator& generator, Loc loc = Loc::current());
Tensor normal_(const Tensor& t, double mean = 0, double std = 1, Loc loc = Loc::current());
Tensor normal_(const Tensor& t, double mean, double std, Generator& generator, Loc loc = Loc::current());
/// Truncated normal: values outside [a, b] are drawn again, by the inverse distribution function of uniform numbers. Throws ValueError
/// unless std is above 0, and for a >= b.
Tensor trunc_normal_(const Tensor& t, double mean = 0, double std = 1, double a = -2, double b = 2, Loc loc = Loc::current());
Tensor trunc_normal_(const Tensor& t, double mean, double std, double a, double b, Generator& generator, Loc loc = Loc::current());
Tensor constant_(const Tensor& t, double value, Loc loc = Loc::current());
Tensor zeros_(const Tensor& t, Loc loc = Loc::current());
Tensor ones_(const Tensor& t, Loc loc = Loc::current());
/// Fills a matrix with the identity.
Tensor eye_(const Tensor& t, Loc loc = Loc::current());
/// Fills a convolution's weight (out, in, k...) so that it passes channels on unchanged, as many as there are, in each group. Throws
/// ShapeError for fewer than 3 or more than 5 dimensions, ValueError if out is not a multiple of groups.
Tensor dirac_(const Tensor& t, std::int64_t groups = 1, Loc loc = Loc::current());

/// Fills uniformly on [-a, a], a = gain sqrt(6 / (fan_in + fan_out)): keeps the variance of signals and of gradients alike.
/// Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
Tensor xavier_uniform_(const Tensor& t, double gain = 1, Loc loc = Loc::current());
Tensor xavier_uniform_(const Tensor& t, double gain, Generator& generator, Loc loc = Loc::current());
/// Fills normally, std = gain sqrt(2 / (fan_in + fan_out)). Glorot and Bengio 2010, eq. 12.
Tensor xavier_normal_(const Tensor& t, double gain = 1, Loc loc = Loc::current());
Tensor xavier_normal_(const Tensor& t, double gain, Generator& generator, Loc loc = Loc::current());

enum class Fan : std::uint8_t { in, out };
enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// Returns the factor that compensates for a nonlinearity's effect on the variance; `slope` is leaky_relu's.
double gain(Nonlinearity nonlinearity, double slope = 0.01) noexcept;

struct KaimingOptions {
    double slope = 0;  ///< of the leaky_relu that follows
    Fan fan = Fan::in;
    Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// Fills uniformly on [-a, a], a = gain sqrt(3 / fan). He et al. 2015, "Delving deep into rectifiers: surpassing human-level
/// performance on ImageNet classification", section 2.2.
Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options = {}, Loc loc = Loc::current());
Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options, Generator& generator, Loc loc = Loc::current());
/// Fills normally, std = gain / sqrt(fan). He et al. 2015, eqs. 10 and 14.
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options = {}, Loc loc = Loc::current());
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options, Generator& generator, Loc loc = Loc::current());

/// Fills with a random orthogonal matrix times gain: orthonormal rows or columns, whichever are fewer, of t seen as
/// (size(0), everything else). Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
/// networks".
Tensor orthogonal_(const Tensor& t, double gain = 1, Loc loc = Loc::current());
Tensor orthogonal_(const Tensor& t, double gain, Generator& generator, Loc loc = Loc::current());

}  // namespace tapir::nn::init
