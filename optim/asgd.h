// Averaged stochastic gradient descent.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct ASGDOptions {
    double lr = 1e-2;
    double lambd = 1e-4;  ///< how fast the steps shrink, and parameters decay
    double alpha = 0.75;  ///< the exponent of the shrinking steps
    double t0 = 1e6;      ///< parameters are averaged from this step on; until then the average is the parameter
    double weight_decay = 0;
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; p = (1 - lambd eta) p - eta d; ax += (p - ax) / max(1, t - 1 - t0), with eta = lr at first and lr / (1 +
/// lambd lr t)^alpha after t steps, and ax = p after the first. A new learning rate takes effect at the step after the next, as
/// in PyTorch. The averages ax, which the model itself does not use, are "0.i.ax" in state_dict(). Polyak and Juditsky 1992,
/// "Acceleration of stochastic approximation by averaging"; the schedule is Bottou's. See optim/average.h for averages under any
/// optimizer. Throws ValueError for a negative lr, lambd or weight_decay, and for nan or infinite options; only t0 may be infinite.
class ASGD : public OptimizerOf<ASGDOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
