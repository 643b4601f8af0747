// Convolutions. Names, shapes and defaults are PyTorch's. The numbers have names, or PyTorch's order:
//
//     Tensor y = conv2d(x, weight, bias, {.stride = 2, .padding = 1});
//     Tensor z = conv2d(x, weight, bias, {.padding = "same", .dilation = {1, 2}});
//     Tensor w = conv2d(x, weight, bias, 2, 1);                         // as y
//
// A stride of two numbers as the only argument behind the bias needs its name: {.stride = {2, 1}}; {2, 1} does not compile.
//
// One number stands for all spatial dimensions; a list has one for each. On the CPU results have their channels last in
// memory, which the next layer reads as it is; on CUDA they have if x has. Shapes and values do not show it.
//
// On the CPU, convolutions of 3 x 3 in float32 with 32 channels or more may multiply less (Lavin and Gray 2016), as on GPUs. Errors are then relative to
// the largest element within three places, also where a result does not depend on that element. With set_deterministic (core/deterministic.h) results
// are direct sums.
//
// On CUDA, set_float32_matmul_precision (ops/matmul.h) applies to convolutions, too: float32 uses TF32 if it allows that.
#pragma once

#include <string>

#include "tapir/core/tensor.h"

namespace tapir {

/// The number of zeros on both sides of each spatial dimension: numbers, "valid" (none), or "same": as many as make the
/// result as large as the input (the odd one at the end), for which the stride must be 1.
class Padding {
 public:
    template <class... I>
        requires(sizeof...(I) > 0 && (std::is_integral_v<I> && ...))
    Padding(I... sizes) noexcept : sizes_(sizes...) {}       // NOLINT: implicit by design
    Padding(const Shape& sizes) noexcept : sizes_(sizes) {}  // NOLINT
    /// Throws ValueError for another text.
    Padding(const char* mode, Loc loc = Loc::current());  // NOLINT

    const Shape& sizes() const noexcept { return sizes_; }
    bool is_same() const noexcept { return is_same_; }
    /// "(1, 2)", "same"
    std::string str() const { return is_same_ ? "same" : sizes_.str(); }

 private:
    Shape sizes_ = 0;
    bool is_same_ = false;
};

struct ConvOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = 1;
    Padding padding = 0;
    Shape dilation = 1;
    std::int64_t groups = 1;  ///< input channels are split into as many groups, each with its own part of the weight
};

/// Returns the cross-correlation of x with each kernel, plus bias:
///   y[n, o, i] = bias[o] + sum over c, k of weight[o, c, k] * x[n, c, i * stride + k * dilation - padding]
/// x (n, in, length) or (in, length), weight (out, in / groups, kernel), bias (out,) or undefined -> (n, out, length') or
/// (out, length') with length' = (length + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down.
/// Dtypes: floating, the same for all. Throws ShapeError, DTypeError, DeviceError; ValueError for a stride, dilation or groups
/// below 1, a negative padding, or an unknown padding mode.
Tensor conv1d(In x, In weight, const Tensor& bias = {}, const ConvOptions& options = {});
/// Convolves x (n, in, height, width) with weight (out, in / groups, kernel height, kernel width), otherwise as conv1d.
Tensor conv2d(In x, In weight, const Tensor& bias = {}, const ConvOptions& options = {});
/// Convolves x (n, in, depth, height, width), otherwise as conv1d.
Tensor conv3d(In x, In weight, const Tensor& bias = {}, const ConvOptions& options = {});

#define TAPIR_CONV_BY_POSITION(name)                                                                                                \
    template <ShapeArg S>                                                                                                           \
    Tensor name(In x, In weight, const Tensor& bias, const S& stride) {                                                             \
        return name(x, weight, bias, ConvOptions{ByName(), stride});                                                                \
    }                                                                                                                               \
    inline Tensor name(In x, In weight, const Tensor& bias, const Shape& stride, const Padding& padding, const Shape& dilation = 1, \
                       std::int64_t groups = 1) {                                                                                   \
        return name(x, weight, bias, ConvOptions{ByName(), stride, padding, dilation, groups});                                     \
    }
TAPIR_CONV_BY_POSITION(conv1d)
TAPIR_CONV_BY_POSITION(conv2d)
TAPIR_CONV_BY_POSITION(conv3d)
#undef TAPIR_CONV_BY_POSITION

struct ConvTransposeOptions {
    [[no_unique_address]] ByName by_name = ByName();
    Shape stride = 1;
    Shape padding = 0;
    Shape output_padding = 0;  ///< added to the size at the end; below the stride or the dilation
    std::int64_t groups = 1;
    Shape dilation = 1;
};

/// Computes the gradient of conv with respect to its input, as an op of its own ("deconvolution"; Zeiler et al. 2010). x (n, in, length),
/// weight (in, out / groups, kernel), bias (out,) -> (n, out, length') with
/// length' = (length - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1. Errors as conv1d.
Tensor conv_transpose1d(In x, In weight, const Tensor& bias = {}, const ConvTransposeOptions& options = {});
Tensor conv_transpose2d(In x, In weight, const Tensor& bias = {}, const ConvTransposeOptions& options = {});
Tensor conv_transpose3d(In x, In weight, const Tensor& bias = {}, const ConvTransposeOptions& options = {});

#define TAPIR_CONV_TRANSPOSE_BY_POSITION(name)                                                                                          \
    template <ShapeArg S>                                                                                                               \
    Tensor name(In x, In weight, const Tensor& bias, const S& stride) {                                                                 \
        return name(x, weight, bias, ConvTransposeOptions{ByName(), stride});                                                           \
    }                                                                                                                                   \
    inline Tensor name(In x, In weight, const Tensor& bias, const Shape& stride, const Shape& padding, const Shape& output_padding = 0, \
                       std::int64_t groups = 1, const Shape& dilation = 1) {                                                            \
        return name(x, weight, bias, ConvTransposeOptions{ByName(), stride, padding, output_padding, groups, dilation});                \
    }
TAPIR_CONV_TRANSPOSE_BY_POSITION(conv_transpose1d)
TAPIR_CONV_TRANSPOSE_BY_POSITION(conv_transpose2d)
TAPIR_CONV_TRANSPOSE_BY_POSITION(conv_transpose3d)
#undef TAPIR_CONV_TRANSPOSE_BY_POSITION

}  // namespace tapir
