// ONNX's pools.
#include <algorithm>
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/window_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/convolution/convolution.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/pooling/pooling.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

// True if PyTorch's pools can do it: they pad both sides alike, by at most half of a window.
bool is_plain(const OnnxWindow& window) {
    if (!window.is_symmetric()) return false;
    for (std::size_t d = 0; d < window.before.size(); ++d) {
        if (window.before[d] > window.kernel[d] / 2) return false;
    }
    return true;
}

// Adds padding at the end for a last window that begins inside.
void widen_for_ceil(OnnxWindow& window, const Shape& sizes) {
    for (std::size_t d = 0; d < window.kernel.size(); ++d) {
        const int64_t size = sizes.raw(static_cast<int>(d) + 2) + window.before[d] + window.after[d];
        const int64_t extent = (window.kernel[d] - 1) * window.dilation[d] + 1, rest = std::max<int64_t>(size - extent, 0) % window.stride[d];
        const int64_t begin = size - extent - rest + window.stride[d];  // the beginning of that window
        if (rest > 0 && begin < sizes.raw(static_cast<int>(d) + 2) + window.before[d]) window.after[d] += window.stride[d] - rest;
    }
}

AvgPoolOptions average_options(const OnnxWindow& window) {
    AvgPoolOptions options;
    options.stride = window.stride;
    return options;
}
bool is_dilated(const OnnxWindow& window) {
    return std::any_of(window.dilation.begin(), window.dilation.end(), [](int64_t dilation) { return dilation != 1; });
}

// Sums over dilated windows: a convolution of each channel with ones.
Tensor dilated_sums(const Tensor& x, const OnnxWindow& window) {
    Shape alone{x.size(0) * x.size(1), 1}, kernel{1, 1};
    for (int d = 0; d < window.dims; ++d) {
        alone.push_back(x.size(d + 2));
        kernel.push_back(window.kernel[static_cast<std::size_t>(d)]);
    }
    ConvOptions options;
    options.stride = window.stride;
    options.dilation = window.dilation;
    const Tensor planes = reshape(x, alone), weight = ones(kernel, x.dtype());
    const Tensor y = window.dims == 1 ? conv1d(planes, weight, {}, options)
        : window.dims == 2            ? conv2d(planes, weight, {}, options)
                                      : conv3d(planes, weight, {}, options);
    Shape shape = y.shape();
    shape.raw(0) = x.size(0), shape.raw(1) = x.size(1);
    return reshape(y, shape);
}

// options: divisor_override must be 1 for dilated windows.
Tensor averaged(const Tensor& x, const OnnxWindow& window, const AvgPoolOptions& options) {
    if (is_dilated(window)) return dilated_sums(x, window);
    return window.dims == 1 ? avg_pool1d(x, window.kernel, options)
        : window.dims == 2  ? avg_pool2d(x, window.kernel, options)
                            : avg_pool3d(x, window.kernel, options);
}
MaxPoolOptions max_options(const OnnxWindow& window) {
    MaxPoolOptions options;
    options.stride = window.stride;
    options.dilation = window.dilation;
    return options;
}
Tensor largest(const Tensor& x, const OnnxWindow& window, const MaxPoolOptions& options) {
    return window.dims == 1 ? max_pool1d(x, window.kernel, options)
        : window.dims == 2  ? max_pool2d(x, window.kernel, options)
                            : max_pool3d(x, window.kernel, options);
}
ValuesIndices largest_with_indices(const Tensor& x, const OnnxWindow& window, const MaxPoolOptions& options) {
    return window.dims == 1 ? max_pool1d_with_indices(x, window.kernel, options)
        : window.dims == 2  ? max_pool2d_with_indices(x, window.kernel, options)
                            : max_pool3d_with_indices(x, window.kernel, options);
}

void average_pool(Call& c) {
    const Tensor x = c.x(0);
    OnnxWindow window = onnx_window(c, x.shape());
    const bool ceil = c.flag("ceil_mode", false), counts_pads = c.flag("count_include_pad", false);
    AvgPoolOptions options = average_options(window);
    if (is_plain(window) && !is_dilated(window)) {
        options.padding = window.padding();
        options.ceil_mode = ceil;
        options.count_include_pad = counts_pads;
        return c.give(averaged(x, window, options));
    }
    // Sums the existing elements, and counts them.
    Shape one = x.shape();
    one.raw(0) = one.raw(1) = 1;
    Tensor counted = ones(one, x.dtype());
    if (counts_pads) counted = pad(counted, window.widths(), 1);
    OnnxWindow whole = window;
    if (ceil) widen_for_ceil(whole, x.shape());
    if (counts_pads) {
        std::vector<int64_t> more;
        for (std::size_t d = window.after.size(); d-- > 0;) more.insert(more.end(), {0, whole.after[d] - window.after[d]});
        counted = pad(counted, more);
    } else {
        counted = pad(counted, whole.widths());
    }
    options.divisor_override = 1;
    c.give(averaged(pad(x, whole.widths()), window, options) / averaged(counted, window, options));
}

Scalar lowest(DType dtype) {
    if (is_floating(dtype)) return -std::numeric_limits<double>::infinity();
    if (dtype == uint8) return 0;
    return dtype == int32 ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<int64_t>::min();
}

void max_pool(Call& c) {
    Tensor x = c.x(0);
    const Shape sizes = x.shape();
    const DType dtype = x.dtype();
    OnnxWindow window = onnx_window(c, sizes);
    const bool ceil = c.flag("ceil_mode", false);
    OnnxWindow whole = window;
    MaxPoolOptions options = max_options(window);
    if (!is_floating(dtype)) x = x.to(float64);  // as PyTorch's; exact for whole numbers up to 2^53
    if (is_plain(window)) {
        options.padding = window.padding();
        options.ceil_mode = ceil;
        whole.before.assign(window.before.size(), 0);
    } else {
        if (ceil) widen_for_ceil(whole, sizes);
        x = pad(x, whole.widths(), lowest(x.dtype()));
    }
    if (!c.wants(1)) return c.give(largest(x, window, options).to(dtype));
    const ValuesIndices result = largest_with_indices(x, window, options);
    c.give(result.values.to(dtype));
    // Converts positions in the padded plane to those in the whole operand.
    Tensor rest = result.indices, plane;
    const bool is_plane_column_major = c.integer("storage_order", 0) == 1;
    std::vector<Tensor> places;
    for (int d = window.dims; d-- > 0;) {
        const auto i = static_cast<std::size_t>(d);
        const int64_t size = x.size(d + 2);
        places.insert(places.begin(), remainder(rest, size) - whole.before[i]);
        rest = floor_divide(rest, size);
    }
    int64_t stride = 1;
    for (int k = 0; k < window.dims; ++k) {
        const int d = is_plane_column_major ? k : window.dims - 1 - k;
        const Tensor term = places[static_cast<std::size_t>(d)] * stride;
        plane = plane.defined() ? plane + term : term;
        stride *= sizes.raw(d + 2);
    }
    Shape first{sizes.raw(0), sizes.raw(1)};
    for (int d = 0; d < window.dims; ++d) first.push_back(1);
    c.give(plane + reshape(arange(0, sizes.raw(0) * sizes.raw(1), 1, int64) * stride, first));
}

Dims spatial(const Tensor& x) {
    Dims dims;
    for (int d = 2; d < x.dim(); ++d) dims.push_back(d);
    return dims;
}
void global_average_pool(Call& c) {
    const Tensor x = c.x(0);
    c.give(mean(x, spatial(x), true));
}
void global_max_pool(Call& c) {
    const Tensor x = c.x(0);
    c.give(amax(x, spatial(x), true));
}
void global_lp_pool(Call& c) {
    const Tensor x = c.x(0);
    c.give(norm(x, static_cast<double>(c.integer("p", 2)), spatial(x), true));
}

void lp_pool(Call& c) {
    const Tensor x = c.x(0);
    OnnxWindow window = onnx_window(c, x.shape());
    const auto p = static_cast<double>(c.integer("p", 2));
    OnnxWindow whole = window;
    if (c.flag("ceil_mode", false)) widen_for_ceil(whole, x.shape());
    AvgPoolOptions options = average_options(window);
    options.divisor_override = 1;
    c.give(pow(averaged(pad(pow(abs(x), p), whole.widths()), window, options), 1 / p));
}

void max_unpool(Call& c) {
    const Tensor x = c.x(0), indices = c.x(1);
    const OnnxWindow window = onnx_window(c, x.shape());
    Shape natural{x.size(0), x.size(1)};
    for (int d = 0; d < window.dims; ++d) {
        const auto i = static_cast<std::size_t>(d);
        natural.push_back((x.size(d + 2) - 1) * window.stride[i] - window.before[i] - window.after[i] + window.kernel[i]);
    }
    const Tensor flat = scatter(zeros({natural.numel()}, x.dtype()), 0, reshape(indices, {-1}), reshape(x, {-1}));
    const Tensor y = reshape(flat, natural);
    if (!c.has(2)) return c.give(y);
    const Shape wanted = c.integers(2, "output_shape");
    std::vector<int64_t> widths;
    for (int d = natural.rank(); d-- > 2;) widths.insert(widths.end(), {0, wanted[d] - natural.raw(d)});
    c.give(pad(y, widths));
}

constexpr OnnxOp kPoolOps[] = {
    {"AveragePool", 1, average_pool},
    {"MaxPool", 1, max_pool},
    {"GlobalAveragePool", 1, global_average_pool},
    {"GlobalMaxPool", 1, global_max_pool},
    {"GlobalLpPool", 2, global_lp_pool},
    {"LpPool", 2, lp_pool},
    {"MaxUnpool", 9, max_unpool},
};

}  // namespace

std::span<const OnnxOp> onnx_pool_ops() { return kPoolOps; }

}  // namespace tapir::detail
