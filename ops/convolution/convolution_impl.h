// A convolution on memory: the ops of convolution.cpp hand these calls to oneDNN, to matrix products, or to a device.
#pragma once

#include <cstdint>
#include <memory>

#include "tapir/autograd/op_form.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir {

/// The sizes of y = conv(x, w), and how the kernel moves, in the last `dims` of three dimensions; those before are 1.
struct Convolution {
    std::int64_t dims = 0;
    std::int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
    std::int64_t in[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, out[3] = {1, 1, 1};
    std::int64_t stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
    std::int64_t before[3] = {0, 0, 0};  // zeros before the first element
    std::int64_t after[3] = {0, 0, 0};   // and after the last, as the op was called: the kernels go by the sizes

    bool operator==(const Convolution&) const = default;
    std::int64_t in_volume() const { return in[0] * in[1] * in[2]; }
    std::int64_t out_volume() const { return out[0] * out[1] * out[2]; }
    std::int64_t kernel_volume() const { return kernel[0] * kernel[1] * kernel[2]; }
    std::int64_t group_in() const { return in_channels / groups; }
    std::int64_t group_out() const { return out_channels / groups; }
    /// Of each part: two for a multiplication and its addition.
    double flops() const {
        const double sums = static_cast<double>(batch * out_channels) * static_cast<double>(out_volume());
        return 2 * sums * static_cast<double>(group_in() * kernel_volume());
    }
};

/// The arguments of a convolution, named as PyTorch does: a number for all spatial dimensions, or one for each. padding: the one
/// before the first element, and then that behind the last if it differs (the latter can be negative, in gradients).
struct ConvCall {
    Shape stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
    Shape output_padding = 0;  // conv_transpose
    Shape kernel_size;         // conv_weight
};
/// Returns the sizes of conv2d(x, weight, bias) and its like, for x (batch, channels, spatial...). Throws what they throw.
Convolution sizes_of(const FormCall& x, const ConvCall& call);
/// Calls the op with operands x, weight and perhaps bias.
Tensor convolution_of(const FormCall& x, const ConvCall& call);

enum class ConvPart : std::uint8_t {
    output,  // computes y from x and w
    input,   // computes the gradient of x from g, the gradient of y, and w
    weight,  // computes the gradient of w from x and g
};
/// Returns the shape of the part: (batch, channels, spatial...), or the weight's.
Shape shape_of(ConvPart part, const Convolution& conv);

ResultTypes types_of(ConvPart part, const TypeCall& t);

class KeptWeight;

/// The number of threads that pay for themselves.
int threads_for(const Convolution& c);

/// out = the part, from a and b in the order above. x, y and g have their channels last in memory, w is contiguous; float32 or
/// bfloat16. bias: for `output`, of the same dtype. kept: of b, or null. Returns false, without work done, if oneDNN is not built in or
/// does not take it.
bool convolve_by_onednn(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                        KeptWeight* kept = nullptr);

/// The same in float32, by an algorithm with fewer multiplications, where it is faster, and where the numbers are finite. addend: added to the output,
/// laid out as that is. has_relu: then comes relu.
bool convolve_by_winograd(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                          KeptWeight* kept = nullptr, const Tensor& addend = {}, bool has_relu = false);

/// Computes the part by matrix products, for contiguous tensors of float32 or float64; without bias.
void convolve_by_products(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& out);

/// Computes the part for tensors of a device, of any floating dtype and layout; the result is laid out as `a` if that has its channels
/// last. bias: with `output` only, or undefined. Not recorded.
Tensor convolve_on_gpu(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc);

/// A convolution on memory of a device. The padding is `before` on both sides; all tensors are contiguous, or all have their
/// channels last, the weight too.
struct ConvolutionArgs {
    ConvPart part;
    Convolution conv;
    DType dtype;
    bool channels_last;
    const void *a, *b, *bias;  // bias may be null
    void* out;
};

}  // namespace tapir

/// Returns false, without work done, if the library has no algorithm for channels that are last. Throws DeviceError if it has none
/// for contiguous tensors.
TAPIR_GPU_KERNEL(convolve, bool(const tapir::ConvolutionArgs& args))
