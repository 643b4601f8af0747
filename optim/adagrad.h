// Adagrad and its dual averaging.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct AdagradOptions {
    double lr = 1e-2;
    double lr_decay = 0;
    double weight_decay = 0;
    double initial_accumulator_value = 0;
    double eps = 1e-10;
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; sum += d^2; p -= lr / (1 + (t - 1) lr_decay) d / (sqrt(sum) + eps). Duchi et al. 2011, "Adaptive
/// subgradient methods for online learning and stochastic optimization". Throws ValueError for negative options.
class Adagrad : public OptimizerOf<AdagradOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct AdagradDAOptions {
    double lr = 1e-2;
    double l1 = 0;  ///< parameters become exactly zero if their mean gradient stays within [-l1, l1]
    double l2 = 0;
    double initial_accumulator_value = 0.1;
    static const OptimizerRule rule;
};

/// Dual averaging with Adagrad's metric: sum += g; squares += g^2 (from initial_accumulator_value); after t steps
///     p = -lr sign(sum) max(|sum| - l1 t, 0) / (sqrt(squares) + lr l2 t),
/// the minimum of <sum, p> + t l1 |p|_1 + t l2 / 2 |p|^2 + <p, sqrt(squares) p> / (2 lr): Duchi et al. 2011, equation 3 and
/// section 5. As TensorFlow's AdagradDA. A parameter depends on its gradients alone: its first step forgets its initial
/// values (begin at zeros, as in linear models, if sparse solutions are wanted). Throws ValueError
/// for negative options.
class AdagradDA : public OptimizerOf<AdagradDAOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
