// Padding layers. Names and argument orders are PyTorch's: a number for all sides, or two for each dimension, the last dimension first.
//
//     nn::ReflectionPad2d pad(1);
//     nn::ConstantPad1d longer({2, 0}, 0.5);
#pragma once

#include <vector>

#include "tapir/nn/module.h"
#include "tapir/ops/arrange/arrange.h"

namespace tapir::nn {

/// Common base of the layers.
class PadLayer : public Module {
 public:
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return pad(x, widths_, mode_, value_);
    }
    Tensor operator()(In x) const { return forward(x); }
    std::string describe() const override;

 protected:
    /// Throws ValueError unless there are 1 or 2 * dims widths.
    PadLayer(const char* name, int dims, const Shape& padding, const PadMode& mode, Scalar value, const Loc& loc);

 private:
    std::vector<std::int64_t> widths_;
    PadMode mode_;
    Scalar value_;
};

#define TAPIR_PAD_LAYER(Name, dims, mode)                                                                               \
    class Name : public PadLayer {                                                                                      \
     public:                                                                                                            \
        explicit Name(const Shape& padding, Loc loc = Loc::current()) : PadLayer(#Name, dims, padding, mode, 0, loc) {} \
    };
TAPIR_PAD_LAYER(ZeroPad1d, 1, "zeros")
TAPIR_PAD_LAYER(ZeroPad2d, 2, "zeros")
TAPIR_PAD_LAYER(ZeroPad3d, 3, "zeros")
TAPIR_PAD_LAYER(ReflectionPad1d, 1, "reflect")
TAPIR_PAD_LAYER(ReflectionPad2d, 2, "reflect")
TAPIR_PAD_LAYER(ReflectionPad3d, 3, "reflect")
TAPIR_PAD_LAYER(ReplicationPad1d, 1, "replicate")
TAPIR_PAD_LAYER(ReplicationPad2d, 2, "replicate")
TAPIR_PAD_LAYER(ReplicationPad3d, 3, "replicate")
TAPIR_PAD_LAYER(CircularPad1d, 1, "circular")
TAPIR_PAD_LAYER(CircularPad2d, 2, "circular")
TAPIR_PAD_LAYER(CircularPad3d, 3, "circular")
#undef TAPIR_PAD_LAYER

#define TAPIR_CONSTANT_PAD_LAYER(Name, dims)                                                                                           \
    class Name : public PadLayer {                                                                                                     \
     public:                                                                                                                           \
        Name(const Shape& padding, Scalar value, Loc loc = Loc::current()) : PadLayer(#Name, dims, padding, "constant", value, loc) {} \
    };
TAPIR_CONSTANT_PAD_LAYER(ConstantPad1d, 1)
TAPIR_CONSTANT_PAD_LAYER(ConstantPad2d, 2)
TAPIR_CONSTANT_PAD_LAYER(ConstantPad3d, 3)
#undef TAPIR_CONSTANT_PAD_LAYER

}  // namespace tapir::nn
