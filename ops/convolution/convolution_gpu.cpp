// A convolution on a device: this file brings tensors into a layout that its library takes, and makes padding that the library
// does not know explicit.
#include <algorithm>

#include "tapir/core/size_math_impl.h"
#include "tapir/ops/convolution/convolution_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"

namespace tapir {
namespace {

using std::int64_t;

// Returns t, or a copy: contiguous or with its channels last, and aligned for kernels that read 16 bytes at once.
Tensor laid_out(const Tensor& t, bool last, const Loc& loc) {
    const Tensor laid = last ? channels_last(t, loc) : t.contiguous(loc);
    if (reinterpret_cast<std::uintptr_t>(laid.raw_data()) % 16 == 0) return laid;
    Tensor copy = make_in_layout(t.shape(), t.dtype(), t.device(), last, loc);
    copy.copy_(laid, loc);
    return copy;
}

// True if the same padding on both sides gives a result of that size.
bool is_symmetric(const Convolution& c, int d) {
    const int64_t reach = detail::window_reach(c.kernel[d], c.dilation[d]), room = c.in[d] + 2 * c.before[d];
    return room >= reach && detail::window_count(room, reach, c.stride[d]) == c.out[d];
}

// Returns the convolution of an x that includes its padding, in the dimensions where the two sides differ ('same' with an even
// kernel), and that ends where the last kernel does.
Convolution with_padded_input(const Convolution& conv) {
    Convolution c = conv;
    for (int d = 0; d < 3; ++d) {
        if (is_symmetric(c, d)) continue;
        c.in[d] = detail::window_span(c.out[d], detail::window_reach(c.kernel[d], c.dilation[d]), c.stride[d]);
        c.before[d] = 0;
    }
    return c;
}

// Moves x, laid out as the input of `from`, to the layout of `to`'s input: each element stays at the same place under the kernel.
// Elements that `to` has no room for are cut off, and new ones are zero.
Tensor moved(const Tensor& x, const Convolution& from, const Convolution& to, bool last, const Loc& loc) {
    Tensor result = make_in_layout(shape_of(ConvPart::input, to), x.dtype(), x.device(), last, loc);
    result.zero_(loc);
    Tensor target = result, source = x;
    const int dims = static_cast<int>(to.dims);
    for (int d = 3 - dims; d < 3; ++d) {
        const int64_t shift = from.before[d] - to.before[d];  // the new position of x's first element
        const int64_t begin = std::clamp<int64_t>(shift, 0, to.in[d]);
        const int64_t skipped = std::clamp<int64_t>(-shift, 0, from.in[d]);
        const int64_t count = std::min(to.in[d] - begin, from.in[d] - skipped);
        target = target.narrow(d - 1 + dims, begin, count, loc);
        source = source.narrow(d - 1 + dims, skipped, count, loc);
    }
    if (target.numel() > 0) target.copy_(source, loc);
    return result;
}

// Returns an undefined tensor if the library does not take this layout.
Tensor convolve_in_layout(bool last, ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc) {
    const Convolution c = with_padded_input(conv);
    const bool is_padded = !(c == conv);
    const Tensor first = is_padded && part != ConvPart::input ? moved(a, conv, c, last, loc) : laid_out(a, last, loc);
    const Tensor second = laid_out(b, last, loc), added = bias.defined() ? laid_out(bias, /*last=*/false, loc) : bias;
    const Tensor out = make_in_layout(shape_of(part, c), a.dtype(), a.device(), last, loc);
    const bool is_done = gpu::convolve({part, c, a.dtype(), last, on_stream(first), on_stream(second), on_stream(added), on_stream(out)});
    if (!is_done) return {};
    if (part == ConvPart::input && is_padded) return moved(out, c, conv, last, loc);
    return part == ConvPart::weight ? out.contiguous(loc) : out;
}

}  // namespace

Tensor convolve_on_gpu(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Loc& loc) {
    // cuDNN does not take channels that are last in float64.
    if (a.dtype() != float64 && !a.is_contiguous() && detail::is_channels_last(a.impl())) {
        const Tensor out = convolve_in_layout(/*last=*/true, part, conv, a, b, bias, loc);
        if (out.defined()) return out;
    }
    return convolve_in_layout(/*last=*/false, part, conv, a, b, bias, loc);
}

}  // namespace tapir
