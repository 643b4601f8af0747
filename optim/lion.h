// Lion.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct LionOptions {
    double lr = 1e-4;  ///< 3 to 10 times smaller than Adam's; use a weight_decay larger by the same factor
    Betas betas = {0.9, 0.99};
    double weight_decay = 0;
    static const OptimizerRule rule;
};

/// p *= 1 - lr weight_decay; p -= lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g. Chen et al. 2023, "Symbolic
/// discovery of optimization algorithms". Throws ValueError for negative options and betas outside [0, 1).
class Lion : public OptimizerOf<LionOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
