// Dropouts of whole channels, and the one for selu. They do something only while training. Dropout itself is in layers.h.
#pragma once

#include "tapir/nn/module.h"

namespace tapir::nn {

/// What they have in common: the probability.
class DropoutLayer : public Module {
 public:
    std::string describe() const override;

 protected:
    DropoutLayer(const char* name, double p, const Loc& loc);
    double p_;
};

/// See tapir::dropout1d, dropout2d, dropout3d and alpha_dropout. Throws ValueError for p outside [0, 1].
class Dropout1d : public DropoutLayer {
 public:
    explicit Dropout1d(double p = 0.5, Loc loc = Loc::current()) : DropoutLayer("Dropout1d", p, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
};
class Dropout2d : public DropoutLayer {
 public:
    explicit Dropout2d(double p = 0.5, Loc loc = Loc::current()) : DropoutLayer("Dropout2d", p, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
};
class Dropout3d : public DropoutLayer {
 public:
    explicit Dropout3d(double p = 0.5, Loc loc = Loc::current()) : DropoutLayer("Dropout3d", p, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
};
class AlphaDropout : public DropoutLayer {
 public:
    explicit AlphaDropout(double p = 0.5, Loc loc = Loc::current()) : DropoutLayer("AlphaDropout", p, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
};

}  // namespace tapir::nn
