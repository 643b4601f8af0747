// Ops that rearrange elements: tril, triu, flip, roll, repeat, pad.
#include <algorithm>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/arrange_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/copy_kernels.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

// Padding of each dimension; negative: elements cut off.
struct Padding {
    Shape before, after;
    int given;  // the number of dimensions, from the last one, that the call gave
};

// The arguments as users give them.
struct RollCall {
    Shape shifts;
    Dims dims;
};
struct PadCall {
    std::vector<int64_t> widths;
    double value = 0;
};

void tril_rule(Backward& b) { b.give(0, tril(b.grad(), b.attrs<int64_t>())); }
void triu_rule(Backward& b) { b.give(0, triu(b.grad(), b.attrs<int64_t>())); }
void flip_rule(Backward& b) { b.give(0, flip(b.grad(), b.attrs<Dims>())); }
void roll_rule(Backward& b);
void repeat_rule(Backward& b);
void pad_rule(Backward& b);

}  // namespace

TAPIR_OP(tril, tril_rule, "The lower triangle of matrices, 0 above it.", TAPIR_SAMPLE("f(3,4)", tril(x[0])), TAPIR_SAMPLE("f(4,3)", tril(x[0], 1)),
         TAPIR_SAMPLE("f(2,4,4)", tril(x[0], -1)), TAPIR_SAMPLE("f(3,4)", tril(x[0], -9)), TAPIR_SAMPLE("f(3,4)", tril(x[0], 9)));
TAPIR_OP(triu, triu_rule, "The upper triangle of matrices, 0 below it.", TAPIR_SAMPLE("f(3,4)", triu(x[0])), TAPIR_SAMPLE("f(4,3)", triu(x[0], 1)),
         TAPIR_SAMPLE("f(2,2,4,4)", triu(x[0], -1)), TAPIR_SAMPLE("f(3,4)", triu(x[0], 9)));
TAPIR_OP(flip, flip_rule, "Dimensions in reverse order.", TAPIR_SAMPLE("f(5)", flip(x[0], {0})), TAPIR_SAMPLE("f(3,4)", flip(x[0], {0, 1})),
         TAPIR_SAMPLE("f(2,3,4)", flip(x[0], {-1, 0})), TAPIR_SAMPLE("f(2,3)", flip(x[0], {1})));
TAPIR_OP(roll, roll_rule, "Elements moved along dimensions, around the end.", TAPIR_SAMPLE("f(5)", roll(x[0], {2}, {0})),
         TAPIR_SAMPLE("f(3,4)", roll(x[0], {1, -1}, {0, 1})), TAPIR_SAMPLE("f(3,4)", roll(x[0], {5})),
         TAPIR_SAMPLE("f(2,3,4)", roll(x[0], {-7}, {-1})), TAPIR_SAMPLE("f(3,4)", roll(x[0], {0}, {1})));
TAPIR_OP(repeat, repeat_rule, "Copies side by side.", TAPIR_SAMPLE_AS("f(3)", "x[0].repeat(2)", repeat(x[0], {2})),
         TAPIR_SAMPLE_AS("f(3,2)", "x[0].repeat(2, 3)", repeat(x[0], {2, 3})),
         TAPIR_SAMPLE_AS("f(3)", "x[0].repeat(2, 1, 2)", repeat(x[0], {2, 1, 2})),
         TAPIR_SAMPLE_AS("f(2,1,3)", "x[0].repeat(1, 4, 1)", repeat(x[0], {1, 4, 1})), TAPIR_SAMPLE_AS("f()", "x[0].repeat(3)", repeat(x[0], {3})),
         TAPIR_SAMPLE_AS("f(2,2,2,2,2)", "x[0].repeat(2, 2, 2, 2, 2)", repeat(x[0], {2, 2, 2, 2, 2})),
         TAPIR_SAMPLE_AS("f(3,2)", "x[0].repeat(0, 2)", repeat(x[0], {0, 2})));
TAPIR_OP(pad, pad_rule, "A constant put around a tensor.", TAPIR_SAMPLE("f(3)", pad(x[0], {1, 2})),
         TAPIR_SAMPLE_AS("f(2,3)", "pad(x[0], (1, 0, 2, 1), value=0.5)", pad(x[0], {1, 0, 2, 1}, 0.5)),
         TAPIR_SAMPLE("f(2,3,4)", pad(x[0], {0, 0, 1, 1})), TAPIR_SAMPLE("f(3,5)", pad(x[0], {-1, 2})),
         TAPIR_SAMPLE("f(4,5)", pad(x[0], {-1, -2, 1, -1})), TAPIR_SAMPLE("f(2,3)", pad(x[0], {0, 0})),
         TAPIR_SAMPLE("f(2,2,4)", pad(x[0], {2, 3}, "reflect")), TAPIR_SAMPLE("f(1,2,3,4)", pad(x[0], {2, 1, 0, 2}, "reflect")),
         TAPIR_SAMPLE("f(1,2,4,3)", pad(x[0], {2, -1, -1, 3}, "replicate")), TAPIR_SAMPLE("f(1,1,3,2,3)", pad(x[0], {1, 2, 0, 1, 2, 0}, "replicate")),
         TAPIR_SAMPLE("f(2,2,3)", pad(x[0], {3, 1}, "circular")), TAPIR_SAMPLE("f(2,1,3,4)", pad(x[0], {1, 2, 2, 3}, "circular")));

// --- Triangles -------------------------------------------------------------------------------------------------------

namespace {

Tensor packed(const Tensor& x, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    return x.contiguous(loc);
}

// Row r keeps its columns below r + diagonal + 1 (lower), or from r + diagonal on (upper).
Tensor triangle(const OpInfo& op, const In& x, int64_t diagonal, bool lower) {
    detail::check_defined(x, op.name);
    const int rank = x.tensor.dim();
    if (rank < 2) fail<ShapeError>(x.loc, "{}: needs a matrix, got shape {}", op.name, x.tensor.shape());
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return triangle(op, In(in[0], x.loc), diagonal, lower); };
        if (Tensor y = detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(diagonal)}, of_group); y.defined()) return y;
    }
    const int64_t rows = x->sizes[rank - 2], columns = x->sizes[rank - 1];
    const int64_t first = std::clamp(diagonal, -rows - 1, columns + 1) + (lower ? 1 : 0);
    const Tensor source = packed(x.tensor, x.loc);
    Tensor out = detail::make_empty_like(x.tensor.impl(), x->dtype, x.loc);
    const auto size = static_cast<unsigned>(itemsize(x->dtype));
    const kernels::TriangleArgs args{size, rows, columns, first, lower, kernel_data(source), kernel_data(out)};
    TAPIR_LAUNCH(out, columns > 0 ? out.numel() / columns : 0, columns, triangle, args);
    record(op, x.loc, {&x.tensor}, out, {}, diagonal);
    return out;
}

}  // namespace

Tensor tril(In x, int64_t diagonal) { return triangle(tril_op, x, diagonal, true); }
Tensor triu(In x, int64_t diagonal) { return triangle(triu_op, x, diagonal, false); }

// --- flip and roll ---------------------------------------------------------------------------------------------------

namespace {

// Dimensions of an instance in batch() as those of a group's block.
Dims behind_one(Dims dims) {
    for (std::int64_t& d : dims) ++d;
    return dims;
}

}  // namespace

Tensor flip(In x, const Dims& dims) {
    detail::check_defined(x, "flip");
    Dims wrapped = dims;
    Shape strides = x.tensor.strides();
    int64_t offset = 0;
    unsigned seen = 0;
    for (int i = 0; i < dims.rank(); ++i) {
        const int d = detail::wrap_dim(dims[i], x.tensor.dim(), "flip", x.loc);
        if (seen >> d & 1) fail<IndexError>(x.loc, "flip: dimension {} is named twice in {}", d, dims);
        seen |= 1u << d;
        wrapped[i] = d;
        if (x.tensor.dim() == 0) continue;
        offset += (x->sizes[d] - 1) * x->strides[d];
        strides[d] = -x->strides[d];
    }
    const detail::CallLine call(x.loc);
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return flip(In(in[0], x.loc), behind_one(wrapped)); };
        if (Tensor y = detail::in_group({flip_op, x.loc, {&x.tensor}, detail::batch_key(seen)}, of_group); y.defined()) return y;
    }
    Tensor out = detail::make_empty_like(x.tensor.impl(), x->dtype, x.loc);
    if (out.numel() > 0) copy_elements(out, detail::make_view(x.tensor.impl(), x.tensor.shape(), strides, offset));
    record(flip_op, x.loc, {&x.tensor}, out, {}, wrapped);
    return out;
}

namespace {

// Attributes: the shift of each dimension, in [0, size).
void roll_rule(Backward& b) {
    Shape back = b.attrs<Shape>();
    Dims dims = back;
    for (int d = 0; d < dims.rank(); ++d) {
        dims[d] = d;
        back[d] = -back[d];
    }
    b.give(0, dims.empty() ? b.grad() : roll(b.grad(), back, dims));
}

// Splits each moved dimension into two parts that change places; 2^n blocks in all.
void copy_rolled(const Tensor& out, const Tensor& x, const Shape& shifts) {
    const Shape shape = x.shape(), to_strides = out.strides(), from_strides = x.strides();
    for (unsigned block = 0; block < 1u << shape.rank(); ++block) {
        Shape sizes = shape;
        int64_t to = 0, from = 0;
        bool is_empty = false;
        for (int d = 0; d < shape.rank(); ++d) {
            if (block >> d & 1) {  // the end moves to the beginning
                sizes[d] = shifts[d];
                from += (shape[d] - shifts[d]) * from_strides[d];
            } else {
                sizes[d] = shape[d] - shifts[d];
                to += shifts[d] * to_strides[d];
            }
            is_empty |= sizes[d] == 0;
        }
        if (is_empty) continue;
        copy_elements(detail::make_view(out.impl(), sizes, to_strides, to), detail::make_view(x.impl(), sizes, from_strides, from));
    }
}

}  // namespace

Tensor roll(In x, const Shape& shifts, const Dims& dims) {
    detail::check_defined(x, "roll");
    const detail::CallLine call(x.loc);
    if (dims.empty() && shifts.rank() == 1) {
        const detail::RecordedParts parts(x.loc);
        return reshape(roll(reshape(x, {-1}), shifts, {0}), x.tensor.shape());
    }
    if (shifts.rank() != dims.rank() || shifts.empty()) {
        fail<ShapeError>(x.loc, "roll: {} shifts for {} dimensions", shifts.rank(), dims.rank());
    }
    Shape moves = x.tensor.shape();
    for (int64_t& move : moves) move = 0;
    Dims wrapped = dims;
    for (int i = 0; i < dims.rank(); ++i) {
        const int d = detail::wrap_dim(dims[i], x.tensor.dim(), "roll", x.loc);
        wrapped[i] = d;
        const int64_t size = x.tensor.dim() ? x->sizes[d] : 0;
        if (size == 0) continue;
        moves[d] = (moves[d] + shifts[i] % size + size) % size;
    }
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return roll(In(in[0], x.loc), shifts, behind_one(wrapped)); };
        detail::BatchKey key;
        for (const int64_t move : moves) key.add(move);
        if (Tensor y = detail::in_group({roll_op, x.loc, {&x.tensor}, key}, of_group); y.defined()) return y;
    }
    Tensor out = detail::make_empty_like(x.tensor.impl(), x->dtype, x.loc);
    if (out.numel() > 0) copy_rolled(out, x.tensor, moves);
    if (detail::thread.observed) {
        record(roll_op, x.loc, {&x.tensor}, out, {}, moves, Told{roll_op, {&x.tensor}}, RollCall{shifts, wrapped});
    }
    return out;
}

// --- repeat ----------------------------------------------------------------------------------------------------------

namespace {

// Each dimension of the result is (times, size). The rule sums over times one dimension after the other, since all of them at
// once could be more than 8.
void repeat_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Shape shape = b.input_shape(0), result = b.output_shape();
    const auto& times = b.attrs<Shape>();
    const int extra = result.rank() - shape.rank();
    Tensor g = b.grad();
    Shape left = result;
    for (int d = 0; d < result.rank(); ++d) {
        if (times[d] == 1) continue;
        const int64_t size = d < extra ? 1 : shape[d - extra];
        int64_t before = 1, after = 1;
        for (int k = 0; k < d; ++k) before *= left[k];
        for (int k = d + 1; k < left.rank(); ++k) after *= left[k];
        left[d] = size;
        g = reshape(sum(reshape(g, {before, times[d], size, after}), {1}), left);
    }
    b.give(0, reshape(g, shape));
}

// The loops of repeat, outermost first: for each dimension one over the times and one over the elements.
struct RepeatLoops {
    int count = 0;
    int64_t sizes[2 * kMaxRank], to[2 * kMaxRank], from[2 * kMaxRank];

    void add(int64_t size, int64_t to_stride, int64_t from_stride) {
        if (size == 1) return;
        sizes[count] = size;
        to[count] = to_stride;
        from[count++] = from_stride;
    }
};

void copy_repeated(const Tensor& out, const Tensor& x, const Shape& times) {
    const TensorImpl *y = out.impl(), *source = x.impl();
    const int extra = y->rank - source->rank;
    RepeatLoops loops;
    for (int d = 0; d < y->rank; ++d) {
        const int64_t size = d < extra ? 1 : source->sizes[d - extra];
        loops.add(times[d], y->strides[d] * size, 0);
        if (d >= extra) loops.add(size, y->strides[d], source->strides[d - extra]);
    }
    // A tensor has at most 8 dimensions: the loops before the last 8 are run here.
    const int counted = std::max(loops.count - kMaxRank, 0), inner = loops.count - counted;
    int64_t rounds = 1;
    for (int i = 0; i < counted; ++i) rounds *= loops.sizes[i];
    const Shape sizes(loops.sizes + counted, inner), to_strides(loops.to + counted, inner);
    const Shape from_strides(loops.from + counted, inner);
    for (int64_t round = 0; round < rounds; ++round) {
        int64_t to = 0, from = 0, rest = round;
        for (int i = counted; i-- > 0;) {
            to += rest % loops.sizes[i] * loops.to[i];
            from += rest % loops.sizes[i] * loops.from[i];
            rest /= loops.sizes[i];
        }
        copy_elements(detail::make_view(y, sizes, to_strides, to), detail::make_view(source, sizes, from_strides, from));
    }
}

}  // namespace

Tensor detail::repeat_of(const char* op, const In& x, const Shape& times) {
    detail::check_defined(x, op);
    const detail::CallLine call(x.loc);
    const int extra = times.rank() - x.tensor.dim();
    if (extra < 0) {
        fail<ShapeError>(x.loc, "{}: {} has fewer dimensions than shape {}", op, times, x.tensor.shape());
    }
    Shape shape = times;
    for (int d = 0; d < times.rank(); ++d) {
        if (times[d] < 0) fail<ValueError>(x.loc, "{}: a number of copies must not be negative: {}", op, times);
        if (d >= extra && __builtin_mul_overflow(times[d], x->sizes[d - extra], &shape[d])) {
            fail<OutOfMemory>(x.loc, "{}: shape {} {} times is larger than any memory", op, x.tensor.shape(), times);
        }
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {  // with the dimensions that it adds
            Shape of_each = times;
            of_each.insert(0, 1);
            return repeat_of(op, In(with_rank(in[0], times.rank()), x.loc), of_each);
        };
        detail::BatchKey key;
        for (const int64_t n : times) key.add(n);
        if (Tensor y = in_group({repeat_op, x.loc, {&x.tensor}, key}, of_group); y.defined()) return y;
    }
    Tensor out = detail::make_empty(shape, x->dtype, x->device, x.loc);
    if (out.numel() > 0) copy_repeated(out, x.tensor, times);
    record(repeat_op, x.loc, {&x.tensor}, out, {}, times);
    return out;
}

Tensor repeat(In x, const Shape& times) { return detail::repeat_of("repeat", x, times); }

// --- pad -------------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kMaxWidth = INT64_MAX / 4;  // so that sums of sizes and widths do not overflow

Tensor pad_by(const In& x, const Padding& padding, Scalar value);

// Padding by the negative widths cuts off what was added, and adds zeros where elements were cut off.
void pad_rule(Backward& b) {
    Padding padding = b.attrs<Padding>();
    for (int64_t& width : padding.before) width = -width;
    for (int64_t& width : padding.after) width = -width;
    if (b.needs(0)) b.give(0, pad_by(In(b.grad(), b.record().loc), padding, 0));
}

// Lists the last dimension first, and as many as the call gave: zeros of one size are other widths for another one.
std::vector<int64_t> widths_of(const Padding& padding) {
    std::vector<int64_t> widths;
    for (int d = padding.before.rank(); d-- > 0;) {
        widths.push_back(padding.before.raw(d));
        widths.push_back(padding.after.raw(d));
    }
    widths.resize(std::min(widths.size(), 2 * static_cast<std::size_t>(std::max(padding.given, 1))));
    return widths;
}

// Writes `out`, which is contiguous, row after row on the CPU. Returns false for layouts that it does not know.
bool pad_on_cpu(const Tensor& out, const Tensor& x, const Padding& padding, const Shape& sizes, int64_t from, Scalar value) {
    const TensorImpl *y = out.impl(), *in = x.impl();
    const int last = y->rank - 1;
    if (last < 0 || on_gpu(y) || !y->is_contiguous() || (in->strides[last] != 1 && in->sizes[last] != 1)) return false;
    alignas(8) std::byte element[8];
    detail::store(y->dtype, element, value);
    const auto size = static_cast<int64_t>(itemsize(y->dtype));
    const auto cut = [](int64_t width) { return std::max<int64_t>(width, 0); };
    const int64_t width = y->sizes[last], before = cut(padding.before[last]), after = cut(padding.after[last]), kept = sizes[last];
    share_out(y->numel / width, width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            int64_t offset = from, rest = row;
            bool is_inside = true;
            for (int d = last; d-- > 0;) {
                const int64_t place = rest % y->sizes[d] - cut(padding.before[d]);
                rest /= y->sizes[d];
                is_inside = is_inside && place >= 0 && place < sizes[d];
                offset += place * in->strides[d];
            }
            // The next rows of the same matrix are all inside or all outside, up to a border.
            const int64_t height = last > 0 ? y->sizes[last - 1] : 1, top = last > 0 ? cut(padding.before[last - 1]) : 0, at = row % height;
            const int64_t border = is_inside ? top + (last > 0 ? sizes[last - 1] : 1) : at < top ? top : height;
            const int64_t rows = std::min(border - at, end - row);
            std::byte* const to = y->data + row * width * size;
            if (is_inside) {
                kernels::pad_rows(static_cast<unsigned>(size), to, in->data + offset * size, last > 0 ? in->strides[last - 1] : 0, rows, before, kept,
                                  after, element);
            } else {
                kernels::pad_rows(static_cast<unsigned>(size), to, to, 0, 1, rows * width, 0, 0, element);
            }
            row += rows - 1;
        }
    });
    return true;
}

Tensor pad_by(const In& x, const Padding& padding, Scalar value) {
    const detail::CallLine said(x.loc);
    Shape shape = x.tensor.shape(), sizes = shape;  // of the result, and of the part of x that is in it
    int64_t from = 0;
    bool grows = false;
    for (int d = 0; d < shape.rank(); ++d) {
        const int64_t before = padding.before[d], after = padding.after[d];
        shape[d] += before + after;
        sizes[d] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
        if (shape[d] < 0) {
            fail<ShapeError>(x.loc, "pad: widths {} and {} cut off more than dimension {} of shape {} has", before, after, d, x.tensor.shape());
        }
        from += std::max<int64_t>(-before, 0) * x->strides[d];
        grows |= before > 0 || after > 0;
    }
    const bool channels_last = !x->is_contiguous() && detail::is_channels_last(x.tensor.impl());
    Tensor out = make_in_layout(shape, x->dtype, x->device, channels_last, x.loc);
    const bool is_empty = std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size <= 0; });
    const bool is_written = grows && !is_empty && pad_on_cpu(out, x.tensor, padding, sizes, from, value);
    if (grows && !is_written) {
        const detail::UnrecordedPartsOf parts(x.loc);
        out.fill_(value);
    }
    if (!is_empty && !is_written) {
        int64_t to = 0;
        for (int d = 0; d < shape.rank(); ++d) to += std::max<int64_t>(padding.before[d], 0) * out.strides()[d];
        copy_elements(detail::make_view(out.impl(), sizes, out.strides(), to), detail::make_view(x.tensor.impl(), sizes, x.tensor.strides(), from));
    }
    if (!detail::thread.observed) return out;
    PadCall call;
    if (detail::is_watched()) call = {widths_of(padding), value.as_double()};
    record(pad_op, x.loc, {&x.tensor}, out, {}, padding, Told{pad_op, {&x.tensor}}, call, {value.as_double()});
    return out;
}

}  // namespace

namespace {

// Returns the checked widths by dimension.
Padding padding_of(const In& x, const std::vector<int64_t>& widths) {
    detail::check_defined(x, "pad");
    const int rank = x.tensor.dim();
    if (widths.size() % 2 != 0) fail<ValueError>(x.loc, "pad: widths come in pairs, got {} of them", widths.size());
    if (widths.size() > 2 * static_cast<std::size_t>(rank)) {
        fail<ShapeError>(x.loc, "pad: {} widths are too many for shape {}", widths.size(), x.tensor.shape());
    }
    for (const int64_t width : widths) {
        if (width > kMaxWidth || width < -kMaxWidth) fail<ValueError>(x.loc, "pad: width {} is larger than any memory", width);
    }
    Padding padding{x.tensor.shape(), x.tensor.shape(), static_cast<int>(widths.size() / 2)};
    for (int d = 0; d < rank; ++d) {
        const auto i = static_cast<std::size_t>(2 * (rank - 1 - d));
        padding.before[d] = i < widths.size() ? widths[i] : 0;
        padding.after[d] = i < widths.size() ? widths[i + 1] : 0;
    }
    return padding;
}

// Returns the most elements that can be put on one side of a dimension of n.
int64_t most_of(PadMode::Kind kind, int64_t n) {
    switch (kind) {
        case PadMode::Kind::reflect: return std::max<int64_t>(n - 1, 0);
        case PadMode::Kind::circular: return n;
        default: return n > 0 ? kMaxWidth : 0;
    }
}

// Returns x with the elements that belong before (or after) it along dimension d.
Tensor beside(const Tensor& x, int d, int64_t width, bool is_before, PadMode::Kind kind) {
    const int64_t n = x.size(d);
    switch (kind) {
        case PadMode::Kind::reflect: return flip(narrow(x, d, is_before ? 1 : n - 1 - width, width), {d});
        case PadMode::Kind::circular: return narrow(x, d, is_before ? n - width : 0, width);
        default: {
            Shape shape = x.shape();
            shape[d] = width;
            return expand(narrow(x, d, is_before ? 0 : n - 1, 1), shape);
        }
    }
}

Tensor pad_dim(Tensor x, int d, int64_t before, int64_t after, PadMode::Kind kind) {
    const int64_t cut_before = std::max<int64_t>(-before, 0), cut_after = std::max<int64_t>(-after, 0);
    if (cut_before > 0 || cut_after > 0) x = narrow(x, d, cut_before, x.size(d) - cut_before - cut_after);
    if (before <= 0 && after <= 0) return x;
    std::vector<Tensor> parts;
    if (before > 0) parts.push_back(beside(x, d, before, true, kind));
    parts.push_back(x);
    if (after > 0) parts.push_back(beside(x, d, after, false, kind));
    return cat(parts, d);
}

}  // namespace

PadMode::PadMode(const TextArg& word, Loc loc) {
    if (word == "reflect") {
        kind_ = Kind::reflect;
    } else if (word == "replicate") {
        kind_ = Kind::replicate;
    } else if (word == "circular") {
        kind_ = Kind::circular;
    } else if (word != "constant" && word != "zeros") {
        fail<ValueError>(loc, "pad: the mode must be \"constant\", \"reflect\", \"replicate\" or \"circular\", not \"{}\"", word);
    }
}

const char* PadMode::str() const noexcept {
    switch (kind_) {
        case Kind::reflect: return "reflect";
        case Kind::replicate: return "replicate";
        case Kind::circular: return "circular";
        default: return "constant";
    }
}

Tensor pad(In x, const std::vector<int64_t>& widths, Scalar value) {
    const Padding padding = padding_of(x, widths);
    static_cast<void>(number_as("pad", value, x->dtype, x.loc));
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return pad(In(in[0], x.loc), widths, value); };
        detail::BatchKey key = detail::batch_key(value.as_double());
        for (const int64_t width : widths) key.add(width);
        if (Tensor y = detail::in_group({pad_op, x.loc, {&x.tensor}, key}, of_group); y.defined()) return y;
    }
    return pad_by(x, padding, value);
}

Tensor pad(In x, const std::vector<int64_t>& widths, const PadMode& mode, Scalar value) {
    if (mode.kind() == PadMode::Kind::constant) return pad(x, widths, value);
    const Padding padding = padding_of(x, widths);
    const int rank = x.tensor.dim();
    for (int d = 0; d < rank; ++d) {
        const int64_t before = padding.before[d], after = padding.after[d];
        const int64_t left = x->sizes[d] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
        if (left < 0 || std::max(before, after) > most_of(mode.kind(), left)) {
            fail<ShapeError>(x.loc, "pad: widths {} and {} do not fit dimension {} of shape {} in mode \"{}\"", before, after, d, x.tensor.shape(),
                             mode.str());
        }
    }
    const detail::RecordedParts parts(x.loc);
    const bool is_turned = !x->is_contiguous() && detail::is_channels_last(x.tensor.impl());
    Tensor y = x.tensor;
    if (is_turned) {  // pixels that are arrays of channels move as a whole
        Dims order(0);
        for (int d = 2; d < rank; ++d) order.push_back(d);
        order.push_back(1);
        y = permute(y, order);
    }
    for (int d = rank; d-- > 0;) {
        const int at = !is_turned || d == 0 ? d : d == 1 ? rank - 1 : d - 1;
        if (padding.before[d] != 0 || padding.after[d] != 0) y = pad_dim(y, at, padding.before[d], padding.after[d], mode.kind());
    }
    if (y.shares_storage(x.tensor)) y = clone(y);  // it was only cut, or not changed
    if (!is_turned) return y;
    Dims back{0, rank - 1};
    for (int d = 1; d + 1 < rank; ++d) back.push_back(d);
    return permute(y, back);
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::repeat(const Shape& times, Loc loc) const { return tapir::repeat(In(*this, loc), times); }
Tensor Tensor::flip(const Dims& dims, Loc loc) const { return tapir::flip(In(*this, loc), dims); }
Tensor Tensor::roll(const Shape& shifts, const Dims& dims, Loc loc) const { return tapir::roll(In(*this, loc), shifts, dims); }
Tensor Tensor::tril(int64_t diagonal, Loc loc) const { return tapir::tril(In(*this, loc), diagonal); }
Tensor Tensor::triu(int64_t diagonal, Loc loc) const { return tapir::triu(In(*this, loc), diagonal); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

Tensor pad_again(const Tensor& x, const PadCall& call) {
    if (is_floating(x.dtype())) return pad(x, call.widths, call.value);
    return pad(x, call.widths, static_cast<int64_t>(call.value));
}

ValueType rolled(const ValueType& x, const RollCall& call) {
    if (call.dims.empty() && call.shifts.rank() == 1) return x;
    types::need(call.shifts.rank() == call.dims.rank() && !call.shifts.empty(), "needs a shift for each dimension");
    for (const int64_t dim : call.dims) static_cast<void>(types::along(x, dim));
    return x;
}

ValueType repeated(const ValueType& x, std::vector<SymInt> sizes) {
    types::need(std::ssize(sizes) >= x.rank(), "there are fewer numbers of copies than dimensions");
    for (const SymInt& times : sizes) types::need<ValueError>(!times.is_number() || times.number() >= 0, "a number of copies must not be negative");
    for (std::size_t d = 1; d <= x.shape.size(); ++d) sizes[sizes.size() - d] = sizes[sizes.size() - d] * x.shape[x.shape.size() - d];
    return types::shaped(x, std::move(sizes));
}

// Widths come in pairs, the last dimension first.
ValueType padded(ValueType x, const std::vector<SymInt>& widths) {
    types::need<ValueError>(widths.size() % 2 == 0, "widths come in pairs");
    types::need(widths.size() <= 2 * x.shape.size(), "there are more widths than two to a dimension");
    for (std::size_t i = 0; i < widths.size(); i += 2) {
        SymInt& size = x.shape[x.shape.size() - 1 - i / 2];
        size = size + widths[i] + widths[i + 1];
        types::need(!size.is_number() || size.number() >= 0, "widths cut off more than there is");
    }
    return x;
}

}  // namespace

TAPIR_FORM(tril, 1, int64_t, same(ranked(t[0], 2)), tril(x[0], a), f("diagonal", a));
TAPIR_FORM(triu, 1, int64_t, same(ranked(t[0], 2)), triu(x[0], a), f("diagonal", a));
TAPIR_FORM(flip, Operands(1).moved(), Dims, same(along(t[0], a)), flip(x[0], a), f("dims", a));
TAPIR_FORM(roll, Operands(1).moved(), RollCall, rolled(t[0], a), roll(x[0], a.shifts, a.dims), f("shifts", a.shifts)("dims", a.dims));
TAPIR_FORM(repeat, Operands(1).moved(), Shape, repeated(t[0], t.sizes("repeats")), repeat(x[0], a), f("repeats", a));
TAPIR_FORM(pad, 1, PadCall, padded(t[0], t.sizes("pad")), pad_again(x[0], a), f("pad", a.widths)("value", a.value));

}  // namespace tapir
