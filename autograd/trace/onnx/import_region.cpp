// ONNX ops on windows of images and on places in them: col2im, affine grids, deformable convolutions.
#include <numeric>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/window_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/convolution/convolution.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/image/grid_sample.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

int64_t product(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

// A transposed convolution that adds each element of a column at its place in the window.
void col2im(Call& c) {
    const Tensor x = c.x(0);  // (n, channels * window, windows)
    const std::vector<int64_t> image = c.integers(1, "image_shape"), block = c.integers(2, "block_shape");
    if (x.dim() != 3 || image.size() != block.size())
        c.reject("an operand of shape {}, images of {} and windows of {} dimensions", x.shape(), image.size(), block.size());
    Shape sizes{x.size(0), 1};
    for (const int64_t size : image) sizes.push_back(size);
    constexpr int64_t most = 1 << 12;  // elements per window
    for (const int64_t size : block) {
        if (size < 1 || size > most) c.reject("a window has a size of {}", size);
    }
    const int64_t elements = product(block);
    if (elements > most || x.size(1) % elements != 0) c.reject("windows of {} elements in a shape {}", elements, x.shape());
    const OnnxWindow window = onnx_window(c, sizes, block);
    const int64_t channels = x.size(1) / elements;
    Shape columns{x.size(0), x.size(1)}, kernel{elements, 1}, times{channels, 1};
    std::vector<int64_t> widths;
    for (std::size_t d = 0; d < image.size(); ++d) {
        const int64_t extent = (block[d] - 1) * window.dilation[d] + 1, size = image[d] + window.before[d] + window.after[d];
        if (size < extent) c.reject("a window of {} in an image of {}", extent, size);
        const int64_t windows = (size - extent) / window.stride[d] + 1, reached = (windows - 1) * window.stride[d] + extent;
        columns.push_back(windows);
        kernel.push_back(block[d]);
        times.push_back(1);
        widths.insert(widths.begin(), {-window.before[d], size - reached - window.after[d]});
    }
    Tensor one;
    {
        const OutsideTrace outside;
        one = reshape(eq(reshape(arange(elements, int64), {-1, 1}), arange(elements, int64)).to(x.dtype()), kernel);
    }
    ConvTransposeOptions options;
    options.stride = window.stride;
    options.dilation = window.dilation;
    options.groups = channels;
    const Tensor weight = repeat(one, times), spread = reshape(x, columns);
    const Tensor y = window.dims == 1 ? conv_transpose1d(spread, weight, {}, options)
        : window.dims == 2            ? conv_transpose2d(spread, weight, {}, options)
                                      : conv_transpose3d(spread, weight, {}, options);
    c.give(pad(y, widths));
}

void affine_grid_op(Call& c) {
    const Tensor theta = c.x(0);
    const Shape size = c.integers(1, "size");
    const bool corners = c.flag("align_corners", false);
    if (size.rank() == 4) return c.give(affine_grid(theta, size, corners));
    if (size.rank() != 5 || theta.dim() != 3 || theta.size(1) != 3 || theta.size(2) != 4)
        c.reject("maps of shape {} for a size {}", theta.shape(), size);
    const Shape volume{size[2], size[3], size[4]};
    std::vector<Tensor> sides;  // x, y, z, 1
    for (int d = 3; d-- > 0;) {
        const int64_t count = volume.raw(d);
        const Tensor at = arange(count, int64).to(theta.dtype());
        const Tensor centre = corners && count > 1 ? at * (2.0 / static_cast<double>(count - 1)) - 1
            : corners                              ? at
                                                   : (at * 2 + 1) / static_cast<double>(count) - 1;
        Shape shape{1, 1, 1};
        shape.raw(d) = count;
        sides.push_back(expand(reshape(centre, shape), volume));
    }
    sides.push_back(ones(volume, theta.dtype()));
    const Tensor places = reshape(stack(sides, -1), {1, volume.numel(), 4});
    c.give(reshape(matmul(places, transpose(theta, 1, 2)), {theta.size(0), size[2], size[3], size[4], 3}));
}

// A convolution whose taps are displaced by offsets (n, groups * window * 2, height, width) of (y, x) (Dai et al. 2017),
// and weighted by a mask (Zhu et al. 2019).
void deform_conv(Call& c) {
    const Tensor x = c.x(0), w = c.x(1), offset = c.x(2);
    if (x.dim() != 4 || w.dim() != 4 || offset.dim() != 4)
        c.reject("an operand of shape {}, a weight of shape {}, offsets of shape {}", x.shape(), w.shape(), offset.shape());
    const OnnxWindow window = onnx_window(c, x.shape(), {w.size(2), w.size(3)});
    const int64_t groups = c.integer("group", 1), offset_groups = c.integer("offset_group", 1), n = x.size(0), channels = x.size(1);
    const int64_t kh = w.size(2), kw = w.size(3), taps = kh * kw, height = offset.size(2), width = offset.size(3);
    if (groups < 1 || offset_groups < 1 || channels % offset_groups != 0 || w.size(1) * groups != channels || w.size(0) % groups != 0 ||
        offset.size(1) != offset_groups * taps * 2) {
        c.reject("an operand of shape {}, a weight of shape {}, offsets of shape {} in {} and {} groups", x.shape(), w.shape(), offset.shape(),
                 groups, offset_groups);
    }
    // The place of each tap of each window, without its offset: (taps, 1 or height, 1 or width).
    const auto places = [&](std::size_t d, int64_t count) {
        const int64_t size = window.kernel[d];
        const Tensor tap = arange(size, int64) * window.dilation[d], start = arange(count, int64) * window.stride[d] - window.before[d];
        const Tensor each = reshape(expand(reshape(tap, d == 0 ? Shape{size, 1} : Shape{1, size}), {kh, kw}), {taps, 1, 1});
        return (each + reshape(start, d == 0 ? Shape{1, count, 1} : Shape{1, 1, count})).to(x.dtype());
    };
    const Tensor moves = reshape(offset, {n * offset_groups, taps, 2, height, width});
    const auto in_grid = [&](const Tensor& at, int64_t size) { return (at * 2 + 1) / static_cast<double>(size) - 1; };
    const Tensor gy = in_grid(select(moves, 2, 0) + places(0, height), x.size(2)), gx = in_grid(select(moves, 2, 1) + places(1, width), x.size(3));
    const Tensor grid = reshape(stack({gx, gy}, -1), {n * offset_groups, taps * height, width, 2});
    const int64_t each = channels / offset_groups;
    Tensor columns =
        reshape(grid_sample(reshape(x, {n * offset_groups, each, x.size(2), x.size(3)}), grid), {n, offset_groups, each, taps, height * width});
    if (c.has(4)) columns = columns * reshape(c.x(4), {n, offset_groups, 1, taps, height * width});
    const Tensor weight = reshape(w, {1, groups, w.size(0) / groups, w.size(1) * taps});
    Tensor y = reshape(matmul(weight, reshape(columns, {n, groups, w.size(1) * taps, height * width})), {n, w.size(0), height, width});
    if (c.has(3)) y = y + reshape(c.x(3), {1, -1, 1, 1});
    c.give(y);
}

constexpr OnnxOp kRegionOps[] = {
    {"Col2Im", 18, col2im},
    {"AffineGrid", 20, affine_grid_op},
    {"DeformConv", 19, deform_conv},
};

}  // namespace

std::span<const OnnxOp> onnx_region_ops() { return kRegionOps; }

}  // namespace tapir::detail
