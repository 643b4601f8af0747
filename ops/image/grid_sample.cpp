// Reads images at computed positions, and makes the grid of an affine map.
#include "tapir/ops/image/grid_sample_kernels.h"

#include <cstring>
#include <string>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/composed_gradient_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/elementwise/rounded_once_impl.h"
#include "tapir/ops/image/grid_sample.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using kernels::GridPadding;
using kernels::GridSample;
using kernels::GridSampleShape;
using std::int64_t;

void grid_sample_rule(Backward& b);
void grid_sample_backward_rule(Backward& b);
std::vector<Tensor> grid_sample_backward(In g, In x, In grid, const GridSampleOptions& options = {}, bool of_input = true, bool of_grid = true);

}  // namespace

TAPIR_OP(grid_sample, grid_sample_rule, "Images read at computed places.",
         TAPIR_SAMPLE_AS("f(2,3,5,4) r(2,6,3,2)[-1.2,1.2]", "F.grid_sample(x[0], x[1], align_corners=False)", grid_sample(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,3,5,4) r(2,6,1,2)[-1.2,1.2]", "F.grid_sample(x[0], x[1], align_corners=True)",
                         grid_sample(x[0], x[1], {.align_corners = true})),
         TAPIR_SAMPLE_AS("f(1,3,5,4) r(1,6,7,2)[-2.5,2.5]", "F.grid_sample(x[0], x[1], padding_mode='border', align_corners=False)",
                         grid_sample(x[0], x[1], {.padding_mode = "border"})),
         TAPIR_SAMPLE_AS("f(1,3,5,4) r(1,6,7,2)[-4,4]", "F.grid_sample(x[0], x[1], padding_mode='reflection', align_corners=False)",
                         grid_sample(x[0], x[1], {.padding_mode = "reflection"})),
         TAPIR_SAMPLE_AS("f(1,2,5,3) r(1,6,7,2)[-4,4]", "F.grid_sample(x[0], x[1], padding_mode='reflection', align_corners=True)",
                         grid_sample(x[0], x[1], {.padding_mode = "reflection", .align_corners = true})),
         TAPIR_SAMPLE_AS("f(1,3,5,4) r(1,6,7,2)[-1.3,1.3]", "F.grid_sample(x[0], x[1], mode='nearest', align_corners=False)",
                         grid_sample(x[0], x[1], {.mode = "nearest"})),
         TAPIR_SAMPLE_AS("f(1,3,5,4) r(1,6,7,2)[-3,3]", "F.grid_sample(x[0], x[1], mode='nearest', padding_mode='reflection', align_corners=True)",
                         grid_sample(x[0], x[1], {.mode = "nearest", .padding_mode = "reflection", .align_corners = true})));
// As an op of its own, the recorded rule is one node in the graph of a gradient.
TAPIR_OP(grid_sample_backward, grid_sample_backward_rule, "The gradients of grid_sample: of the images, of the grid, or of both.",
         TAPIR_SAMPLE_AS("f(2,3,6,3) f(2,3,5,4) r(2,6,3,2)[-1.2,1.2]",
                         "torch.autograd.functional.vjp(lambda t, p: F.grid_sample(t, p, align_corners=False), (x[1], x[2]), x[0])[1]",
                         grid_sample_backward(x[0], x[1], x[2])),
         TAPIR_SAMPLE_AS(
             "f(1,3,6,7) f(1,3,5,4) r(1,6,7,2)[-2.5,2.5]",
             "torch.autograd.functional.vjp(lambda t, p: F.grid_sample(t, p, padding_mode='border', align_corners=False), (x[1], x[2]), x[0])[1]",
             grid_sample_backward(x[0], x[1], x[2], {.padding_mode = "border"})),
         TAPIR_SAMPLE_AS(
             "f(1,2,6,7) f(1,2,5,3) r(1,6,7,2)[-4,4]",
             "torch.autograd.functional.vjp(lambda t, p: F.grid_sample(t, p, padding_mode='reflection', align_corners=True), (x[1], x[2]), x[0])[1]",
             grid_sample_backward(x[0], x[1], x[2], {.padding_mode = "reflection", .align_corners = true})),
         TAPIR_SAMPLE_AS("f(1,3,6,7) f(1,3,5,4) r(1,6,7,2)[-1.3,1.3]",
                         "torch.autograd.functional.vjp(lambda t: F.grid_sample(t, x[2], mode='nearest', align_corners=False), x[1], x[0])[1]",
                         grid_sample_backward(x[0], x[1], x[2], {.mode = "nearest"}, true, false)));
TAPIR_OP(affine_grid, Composed, "The grid of an affine map.",
         TAPIR_SAMPLE_AS("f(2,2,3)", "F.affine_grid(x[0], (2, 1, 3, 4), align_corners=False)", affine_grid(x[0], {2, 1, 3, 4})),
         TAPIR_SAMPLE_AS("f(2,2,3)", "F.affine_grid(x[0], (2, 5, 1, 4), align_corners=True)",
                         affine_grid(x[0], {2, 5, 1, 4}, /*align_corners=*/true)));

namespace {

// --- Running -------------------------------------------------------------------------------------------------------------

// Calls f.operator()<T>() for float or double, which the kernels take.
template <class F>
void with_number_type(DType dtype, const F& f) {
    dtype == float64 ? f.template operator()<double>() : f.template operator()<float>();
}

constexpr int64_t kTapWork = 8;  // for TAPIR_LAUNCH: one element of an image at one place takes as long

template <class T>
GridSample<T> sample_args(const GridSampleShape& s, const Tensor& x, const Tensor& grid, const Tensor& g, const Tensor& out) {
    return {s, kernel_data<T>(x), kernel_data<T>(grid), kernel_data<T>(g), kernel_data<T>(out)};
}

Tensor sampled(const GridSampleShape& s, const Tensor& x, const Tensor& grid, const Loc& loc) {
    const Tensor out = detail::make_empty({s.batch, s.channels, s.out_height, s.out_width}, x.dtype(), x.device(), loc);
    with_number_type(x.dtype(), [&]<class T>() {
        const GridSample<T> args = sample_args<T>(s, x, grid, {}, out);
        TAPIR_LAUNCH(out, s.batch * s.places(), s.channels * kTapWork, grid_sample, args);
    });
    return out;
}

// dx, dgrid: zeros at first.
void add_gradient_of_x(const GridSampleShape& s, const Tensor& grid, const Tensor& g, const Tensor& dx) {
    with_number_type(g.dtype(), [&]<class T>() {
        const GridSample<T> args = sample_args<T>(s, {}, grid, g, dx);
        TAPIR_LAUNCH(dx, s.batch * s.channels, s.places() * kTapWork, grid_sample_dx, args);
    });
}
Tensor gradient_of_x(const GridSampleShape& s, const Tensor& grid, const Tensor& g) {
    Tensor dx = gradient_ops::zeros({s.batch, s.channels, s.height, s.width}, g.dtype(), g.device());
    add_gradient_of_x(s, grid, g, dx);
    return dx;
}

void add_gradient_of_grid(const GridSampleShape& s, const Tensor& x, const Tensor& grid, const Tensor& g, const Tensor& dgrid) {
    with_number_type(g.dtype(), [&]<class T>() {
        const GridSample<T> args = sample_args<T>(s, x, grid, g, dgrid);
        TAPIR_LAUNCH(dgrid, s.batch * s.places(), s.channels * kTapWork, grid_sample_dgrid, args);
    });
}
Tensor gradient_of_grid(const GridSampleShape& s, const Tensor& x, const Tensor& grid, const Tensor& g) {
    Tensor dgrid = gradient_ops::zeros(grid.shape(), g.dtype(), g.device());
    add_gradient_of_grid(s, x, grid, g, dgrid);
    return dgrid;
}

Tensor as_computed(const Tensor& x) { return contiguous(to(x, computed_in(x.dtype()))); }

// --- The gradients by differentiable ops -----------------------------------------------------------------------------------

// GridPlace of kernels/grid_sample.h for a whole grid, computed by that kernel, too: ops would round halves to other
// pixels. t, recorded, is linear in the number. While tracing all is made of ops.
struct Places {
    Tensor below, t, slope;

    Places(const GridSampleShape& s, const Tensor& grid) {
        Tensor rest, finite = where(isfinite(grid), grid, 0);  // other numbers have no slope
        if (detail::is_tracing()) {
            const Column x(s, select(grid.detach(), 3, 0), s.width), y(s, select(grid.detach(), 3, 1), s.height);
            below = stack({x.below, y.below}, 3);
            rest = stack({x.rest, y.rest}, 3);
            slope = stack({x.slope, y.slope}, 3);
        } else {
            const detail::PauseRecording pause;
            const Tensor given = contiguous(grid.detach());
            below = gradient_ops::zeros(grid.shape(), int64, grid.device());
            rest = gradient_ops::zeros(grid.shape(), grid.dtype(), grid.device());
            slope = gradient_ops::zeros(grid.shape(), grid.dtype(), grid.device());
            with_number_type(grid.dtype(), [&]<class T>() {
                const kernels::GridPlaces<T> args{s, kernel_data<T>(given), kernel_data<int64_t>(below), kernel_data<T>(rest), kernel_data<T>(slope)};
                TAPIR_LAUNCH(given, s.batch * s.places(), 2 * kTapWork, grid_places, args);
            });
        }
        t = rest + slope * (finite - finite.detach());
    }

    Tensor of(const Tensor& numbers, int dimension) const { return select(numbers, 3, dimension); }

 private:
    // GridSampleShape::place() for one of the two numbers of each position, by ops.
    struct Column {
        Tensor below, rest, slope;

        Column(const GridSampleShape& s, const Tensor& number, int64_t size) {
            const Tensor known = logical_not(isnan(number));
            const auto n = static_cast<double>(size);
            Tensor from = where(known, number + 1, 0);
            slope = to(known, number.dtype()) * (s.align_corners ? (n - 1) / 2 : n / 2);
            if (s.padding == GridPadding::border) from = clamp(from, 0, 2);
            if (s.padding == GridPadding::reflection) {
                slope = where(from < 0, -slope, slope);
                from = abs(from);
                from = from - trunc(from / 4) * 4;
                slope = where(from > 2, -slope, slope);
                from = where(from > 2, 4 - from, from);
            }
            Tensor at = s.align_corners ? from / 2 * (n - 1) : (from * n - 1) / 2;
            if (s.padding != GridPadding::zeros) {
                slope = where(logical_or(at <= 0, at >= n - 1), 0, slope);
                at = clamp(at, 0, n - 1);
            }
            const Tensor is_near = logical_and(at > -2, at < n + 1);
            const Tensor near = where(is_near, at, GridSampleShape::kNowhere);
            const Tensor whole = s.nearest ? round(near) : floor(near);
            slope = s.nearest ? slope * 0 : where(is_near, slope, 0);
            rest = s.nearest ? slope : where(is_near, near - whole, 0);
            below = to(whole, int64);
        }
    };
};

// Returns x, with 0 for infinite or nan elements that count 0 times: the kernels leave such terms out.
Tensor counted(const Tensor& x, const Tensor& times) { return where(logical_or(ne(times, 0), isfinite(x)), x, 0); }

// The gradients that are wanted.
struct Wanted {
    bool of_input, of_grid;
};
std::vector<Tensor> gradients_of_ops(const GridSampleShape& s, const Tensor& given_g, const Tensor& given_x, const Tensor& given_grid,
                                     Wanted wanted) {
    const DType dtype = computed_in(given_g.dtype());  // 16 bits would move a position to another pixel
    const Tensor g = to(given_g, dtype), x = to(given_x, dtype), grid = to(given_grid, dtype);
    const Places places(s, grid);
    const Tensor along = places.of(places.t, 0), down = places.of(places.t, 1);
    const Tensor slope_x = places.of(places.slope, 0), slope_y = places.of(places.slope, 1);
    const Tensor pixels = reshape(x, {s.batch, s.channels, s.pixels()});
    Tensor dx, by_x, by_y;
    for (int k = 0; k < 4; ++k) {
        const Tensor column = places.of(places.below, 0) + k % 2, row = places.of(places.below, 1) + k / 2;
        const Tensor is_in_row = logical_and(ge(column, 0), lt(column, s.width)), is_in_column = logical_and(ge(row, 0), lt(row, s.height));
        const Tensor is_inside = logical_and(is_in_row, is_in_column), inside = is_inside.to(dtype);
        const Tensor offset = where(is_inside, row * s.width + column, 0);
        const Tensor index = expand(reshape(offset, {s.batch, 1, s.places()}), {s.batch, s.channels, s.places()});
        const Tensor by_row = k % 2 ? along : 1 - along, by_column = (k / 2 ? down : 1 - down) * inside;
        if (wanted.of_input) {
            const Tensor weight = unsqueeze(by_row * by_column, 1);
            const Tensor part = reshape(counted(g, weight) * weight, {s.batch, s.channels, s.places()});
            dx = scatter_add(dx.defined() ? dx : zeros(pixels.shape(), {dtype, g.device()}), 2, index, part);
        }
        if (wanted.of_grid) {
            const Tensor read = where(unsqueeze(is_inside, 1), reshape(gather(pixels, 2, index), g.shape()), 0);
            const Tensor pixel = sum(g * read, {1});
            const Tensor times_x = by_column * (k % 2 ? slope_x : -slope_x), times_y = by_row * inside * (k / 2 ? slope_y : -slope_y);
            const Tensor of_x = counted(pixel, times_x) * times_x, of_y = counted(pixel, times_y) * times_y;
            by_x = by_x.defined() ? by_x + of_x : of_x;
            by_y = by_y.defined() ? by_y + of_y : of_y;
        }
    }
    std::vector<Tensor> gradients;
    if (wanted.of_input) gradients.push_back(reshape(dx, x.shape()));
    if (wanted.of_grid) gradients.push_back(stack({by_x, by_y}, 3));
    return gradients;
}

struct GridBackwardAttrs {
    GridSampleShape shape;
    Wanted wanted;
};

// saved: the inputs
void grid_sample_backward_rule(Backward& b) {
    const auto& a = b.attrs<GridBackwardAttrs>();
    differentiate(b, [&](const std::vector<Tensor>& in) { return gradients_of_ops(a.shape, in[0], in[1], in[2], a.wanted); });
}

GridSampleOptions options_of(bool is_nearest, GridPadding padding, bool align_corners) {
    const char* const paddings[] = {"zeros", "border", "reflection"};
    return {is_nearest ? "nearest" : "bilinear", paddings[static_cast<int>(padding)], align_corners};
}

void grid_sample_rule(Backward& b) {
    const auto s = b.attrs<GridSampleShape>();
    const Wanted wanted{b.needs(0), b.needs(1)};
    const bool is_ordered = on_gpu(b.grad()) && is_deterministic();
    if ((b.recording() || is_ordered) && b.grad().numel() > 0) {
        const Loc& loc = b.record().loc;
        const std::vector<Tensor> gradients = b.recording()
            ? grid_sample_backward(In(b.grad(), loc), In(b.saved(0), loc), In(b.saved(1), loc), options_of(s.nearest, s.padding, s.align_corners),
                                   wanted.of_input, wanted.of_grid)
            : gradients_of_ops(s, b.grad(), b.saved(0), b.saved(1), wanted);
        if (wanted.of_input) b.give(0, gradients.front());
        if (wanted.of_grid) b.give(1, gradients.back());
        return;
    }
    const Tensor g = as_computed(b.grad()), grid = as_computed(b.saved(1));
    if (wanted.of_input) b.give(0, gradient_of_x(s, grid, g));
    if (wanted.of_grid) b.give(1, gradient_of_grid(s, as_computed(b.saved(0)), grid, g));
}

// --- Arguments -----------------------------------------------------------------------------------------------------------

enum class GridMode : std::uint8_t { bilinear, nearest };
struct GridCall {
    GridMode mode = GridMode::bilinear;
    GridPadding padding_mode = GridPadding::zeros;
    bool align_corners = false;
};
struct GridBackwardCall : GridCall {
    bool of_input = true, of_grid = true;
};

bool is_nearest(const GridSampleOptions& o, const Loc& loc) {
    const std::string mode = o.mode;
    if (mode != "bilinear" && mode != "nearest") {
        fail<ValueError>(loc, "grid_sample: mode is \"bilinear\" or \"nearest\", not \"{}\"", mode);
    }
    return mode == "nearest";
}

GridPadding padding_of(const GridSampleOptions& o, const Loc& loc) {
    const std::string padding = o.padding_mode;
    if (padding == "zeros") return GridPadding::zeros;
    if (padding == "border") return GridPadding::border;
    if (padding == "reflection") return GridPadding::reflection;
    fail<ValueError>(loc, "grid_sample: padding_mode is \"zeros\", \"border\" or \"reflection\", not \"{}\"", padding);
}

// Returns -1 to 1 in n steps: the positions of pixels.
Tensor centres(int64_t n, bool align_corners, const Tensor& like) {
    if (n == 1) return zeros({1}, {like.dtype(), like.device()});
    const double end = align_corners ? 1 : static_cast<double>(n - 1) / static_cast<double>(n);
    return linspace(-end, end, n, {like.dtype(), like.device()});
}

GridSampleShape checked(const char* op, const In& x, const In& grid, const GridSampleOptions& options) {
    if (!is_floating(x->dtype) || grid->dtype != x->dtype) {
        fail<DTypeError>(x.loc, "{}: x and the grid need one floating dtype, got {} and {}", op, name(x->dtype), name(grid->dtype));
    }
    const bool fits = x->rank == 4 && grid->rank == 4 && grid->sizes[3] == 2 && grid->sizes[0] == x->sizes[0];
    if (!fits || x->sizes[2] == 0 || x->sizes[3] == 0) {
        fail<ShapeError>(x.loc, "{}: needs x (n, channels, height, width), with pixels, and grid (n, h, w, 2), got {} and {}", op, x.tensor.shape(),
                         grid.tensor.shape());
    }
    return {x->sizes[0],
            x->sizes[1],
            x->sizes[2],
            x->sizes[3],
            grid->sizes[1],
            grid->sizes[2],
            padding_of(options, x.loc),
            is_nearest(options, x.loc),
            options.align_corners};
}

std::vector<Tensor> grid_sample_backward(In g, In x, In grid, const GridSampleOptions& options, bool of_input, bool of_grid) {
    constexpr const char* op = "grid_sample_backward";
    for (const In& t : {g, x, grid}) detail::check_defined(In(t.tensor, x.loc), op);
    detail::check_same_device(op, x.tensor, grid.tensor, x.loc);
    detail::check_same_device(op, x.tensor, g.tensor, x.loc);
    const GridSampleShape s = checked(op, x, grid, options);
    const Shape of_result{s.batch, s.channels, s.out_height, s.out_width};
    if (g.tensor.shape() != of_result || g->dtype != x->dtype) {
        fail<ShapeError>(x.loc, "{}: needs a gradient of shape {} and {}, got {} and {}", op, of_result, name(x->dtype), g.tensor.shape(),
                         name(g->dtype));
    }
    std::vector<Tensor> results;
    {
        const detail::UnrecordedPartsOf parts(g.loc);
        if (on_gpu(g.tensor) && is_deterministic() && g.tensor.numel() > 0) {
            results = gradients_of_ops(s, g.tensor, x.tensor, grid.tensor, {of_input, of_grid});
        } else {
            const Tensor from = as_computed(g.tensor), places = as_computed(grid.tensor);
            if (of_input) results.push_back(gradient_of_x(s, places, from));
            if (of_grid) results.push_back(gradient_of_grid(s, as_computed(x.tensor), places, from));
        }
        for (Tensor& result : results) result = to(result, x->dtype);
    }
    if (!detail::thread.observed) return results;
    const GridBackwardCall call{{s.nearest ? GridMode::nearest : GridMode::bilinear, s.padding, s.align_corners}, of_input, of_grid};
    const std::vector<Tensor> inputs = {g.tensor, x.tensor, grid.tensor};
    record_many(grid_sample_backward_op, x.loc, inputs, results, inputs, GridBackwardAttrs{s, {of_input, of_grid}}, call);
    return results;
}

}  // namespace

Tensor grid_sample(In x, In grid, const GridSampleOptions& options) {
    detail::check_defined(x, "grid_sample");
    detail::check_defined(grid, "grid_sample");
    detail::check_same_device("grid_sample", x.tensor, grid.tensor, x.loc);
    if (x->dtype != grid->dtype && detail::autocast_widens(x, grid)) {
        return grid_sample(In(detail::widened(x), x.loc), In(detail::widened(grid), x.loc), options);
    }
    const GridSampleShape s = checked("grid_sample", x, grid, options);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor grids = detail::folded(in[1]);
            return detail::as_one_batch(in, [&](const Tensor& images) { return grid_sample(In(images, x.loc), In(grids, grid.loc), options); });
        };
        const detail::BatchKey key = detail::batch_key(s.nearest, s.padding, s.align_corners);
        if (Tensor y = detail::in_group({grid_sample_op, x.loc, {&x.tensor, &grid.tensor}, key}, of_group); y.defined()) return y;
    }
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        out = to(sampled(s, as_computed(x.tensor), as_computed(grid.tensor), x.loc), x->dtype);
    }
    record(grid_sample_op, x.loc, {&x.tensor, &grid.tensor}, out, {&x.tensor, &grid.tensor}, s, Told{grid_sample_op, {&x.tensor, &grid.tensor}},
           GridCall{s.nearest ? GridMode::nearest : GridMode::bilinear, s.padding, s.align_corners});
    return out;
}

Tensor affine_grid(In theta, const Shape& size, bool align_corners) {
    detail::check_defined(theta, "affine_grid");
    if (!is_floating(theta->dtype)) {
        fail<DTypeError>(theta.loc, "affine_grid: needs a floating dtype, got {}; convert with to(float32)", name(theta->dtype));
    }
    const bool fits = size.rank() == 4 && theta->rank == 3 && theta->sizes[0] == size[0] && theta->sizes[1] == 2 && theta->sizes[2] == 3;
    if (!fits) {
        fail<ShapeError>(theta.loc, "affine_grid: needs theta (n, 2, 3) and size (n, channels, height, width), got {} and {}", theta.tensor.shape(),
                         size);
    }
    for (const int64_t n : size) {
        if (n < 1) fail<ShapeError>(theta.loc, "affine_grid: every size must be at least 1, got {}", size);
    }
    const detail::RecordedParts parts(theta.loc);
    const detail::PauseAutocast exact;  // in 16 bits neighbouring pixels would have one position
    if (const RoundedOnce once({&theta.tensor}); once.is_needed()) {
        const Tensor wide = once.wide(theta.tensor);
        return once.result(affine_grid(In(wide, theta.loc), size, align_corners));
    }
    Tensor base;  // (height * width, 3)
    {
        const detail::PauseRecording pause;
        const Tensor x = expand(centres(size[3], align_corners, theta.tensor), {size[2], size[3]});
        const Tensor y = expand(unsqueeze(centres(size[2], align_corners, theta.tensor), 1), {size[2], size[3]});
        base = reshape(stack({x, y, ones_like(x)}, 2), {-1, 3});
        base.impl()->trace = 0;  // a constant
    }
    return reshape(matmul(base, transpose(theta, 1, 2)), {size[0], size[2], size[3], 2});
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

GridSampleOptions options_of(const GridCall& a) { return options_of(a.mode == GridMode::nearest, a.padding_mode, a.align_corners); }

void call_fields(Fields& f, GridCall& a) {
    f("mode", a.mode, {"bilinear", "nearest"})("padding_mode", a.padding_mode, {"zeros", "border", "reflection"})("align_corners", a.align_corners);
}

// x (n, channels, height, width), grid (n, h, w, 2)
ValueType sampled(const ValueType& x, const ValueType& grid) {
    using namespace types;
    const bool fits = x.rank() == 4 && grid.rank() == 4 && may_equal(grid.shape[3], 2) && may_equal(grid.shape[0], x.shape[0]);
    need(fits && !(x.shape[2] == SymInt(0)) && !(x.shape[3] == SymInt(0)),
         "needs x (n, channels, height, width), with pixels, and grid (n, h, w, 2)");
    return shaped(x, {agreed(x.shape[0], grid.shape[0]), x.shape[1], grid.shape[1], grid.shape[2]});
}

ResultTypes types_of(const TypeCall& t, const GridBackwardCall& a) {
    types::need(may_equal(t[0].shape, sampled(t[1], t[2]).shape), "the gradient has not the result's shape");
    ResultTypes results;
    if (a.of_input) results.push_back(t[1]);
    if (a.of_grid) results.push_back(t[2]);
    return results;
}

bool grid_sample_backward_into(const FormCall& x, const Tensor& out) {
    const GridBackwardCall& a = *static_cast<const GridBackwardCall*>(x.attrs);
    const TensorImpl *g = x[0].impl(), *in = x[1].impl(), *grid = x[2].impl();
    const DType dtype = g->dtype;
    if (dtype != float32 && dtype != float64) return false;
    const bool fits = g->rank == 4 && in->rank == 4 && grid->rank == 4 && g->numel > 0 && grid->sizes[3] == 2 && g->sizes[0] == in->sizes[0] &&
        g->sizes[1] == in->sizes[1] && grid->sizes[0] == in->sizes[0] && grid->sizes[1] == g->sizes[2] && grid->sizes[2] == g->sizes[3];
    if (!fits || in->numel == 0) return false;
    const Tensor* const results = &out;
    const int count = a.of_input + a.of_grid;
    for (const TensorImpl* t : {g, in, grid}) {
        if (!detail::is_plain(t, dtype)) return false;
    }
    for (int k = 0; k < count; ++k) {
        const TensorImpl* t = results[k].impl();
        if (!detail::is_plain(t, dtype) || t->numel != (k == 0 && a.of_input ? in : grid)->numel) return false;
    }
    const GridSampleShape s{in->sizes[0],   in->sizes[1],   in->sizes[2],   in->sizes[3],
                            grid->sizes[1], grid->sizes[2], a.padding_mode, a.mode == GridMode::nearest,
                            a.align_corners};
    for (int k = 0; k < count; ++k) std::memset(results[k].raw_data(), 0, static_cast<std::size_t>(results[k].impl()->numel) * itemsize(dtype));
    if (a.of_input) add_gradient_of_x(s, x[2], x[0], results[0]);
    if (a.of_grid) add_gradient_of_grid(s, x[1], x[2], x[0], results[count - 1]);
    return true;
}

}  // namespace

TAPIR_FORM(grid_sample, 2, GridCall, sampled(t[0], t[1]), grid_sample(x[0], x[1], options_of(a)), call_fields(f, a));
TAPIR_INTO_FORM(grid_sample_backward, 3, GridBackwardCall, types_of(t, a),
                grid_sample_backward(x[0], x[1], x[2], options_of(a), a.of_input, a.of_grid), grid_sample_backward_into,
                (call_fields(f, a), f("of_input", a.of_input)("of_grid", a.of_grid)));

}  // namespace tapir
