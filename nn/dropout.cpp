#include "tapir/nn/dropout.h"

#include "tapir/core/fail_impl.h"
#include "tapir/ops/activation.h"

namespace tapir::nn {

DropoutLayer::DropoutLayer(const char* name, double p, const Loc& loc) : p_(p) {
    if (!(p >= 0 && p <= 1)) fail<ValueError>(loc, "{}: the probability {} is outside [0, 1]", name, p);
}
std::string DropoutLayer::describe() const { return fmt::format("{}", p_); }

Tensor Dropout1d::forward(In x) const { return dropout1d(x, p_, is_training()); }
Tensor Dropout2d::forward(In x) const { return dropout2d(x, p_, is_training()); }
Tensor Dropout3d::forward(In x) const { return dropout3d(x, p_, is_training()); }
Tensor AlphaDropout::forward(In x) const { return alpha_dropout(x, p_, is_training()); }

}  // namespace tapir::nn
