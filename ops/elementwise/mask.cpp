// Ops that take masks: where, masked_fill, masked_select, nonzero.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;

void where_rule(Backward& b) {
    const Tensor mask = b.saved(0);
    if (b.needs(1)) b.give(1, where(mask, b.grad(), 0));
    if (b.needs(2)) b.give(2, where(mask, 0, b.grad()));
}

void masked_fill_rule(Backward& b) {
    const Tensor mask = b.saved(0);
    if (b.needs(0)) b.give(0, masked_fill(b.grad(), mask, 0));
    if (b.needs(2)) b.give(2, where(mask, b.grad(), 0));
}

}  // namespace

TAPIR_OP(where, where_rule, "One of two tensors, element by element, as a condition says.",
         TAPIR_SAMPLE("b(3,4) f(3,4) f(3,4)", where(x[0], x[1], x[2])), TAPIR_SAMPLE("b(3,1) f(4) f(2,1,1)", where(x[0], x[1], x[2])),
         TAPIR_SAMPLE("b(4) f(3,4) f()", where(x[0], x[1], x[2])), TAPIR_SAMPLE("b(3,4) f(3,4)", where(x[0], x[1], 0.5)),
         TAPIR_SAMPLE("b(3,4) f(4)", where(x[0], 2, x[1])), TAPIR_SAMPLE("b() f(2,3) f(3)", where(x[0], x[1], x[2])),
         TAPIR_SAMPLE("b(5) i(5)<9 f(5)", where(x[0], x[1], x[2])), TAPIR_SAMPLE("b(3,37) f(3,37) f(37)", where(x[0], x[1], x[2])));
TAPIR_OP(masked_fill, masked_fill_rule, "A tensor with a number where a mask holds.", TAPIR_SAMPLE("f(3,4) b(3,4)", masked_fill(x[0], x[1], 2.5)),
         TAPIR_SAMPLE("f(2,3,4) b(3,1)", masked_fill(x[0], x[1], -1)), TAPIR_SAMPLE("f(3,4) b(4) f()", masked_fill(x[0], x[1], x[2])),
         TAPIR_SAMPLE("i(3,4)<9 b(4)", masked_fill(x[0], x[1], 7)));
TAPIR_OP(nonzero, NonDiff, "The positions of what is not 0.", TAPIR_SAMPLE("b(3,4)", nonzero(x[0])), TAPIR_SAMPLE("i(2,3,2)<2", nonzero(x[0])),
         TAPIR_SAMPLE("b(7)", nonzero(x[0])));

// --- Choosing --------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kParallelMask = 32 * 1024;

// The operands of a choice: the result, then mask, a and b broadcast to it. Dimensions are in the order of the result's memory; those
// that are contiguous in all are merged into one.
struct Choice {
    int rank = 0;
    int64_t sizes[kMaxRank];
    int64_t strides[4][kMaxRank];  // of the result, the mask, a, b

    explicit Choice(const TensorImpl* const (&operands)[4]) {
        const TensorImpl* y = operands[0];
        int order[kMaxRank];
        const int dims = in_order_of_memory(y, order);
        for (int i = 0; i < dims; ++i) {
            const int d = order[i];
            int64_t own[4];
            for (int k = 0; k < 4; ++k) {
                const TensorImpl* x = operands[k];
                const int e = d - (y->rank - x->rank);
                own[k] = e < 0 || x->sizes[e] == 1 ? 0 : x->strides[e];
            }
            bool merge = rank > 0;
            for (int k = 0; k < 4 && merge; ++k) merge = strides[k][rank - 1] == own[k] * y->sizes[d];
            if (!merge) sizes[rank++] = 1;
            sizes[rank - 1] *= y->sizes[d];
            for (int k = 0; k < 4; ++k) strides[k][rank - 1] = own[k];
        }
        if (rank == 0) {
            rank = 1;
            sizes[0] = 1;
            for (auto& s : strides) s[0] = 0;
        }
    }
};

void choose_on_gpu(const Choice& choice, const TensorImpl* const (&operands)[4]) {
    const TensorImpl* y = operands[0];
    kernels::ChooseArgs args{};
    args.size = static_cast<unsigned>(itemsize(y->dtype));
    args.numel = y->numel;
    args.rank = choice.rank;
    for (int d = 0; d < choice.rank; ++d) {
        args.sizes[d] = choice.sizes[d];
        for (int k = 0; k < 4; ++k) args.strides[k][d] = choice.strides[k][d];
    }
    args.out = on_stream(y);
    args.mask = reinterpret_cast<const std::uint8_t*>(on_stream(operands[1]));
    for (int k = 0; k < 2; ++k) {
        const TensorImpl* value = operands[2 + k];
        if (on_gpu(value)) {
            args.value[k] = on_stream(value);
        } else {
            args.number[k] = number_bits(value);
        }
    }
    gpu::choose(args);
}

// out = mask ? a : b for an out without gaps; all but the mask have out's dtype, broadcast to out's shape. a and b may be numbers on the
// CPU.
void choose(const Tensor& out, const Tensor& mask, const Tensor& a, const Tensor& b) {
    const TensorImpl* const operands[4] = {out.impl(), mask.impl(), a.impl(), b.impl()};
    const int64_t numel = out.numel();
    if (numel == 0) return;
    const auto size = static_cast<unsigned>(itemsize(out.dtype()));
    const Choice choice(operands);
    if (on_gpu(out)) return choose_on_gpu(choice, operands);
    const int last = choice.rank - 1;
    const int64_t width = choice.sizes[last];
    const auto run = [&](const int64_t(&at)[4], int64_t n) {
        const auto address = [&](int k, unsigned bytes) { return operands[k]->data + at[k] * bytes; };
        kernels::choose_run(size, n, reinterpret_cast<const std::uint8_t*>(address(1, 1)), choice.strides[1][last], address(2, size),
                            choice.strides[2][last], address(3, size), choice.strides[3][last], address(0, size));
    };
    if (last == 0) {
        const auto part = [&](int64_t begin, int64_t end) {
            int64_t at[4];
            for (int k = 0; k < 4; ++k) at[k] = begin * choice.strides[k][0];
            run(at, end - begin);
        };
        if (numel < 2 * kParallelMask) return part(0, numel);
        return parallel_for(numel, kParallelMask, part);
    }
    parallel_for(numel / width, kParallelMask / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            int64_t at[4] = {}, rest = row;
            for (int d = last; d-- > 0;) {
                for (int k = 0; k < 4; ++k) at[k] += rest % choice.sizes[d] * choice.strides[k][d];
                rest /= choice.sizes[d];
            }
            run(at, width);
        }
    });
}

void check_mask(const char* op, const In& mask) {
    detail::check_defined(mask, op);
    if (mask.tensor.dtype() != bool_) {
        fail<DTypeError>(mask.loc, "{}: the mask must be bool, not {}: convert it with mask.to(bool_)", op, name(mask.tensor.dtype()));
    }
}

Tensor converted(const Tensor& t, DType dtype, const Loc& loc) {
    if (t.dtype() == dtype) [[likely]]
        return t;
    const detail::UnrecordedPartsOf parts(loc);
    return t.to(dtype, loc);
}

// first: the op's first operand, one of the three.
Tensor choose_as(const char* op, const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& first, DType dtype, const Loc& loc) {
    Shape shape = broadcast_shapes(a.shape(), b.shape(), op, loc);
    if (!(mask.shape() == shape)) shape = broadcast_shapes(mask.shape(), shape, op, loc);
    const Tensor* const operands[] = {&first, &mask, &a, &b};
    Tensor out = make_in_layout(shape, dtype, mask.device(), mask.device() == cpu && lies_channels_last(shape, operands, 4), loc);
    choose(out, mask, converted(a, dtype, loc), converted(b, dtype, loc));
    return out;
}

Tensor where_as(const In& condition, const Tensor& first, const Tensor& second, DType dtype) {
    const Loc& loc = condition.loc;
    if (detail::in_batch()) [[unlikely]] {
        Tensor y;
        const auto rule = [&](const detail::Batched& in, Tensor* made) {
            made[0] = where_as(In(detail::aligned(in, 0, 3), loc), detail::aligned(in, 1, 3), detail::aligned(in, 2, 3), dtype);
        };
        if (detail::batched({where_op, loc, {&condition.tensor, &first, &second}, detail::batch_key(dtype), {.shared = 0b111}}, rule, {&y})) return y;
    }
    const Tensor a = beside("where", first, condition.tensor, loc), b = beside("where", second, condition.tensor, loc);
    Tensor out = choose_as("where", condition.tensor, a, b, condition.tensor, dtype, loc);
    if (detail::thread.observed) record(where_op, loc, {&condition.tensor, &a, &b}, out, {&condition.tensor});
    return out;
}

// Returns the dtype of a tensor beside a number: the number's only if its category is a higher one.
DType beside_number(DType tensor, Scalar number) {
    if (is_floating(tensor) || number.kind() == Scalar::Kind::boolean) return tensor;
    if (number.kind() == Scalar::Kind::floating) return default_dtype();
    return tensor == bool_ ? int64 : tensor;
}

Tensor number_tensor(const char* op, Scalar value, DType dtype, const Loc& loc) {
    detail::check_fits(op, value, dtype, loc);
    Tensor t = detail::make_empty({}, dtype, Device{}, loc);
    detail::store(dtype, t.raw_data(), value);
    t.impl()->trace = 0;  // the number belongs to the program, not to the trace
    return t;
}

Tensor fill_masked(const In& x, const In& mask, const Tensor& given) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor block = detail::aligned(in, 0, 3), masks = detail::aligned(in, 1, 3), values = detail::aligned(in, 2, 3);
            return where(In(masks, x.loc), In(values.to(block.dtype()), x.loc), In(block, x.loc));
        };
        const detail::BatchCall call(masked_fill_op, x.loc, {&x.tensor, &mask.tensor, &given}, {}, {.shared = 0b111});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    detail::check_same_device("masked_fill", x.tensor, mask.tensor, x.loc);
    const Tensor value = beside("masked_fill", given, x.tensor, x.loc);
    Tensor out = choose_as("masked_fill", mask.tensor, value, x.tensor, x.tensor, x.tensor.dtype(), x.loc);
    if (detail::thread.observed) {
        record(masked_fill_op, x.loc, {&x.tensor, &mask.tensor, &value}, out, {&mask.tensor});
    }
    return out;
}

void check_number(const char* op, bool is_fraction, DType dtype, const Loc& loc) {
    if (is_fraction && !is_floating(dtype)) {
        fail<DTypeError>(loc, "{}: a floating-point value cannot be written into {}", op, name(dtype));
    }
}

void check_value(const char* op, const Tensor& value, DType dtype, const Loc& loc) {
    if (value.dim() != 0) {
        fail<ShapeError>(loc, "{}: the value must be a number or a 0-d tensor, got shape {}", op, value.shape());
    }
    check_number(op, is_floating(value.dtype()), dtype, loc);
}

}  // namespace

Tensor number_as(const char* op, Scalar value, DType dtype, const Loc& loc) {
    const double number = value.as_double();
    const bool is_whole = std::trunc(number) == number && std::abs(number) < 0x1p63;
    check_number(op, value.kind() == Scalar::Kind::floating && !is_whole, dtype, loc);
    return number_tensor(op, value, dtype, loc);
}

Tensor beside(const char* op, const Tensor& t, const Tensor& other, const Loc& loc) {
    if (t.device() == other.device()) [[likely]]
        return t;
    if (t.dim() != 0 || t.device() != cpu) detail::check_same_device(op, t, other, loc);
    return recording(loc, {&t}) ? t.to(other.device(), loc) : t;
}

Tensor index_beside(const Tensor& index, const Tensor& other, const Loc& loc) {
    if (index.dim() != 0 || index.device() != cpu || other.device() == cpu || is_floating(index.dtype())) return index;
    const detail::UnrecordedPartsOf parts(loc);
    return full({}, detail::load_int(index.dtype(), index.impl()->data), {index.dtype(), other.device()}, loc);
}

std::uint64_t number_bits(const TensorImpl* number) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, number->data, itemsize(number->dtype));
    return bits;
}

Tensor where(In condition, In a, In b) {
    check_mask("where", condition);
    detail::check_defined(a, "where");
    detail::check_defined(b, "where");
    const Tensor* values[] = {&a.tensor, &b.tensor};
    const DType dtype = a->dtype == b->dtype ? a->dtype : elementwise::result_type(values, 2);
    return where_as(condition, a.tensor, b.tensor, dtype);
}

Tensor where(In condition, In a, Scalar b) {
    check_mask("where", condition);
    detail::check_defined(a, "where");
    const DType dtype = beside_number(a->dtype, b);
    return where_as(condition, a.tensor, number_tensor("where", b, dtype, condition.loc), dtype);
}

Tensor where(In condition, Scalar a, In b) {
    check_mask("where", condition);
    detail::check_defined(b, "where");
    const DType dtype = beside_number(b->dtype, a);
    return where_as(condition, number_tensor("where", a, dtype, condition.loc), b.tensor, dtype);
}

Tensor where(In condition, Scalar a, Scalar b) {
    check_mask("where", condition);
    const DType dtype = promote(a.dtype(), b.dtype());
    const Loc& loc = condition.loc;
    return where_as(condition, number_tensor("where", a, dtype, loc), number_tensor("where", b, dtype, loc), dtype);
}

Tensor masked_fill(In x, In mask, Scalar value) {
    detail::check_defined(x, "masked_fill");
    check_mask("masked_fill", mask);
    return fill_masked(x, mask, number_as("masked_fill", value, x->dtype, x.loc));
}

Tensor masked_fill(In x, In mask, In value) {
    detail::check_defined(x, "masked_fill");
    detail::check_defined(value, "masked_fill");
    check_mask("masked_fill", mask);
    check_value("masked_fill", value.tensor, x->dtype, x.loc);
    return fill_masked(x, mask, value.tensor);
}

// --- Selecting -------------------------------------------------------------------------------------------------------

namespace {

// Finds the positions where a contiguous mask holds, on its device. It counts them before it allocates memory for them.
Tensor positions_on_gpu(const Tensor& packed, const Shape& strides, bool coordinates, const Loc& loc) {
    const TensorImpl* mask = packed.impl();
    const auto result_of = [&](int64_t count) {
        const Shape shape = coordinates ? Shape{count, mask->rank} : Shape{count};
        return detail::make_empty(shape, int64, mask->device, loc);
    };
    if (mask->numel == 0) return result_of(0);
    const int64_t parts = gpu::mask_parts(mask->numel);
    const Tensor starts = detail::make_empty({parts + 1}, int64, mask->device, loc);
    kernels::MaskArgs args{};
    args.mask = reinterpret_cast<const std::uint8_t*>(on_stream(mask));
    args.numel = mask->numel;
    args.starts = static_cast<int64_t*>(starts.raw_data());
    args.rank = mask->rank;
    args.coordinates = coordinates;
    std::copy(mask->sizes, mask->sizes + mask->rank, args.sizes);
    std::copy(strides.begin(), strides.end(), args.strides);
    gpu::count_mask(args);
    int64_t count = 0;
    device_api::copy(&count, cpu, args.starts + parts, mask->device, sizeof(count), /*wait=*/true);
    Tensor out = result_of(count);
    args.out = static_cast<int64_t*>(out.raw_data());
    if (out.numel() > 0) gpu::mask_positions(args);
    return out;
}

}  // namespace

Tensor mask_positions(const TensorImpl* mask, const Shape& strides, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const Tensor packed = detail::alias(mask).contiguous(loc);
    if (on_gpu(mask)) return positions_on_gpu(packed, strides, /*coordinates=*/false, loc);
    const auto* holds = static_cast<const std::uint8_t*>(packed.raw_data());
    const auto count = static_cast<int64_t>(mask->numel - std::count(holds, holds + mask->numel, 0));
    Tensor positions = detail::make_empty({count}, int64, mask->device, loc);
    auto* out = static_cast<int64_t*>(positions.raw_data());
    const int last = mask->rank - 1;
    const int64_t width = mask->rank ? mask->sizes[last] : 1, step = mask->rank ? strides.raw(last) : 0;
    for (int64_t row = 0; row < (count ? mask->numel / width : 0); ++row, holds += width) {
        int64_t offset = 0, rest = row;
        for (int d = last; d-- > 0;) {
            offset += rest % mask->sizes[d] * strides.raw(d);
            rest /= mask->sizes[d];
        }
        // Without a branch: each position is written, and stays if the mask holds there.
        int64_t block[256];
        for (int64_t begin = 0; begin < width; begin += 256) {
            const int64_t end = std::min<int64_t>(begin + 256, width);
            int64_t found = 0;
            for (int64_t i = begin; i < end; ++i) {
                block[found] = offset + i * step;
                found += holds[i] != 0;
            }
            out = std::copy_n(block, found, out);
        }
    }
    return positions;
}

Tensor masked_select(In x, In mask) {
    detail::check_defined(x, "masked_select");
    check_mask("masked_select", mask);
    const detail::RecordedParts parts(x.loc);
    const Shape shape = broadcast_shapes(x.tensor.shape(), mask.tensor.shape(), "masked_select", x.loc);
    const Tensor values = x.tensor.shape() == shape ? x.tensor : expand(x, shape);
    const Tensor holds = mask.tensor.shape() == shape ? mask.tensor : expand(mask, shape);
    return values.index({holds});
}

namespace {

// Turns positions in row-major order, which ascend, into coordinates. Divisions are slow: those of one row share them.
Tensor coordinates_of(const Tensor& positions, const Shape& strides, const Loc& loc) {
    const int rank = strides.rank(), last = rank - 1;
    Tensor out = detail::make_empty({positions.numel(), rank}, int64, cpu, loc);
    if (rank == 0) return out;
    const auto* position = static_cast<const int64_t*>(positions.raw_data());
    auto* to = static_cast<int64_t*>(out.raw_data());
    const int64_t width = last > 0 ? strides.raw(last - 1) : INT64_MAX;
    int64_t row[kMaxRank] = {}, row_begin = -1, row_end = 0;
    for (int64_t i = 0; i < positions.numel(); ++i) {
        if (position[i] >= row_end) {
            int64_t rest = position[i];
            for (int d = 0; d < last; ++d) {
                row[d] = rest / strides.raw(d);
                rest %= strides.raw(d);
            }
            row_begin = position[i] - rest;
            row_end = row_begin + width;
        }
        for (int d = 0; d < last; ++d) *to++ = row[d];
        *to++ = position[i] - row_begin;
    }
    return out;
}

}  // namespace

Tensor argwhere(In x) { return nonzero(x); }

Tensor nonzero(In x) {
    detail::check_defined(x, "nonzero");
    const CallerScope caller(x.loc);
    return unrecorded_op(nonzero_op, x.loc, {&x.tensor}, [&] {
        const Tensor mask = x->dtype == bool_ ? x.tensor : to(x, bool_);
        Shape strides = x.tensor.shape();  // positions in row-major order
        int64_t stride = 1;
        for (int d = x->rank; d-- > 0;) {
            strides.raw(d) = stride;
            stride *= std::max<int64_t>(x->sizes[d], 1);
        }
        if (on_gpu(mask)) return positions_on_gpu(mask.contiguous(x.loc), strides, /*coordinates=*/true, x.loc);
        const Tensor positions = mask_positions(mask.impl(), strides, x.loc);
        if (x->rank == 1) return reshape(positions, {-1, 1});
        return coordinates_of(positions, strides, x.loc);
    });
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::masked_fill(const Tensor& mask, Scalar value, Loc loc) const { return tapir::masked_fill(In(*this, loc), In(mask, loc), value); }
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value, Loc loc) const {
    return tapir::masked_fill(In(*this, loc), In(mask, loc), In(value, loc));
}
Tensor Tensor::masked_select(const Tensor& mask, Loc loc) const { return tapir::masked_select(In(*this, loc), In(mask, loc)); }
Tensor Tensor::nonzero(Loc loc) const { return tapir::nonzero(In(*this, loc)); }
Tensor Tensor::where(const Tensor& condition, const Tensor& other, Loc loc) const {
    return tapir::where(In(condition, loc), In(*this, loc), In(other, loc));
}
Tensor Tensor::where(const Tensor& condition, Scalar other, Loc loc) const { return tapir::where(In(condition, loc), In(*this, loc), other); }

namespace {

// As fill_masked(), in x itself.
void fill_masked_(Tensor& x, const Tensor& mask, const Tensor& given, const Loc& loc) {
    detail::check_same_device("masked_fill_", x, mask, loc);
    if (!(broadcast_shapes(x.shape(), mask.shape(), "masked_fill_", loc) == x.shape())) {
        fail<ShapeError>(loc, "masked_fill_: a mask of shape {} does not broadcast to {}", mask.shape(), x.shape());
    }
    const Tensor value = beside("masked_fill_", given, x, loc);
    check_in_place("masked_fill", x, {&value}, loc);
    Tensor copies[2];  // copies of operands that are overwritten while they are read
    if (value.shares_storage(x)) copies[0] = copy_before_write(value, loc);
    if (mask.shares_storage(x)) copies[1] = copy_before_write(mask, loc);
    const Tensor& number = copies[0].defined() ? copies[0] : value;
    const Tensor& holds = copies[1].defined() ? copies[1] : mask;
    if (x.is_contiguous()) {
        choose(x, holds, converted(number, x.dtype(), loc), x);
    } else {
        copy_elements(x, choose_as("masked_fill_", holds, number, x, x, x.dtype(), loc));
    }
    mark_written(x, loc);
    record(masked_fill_op, loc, {&x, &holds, &number}, x, {&holds});
}

}  // namespace

Tensor& Tensor::masked_fill_(const Tensor& mask, Scalar value, Loc loc) {
    detail::check_defined(In(*this, loc), "masked_fill_");
    check_mask("masked_fill_", In(mask, loc));
    fill_masked_(*this, mask, number_as("masked_fill_", value, dtype(), loc), loc);
    return *this;
}

Tensor& Tensor::masked_fill_(const Tensor& mask, const Tensor& value, Loc loc) {
    detail::check_defined(In(*this, loc), "masked_fill_");
    detail::check_defined(In(value, loc), "masked_fill_");
    check_mask("masked_fill_", In(mask, loc));
    check_value("masked_fill_", value, dtype(), loc);
    fill_masked_(*this, mask, value, loc);
    return *this;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

bool can_choose(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out) {
    const TensorImpl* y = out.impl();
    if (y->device != cpu || mask.impl()->dtype != bool_) return false;
    for (const Tensor* t : {&mask, &a, &b}) {
        const TensorImpl* x = t->impl();
        if (x->device != cpu || (t != &mask && x->dtype != y->dtype) || x->rank > y->rank) return false;
        for (int d = 0; d < x->rank; ++d) {
            if (x->sizes[d] != 1 && x->sizes[d] != y->sizes[y->rank - x->rank + d]) return false;
        }
    }
    return true;
}

bool where_into(const FormCall& x, const Tensor& out) {
    if (x.count != 3 || !can_choose(x[0], x[1], x[2], out)) return false;
    choose(out, x[0], x[1], x[2]);
    return true;
}

bool masked_fill_into(const FormCall& x, const Tensor& out) {
    if (x.count != 3 || !can_choose(x[1], x[2], x[0], out)) return false;
    choose(out, x[1], x[2], x[0]);
    return true;
}

}  // namespace

TAPIR_INTO_FORM(where, 3, detail::NoAttrs, pointwise(t, promoted(t, 1)), where(x[0], x[1], x[2]), where_into, static_cast<void>(f));
TAPIR_INTO_FORM(masked_fill, 3, detail::NoAttrs, (ranked(t[2], 0, 0), shaped(t[0], broadcast(t, 0, 2))), masked_fill(x[0], x[1], x[2]),
                masked_fill_into, static_cast<void>(f));
TAPIR_DATA_SIZED_FORM(nonzero, 1, detail::NoAttrs, shaped(t[0], {unknown(), t[0].rank()}, DType::int64), 1, nonzero(x[0]), static_cast<void>(f));

}  // namespace tapir
