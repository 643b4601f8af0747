#include "tapir/nn/dropout.h"

#include "tapir/core/fail_impl.h"
#include "tapir/ops/elementwise/activation.h"
#include "tapir/ops/random/dropout.h"

namespace tapir::nn {

DropoutLayer::DropoutLayer(const char* name, Op op, double p, const Loc& loc) : op_(op), p_(p) {
    if (!(p >= 0 && p <= 1)) fail<ValueError>(loc, "{}: the probability {} is outside [0, 1]", name, p);
}
std::string DropoutLayer::describe() const { return fmt::format("{}", p_); }

Dropout::Dropout(double p, Loc loc) : DropoutLayer("Dropout", dropout, p, loc) {}
Dropout1d::Dropout1d(double p, Loc loc) : DropoutLayer("Dropout1d", dropout1d, p, loc) {}
Dropout2d::Dropout2d(double p, Loc loc) : DropoutLayer("Dropout2d", dropout2d, p, loc) {}
Dropout3d::Dropout3d(double p, Loc loc) : DropoutLayer("Dropout3d", dropout3d, p, loc) {}
AlphaDropout::AlphaDropout(double p, Loc loc) : DropoutLayer("AlphaDropout", alpha_dropout, p, loc) {}

}  // namespace tapir::nn
