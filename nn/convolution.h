// Convolution layers. Names, initialisation and defaults are PyTorch's:
//
//     nn::Conv2d conv(3, 16, 5, {.stride = 2, .padding = 2});
//     nn::Conv2d same(3, 16, 5, 2, 2);
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/convolution/convolution.h"

namespace tapir::nn {

struct ConvLayerOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = 1;
    Padding padding = 0;  ///< numbers, "same" or "valid"
    Shape dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
    PadMode padding_mode = "zeros";  ///< or "reflect", "replicate", "circular": see pad
};
struct ConvTransposeLayerOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = 1;
    Shape padding = 0;
    Shape output_padding = 0;
    std::int64_t groups = 1;
    bool bias = true;
    Shape dilation = 1;
};

/// Common base of the layers: weight (out, in / groups, kernel...), transposed (in, out / groups, kernel...), and bias (out,),
/// both uniform on +-1 / sqrt(size(1) of the weight * the kernel's elements).
class ConvLayer : public Module {
 public:
    Parameter weight, bias;

    void members(Members& m) override;
    std::string describe() const override;

 protected:
    ConvLayer(const char* name, int dims, bool is_transposed, std::int64_t in, std::int64_t out, const Shape& kernel_size,
              const ConvLayerOptions& options, const Loc& loc);

    /// Returns x; throws DTypeError unless it is floating.
    const In& checked(const In& x) const;
    /// Returns x padded in a mode other than zeros, for a convolution with conv_options(): (batch, in, spatial...) or (in, spatial...).
    Tensor padded(In x) const;
    const ConvOptions& conv_options() const { return padding_mode_.kind() == PadMode::Kind::constant ? options_ : unpadded_; }

    ConvOptions options_;

 private:
    ConvOptions unpadded_;  // options_ without the padding
    PadMode padding_mode_;
    const char* name_;
};

// Constructors that take the struct of options, or the arguments in PyTorch's positions.
#define TAPIR_CONV_CONSTRUCTORS(Name, dims)                                                                                                     \
    Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const ConvLayerOptions& options = {},                   \
         Loc loc = Loc::current())                                                                                                              \
        : ConvLayer(#Name, dims, false, in_channels, out_channels, kernel_size, options, loc) {}                                                \
    template <ShapeArg S>                                                                                                                       \
    Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const S& stride, Loc loc = Loc::current())              \
        : Name(in_channels, out_channels, kernel_size, ConvLayerOptions{ByName(), stride}, loc) {}                                              \
    Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const Shape& stride, const Padding& padding,            \
         const Shape& dilation = 1, std::int64_t groups = 1, Flag with_bias = true, const PadMode& padding_mode = {}, Loc loc = Loc::current()) \
        : Name(in_channels, out_channels, kernel_size, ConvLayerOptions{ByName(), stride, padding, dilation, groups, with_bias, padding_mode},  \
               loc) {}

/// (batch, in, length) -> (batch, out, length'): see conv1d. Throws ValueError for sizes below 1, channels that the groups do
/// not divide, and padding "same" with a stride.
class Conv1d : public ConvLayer {
 public:
    TAPIR_CONV_CONSTRUCTORS(Conv1d, 1)
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return conv1d(In(padded(x), x.loc), In(weight, x.loc), bias, conv_options());
    }
    Tensor operator()(In x) const { return forward(x); }
};

/// (batch, in, height, width) -> (batch, out, height', width'): see conv2d.
class Conv2d : public ConvLayer {
 public:
    TAPIR_CONV_CONSTRUCTORS(Conv2d, 2)
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return conv2d(In(padded(x), x.loc), In(weight, x.loc), bias, conv_options());
    }
    Tensor operator()(In x) const { return forward(x); }
};

/// (batch, in, depth, height, width) -> (batch, out, depth', height', width'): see conv3d.
class Conv3d : public ConvLayer {
 public:
    TAPIR_CONV_CONSTRUCTORS(Conv3d, 3)
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return conv3d(In(padded(x), x.loc), In(weight, x.loc), bias, conv_options());
    }
    Tensor operator()(In x) const { return forward(x); }
};
#undef TAPIR_CONV_CONSTRUCTORS

/// Transposed convolutions: see conv_transpose1d.
class ConvTransposeLayer : public ConvLayer {
 protected:
    ConvTransposeLayer(const char* name, int dims, std::int64_t in, std::int64_t out, const Shape& kernel_size,
                       const ConvTransposeLayerOptions& options, const Loc& loc)
        : ConvLayer(name, dims, true, in, out, kernel_size,
                    {ByName(), options.stride, options.padding, options.dilation, options.groups, options.bias}, loc),
          transpose_options_{ByName(), options.stride, options.padding, options.output_padding, options.groups, options.dilation} {}

    ConvTransposeOptions transpose_options_;
};

#define TAPIR_CONV_TRANSPOSE(Name, dims, op)                                                                                                       \
    class Name : public ConvTransposeLayer {                                                                                                       \
     public:                                                                                                                                       \
        Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const ConvTransposeLayerOptions& options = {},         \
             Loc loc = Loc::current())                                                                                                             \
            : ConvTransposeLayer(#Name, dims, in_channels, out_channels, kernel_size, options, loc) {}                                             \
        template <ShapeArg S>                                                                                                                      \
        Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const S& stride, Loc loc = Loc::current())             \
            : Name(in_channels, out_channels, kernel_size, ConvTransposeLayerOptions{ByName(), stride}, loc) {}                                    \
        Name(std::int64_t in_channels, std::int64_t out_channels, const Shape& kernel_size, const Shape& stride, const Shape& padding,             \
             const Shape& output_padding = 0, std::int64_t groups = 1, Flag with_bias = true, const Shape& dilation = 1, Loc loc = Loc::current()) \
            : Name(in_channels, out_channels, kernel_size,                                                                                         \
                   ConvTransposeLayerOptions{ByName(), stride, padding, output_padding, groups, with_bias, dilation}, loc) {}                      \
        Tensor forward(In x) const {                                                                                                               \
            const ModuleScope scope(*this);                                                                                                        \
            return op(checked(x), In(weight, x.loc), bias, transpose_options_);                                                                    \
        }                                                                                                                                          \
        Tensor operator()(In x) const { return forward(x); }                                                                                       \
    };
TAPIR_CONV_TRANSPOSE(ConvTranspose1d, 1, conv_transpose1d)
TAPIR_CONV_TRANSPOSE(ConvTranspose2d, 2, conv_transpose2d)
TAPIR_CONV_TRANSPOSE(ConvTranspose3d, 3, conv_transpose3d)
#undef TAPIR_CONV_TRANSPOSE

}  // namespace tapir::nn
