#include "tapir/nn/padding.h"

#include "tapir/core/fail_impl.h"
#include "tapir/ops/arrange/arrange.h"

namespace tapir::nn {

PadLayer::PadLayer(const char* name, int dims, const Shape& padding, const PadMode& mode, Scalar value, const Loc& loc) : mode_(mode), value_(value) {
    if (padding.rank() != 1 && padding.rank() != 2 * dims) {
        fail<ValueError>(loc, "{}: padding needs 1 number or {}, got {}", name, 2 * dims, padding);
    }
    for (int i = 0; i < 2 * dims; ++i) widths_.push_back(padding[padding.rank() == 1 ? 0 : i]);
}

std::string PadLayer::describe() const {
    std::string text = Shape(widths_).str();
    if (mode_.kind() == PadMode::Kind::constant && value_.as_double() != 0) text += fmt::format(", value {}", value_.as_double());
    return text;
}

}  // namespace tapir::nn
