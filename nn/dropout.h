// Dropout layers. They act only while training; eval() stops them in a model whose members() names them.
#pragma once

#include "tapir/nn/module.h"

namespace tapir::nn {

/// Common base: the probability, and an op of it. Throws ValueError for a probability outside [0, 1].
class DropoutLayer : public Module {
 public:
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return op_(x, p_, is_training());
    }
    Tensor operator()(In x) const { return forward(x); }
    std::string describe() const override;

 protected:
    using Op = Tensor (*)(In x, double p, bool training);
    DropoutLayer(const char* name, Op op, double p, const Loc& loc);

 private:
    Op op_;
    double p_;
};

/// Zeroes each element with probability p and scales the others by 1 / (1 - p) (Srivastava et al. 2014).
class Dropout : public DropoutLayer {
 public:
    explicit Dropout(double p = 0.5, Loc loc = Loc::current());
};
/// Drops whole channels: see tapir::dropout1d.
class Dropout1d : public DropoutLayer {
 public:
    explicit Dropout1d(double p = 0.5, Loc loc = Loc::current());
};
class Dropout2d : public DropoutLayer {
 public:
    explicit Dropout2d(double p = 0.5, Loc loc = Loc::current());
};
class Dropout3d : public DropoutLayer {
 public:
    explicit Dropout3d(double p = 0.5, Loc loc = Loc::current());
};
/// Dropout for selu: see tapir::alpha_dropout.
class AlphaDropout : public DropoutLayer {
 public:
    explicit AlphaDropout(double p = 0.5, Loc loc = Loc::current());
};

}  // namespace tapir::nn
