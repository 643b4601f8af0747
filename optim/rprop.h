// Rprop: steps depend only on the signs of the gradients.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct RpropOptions {
    double lr = 1e-2;        ///< the size of each element's first step; later sizes follow from the signs and ignore it
    double eta_minus = 0.5;  ///< factor of the size if the sign has changed
    double eta_plus = 1.2;   ///< factor of the size if it has not
    double step_size_min = 1e-6;
    double step_size_max = 50;
    static const OptimizerRule rule;
};

/// Needs gradients of all examples at once. Each element has a step size s, lr at first: s *= eta_plus if g has the sign of the step
/// before; if it has the other sign, s *= eta_minus and g = 0, so that the next step changes no size. s is limited to
/// [step_size_min, step_size_max]; p -= s sign(g). Riedmiller and Braun 1993, "A direct adaptive method for faster backpropagation
/// learning: the RPROP algorithm". Throws ValueError unless 0 < eta_minus < 1 < eta_plus, and for negative options.
class Rprop : public OptimizerOf<RpropOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
