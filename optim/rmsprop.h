// RMSprop and Adadelta: divide gradients by the root of their mean square.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct RMSpropOptions {
    double lr = 1e-2;
    double alpha = 0.99;
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum = 0;
    bool centered = false;  ///< divide by the root of the variance (Graves 2013)
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; v = alpha v + (1 - alpha) d^2; d /= sqrt(v) + eps; with momentum b = momentum b + d, d = b;
/// p -= lr d. centered: m = alpha m + (1 - alpha) d before, and sqrt(v - m^2). Tieleman and Hinton 2012, lecture 6.5. Throws
/// ValueError for negative options and an alpha outside [0, 1).
class RMSprop : public OptimizerOf<RMSpropOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct AdadeltaOptions {
    double lr = 1;
    double rho = 0.9;
    double eps = 1e-6;
    double weight_decay = 0;
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; v = rho v + (1 - rho) d^2; d *= sqrt(u + eps) / sqrt(v + eps); u = rho u + (1 - rho) d^2;
/// p -= lr d. Zeiler 2012, "ADADELTA: an adaptive learning rate method". Throws ValueError for negative options and a rho
/// above 1.
class Adadelta : public OptimizerOf<AdadeltaOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
