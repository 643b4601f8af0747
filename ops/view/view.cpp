// View ops. Each computes sizes, strides and offset, and defines its gradient.
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_scatter.h"

#include <algorithm>
#include <cstring>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/index/indexing_kernels.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir {
namespace {

using std::int64_t;

// Makes a view of an op's operand: without memory the error names the op's line.
[[gnu::always_inline]] inline Tensor made_view(const In& x, int rank, const int64_t* sizes, const int64_t* strides, int64_t offset) {
    return detail::at_line(x.loc, [&] { return detail::make_view(x.tensor.impl(), rank, sizes, strides, offset); });
}
[[gnu::always_inline]] inline Tensor made_view(const In& x, const Shape& sizes, const Shape& strides, int64_t offset) {
    return made_view(x, sizes.rank(), sizes.data(), strides.data(), offset);
}

// --- Rules -----------------------------------------------------------------------------------------------------------------

Tensor take(const Tensor& whole, const Part& part) { return detail::make_view(whole.impl(), part.sizes, part.strides, part.offset); }

// The gradient of a part is that of the whole, zero elsewhere: a linear op, so its rule takes the part.
Tensor place(const Tensor& g, const Shape& whole, const Part& part, const Loc& loc);
Tensor put_into_zeros(const Tensor& g, const Shape& whole, const Part& part, const Loc& loc);
void part_rule(Backward& b) {
    const Part& part = b.attrs<Part>();
    if (Tensor whole = b.grad_to_write(0); whole.defined()) {
        gradient_ops::add_into(take(whole, part), b.grad());
    } else if (b.needs(0)) {
        const auto put = detail::is_tracing() ? put_into_zeros : place;
        b.give(0, put(b.grad(), b.input_shape(0), part, b.record().loc));
    }
}

void reshape_rule(Backward& b) {
    if (b.needs(0)) b.give(0, reshape(b.grad(), b.input_shape(0)));
}
void transpose_rule(Backward& b) {
    const auto& dims = b.attrs<Shape>();
    b.give(0, transpose(b.grad(), static_cast<int>(dims.raw(0)), static_cast<int>(dims.raw(1))));
}
void permute_rule(Backward& b) {
    const auto& dims = b.attrs<Shape>();
    Shape inverse = dims;
    for (int d = 0; d < dims.rank(); ++d) inverse.raw(static_cast<int>(dims.raw(d))) = d;
    b.give(0, permute(b.grad(), inverse));
}
void expand_rule(Backward& b) { b.give(0, b.grad()); }  // give() sums over what was repeated

void place_rule(Backward& b);

// split and unbind make one record for all pieces, whose gradient is put together in one buffer.
void pieces_rule(Backward& b);

}  // namespace

TAPIR_OP(part, part_rule, "A part of a tensor, by an index of several numbers and slices; select, slice and diagonal have rows of their own.",
         TAPIR_SAMPLE("f(3,4)", select(x[0], 1, 2)), TAPIR_SAMPLE("f(3,4)", narrow(x[0], 1, 1, 2)),
         TAPIR_SAMPLE_AS("f(5,4)", "x[0][1:5:2]", slice(x[0], 0, Slice(1, 5, 2))), TAPIR_SAMPLE("f(3,4)", diagonal(x[0], 1)),
         TAPIR_SAMPLE_AS("f(3,4,2)", "x[0][1]", x[0][1]), TAPIR_SAMPLE_AS("f(4,3)", "x[0][1:, None, 2]", x[0].index({Slice(1, None), None, 2})));
TAPIR_OP(select, part_rule, "One element along a dimension, without it.", TAPIR_SAMPLE("f(3,4)", select(x[0], 0, -1)),
         TAPIR_SAMPLE("f(2,3,4)", select(x[0], -2, 1)));
TAPIR_OP(slice, part_rule, "Every step-th element of a range along a dimension: slice, narrow.",
         TAPIR_SAMPLE_AS("f(5,4)", "x[0][-3:]", slice(x[0], 0, Slice(-3, None))),
         TAPIR_SAMPLE_AS("f(5,4)", "x[0][:, 1:4:2]", slice(x[0], 1, Slice(1, 4, 2))), TAPIR_SAMPLE("f(3,4)", narrow(x[0], 1, -2, 2)));
TAPIR_OP(diagonal, part_rule, "A diagonal of two dimensions, as the last one.", TAPIR_SAMPLE("f(3,4)", diagonal(x[0])),
         TAPIR_SAMPLE("f(2,3,4)", diagonal(x[0], -1, 2, 0)));
TAPIR_OP(place, place_rule, "Zeros with a part filled in: the gradient of a part.",
         TAPIR_SAMPLE_AS("f(2,3)", "", place(x[0], Shape(4, 3), Part{Shape(2, 3), Shape(3, 1), 3}, Loc::current())));
TAPIR_OP(reshape, reshape_rule, "The same elements in another shape.", TAPIR_SAMPLE("f(3,4)", reshape(x[0], {2, 6})),
         TAPIR_SAMPLE("f(3,4)", flatten(x[0])), TAPIR_SAMPLE("f(3,1)", squeeze(x[0])), TAPIR_SAMPLE("f(3,4)", unsqueeze(x[0], 1)));
TAPIR_OP(transpose, transpose_rule, "Two dimensions exchanged.", TAPIR_SAMPLE("f(3,4)", transpose(x[0], 0, 1)),
         TAPIR_SAMPLE("f(2,3,4)", transpose(x[0], 0, 2)));
TAPIR_OP(permute, permute_rule, "Dimensions in another order.", TAPIR_SAMPLE("f(2,3,4)", permute(x[0], {2, 0, 1})));
TAPIR_OP(expand, expand_rule, "Dimensions of size 1 repeated, without copying.",
         TAPIR_SAMPLE_AS("f(3,1)", "x[0].expand(2, 3, 4)", expand(x[0], {2, 3, 4})));
TAPIR_OP(pieces, pieces_rule, "All pieces along a dimension: split, chunk, unbind.", TAPIR_SAMPLE("f(3,5)", split(x[0], 2, 1)),
         TAPIR_SAMPLE("f(6,2)", chunk(x[0], 3)), TAPIR_SAMPLE("f(3,4)", unbind(x[0], 0)));

namespace {

struct PlaceCall {
    Shape shape;
    Part part{};
};
struct SplitCall {
    int dim = 0;
    bool drop = false;
    std::vector<int64_t> sizes;
};

}  // namespace

Tensor record_part(const In& x, Tensor view, const Part& part) {
    record(part_op, x.loc, {&x.tensor}, view, {}, part);
    return view;
}

static Shape contiguous_strides(const Shape& shape) {
    Shape strides = shape;
    int64_t stride = 1;
    for (int d = shape.rank(); d-- > 0;) {
        strides.raw(d) = stride;
        stride *= shape.raw(d);
    }
    return strides;
}

bool begin_as(const Tensor& out, const Tensor& x) {
    if (x.raw_data() == out.raw_data() && x.is_contiguous()) return true;
    if (may_overlap(x, out)) return false;
    copy_elements(out, x);
    return true;
}

bool may_overlap(const Tensor& a, const Tensor& b) {
    if (!a.shares_storage(b) || a.numel() == 0 || b.numel() == 0) return false;
    const auto end = [](const Tensor& x) {
        std::int64_t last = 0;
        for (int d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
        return static_cast<const std::byte*>(x.raw_data()) + (last + 1) * static_cast<std::int64_t>(itemsize(x.dtype()));
    };
    return static_cast<const std::byte*>(a.raw_data()) < end(b) && static_cast<const std::byte*>(b.raw_data()) < end(a);
}

Shape contiguous_strides(const TensorImpl* x) { return contiguous_strides(Shape(x->sizes, x->rank)); }

namespace {

Tensor place(const Tensor& g, const Shape& whole, const Part& part, const Loc& loc) {
    const detail::CallLine call(loc);
    detail::begin_op("place", g.impl(), loc);
    Tensor out = gradient_ops::zeros(whole, g.dtype(), g.device());
    copy_elements(take(out, part), g);
    record(place_op, loc, {&g}, out, {}, part, Told{place_op, {&g}}, PlaceCall{whole, part});
    return out;
}

// Writes place() as ops whose meaning a graph shows. The strides tell how a part was taken, if by one select() or slice().
Tensor put_into_zeros(const Tensor& g, const Shape& whole, const Part& part, const Loc& loc) {
    if (const auto& [dim, start, end, step] = part.slice; dim >= 0) {
        return slice_scatter(gradient_ops::zeros(whole, g.dtype(), g.device()), g, dim, Slice(start, end, step));
    }
    const Shape strides = contiguous_strides(whole);
    const int rank = whole.rank(), dropped = rank - part.sizes.rank();
    if (whole.numel() == 0 || g.numel() == 0 || dropped < 0 || dropped > 1) return place(g, whole, part, loc);
    for (int d = 0; d < rank; ++d) {
        bool rest_is_whole = part.offset % strides.raw(d) == 0;
        for (int k = 0; k < rank && rest_is_whole; ++k) {
            const int own = dropped == 1 && k > d ? k - 1 : k;
            rest_is_whole = k == d || (part.sizes.raw(own) == whole.raw(k) && part.strides.raw(own) == strides.raw(k));
        }
        const int64_t first = part.offset / strides.raw(d);
        if (!rest_is_whole || first >= whole.raw(d)) continue;
        if (dropped == 1) return select_scatter(gradient_ops::zeros(whole, g.dtype(), g.device()), g, d, first);
        const int64_t step = part.strides.raw(d) / strides.raw(d);
        if (step < 1 || part.strides.raw(d) % strides.raw(d) != 0) continue;
        const Slice range(first, first + part.sizes.raw(d) * step, step);  // beyond the end: up to it
        return slice_scatter(gradient_ops::zeros(whole, g.dtype(), g.device()), g, d, range);
    }
    return place(g, whole, part, loc);
}

void place_rule(Backward& b) {
    const Part& part = b.attrs<Part>();
    const Tensor g = contiguous(b.grad());
    b.give(0, record_part(In(g, b.record().loc), take(g, part), part));
}

struct Pieces {
    int dim;
    bool drop;  // unbind: the pieces lose the dimension
};

// The number of rows of the whole that an output is.
int64_t rows_of_piece(const Record& output, bool drop) noexcept { return drop ? 1 : output.sizes()[0]; }

// Returns the record of split() or unbind() along dimension 0 that made the value, if rules may write its gradient into that of the whole; else null.
const Record* cut_from(const Walk& walk, std::uint32_t value, DType dtype) noexcept {
    if (walk.is_of_part || !walk.is_unseen(value)) return nullptr;
    const std::uint32_t maker = walk.log.maker_of(value);
    const Record* const record = walk.log.records[maker];
    if (maker < walk.begin || record->op != &pieces_op || record->flags & Record::kReleased || record->device != cpu) return nullptr;
    if (static_cast<const Pieces*>(record->attrs())->dim != 0 || !walk.is_wanted(record->inputs()[0])) return nullptr;
    return walk.log.records[record->inputs()[0]]->dtype == dtype ? record : nullptr;
}

RoomForPieces& room_of(Walk& walk, const Record& pieces) {
    for (RoomForPieces& room : walk.rooms) {
        if (room.pieces == &pieces) return room;
    }
    const Record& whole = *walk.log.records[pieces.inputs()[0]];
    walk.rooms.push_back({&pieces, detail::make_empty(whole.shape(), whole.dtype, whole.device, Loc{}), {}});
    return walk.rooms.back();
}

bool lies_at(const Tensor& g, const Tensor& whole, int64_t offset) noexcept {
    const TensorImpl* const impl = g.impl();
    const std::byte* const place = whole.impl()->data + offset * static_cast<int64_t>(itemsize(whole.dtype()));
    return impl && impl->storage == whole.impl()->storage && impl->data == place && impl->is_contiguous();
}

// Returns the whole gradient that rules have written into; an undefined tensor if there is none, or one of its places has been given out to a rule
// whose result was added to others elsewhere: somebody may still read it there.
Tensor take_room(Backward& b) {
    std::vector<RoomForPieces>& rooms = b.walk().rooms;
    const auto room = std::find_if(rooms.begin(), rooms.end(), [&](const RoomForPieces& r) { return r.pieces == &b.record(); });
    if (room == rooms.end()) return {};
    const RoomForPieces taken = std::move(*room);
    rooms.erase(room);
    int64_t offset = 0;
    for (int k = 0; k < b.output_count(); ++k) {
        if (taken.given[static_cast<std::size_t>(k)] && !lies_at(b.grad(k), taken.whole, offset)) return {};
        offset += b.output_shape(k).numel();
    }
    return taken.whole;
}

void pieces_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto& pieces = b.attrs<Pieces>();
    const Tensor first = b.grad_or_zeros(0);
    if (b.recording() || on_gpu(first)) {  // one kernel joins all of them
        std::vector<Tensor> grads;
        for (int k = 0; k < b.output_count(); ++k) {
            Tensor g = b.grad_or_zeros(k);
            grads.push_back(pieces.drop ? unsqueeze(g, pieces.dim) : g);
        }
        b.give(0, gradient_ops::concatenate(grads, pieces.dim));
        return;
    }
    Tensor whole = take_room(b);
    if (!whole.defined()) whole = detail::make_empty(b.input_shape(0), b.input_dtype(0), first.device(), Loc{});
    int64_t start = 0;
    for (int k = 0; k < b.output_count(); ++k) {
        Shape sizes = b.output_shape(k);
        if (pieces.drop) sizes.insert(pieces.dim, 1);
        if (pieces.dim == 0 && lies_at(b.grad(k), whole, start * whole.strides().raw(0))) {
            start += sizes.raw(0);
            continue;
        }
        if (const Tensor& g = b.grad(k); pieces.dim == 0 && g.defined() && g.is_contiguous() && g.dtype() == whole.dtype()) [[likely]] {
            const std::size_t item = itemsize(g.dtype());
            std::byte* const to = whole.impl()->data + static_cast<std::size_t>(start * whole.strides().raw(0)) * item;
            std::memcpy(to, g.raw_data(), static_cast<std::size_t>(g.numel()) * item);
            start += sizes.raw(0);
            continue;
        }
        const Tensor part = detail::make_view(whole.impl(), sizes, whole.strides(), start * whole.strides().raw(pieces.dim));
        start += sizes.raw(pieces.dim);
        const Tensor& g = b.grad(k);
        if (!g.defined()) {
            const detail::UnrecordedParts parts;
            Tensor(part).fill_(0);
        } else if (pieces.drop) {
            Shape strides = g.strides();
            strides.insert(pieces.dim, 0);
            copy_elements(part, detail::make_view(g.impl(), sizes, strides, 0));
        } else {
            copy_elements(part, g);
        }
    }
    b.give(0, std::move(whole));
}

}  // namespace

Tensor room_for_gradient(Backward& b, int i, DType dtype) {
    Walk& walk = b.walk();
    const std::uint32_t value = b.record().inputs()[i];
    const Record& input = *walk.log.records[value];
    const Record* const pieces = b.recording() ? nullptr : cut_from(walk, value, dtype);
    const auto output = static_cast<std::size_t>(input.output_index);
    RoomForPieces* const room = pieces ? &room_of(walk, *pieces) : nullptr;
    if (!room || room->given[output]) return detail::make_empty(input.shape(), dtype, input.device, b.record().loc);
    room->given[output] = true;
    const bool drop = static_cast<const Pieces*>(pieces->attrs())->drop;
    const auto rows = [&](int k) { return rows_of_piece(*walk.log.records[value - output + static_cast<std::uint32_t>(k)], drop); };
    for (; room->output < static_cast<int>(output); ++room->output) room->start += rows(room->output);
    for (; room->output > static_cast<int>(output); --room->output) room->start -= rows(room->output - 1);
    return detail::make_view(room->whole.impl(), input.rank, input.sizes(), nullptr, room->start * room->whole.strides().raw(0));
}

namespace {

// Finds the strides that show x's elements in another shape; returns false if a copy is needed.
bool view_strides(const TensorImpl* x, const Shape& shape, Shape& strides) {
    strides = shape;
    // Matches runs of dimensions of x that are contiguous among themselves with runs of new dimensions.
    int d = shape.rank() - 1;
    int64_t run_stride = x->rank ? x->strides[x->rank - 1] : 1;
    int64_t old_numel = 1, new_numel = 1;
    for (int o = x->rank - 1; o >= 0; --o) {
        old_numel *= x->sizes[o];
        if (o > 0 && (x->sizes[o - 1] == 1 || x->strides[o - 1] == old_numel * run_stride)) continue;
        while (d >= 0 && (new_numel < old_numel || shape.raw(d) == 1)) {
            strides.raw(d) = new_numel * run_stride;
            new_numel *= shape.raw(d);
            --d;
        }
        if (new_numel != old_numel) return false;
        if (o > 0) {
            run_stride = x->strides[o - 1];
            old_numel = new_numel = 1;
        }
    }
    return d == -1;
}

// Resolves -1 in a wished shape.
void complete_shape(const char* op, const Tensor& x, Shape& shape, const Loc& loc) {
    int unknown = -1;
    int64_t known = 1;
    bool overflow = false;
    for (int d = 0; d < shape.rank(); ++d) {
        if (shape.raw(d) >= 0) [[likely]] {
            overflow |= __builtin_mul_overflow(known, shape.raw(d), &known);
        } else if (shape.raw(d) == -1 && unknown < 0) {
            unknown = d;
        } else {
            fail<ShapeError>(loc, "{}: {} is not a shape", op, shape);
        }
    }
    const int64_t numel = x.impl()->numel;
    if (overflow || (unknown < 0 ? known != numel : known == 0 || numel % known != 0)) {
        fail<ShapeError>(loc, "{}: {} elements of shape {} do not fit into {}", op, numel, x.shape(), shape);
    }
    if (unknown >= 0) shape.raw(unknown) = numel / known;
    if (numel == 0) [[unlikely]]
        detail::checked_numel(shape, x.dtype(), loc);
}

// reshape to a shape known to fit; strides: null for row-major ones.
// wish: the program's shape, which may have a -1.
Tensor reshape_to(const In& x, const Shape& shape, const Shape& wish, const int64_t* strides) {
    Tensor view = made_view(x, shape.rank(), shape.data(), strides, 0);
    if (detail::thread.observed) record(reshape_op, x.loc, {&x.tensor}, view, {}, nullptr, Told{reshape_op, {&x.tensor}}, wish);
    return view;
}

constexpr int kMostPieces = 255;  // of one record

// Records all pieces at once: at most kMostPieces.
void record_together(const In& x, const Tensor* pieces, int count, int dim, bool drop) {
    const Tensor* const input = &x.tensor;
    TensorImpl* outputs[kMostPieces];
    for (int i = 0; i < count; ++i) outputs[i] = pieces[i].impl();
    SplitCall call{dim, drop, {}};
    for (int i = 0; detail::is_watched() && i < count; ++i) call.sizes.push_back(drop ? 1 : outputs[i]->sizes[dim]);
    const Pieces attrs{dim, drop};
    const RecordArgs told{pieces_op, x.loc, &input, 1, outputs, count, nullptr, 0, &call, sizeof call};
    RecordArgs ran{pieces_op, x.loc, &input, 1, outputs, count, nullptr, 0, &attrs, sizeof attrs};
    ran.told = &told;
    finish_op(ran, recording(x.loc, {input}));
}

std::vector<Tensor> record_pieces(const In& x, std::vector<Tensor> pieces, int dim, bool drop) {
    if (detail::thread.observed && !pieces.empty()) {
        if (pieces.size() > kMostPieces) {  // each piece is recorded by itself
            int64_t start = 0;
            const Shape whole = contiguous_strides(x.tensor.impl());
            for (Tensor& piece : pieces) {
                Shape strides = whole;
                const int64_t length = drop ? 1 : piece.shape().raw(dim);
                if (drop) strides.erase(dim);
                const Part part{piece.shape(), strides, start * whole.raw(dim)};
                if (drop) {
                    record_part(x, piece, part, select_op, SelectCall{dim, start});
                } else {
                    record_part(x, piece, part, slice_op, SliceCall{dim, start, start + length, 1});
                }
                start += length;
            }
            return pieces;
        }
        record_together(x, pieces.data(), static_cast<int>(pieces.size()), dim, drop);
    }
    return pieces;
}

}  // namespace

void record_unbound(const Tensor& x, const Tensor* rows, int count) {
    if (detail::is_runtime || !detail::thread.observed || count == 0) return;
    const Loc none;
    record_together(In(x, none), rows, count, 0, /*drop=*/true);
}

namespace {

// The record of unbind() that made the value, if the value's gradient may go straight to that of the whole; else null.
const Record* unbound_from(const Walk& walk, std::uint32_t value) noexcept {
    if (!walk.is_wanted(value) || !walk.is_unseen(value)) return nullptr;
    const Record* const record = walk.log.records[walk.log.maker_of(value)];
    if (record->op != &pieces_op || record->flags & Record::kReleased) return nullptr;
    const auto& pieces = *static_cast<const Pieces*>(record->attrs());
    return pieces.drop && pieces.dim == 0 && walk.is_wanted(record->inputs()[0]) ? record : nullptr;
}

// Adds `count` rows of g, from row i on, to the gradient of a whole, from its row `first` on.
void add_rows_to(Walk& walk, std::uint32_t whole, int64_t first, const Tensor& g, int64_t i, int64_t count) {
    const Record& record = *walk.log.records[whole];
    const int64_t row = g.impl()->strides[0];
    if (first == 0 && count == record.sizes()[0]) {  // nothing is copied
        return walk.add(whole, detail::make_view(g.impl(), record.rank, record.sizes(), nullptr, i * row));
    }
    if (on_gpu(g)) {
        Shape sizes = record.shape();
        sizes.raw(0) = count;
        return walk.hold_part(whole, first, detail::make_view(g.impl(), sizes.rank(), sizes.data(), nullptr, i * row));
    }
    Tensor& grad = walk.slots[whole].grad;
    if (!grad.defined() || !only_owner(grad)) own_gradient(grad, record.shape(), record.dtype, record.device);
    const TensorImpl* const to = grad.impl();
    const int64_t width = to->strides[0], bytes = static_cast<int64_t>(itemsize(to->dtype));
    kernels::add_run(kernels::compute_of(to->dtype), count * width, to->data + first * width * bytes, 1, g.impl()->data + i * row * bytes, 1);
}

}  // namespace

void give_rows(Backward& b, const Tensor& given) {
    Walk& walk = b.walk();
    const std::uint32_t* const inputs = b.record().inputs();
    Tensor g = given;
    const Shape sizes = Shape(g.impl()->sizes + 1, g.dim() - 1);
    const auto has_plain_rows = [&] { return detail::compute_contiguous(sizes.data(), g.impl()->strides + 1, sizes.rank()); };
    if (!has_plain_rows() && b.input_count() > 1 && !b.recording()) g = gradient_ops::dense_copy(g);  // one copy for all
    const Shape strides = Shape(g.impl()->strides + 1, g.dim() - 1);
    const int64_t row = g.impl()->strides[0];
    const bool is_plain = read_in(g) == g.dtype() && g.numel() > 0 && has_plain_rows();
    const bool is_contiguous = g.is_contiguous();
    for (int i = 0, run = 1; i < b.input_count(); i += run, run = 1) {
        if (!b.needs(i)) continue;
        const Record* const maker = is_plain ? unbound_from(walk, inputs[i]) : nullptr;
        if (!maker || maker->dtype != g.dtype() || maker->device != g.device() || (on_gpu(g) && !walk.may_hold_parts(maker->inputs()[0]))) {
            b.give(i, b.recording() ? select(g, 0, i) : detail::make_view(g.impl(), sizes, strides, i * row));
            continue;
        }
        const int first = walk.log.records[inputs[i]]->output_index, most = std::min(b.input_count() - i, maker->output_count - first);
        const auto is_next = [&](int k) { return inputs[i + k] == inputs[i] + static_cast<std::uint32_t>(k) && walk.is_unseen(inputs[i + k]); };
        while (is_contiguous && run < most && is_next(run)) ++run;
        add_rows_to(walk, maker->inputs()[0], first, g, i, run);
    }
}

// --- Other shapes ------------------------------------------------------------------------------------------------------------

Tensor Tensor::view(const Shape& wish, Loc loc) const {
    detail::check_defined(In(*this, loc), "view");
    Shape shape = wish;
    complete_shape("view", *this, shape, loc);
    if (impl_->is_contiguous()) [[likely]]
        return reshape_to(In(*this, loc), shape, wish, nullptr);
    Shape strides;
    if (!view_strides(impl_, shape, strides)) {
        fail<ShapeError>(loc, "view: strides {} of shape {} do not allow {} without a copy; use reshape()", this->strides(), this->shape(), shape);
    }
    return reshape_to(In(*this, loc), shape, wish, strides.data());
}

Tensor reshape(In x, const Shape& wish) {
    detail::check_defined(x, "reshape");
    Shape shape = wish;
    complete_shape("reshape", x.tensor, shape, x.loc);
    if (x->is_contiguous()) [[likely]]
        return reshape_to(x, shape, wish, nullptr);
    Shape strides;
    if (view_strides(x.tensor.impl(), shape, strides)) return reshape_to(x, shape, wish, strides.data());
    const Tensor copy = clone(x);
    detail::begin_op("reshape", copy.impl(), x.loc);
    return reshape_to(In(copy, x.loc), shape, wish, nullptr);
}

Tensor flatten(In x, Dim start_dim, Dim end_dim) {
    detail::check_defined(x, "flatten");
    const int rank = x.tensor.dim();
    const int start = detail::wrap_dim(start_dim, rank, "flatten", x.loc);
    const int end = detail::wrap_dim(end_dim, rank, "flatten", x.loc);
    if (start > end) fail<IndexError>(x.loc, "flatten: start_dim {} comes after end_dim {}", start_dim, end_dim);
    if (rank == 0) return reshape(x, {1});
    Shape shape;
    for (int d = 0; d < rank; ++d) {
        if (d <= start || d > end) {
            shape.push_back(x->sizes[d]);
        } else {
            shape.raw(start) *= x->sizes[d];
        }
    }
    return reshape(x, shape);
}

Tensor unflatten(In x, Dim dim, const Shape& sizes) {
    detail::check_defined(x, "unflatten");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "unflatten", x.loc);
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "unflatten: a 0-d tensor has no dimension {}", dim);
    int64_t known = 1;
    bool has_unknown = false, overflow = false;
    for (const int64_t size : sizes) {
        has_unknown |= size == -1;
        overflow |= __builtin_mul_overflow(known, size == -1 ? 1 : size, &known);
    }
    if (overflow || (has_unknown ? known <= 0 || x->sizes[d] % known != 0 : known != x->sizes[d])) {
        fail<ShapeError>(x.loc, "unflatten: dimension {} of shape {} does not split into {}", dim, x.tensor.shape(), sizes);
    }
    Shape shape = x.tensor.shape();
    shape.erase(d);
    for (int i = 0; i < sizes.rank(); ++i) shape.insert(d + i, sizes.raw(i) == -1 ? x->sizes[d] / known : sizes.raw(i), x.loc);
    return reshape(x, shape);
}

Tensor transpose(In x, Dim dim0, Dim dim1) {
    detail::check_defined(x, "transpose");
    const int rank = x.tensor.dim();
    const int a = detail::wrap_dim(dim0, rank, "transpose", x.loc), b = detail::wrap_dim(dim1, rank, "transpose", x.loc);
    Shape sizes = x.tensor.shape(), strides = x.tensor.strides();
    if (rank > 0) {
        std::swap(sizes.raw(a), sizes.raw(b));
        std::swap(strides.raw(a), strides.raw(b));
    }
    Tensor view = made_view(x, sizes, strides, 0);
    record(transpose_op, x.loc, {&x.tensor}, view, {}, Shape(a, b));
    return view;
}

Tensor permute(In x, const Dims& dims) {
    detail::check_defined(x, "permute");
    const int rank = x.tensor.dim();
    if (dims.rank() != rank) fail<ShapeError>(x.loc, "permute: {} dimensions given for a tensor of {}", dims.rank(), rank);
    Shape order = dims, sizes = dims, strides = dims;
    unsigned seen = 0;
    for (int d = 0; d < rank; ++d) {
        const int from = detail::wrap_dim(dims.raw(d), rank, "permute", x.loc);
        if (seen >> from & 1) fail<IndexError>(x.loc, "permute: dimension {} is named twice in {}", from, dims);
        seen |= 1u << from;
        order.raw(d) = from;
        sizes.raw(d) = x->sizes[from];
        strides.raw(d) = x->strides[from];
    }
    Tensor view = made_view(x, sizes, strides, 0);
    record(permute_op, x.loc, {&x.tensor}, view, {}, order);
    return view;
}

Tensor squeeze(In x) {
    detail::check_defined(x, "squeeze");
    Shape sizes, strides;
    for (int d = 0; d < x.tensor.dim(); ++d) {
        if (x->sizes[d] == 1) continue;
        sizes.push_back(x->sizes[d]);
        strides.push_back(x->strides[d]);
    }
    return reshape_to(x, sizes, sizes, strides.data());
}

Tensor squeeze(In x, Dim dim) {
    detail::check_defined(x, "squeeze");
    const int d = detail::wrap_dim(dim, x.tensor.dim(), "squeeze", x.loc);
    Shape sizes = x.tensor.shape(), strides = x.tensor.strides();
    if (sizes.rank() > 0 && sizes.raw(d) == 1) {
        sizes.erase(d);
        strides.erase(d);
    }
    return reshape_to(x, sizes, sizes, strides.data());
}

Tensor unsqueeze(In x, Dim dim) {
    detail::check_defined(x, "unsqueeze");
    const int d = detail::wrap_dim(dim, x.tensor.dim() + 1, "unsqueeze", x.loc);
    Shape sizes = x.tensor.shape(), strides = x.tensor.strides();
    const int64_t stride = d < sizes.rank() ? sizes.raw(d) * strides.raw(d) : 1;
    sizes.insert(d, 1, x.loc);
    strides.insert(d, stride, x.loc);
    return reshape_to(x, sizes, sizes, strides.data());
}

Tensor expand(In x, const Shape& wish) {
    detail::check_defined(x, "expand");
    const int extra = wish.rank() - x.tensor.dim();
    if (extra < 0) fail<ShapeError>(x.loc, "expand: {} has fewer dimensions than {}", wish, x.tensor.shape());
    Shape sizes = wish, strides = wish;
    for (int d = 0; d < wish.rank(); ++d) {
        const int64_t have = d < extra ? 1 : x->sizes[d - extra];
        if (sizes.raw(d) == -1 && d >= extra) sizes.raw(d) = have;
        if (sizes.raw(d) < 0 || (have != 1 && sizes.raw(d) != have)) {
            fail<ShapeError>(x.loc, "expand: shape {} cannot be expanded to {}", x.tensor.shape(), wish);
        }
        strides.raw(d) = d < extra || (have == 1 && sizes.raw(d) != 1) ? 0 : x->strides[d - extra];
    }
    detail::checked_numel(sizes, x.tensor.dtype(), x.loc);
    Tensor view = made_view(x, sizes, strides, 0);
    record(expand_op, x.loc, {&x.tensor}, view, {}, nullptr, Told{expand_op, {&x.tensor}}, sizes);
    return view;
}

Tensor broadcast_to(In x, const Shape& shape) { return expand(x, shape); }

// --- Parts ---------------------------------------------------------------------------------------------------------------------

Tensor narrow(In x, Dim dim, int64_t start, int64_t length) {
    detail::check_defined(x, "narrow");
    const int rank = x.tensor.dim();
    if (rank == 0) fail<ShapeError>(x.loc, "narrow: a 0-d tensor has no parts");
    const int d = detail::wrap_dim(dim, rank, "narrow", x.loc);
    const int64_t size = x->sizes[d], from = start < 0 ? start + size : start;
    if (from < 0 || length < 0 || from > size || length > size - from) {
        fail<IndexError>(x.loc, "narrow: {} elements from {} are out of range for dimension {} of shape {}", length, start, d, x.tensor.shape());
    }
    int64_t sizes[kMaxRank];
    for (int i = 0; i < rank; ++i) sizes[i] = x->sizes[i];
    sizes[d] = length;
    Tensor view = made_view(x, rank, sizes, x->strides, from * x->strides[d]);
    if (!detail::thread.observed) return view;
    const Shape whole = contiguous_strides(x.tensor.impl());
    return record_part(x, std::move(view), {Shape(sizes, rank), whole, from * whole.raw(d)}, slice_op, SliceCall{d, from, from + length, 1});
}

Tensor select(In x, Dim dim, int64_t index) {
    detail::check_defined(x, "select");
    const int rank = x.tensor.dim();
    if (rank == 0) fail<IndexError>(x.loc, "select: a 0-d tensor cannot be indexed");
    const int d = detail::wrap_dim(dim, rank, "select", x.loc);
    const int64_t size = x->sizes[d], i = index < 0 ? index + size : index;
    if (i < 0 || i >= size) {
        fail<IndexError>(x.loc, "select: index {} is out of range for dimension {} of shape {}", index, d, x.tensor.shape());
    }
    Shape sizes = x.tensor.shape(), strides = x.tensor.strides();
    sizes.erase(d);
    strides.erase(d);
    Tensor view = made_view(x, sizes, strides, i * x->strides[d]);
    if (!detail::thread.observed) return view;
    Shape whole = contiguous_strides(x.tensor.impl());
    const int64_t offset = i * whole.raw(d);
    whole.erase(d);
    return record_part(x, std::move(view), {sizes, whole, offset}, select_op, SelectCall{d, i});
}

SliceCall slice_call(const In& x, Dim dim, const Slice& range) {
    const int rank = x.tensor.dim();
    if (rank == 0) fail<IndexError>(x.loc, "slice: a 0-d tensor cannot be sliced");
    if (range.step <= 0) fail<ValueError>(x.loc, "slice: the step must be positive, got {}", range.step);
    const int d = detail::wrap_dim(dim, rank, "slice", x.loc);
    return {d, range.start == Slice::kOpen ? 0 : range.start, range.stop == Slice::kOpen ? x->sizes[d] : range.stop, range.step};
}

Tensor slice(In x, Dim dim, Slice range) {
    detail::check_defined(x, "slice");
    const SliceCall call = slice_call(x, dim, range);
    const int d = call.dim;
    const auto [start, length] = taken_by(range, x->sizes[d]);
    Shape sizes = x.tensor.shape(), strides = x.tensor.strides();
    sizes.raw(d) = length;
    const int64_t offset = length > 0 ? start * strides.raw(d) : 0;
    strides.raw(d) *= range.step;
    Tensor view = made_view(x, sizes, strides, offset);
    if (!detail::thread.observed) return view;
    Shape whole = contiguous_strides(x.tensor.impl());
    const int64_t whole_offset = length > 0 ? start * whole.raw(d) : 0;
    whole.raw(d) *= range.step;
    return record_part(x, std::move(view), {sizes, whole, whole_offset, call}, slice_op, call);
}

Tensor diagonal(In x, int64_t offset, Dim dim1, Dim dim2) {
    detail::check_defined(x, "diagonal");
    const int rank = x.tensor.dim();
    if (rank < 2) fail<ShapeError>(x.loc, "diagonal: needs two different dimensions of shape {}", x.tensor.shape());
    const int a = detail::wrap_dim(dim1, rank, "diagonal", x.loc), b = detail::wrap_dim(dim2, rank, "diagonal", x.loc);
    if (a == b) fail<ShapeError>(x.loc, "diagonal: needs two different dimensions of shape {}", x.tensor.shape());
    const int64_t rows = x->sizes[a] + std::min<int64_t>(offset, 0), columns = x->sizes[b] - std::max<int64_t>(offset, 0);
    const int64_t length = std::max<int64_t>(std::min(rows, columns), 0);
    const auto taken = [&](Shape strides, int64_t& start) {
        start = length == 0 ? 0 : offset >= 0 ? offset * strides.raw(b) : -offset * strides.raw(a);
        const int64_t step = strides.raw(a) + strides.raw(b);
        strides.erase(std::max(a, b));
        strides.erase(std::min(a, b));
        strides.push_back(step);
        return strides;
    };
    Shape sizes = x.tensor.shape();
    sizes.erase(std::max(a, b));
    sizes.erase(std::min(a, b));
    sizes.push_back(length);
    int64_t start = 0;
    const Shape strides = taken(x.tensor.strides(), start);
    Tensor view = made_view(x, sizes, strides, start);
    if (!detail::thread.observed) return view;
    const Shape whole = taken(contiguous_strides(x.tensor.impl()), start);
    return record_part(x, std::move(view), {sizes, whole, start}, diagonal_op, DiagonalCall{offset, a, b});
}

// --- Pieces ----------------------------------------------------------------------------------------------------------------

namespace {

// Cuts views of x along dimension d, of the given sizes one after the other. drop: without the dimension (sizes are 1).
std::vector<Tensor> cut(const In& x, const std::vector<int64_t>& sizes, int d, bool drop) {
    std::vector<Tensor> pieces;
    pieces.reserve(sizes.size());
    Shape shape = x.tensor.shape(), strides = x.tensor.strides();
    const int64_t step = x->strides[d];
    if (drop) {
        shape.erase(d);
        strides.erase(d);
    }
    int64_t start = 0;
    for (const int64_t size : sizes) {
        if (!drop) shape.raw(d) = size;
        pieces.push_back(made_view(x, shape, strides, start * step));
        start += size;
    }
    return record_pieces(x, std::move(pieces), d, drop);
}

int pieces_dim(const char* op, const In& x, int dim) {
    detail::check_defined(x, op);
    if (x.tensor.dim() == 0) fail<ShapeError>(x.loc, "{}: a 0-d tensor has no pieces", op);
    return detail::wrap_dim(dim, x.tensor.dim(), op, x.loc);
}

// A tensor without elements may have any size in a dimension.
void check_count(const char* op, int64_t count, const Loc& loc) {
    constexpr int64_t most = 1 << 24;
    if (count > most) fail<OutOfMemory>(loc, "{}: {} pieces; at most {} are made", op, count, most);
}

std::vector<int64_t> equal_pieces(const char* op, int64_t size, int64_t piece, const Loc& loc) {
    check_count(op, size / piece, loc);
    std::vector<int64_t> sizes;
    for (int64_t start = 0; start < size; start += piece) sizes.push_back(std::min(piece, size - start));
    if (sizes.empty()) sizes.push_back(0);
    return sizes;
}

}  // namespace

std::vector<Tensor> split(In x, int64_t split_size, Dim dim) {
    const CallerScope caller(x.loc);
    const int d = pieces_dim("split", x, dim);
    if (split_size <= 0) fail<ValueError>(x.loc, "split: the size of a piece must be positive, got {}", split_size);
    return cut(x, equal_pieces("split", x->sizes[d], split_size, x.loc), d, false);
}

std::vector<Tensor> split(In x, const std::vector<int64_t>& sizes, Dim dim) {
    const CallerScope caller(x.loc);
    const int d = pieces_dim("split", x, dim);
    int64_t sum = 0;
    for (const int64_t size : sizes) {
        if (size < 0) fail<ValueError>(x.loc, "split: a size must not be negative, got {}", size);
        if (__builtin_add_overflow(sum, size, &sum)) fail<ShapeError>(x.loc, "split: the sizes add up to more than there are numbers");
    }
    if (sum != x->sizes[d]) {
        fail<ShapeError>(x.loc, "split: the sizes add up to {}, dimension {} of shape {} does not", sum, dim, x.tensor.shape());
    }
    return cut(x, sizes, d, false);
}

std::vector<Tensor> chunk(In x, int chunks, Dim dim) {
    const CallerScope caller(x.loc);
    const int d = pieces_dim("chunk", x, dim);
    if (chunks <= 0) fail<ValueError>(x.loc, "chunk: the number of chunks must be positive, got {}", chunks);
    if (x->sizes[d] == 0) check_count("chunk", chunks, x.loc);
    if (x->sizes[d] == 0) return cut(x, std::vector<int64_t>(static_cast<std::size_t>(chunks), 0), d, false);
    const int64_t piece = (x->sizes[d] - 1) / chunks + 1;
    return cut(x, equal_pieces("chunk", x->sizes[d], piece, x.loc), d, false);
}

std::vector<Tensor> unbind(In x, Dim dim) {
    const CallerScope caller(x.loc);
    const int d = pieces_dim("unbind", x, dim);
    check_count("unbind", x->sizes[d], x.loc);
    return cut(x, std::vector<int64_t>(static_cast<std::size_t>(x->sizes[d]), 1), d, true);
}

// --- Forms -----------------------------------------------------------------------------------------------------------------

namespace {

// Takes the result of place(), or its gradient: strides are those of a contiguous tensor.
Tensor part_again(const Tensor& x, const Part& part) {
    const Loc loc = Loc::current();
    check_region("part", x.numel(), {part.sizes, part.strides, part.offset}, {});
    const Tensor whole = contiguous(x);
    return record_part(In(whole, loc), take(whole, part), part);
}

Tensor place_again(const Tensor& x, const PlaceCall& call) {
    const Loc loc = Loc::current();
    check_region("place", detail::checked_numel(call.shape, x.dtype(), loc), {call.part.sizes, call.part.strides, call.part.offset}, {});
    if (x.shape() != call.part.sizes) fail<ShapeError>(loc, "place: values of shape {} for a part of shape {}", x.shape(), call.part.sizes);
    return place(x, call.shape, call.part, loc);
}

}  // namespace

TAPIR_VIEW_FORM(reshape, Operands(1).in_order(), Shape, reshaped(t[0], t.sizes("shape")), reshape(x[0], a), f("shape", a));
TAPIR_VIEW_FORM(expand, 1, Shape, expanded(t[0], t.sizes("shape")), expand(x[0], a), f("shape", a));
TAPIR_VIEW_FORM(transpose, 1, Shape, (need(a.rank() == 2, "takes two dimensions"), swapped(t[0], a.raw(0), a.raw(1))),
                transpose(x[0], static_cast<int>(a.raw(0)), static_cast<int>(a.raw(1))), f("dims", a));
TAPIR_VIEW_FORM(permute, 1, Shape, permuted(t[0], t.sizes("dims")), permute(x[0], a), f("dims", a));
TAPIR_VIEW_FORM(select, 1, SelectCall, selected(t[0], a.dim, t.size("index")), select(x[0], a.dim, a.index), f("dim", a.dim)("index", a.index));
TAPIR_VIEW_FORM(slice, 1, SliceCall, sliced(t[0], a.dim, t.size("start"), t.size("end"), a.step), slice(x[0], a.dim, Slice(a.start, a.end, a.step)),
                f("dim", a.dim)("start", a.start)("end", a.end)("step", a.step));
TAPIR_VIEW_FORM(diagonal, 1, DiagonalCall, diagonal(t[0], t.size("offset"), a.dim1, a.dim2), diagonal(x[0], a.offset, a.dim1, a.dim2),
                f("offset", a.offset)("dim1", a.dim1)("dim2", a.dim2));
TAPIR_VIEW_FORM(part, 1, Part, shaped(t[0], t.sizes("sizes")), part_again(x[0], a), f("sizes", a.sizes)("strides", a.strides)("offset", a.offset));
TAPIR_FORM(place, 1, PlaceCall, (alike(t[0], shaped(t[0], t.sizes("sizes"))), shaped(t[0], t.sizes("shape"))), place_again(x[0], a),
           f("shape", a.shape)("sizes", a.part.sizes)("strides", a.part.strides)("offset", a.part.offset));
TAPIR_VIEW_FORM(pieces, 1, SplitCall, cut(t[0], a.dim, a.drop, t.sizes("sizes")), a.drop ? unbind(x[0], a.dim) : split(x[0], a.sizes, a.dim),
                f("dim", a.dim)("drop", a.drop)("sizes", a.sizes));

// --- Methods ---------------------------------------------------------------------------------------------------------------

Tensor Tensor::reshape(const Shape& shape, Loc loc) const { return tapir::reshape(In(*this, loc), shape); }
Tensor Tensor::flatten(Dim start, Dim end, Loc loc) const { return tapir::flatten(In(*this, loc), start, end); }
Tensor Tensor::unflatten(Dim dim, const Shape& sizes, Loc loc) const { return tapir::unflatten(In(*this, loc), dim, sizes); }
Tensor Tensor::transpose(Dim a, Dim b, Loc loc) const { return tapir::transpose(In(*this, loc), a, b); }
Tensor Tensor::t(Loc loc) const {
    detail::check_defined(In(*this, loc), "t");
    if (dim() > 2) fail<ShapeError>(loc, "t: needs at most 2 dimensions, got shape {}", shape());
    return dim() < 2 ? *this : tapir::transpose(In(*this, loc), 0, 1);
}
Tensor Tensor::permute(const Dims& dims, Loc loc) const { return tapir::permute(In(*this, loc), dims); }
Tensor Tensor::squeeze(Loc loc) const { return tapir::squeeze(In(*this, loc)); }
Tensor Tensor::squeeze(Dim dim, Loc loc) const { return tapir::squeeze(In(*this, loc), dim); }
Tensor Tensor::unsqueeze(Dim dim, Loc loc) const { return tapir::unsqueeze(In(*this, loc), dim); }
Tensor Tensor::expand(const Shape& shape, Loc loc) const { return tapir::expand(In(*this, loc), shape); }
Tensor Tensor::narrow(Dim dim, int64_t start, int64_t length, Loc loc) const { return tapir::narrow(In(*this, loc), dim, start, length); }
Tensor Tensor::select(Dim dim, int64_t index, Loc loc) const { return tapir::select(In(*this, loc), dim, index); }
Tensor Tensor::slice(Dim dim, Slice range, Loc loc) const { return tapir::slice(In(*this, loc), dim, range); }
std::vector<Tensor> Tensor::split(int64_t size, Dim dim, Loc loc) const { return tapir::split(In(*this, loc), size, dim); }
std::vector<Tensor> Tensor::split(const std::vector<int64_t>& sizes, Dim dim, Loc loc) const { return tapir::split(In(*this, loc), sizes, dim); }
std::vector<Tensor> Tensor::chunk(int chunks, Dim dim, Loc loc) const { return tapir::chunk(In(*this, loc), chunks, dim); }
std::vector<Tensor> Tensor::unbind(Dim dim, Loc loc) const { return tapir::unbind(In(*this, loc), dim); }
Tensor Tensor::diagonal(int64_t offset, Dim dim1, Dim dim2, Loc loc) const { return tapir::diagonal(In(*this, loc), offset, dim1, dim2); }

}  // namespace tapir
