// Activations and dropouts that are composed of other ops. The element-wise ones are rows of elementwise.def.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// Returns x above 0, else weight * x (He et al. 2015). weight: one element, or one for each channel (dimension 1; a tensor with fewer
/// than two dimensions has no channels). Throws ShapeError otherwise.
Tensor prelu(In x, In weight);
/// Returns x where it is above the limit, else value.
Tensor threshold(In x, double limit, double value);
/// Returns a * sigmoid(b), where a and b are the halves of x along dim (Dauphin et al. 2017). Throws ShapeError for an odd size.
Tensor glu(In x, Dim dim = -1);
/// Returns softmax(-x, dim).
Tensor softmin(In x, Dim dim);
/// Samples a relaxed categorical distribution along dim (Jang et al. 2017): softmax((logits + Gumbel noise) / tau). hard: one-hot
/// vectors, whose gradient is that of the soft ones. Throws ValueError unless tau > 0.
Tensor gumbel_softmax(In logits, double tau = 1, bool hard = false, Dim dim = -1);
Tensor gumbel_softmax(In logits, double tau, bool hard, Dim dim, Generator& generator);

/// Sets whole channels to zero, each with probability p, and divides the others by 1 - p (Tompson et al. 2015). x of shape
/// (N, C, ...), or (C, L) for dropout1d and (C, D, H, W) for dropout3d, as PyTorch counts them. Returns x itself when not training.
/// Throws ValueError for p outside [0, 1], ShapeError for another number of dimensions.
Tensor dropout1d(In x, double p = 0.5, bool training = true);
Tensor dropout2d(In x, double p = 0.5, bool training = true);
Tensor dropout3d(In x, double p = 0.5, bool training = true);
/// Sets elements to selu's lower limit with probability p, and scales all so that mean 0 and variance 1 stay (Klambauer et al.
/// 2017). Returns x itself when not training. Throws ValueError for p outside [0, 1].
Tensor alpha_dropout(In x, double p = 0.5, bool training = true);

}  // namespace tapir
