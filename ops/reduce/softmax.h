// Softmax, its logarithm, and the logarithm of a sum of exponentials.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY
/// Computes log(sum(exp(x))) without overflow.
Tensor logsumexp(In x, const Dims& dims, Flag keepdim = false);
/// Computes the logarithm of softmax(), without overflow.
Tensor log_softmax(In x, Dim dim);
#endif

/// Computes exp(x) / sum(exp(x)) along dim, without overflow.
Tensor softmax(In x, Dim dim);

}  // namespace tapir
