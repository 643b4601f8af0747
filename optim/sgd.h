// Stochastic gradient descent.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct SGDOptions {
    double lr = 1e-3;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false;  ///< needs momentum and no dampening
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; with momentum b = momentum b + (1 - dampening) d (b = d at first), d = b or, with nesterov,
/// d + momentum b; p -= lr d. Throws ValueError for negative options. Momentum: Polyak 1964; Sutskever et al. 2013.
class SGD : public OptimizerOf<SGDOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
