// Resampling, and ops that exchange pixels and channels.
#include "tapir/ops/image/interpolate_kernels.h"

#include <cmath>
#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/image/interpolate.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/pooling/pooling.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using kernels::ResampleDim;
using kernels::ResampleShape;
using kernels::Resampling;
using std::int64_t;

void interpolate_rule(Backward& b);
void pixel_shuffle_rule(Backward& b);
void pixel_unshuffle_rule(Backward& b);

}  // namespace

TAPIR_OP(interpolate, interpolate_rule, "Images resampled.",
         TAPIR_SAMPLE_AS("f(2,3,5)", "nn.functional.interpolate(x[0], 8)", interpolate(x[0], {.size = 8})),
         TAPIR_SAMPLE_AS("f(2,2,6,5)", "nn.functional.interpolate(x[0], (4, 9), mode='nearest-exact')",
                         interpolate(x[0], {.size = {4, 9}, .mode = "nearest-exact"})),
         TAPIR_SAMPLE_AS("f(2,2,5)", "nn.functional.interpolate(x[0], 3, mode='linear')", interpolate(x[0], {.size = 3, .mode = "linear"})),
         TAPIR_SAMPLE_AS("f(1,3,4,3)", "nn.functional.interpolate(x[0], scale_factor=2.5, mode='bilinear')",
                         interpolate(x[0], {.scale_factor = 2.5, .mode = "bilinear"})),
         TAPIR_SAMPLE_AS("f(2,1,4,5)", "nn.functional.interpolate(x[0], (6, 3), mode='bilinear', align_corners=True)",
                         interpolate(x[0], {.size = {6, 3}, .mode = "bilinear", .align_corners = true})),
         TAPIR_SAMPLE_AS("f(1,2,4,5)", "nn.functional.interpolate(x[0], scale_factor=(1.6, 0.7), mode='bicubic')",
                         interpolate(x[0], {.scale_factor = {1.6, 0.7}, .mode = "bicubic"})),
         TAPIR_SAMPLE_AS("f(1,2,2,3,4)", "nn.functional.interpolate(x[0], (3, 2, 6), mode='trilinear')",
                         interpolate(x[0], {.size = {3, 2, 6}, .mode = "trilinear"})),
         TAPIR_SAMPLE_AS("f(1,2,5,4)", "nn.functional.interpolate(x[0], (2, 3), mode='area')", interpolate(x[0], {.size = {2, 3}, .mode = "area"})));
TAPIR_OP(pixel_shuffle, pixel_shuffle_rule, "Channels as pixels.", TAPIR_SAMPLE("f(2,8,2,3)", pixel_shuffle(x[0], 2)),
         TAPIR_SAMPLE("f(9,1,2)", pixel_shuffle(x[0], 3)));
TAPIR_OP(pixel_unshuffle, pixel_unshuffle_rule, "Pixels as channels.", TAPIR_SAMPLE("f(2,4,6)", pixel_unshuffle(x[0], 2)),
         TAPIR_SAMPLE("f(2,1,3,6)", pixel_unshuffle(x[0], 3)));
TAPIR_OP(channel_shuffle, Composed, "Channels dealt out.", TAPIR_SAMPLE("f(2,6,2,2)", channel_shuffle(x[0], 3)));

namespace {

// --- Running -------------------------------------------------------------------------------------------------------------

struct InterpolateAttrs {
    ResampleDim dims[3];
    int64_t batch, channels;
    std::int32_t count;  // of spatial dimensions, the last ones of `dims`
    bool is_transposed;
    double factors[3] = {0, 0, 0};  // positions use these, for the last dimensions; 0: the sizes
};

// The arguments: sizes, or factors. For the gradient, the size of the resampled image.
struct InterpolateCall {
    Shape size, input_size;
    double factors[3] = {0, 0, 0};
    Resampling mode = Resampling::nearest;
    bool align_corners = false;
};

InterpolateCall call_of(const InterpolateAttrs& attrs) {
    InterpolateCall call;
    for (int d = 3 - attrs.count; d < 3; ++d) {
        call.factors[d] = attrs.factors[d];
        if (attrs.factors[d] == 0) call.size.push_back(attrs.dims[d].out);
        if (attrs.is_transposed) call.input_size.push_back(attrs.dims[d].in);
    }
    call.mode = attrs.dims[2].mode;
    call.align_corners = attrs.dims[2].align_corners;
    return call;
}

// The results of taps() or made_of() for each written element.
template <class T>
struct Table {
    std::vector<int64_t> first, begin;
    std::vector<T> weights;
    int alike = 0;

    Table(const ResampleDim& dim, bool is_transposed) {
        const int64_t n = is_transposed ? dim.in : dim.out;
        begin.push_back(0);
        for (int64_t at = 0; at < n; ++at) {
            int64_t from = 0, end = 0;
            if (is_transposed) {
                dim.made_of(at, from, end);
                for (int64_t o = from; o < end; ++o) weights.push_back(static_cast<T>(dim.weight_of(at, o)));
            } else {
                double own[4];
                const int count = dim.taps(at, from, own);
                for (int k = 0; k < count; ++k) weights.push_back(static_cast<T>(own[k]));
            }
            first.push_back(from);
            begin.push_back(static_cast<int64_t>(weights.size()));
        }
        const bool is_nearest = dim.mode == Resampling::nearest || dim.mode == Resampling::nearest_exact;
        if (!is_transposed && (is_nearest || dim.in == dim.out) && dim.mode != Resampling::cubic) alike = 1;
        if (!is_transposed && alike == 0 && dim.mode == Resampling::linear && dim.in > 1) take_two(dim.in);
    }

    // Takes two elements each, one of which may have the weight 0, in place of one or two.
    void take_two(int64_t in) {
        alike = 2;
        std::vector<T> pairs;
        for (std::size_t c = 0; c < first.size(); ++c) {
            const T* own = weights.data() + begin[c];
            const bool is_one = begin[c + 1] - begin[c] == 1, is_last = is_one && first[c] == in - 1;
            pairs.push_back(is_last ? T(0) : own[0]);
            pairs.push_back(is_last ? own[0] : is_one ? T(0) : own[1]);
            if (is_last) --first[c];
        }
        weights = pairs;
        for (std::size_t c = 0; c < begin.size(); ++c) begin[c] = 2 * static_cast<int64_t>(c);
    }
};

template <class T, class Kernel>
void run_on_cpu(const ResampleShape& s, const Tensor& from, const Tensor& to, const Kernel& kernel) {
    const Table<T> tables[3] = {{s.dims[0], s.is_transposed}, {s.dims[1], s.is_transposed}, {s.dims[2], s.is_transposed}};
    kernels::Resample<T> args{};
    args.inner = s.inner;
    args.from = static_cast<const T*>(from.raw_data());
    args.to = static_cast<T*>(to.raw_data());
    for (int d = 0; d < 3; ++d) {
        args.from_sizes[d] = s.from(d);
        args.to_sizes[d] = s.to(d);
        args.taps[d] = {tables[d].first.data(), tables[d].begin.data(), tables[d].weights.data(), tables[d].alike};
    }
    const int64_t rows = s.outer * s.to(0) * s.to(1), length = s.from(2) * s.inner;
    const int64_t work = length + s.to(2) * s.inner;
    parallel_items(rows, 8 * 1024 / work + 1, [&](int64_t begin, int64_t end) {
        std::vector<T> line(static_cast<std::size_t>(length));
        kernel(args, line.data(), begin, end);
    });
}

Tensor resample(const Tensor& x, const InterpolateAttrs& attrs, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        detail::BatchKey key = detail::batch_key(attrs.is_transposed);
        for (int d = 3 - attrs.count; d < 3; ++d) {
            const ResampleDim& of = attrs.dims[d];
            for (const int64_t size : {of.in, of.out}) key.add(size);
            key.add(of.mode), key.add(of.align_corners), key.add(attrs.factors[d]);
        }
        const auto of_group = [&](const detail::Batched& in) {
            InterpolateAttrs of_all = attrs;
            of_all.batch *= in.count();
            return detail::as_one_batch(in, [&](const Tensor& all) { return resample(all, of_all, loc); });
        };
        if (Tensor y = detail::in_group({interpolate_op, loc, {&x}, key}, of_group); y.defined()) return y;
    }
    detail::begin_op("interpolate", x.impl(), loc);
    ResampleShape s;
    s.is_transposed = attrs.is_transposed;
    for (int d = 0; d < 3; ++d) s.dims[d] = attrs.dims[d];
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const bool is_last = !x.is_contiguous() && detail::is_channels_last(x.impl());
        const DType dtype = x.dtype(), compute = read_in(x);
        Shape shape{attrs.batch, attrs.channels};
        for (int d = 3 - attrs.count; d < 3; ++d) shape.push_back(s.to(d));
        s.outer = is_last ? attrs.batch : attrs.batch * attrs.channels;
        s.inner = is_last ? attrs.channels : 1;
        const Tensor wide = x.to(compute, loc), from = is_last ? channels_last(wide, loc) : wide.contiguous(loc);
        out = make_in_layout(shape, compute, x.device(), is_last, loc);
        if (out.numel() > 0 && on_gpu(x)) {
            gpu::resample({s, dtype, on_stream(from), on_stream(out)});
        } else if (out.numel() > 0 && compute == float64) {
            run_on_cpu<double>(s, from, out, kernels::resample_f64);
        } else if (out.numel() > 0) {
            run_on_cpu<float>(s, from, out, kernels::resample_f32);
        }
        out = out.to(dtype, loc);
    }
    if (detail::is_watched()) [[unlikely]] {
        record(interpolate_op, loc, {&x}, out, {}, attrs, Told{interpolate_op, {&x}}, call_of(attrs));
    } else {
        record(interpolate_op, loc, {&x}, out, {}, attrs);
    }
    return out;
}

// A linear map, whose gradient is its transpose.
void interpolate_rule(Backward& b) {
    if (!b.needs(0)) return;
    InterpolateAttrs attrs = b.attrs<InterpolateAttrs>();
    attrs.is_transposed = !attrs.is_transposed;
    b.give(0, resample(b.grad(), attrs, b.record().loc));
}

// --- Arguments -----------------------------------------------------------------------------------------------------------

struct Mode {
    const char* word;
    Resampling how;
    int dims;  // 0: any
};
constexpr Mode kModes[] = {{"nearest", Resampling::nearest, 0},  {"nearest-exact", Resampling::nearest_exact, 0},
                           {"linear", Resampling::linear, 1},    {"bilinear", Resampling::linear, 2},
                           {"trilinear", Resampling::linear, 3}, {"bicubic", Resampling::cubic, 2}};

Resampling mode_of(const InterpolateOptions& o, int dims, const Loc& loc) {
    for (const Mode& mode : kModes) {
        if (std::string(mode.word) != o.mode) continue;
        if (mode.dims != 0 && mode.dims != dims) {
            fail<ValueError>(loc, "interpolate: mode \"{}\" is for {} spatial dimensions, not {}", o.mode, mode.dims, dims);
        }
        if (o.align_corners && (mode.how == Resampling::nearest || mode.how == Resampling::nearest_exact)) {
            fail<ValueError>(loc, "interpolate: align_corners is for linear and cubic modes, not \"{}\"", o.mode);
        }
        return mode.how;
    }
    fail<ValueError>(loc, "interpolate: there is no mode \"{}\"", o.mode);
}

// Returns the sizes of the result.
Shape sizes_of(const In& x, const InterpolateOptions& o) {
    const int dims = x.tensor.dim() - 2;
    if (o.size.empty() == (o.scale_factor.count() == 0)) {
        fail<ValueError>(x.loc, "interpolate: one of size and scale_factor must be given, got {}", o.size.empty() ? "neither" : "both");
    }
    const int given = o.size.empty() ? o.scale_factor.count() : o.size.rank();
    if (given != 1 && given != dims) {
        fail<ValueError>(x.loc, "interpolate: {} needs {}, got {}", o.size.empty() ? "scale_factor" : "size",
                         dims == 1 ? "1 number" : fmt::format("1 number or {}", dims), given);
    }
    Shape sizes;
    for (int d = 0; d < dims; ++d) {
        const int64_t in = x->sizes[d + 2];
        const double wish =
            o.size.empty() ? std::floor(static_cast<double>(in) * o.scale_factor[d]) : static_cast<double>(o.size[given == 1 ? 0 : d]);
        if (!(wish >= 1 && wish < 0x1p62) || in == 0) {
            fail<ShapeError>(x.loc, "interpolate: dimension {} of shape {} cannot have {} elements", d + 2, x.tensor.shape(), wish);
        }
        sizes.push_back(static_cast<int64_t>(wish));
    }
    return sizes;
}

// factor: 0, or the one that positions use.
double scale_of(const ResampleDim& dim, double factor) {
    if (dim.align_corners) return dim.out > 1 ? static_cast<double>(dim.in - 1) / static_cast<double>(dim.out - 1) : 0;
    return factor != 0 ? 1 / factor : static_cast<double>(dim.in) / static_cast<double>(dim.out);
}

int check_dims(const In& x) {
    detail::check_defined(x, "interpolate");
    const int dims = x.tensor.dim() - 2;
    if (dims < 1 || dims > 3) {
        fail<ShapeError>(x.loc, "interpolate: needs (batch, channels, 1 to 3 spatial dimensions), got {}", x.tensor.shape());
    }
    if (!is_floating(x->dtype)) fail<DTypeError>(x.loc, "interpolate: needs a floating dtype, got {}; convert with to(float32)", name(x->dtype));
    return dims;
}

}  // namespace

ScaleFactor::ScaleFactor(std::initializer_list<double> factors, Loc loc) : count_(static_cast<int>(factors.size())) {
    if (factors.size() > 3) fail<ValueError>(loc, "a scale factor has at most 3 numbers, got {}", factors.size());
    int d = 0;
    for (const double factor : factors) values_[d++] = factor;
}

Tensor interpolate(In x, const InterpolateOptions& options) {
    const int dims = check_dims(x);
    if (detail::checked_word("interpolate", options.mode, x.loc) == "area") {
        if (options.align_corners) fail<ValueError>(x.loc, "interpolate: align_corners is for linear and cubic modes, not \"area\"");
        const Shape sizes = sizes_of(x, options);
        const detail::RecordedParts parts(x.loc);
        return dims == 1 ? adaptive_avg_pool1d(x, sizes) : dims == 2 ? adaptive_avg_pool2d(x, sizes) : adaptive_avg_pool3d(x, sizes);
    }
    InterpolateAttrs attrs{{}, x->sizes[0], x->sizes[1], dims, false};
    const Resampling mode = mode_of(options, dims, x.loc);
    const Shape sizes = sizes_of(x, options);
    for (int d = 0; d < dims; ++d) {
        ResampleDim& dim = attrs.dims[3 - dims + d];
        dim.in = x->sizes[d + 2];
        dim.out = sizes[d];
        dim.mode = mode;
        dim.align_corners = options.align_corners;
        if (options.scale_factor.count() > 0 && !options.recompute_scale_factor && !options.align_corners) {
            attrs.factors[3 - dims + d] = options.scale_factor[d];
        }
        dim.scale = scale_of(dim, attrs.factors[3 - dims + d]);
    }
    return resample(x.tensor, attrs, x.loc);
}

// --- Pixels and channels ---------------------------------------------------------------------------------------------------

namespace {

// True if an op should write its result with the channels last, as x is.
bool wants_channels_last(const Tensor& x) { return !x.is_contiguous() && detail::is_channels_last(x.impl()); }

// The two sides of a shuffle: images of (..., channels, height * r, width * r) and (..., channels * r^2, height, width).
struct Shuffle {
    int64_t images, channels, height, width, r;

    // Returns the pixels of the large images that are (i, j) in their squares, or all with i and j as dimensions, as
    // (images, channels, [r, r,] height, width).
    Tensor of_large(const Tensor& large, int64_t i, int64_t j) const {
        const Shape s = strides(large);
        return detail::make_view(large.impl(), {images, channels, height, width}, {s[0], s[1], r * s[2], r * s[3]}, i * s[2] + j * s[3]);
    }
    Tensor of_small(const Tensor& small, int64_t i, int64_t j) const {
        const Shape s = strides(small);
        return detail::make_view(small.impl(), {images, channels, height, width}, {s[0], r * r * s[1], s[2], s[3]}, (i * r + j) * s[1]);
    }
    Tensor all_of_large(const Tensor& large) const {
        const Shape s = strides(large);
        return detail::make_view(large.impl(), {images, channels, r, r, height, width}, {s[0], s[1], s[2], s[3], r * s[2], r * s[3]}, 0);
    }
    Tensor all_of_small(const Tensor& small) const {
        const Shape s = strides(small);
        return detail::make_view(small.impl(), {images, channels, r, r, height, width}, {s[0], r * r * s[1], r * s[1], s[1], s[2], s[3]}, 0);
    }

 private:
    // Returns the strides of (images, channels, height, width); the images are one dimension in memory.
    static Shape strides(const Tensor& t) {
        const Shape own = t.strides();
        const int d = t.dim();
        return {d > 3 ? own[d - 4] : 0, own[d - 3], own[d - 2], own[d - 1]};
    }
};

// shape: the result's. Squares of pixels are a few elements long: on the CPU each place in them is copied by itself, in long rows.
Tensor shuffled(const OpInfo& op, const Tensor& x, const Shuffle& s, const Shape& shape, bool to_large, const Loc& loc) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return to_large ? pixel_shuffle(in[0], s.r) : pixel_unshuffle(in[0], s.r); };
        if (Tensor y = detail::in_group({op, loc, {&x}, detail::batch_key(s.r)}, of_group); y.defined()) return y;
    }
    detail::begin_op(op.name, x.impl(), loc);
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(loc);
        const bool is_last = x.dim() == 4 && wants_channels_last(x);
        const Tensor from = is_last ? x : x.contiguous(loc);
        out = is_last ? detail::make_channels_last(shape, x.dtype(), x.device(), loc) : detail::make_empty(shape, x.dtype(), x.device(), loc);
        if (out.numel() > 0 && (on_gpu(x) || is_last)) {
            to_large ? copy_elements(s.all_of_large(out), s.all_of_small(from)) : copy_elements(s.all_of_small(out), s.all_of_large(from));
        }
        for (int64_t at = 0; out.numel() > 0 && !on_gpu(x) && !is_last && at < s.r * s.r; ++at) {
            const int64_t i = at / s.r, j = at % s.r;
            to_large ? copy_elements(s.of_large(out, i, j), s.of_small(from, i, j)) : copy_elements(s.of_small(out, i, j), s.of_large(from, i, j));
        }
    }
    record(op, loc, {&x}, out, {}, s.r);
    return out;
}

void pixel_shuffle_rule(Backward& b) {
    if (b.needs(0)) b.give(0, pixel_unshuffle(In(b.grad(), b.record().loc), b.attrs<int64_t>()));
}
void pixel_unshuffle_rule(Backward& b) {
    if (b.needs(0)) b.give(0, pixel_shuffle(In(b.grad(), b.record().loc), b.attrs<int64_t>()));
}

Shape shape_of_images(const char* op, const In& x) {
    detail::check_defined(x, op);
    if (x.tensor.dim() < 3) fail<ShapeError>(x.loc, "{}: needs (..., channels, height, width), got {}", op, x.tensor.shape());
    return x.tensor.shape();
}

int64_t images_of(const Shape& shape) {
    int64_t images = 1;
    for (int d = 0; d < shape.rank() - 3; ++d) images *= shape[d];
    return images;
}

}  // namespace

Tensor pixel_shuffle(In x, int64_t r) {
    Shape shape = shape_of_images("pixel_shuffle", x);
    const int c = shape.rank() - 3, h = c + 1, w = c + 2;
    if (r < 1) fail<ValueError>(x.loc, "pixel_shuffle: upscale_factor must be at least 1, got {}", r);
    int64_t all, height, width;
    if (__builtin_mul_overflow(r, r, &all) || shape[c] % all != 0) {
        fail<ShapeError>(x.loc, "pixel_shuffle: {} channels do not divide by {}^2", shape[c], r);
    }
    if (__builtin_mul_overflow(shape[h], r, &height) || __builtin_mul_overflow(shape[w], r, &width)) {
        fail<ShapeError>(x.loc, "pixel_shuffle: an image of {} x {} is too large for {} times that", shape[h], shape[w], r);
    }
    const Shuffle shuffle{images_of(shape), shape[c] / all, shape[h], shape[w], r};
    shape[c] /= all;
    shape[h] = height;
    shape[w] = width;
    return shuffled(pixel_shuffle_op, x.tensor, shuffle, shape, /*to_large=*/true, x.loc);
}

Tensor pixel_unshuffle(In x, int64_t r) {
    Shape shape = shape_of_images("pixel_unshuffle", x);
    const int c = shape.rank() - 3, h = c + 1, w = c + 2;
    if (r < 1) fail<ValueError>(x.loc, "pixel_unshuffle: downscale_factor must be at least 1, got {}", r);
    if (shape[h] % r != 0 || shape[w] % r != 0) {
        fail<ShapeError>(x.loc, "pixel_unshuffle: an image of {} x {} does not divide by {}", shape[h], shape[w], r);
    }
    int64_t all, channels;
    if (__builtin_mul_overflow(r, r, &all) || __builtin_mul_overflow(shape[c], all, &channels)) {  // there are no pixels
        fail<ShapeError>(x.loc, "pixel_unshuffle: {} channels are too many for {}^2 times that", shape[c], r);
    }
    const Shuffle shuffle{images_of(shape), shape[c], shape[h] / r, shape[w] / r, r};
    shape[c] = channels;
    shape[h] /= r;
    shape[w] /= r;
    return shuffled(pixel_unshuffle_op, x.tensor, shuffle, shape, /*to_large=*/false, x.loc);
}

Tensor channel_shuffle(In x, int64_t groups) {
    detail::check_defined(x, "channel_shuffle");
    const int rank = x.tensor.dim();
    if (rank < 3) fail<ShapeError>(x.loc, "channel_shuffle: needs (batch, channels, spatial...), got {}", x.tensor.shape());
    if (groups < 1 || x->sizes[1] % groups != 0) {
        fail<ValueError>(x.loc, "channel_shuffle: {} groups do not divide {} channels", groups, x->sizes[1]);
    }
    const detail::RecordedParts parts(x.loc);
    const bool is_last = wants_channels_last(x.tensor);
    const int at = is_last ? rank - 1 : 1;  // the dimension of the channels
    Tensor y = x.tensor;
    Dims order(0), back{0, rank - 1};
    for (int d = 2; d < rank; ++d) {
        order.push_back(d);
        back.push_back(d - 1);
    }
    order.push_back(1);
    if (is_last) y = permute(y, order);
    const Shape shape = y.shape();
    y = reshape(transpose(unflatten(y, at, {groups, x->sizes[1] / groups}), at, at + 1), shape);
    return is_last ? permute(y, back) : y;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Applies the transposed map to g.
Tensor interpolate_gradient(const In& g, const InterpolateCall& a) {
    const int dims = check_dims(g);
    InterpolateAttrs attrs{{}, g->sizes[0], g->sizes[1], dims, /*is_transposed=*/true};
    for_spatial(a.input_size, 1, "input_size", dims, "interpolate", g.loc, [&](int d, int64_t size) { attrs.dims[3 - dims + d].in = size; });
    for (int d = 3 - dims; d < 3; ++d) {
        ResampleDim& dim = attrs.dims[d];
        dim.out = g->sizes[d - 3 + dims + 2];
        dim.mode = a.mode;
        dim.align_corners = a.align_corners;
        attrs.factors[d] = a.factors[d];
        dim.scale = scale_of(dim, a.factors[d]);
    }
    return resample(g.tensor, attrs, g.loc);
}

Tensor interpolate_of(const In& x, const InterpolateCall& a) {
    if (!a.input_size.empty()) return interpolate_gradient(x, a);
    const int dims = check_dims(x);
    InterpolateOptions options;
    for (const Mode& mode : kModes) {
        if (mode.how == a.mode && (mode.dims == 0 || mode.dims == dims)) options.mode = mode.word;
    }
    options.size = a.size;
    options.align_corners = a.align_corners;
    if (a.size.empty()) {
        const double* f = a.factors;
        options.scale_factor = dims == 1 ? ScaleFactor{f[2]} : dims == 2 ? ScaleFactor{f[1], f[2]} : ScaleFactor{f[0], f[1], f[2]};
    }
    return interpolate(x, options);
}

// Returns floor(size * factor): of a name if the factor is a fraction that doubles hold.
SymInt scaled(const SymInt& size, double factor) {
    if (size.is_number()) return static_cast<int64_t>(std::floor(static_cast<double>(size.number()) * factor));
    for (int64_t below = 1; below <= 64; below *= 2) {
        const double above = factor * static_cast<double>(below);
        if (above == std::floor(above) && above >= 1 && above <= 1e6) return (size * SymInt(static_cast<int64_t>(above))).floor_div(below);
    }
    return types::unknown();
}

ValueType resampled(const TypeCall& t, const InterpolateCall& a) {
    using namespace types;
    ValueType result = ranked(t[0], 3, 5);
    const int dims = result.rank() - 2;
    const std::vector<SymInt> given = t.sizes(a.input_size.empty() ? "size" : "input_size");
    for (int d = 0; d < dims; ++d) {
        SymInt& size = result.shape[static_cast<std::size_t>(d + 2)];
        const SymInt made = given.empty() ? scaled(size, a.factors[3 - dims + d]) : spatial(given, d, dims);
        need((!a.input_size.empty() || !(size == SymInt(0))) && !(made.is_number() && made.number() < 1), "a dimension would have no elements");
        size = made;
    }
    return result;
}

// Maps (..., channels * r^2, height, width) to (..., channels, height * r, width * r), or back.
ValueType types_of_shuffle(const ValueType& x, const SymInt& r, bool to_large) {
    using namespace types;
    ValueType result = ranked(x, 3);
    SymInt* const sizes = result.shape.data() + x.rank() - 3;
    sizes[0] = to_large ? quotient(sizes[0], r * r) : sizes[0] * r * r;
    for (SymInt* size : {sizes + 1, sizes + 2}) *size = to_large ? *size * r : quotient(*size, r);
    return result;
}

}  // namespace

TAPIR_FORM(interpolate, 1, InterpolateCall, resampled(t, a), interpolate_of(x[0], a),
           f("size", a.size)("scale_factor_d", a.factors[0])("scale_factor_h", a.factors[1])("scale_factor_w", a.factors[2]);
           f("mode", a.mode, {"nearest", "nearest-exact", "linear", "cubic"})("align_corners", a.align_corners)("input_size", a.input_size));
TAPIR_FORM(pixel_shuffle, 1, int64_t, types_of_shuffle(t[0], t.size("upscale_factor"), true), pixel_shuffle(x[0], a), f("upscale_factor", a));
TAPIR_FORM(pixel_unshuffle, 1, int64_t, types_of_shuffle(t[0], t.size("downscale_factor"), false), pixel_unshuffle(x[0], a),
           f("downscale_factor", a));

}  // namespace tapir
