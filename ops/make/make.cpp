// Makes tensors from constants, ranges, literals and existing memory. Random ones: random.cpp.
#include "tapir/ops/make/make.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "tapir/autograd/attributes.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {

TAPIR_OP(empty, Given, "A tensor whose elements are not set.",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.zeros(2, 3, dtype=x[0].dtype)", empty({2, 3}, {x[0].dtype(), x[0].device()}).zero_()));
TAPIR_OP(zeros, Given, "Zeros.", TAPIR_SAMPLE_AS("f(2,3)", "torch.zeros(2, 3, dtype=x[0].dtype)", zeros({2, 3}, {x[0].dtype(), x[0].device()})),
         TAPIR_SAMPLE_AS("f(2,3)", "x[0].new_zeros(4)", x[0].new_zeros({4})));
TAPIR_OP(ones, Given, "Ones.", TAPIR_SAMPLE_AS("f(2,3)", "torch.ones(2, 3, dtype=x[0].dtype)", ones({2, 3}, {x[0].dtype(), x[0].device()})),
         TAPIR_SAMPLE_AS("", "torch.ones(())", ones({})));
TAPIR_OP(full, Given, "One number throughout.",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.full((2, 3), 3, dtype=x[0].dtype)", full({2, 3}, 3, {x[0].dtype(), x[0].device()})),
         TAPIR_SAMPLE("", full({2, 2}, 1.5)), TAPIR_SAMPLE("", full({2, 2}, true)));
TAPIR_OP(empty_like, Given, "As a tensor in shape, dtype and device; its elements are not set.",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.zeros_like(x[0])", empty_like(x[0]).zero_()));
TAPIR_OP(zeros_like, Given, "Zeros, as a tensor in shape, dtype and device.", TAPIR_SAMPLE("f(2,3)", zeros_like(x[0])));
TAPIR_OP(full_like, Given, "One number throughout, as a tensor in shape, dtype and device.", TAPIR_SAMPLE("f(2,3)", full_like(x[0], 3)),
         TAPIR_SAMPLE("f(2,3)", ones_like(x[0])));
TAPIR_OP(arange, Given, "start, start + step, ... below end.", TAPIR_SAMPLE("", arange(5)), TAPIR_SAMPLE("", arange(1, 2.1, 0.25)),
         TAPIR_SAMPLE_AS("f(2)", "torch.arange(7, 1, -2, dtype=x[0].dtype)", arange(7, 1, -2, {x[0].dtype(), x[0].device()})));
TAPIR_OP(linspace, Given, "Numbers at equal distances.", TAPIR_SAMPLE("", linspace(-1, 2, 5)));
TAPIR_OP(logspace, Given, "Powers at equal distances of the exponent.", TAPIR_SAMPLE("", logspace(0, 2, 5, 2)));
TAPIR_OP(tril_indices, Given, "The places in the lower triangle of a matrix.", TAPIR_SAMPLE("", tril_indices(3, 4)),
         TAPIR_SAMPLE("", tril_indices(3, 4, -1)));
TAPIR_OP(triu_indices, Given, "The places in the upper triangle of a matrix.", TAPIR_SAMPLE("", triu_indices(3, 4)),
         TAPIR_SAMPLE("", triu_indices(3, 4, 1)));
TAPIR_OP(eye, Given, "Ones on the diagonal.", TAPIR_SAMPLE("", eye(3)),
         TAPIR_SAMPLE_AS("f(2)", "torch.eye(2, 3, dtype=x[0].dtype)", eye(2, 3, {x[0].dtype(), x[0].device()})));
TAPIR_OP(tensor, Given, "Numbers that the program holds.",
         TAPIR_SAMPLE_AS("f(2)", "torch.tensor([[1, 2], [3, 4]], dtype=x[0].dtype)", tensor({{1, 2}, {3, 4}}, {x[0].dtype(), x[0].device()})),
         TAPIR_SAMPLE("", tensor(1.5)), TAPIR_SAMPLE_AS("", "torch.tensor([3, 1])", tensor(std::vector<std::int64_t>{3, 1})));

namespace {

using std::int64_t;

constexpr int64_t kGrain = 128 * 1024;  // the fewest elements that one thread sets

template <class T>
void fill_run(std::byte* to, const void* element, int64_t n) {
    T value;
    std::memcpy(&value, element, sizeof(T));
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { std::fill(reinterpret_cast<T*>(to) + begin, reinterpret_cast<T*>(to) + end, value); });
}

void fill_fresh(const Tensor& t, Scalar value) {
    alignas(8) std::byte element[8];
    detail::store(t.impl()->dtype, element, value);
    fill_elements(t, element);
}

// Sets element i of the fresh 1-d tensor t to value(i), computed in T.
template <class T, class Value>
void fill_with(const Tensor& t, const Value& value) {
    TensorImpl* impl = t.impl();
    if (impl->device.type != DeviceType::cpu) {
        const Tensor here = detail::make_empty_like(impl, impl->dtype, Loc{}, cpu);
        fill_with<T>(here, value);
        return copy_elements(t, here);
    }
    const auto size = static_cast<int64_t>(itemsize(impl->dtype));
    parallel_for(impl->numel, kGrain, [&](int64_t begin, int64_t end) {
        if (impl->dtype == dtype_of<T>) {
            T* const out = reinterpret_cast<T*>(impl->data);
            for (int64_t i = begin; i < end; ++i) out[i] = value(i);
            return;
        }
        T block[256];
        for (int64_t done = begin; done < end; done += 256) {
            const int64_t count = std::min<int64_t>(256, end - done);
            for (int64_t i = 0; i < count; ++i) block[i] = value(done + i);
            kernels::convert(dtype_of<T>, block, 1, impl->dtype, impl->data + done * size, 1, count);
        }
    });
}

// Sets y[i] to from + i * by, four at a time: compilers make no vectors of a product of 64 bits.
void fill_range(std::uint64_t* y, int64_t begin, int64_t end, std::uint64_t from, std::uint64_t by) {
    using Two [[gnu::vector_size(16)]] = std::uint64_t;
    const std::uint64_t first = from + static_cast<std::uint64_t>(begin) * by;
    Two low = {first, first + by}, high = {first + 2 * by, first + 3 * by};
    int64_t i = begin;
    for (; end - i >= 4; i += 4, low += 4 * by, high += 4 * by) {
        std::memcpy(y + i, &low, sizeof(low));
        std::memcpy(y + i + 2, &high, sizeof(high));
    }
    for (; i < end; ++i) y[i] = from + static_cast<std::uint64_t>(i) * by;
}

// Checks both ends: an integer dtype that holds `first` and `last` holds all between, too. Floating dtypes become infinite beyond.
void check_ends(const char* op, Scalar first, Scalar last, DType dtype, const Loc& loc) {
    if (is_floating(dtype)) return;
    detail::check_fits(op, first, dtype, loc);
    detail::check_fits(op, last, dtype, loc);
}

// Returns the number of steps in [start, end).
int64_t count_steps(int64_t start, int64_t end, int64_t step, const Loc& loc) {
    if (step == 0) fail<ValueError>(loc, "arange: step is 0");
    if (step > 0 ? start > end : start < end) {
        fail<ValueError>(loc, "arange: step {} does not lead from {} to {}", step, start, end);
    }
    // Unsigned, since the distance may be beyond int64.
    const auto from = static_cast<std::uint64_t>(start), to = static_cast<std::uint64_t>(end);
    const std::uint64_t distance = step > 0 ? to - from : from - to;
    const std::uint64_t stride = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
    const std::uint64_t count = distance / stride + (distance % stride != 0 ? 1 : 0);
    return count > INT64_MAX ? INT64_MAX : static_cast<int64_t>(count);
}

int64_t count_steps(double start, double end, double step, const Loc& loc) {
    if (!std::isfinite(start) || !std::isfinite(end) || !std::isfinite(step)) {
        fail<ValueError>(loc, "arange: start {}, end {} and step {} must be finite", start, end, step);
    }
    if (step == 0) fail<ValueError>(loc, "arange: step is 0");
    if (step > 0 ? start > end : start < end) {
        fail<ValueError>(loc, "arange: step {} does not lead from {} to {}", step, start, end);
    }
    const double count = std::ceil((end - start) / step);
    return count >= 0x1p62 ? INT64_MAX : static_cast<int64_t>(count);  // too large for memory, as make_empty will say
}

bool is_whole(Scalar s) { return s.kind() != Scalar::Kind::floating; }

// --- Literals --------------------------------------------------------------------------------------------------------------

using Kind = Scalar::Kind;

// Returns the shape, taken along the first entries; copy_literal checks it against all others.
Shape literal_shape(const Literal& literal, const Loc& loc) {
    Shape shape;
    for (const Literal* l = &literal; l->is_list(); l = l->begin()) {
        shape.push_back(static_cast<int64_t>(l->size()), loc);
        if (l->size() == 0) break;
    }
    return shape;
}

// Checks that the literal has the shape from dimension d on, and finds the widest category of its numbers.
void check_literal(const Literal& literal, const Shape& shape, int d, Kind& widest, const Loc& loc) {
    if (!literal.is_list()) {
        if (d < shape.rank()) fail<ShapeError>(loc, "tensor: a number stands where a list of {} is due", shape[d]);
        widest = std::max(widest, literal.value().kind());
        return;
    }
    if (d == shape.rank()) fail<ShapeError>(loc, "tensor: a list of {} stands where a number is due", literal.size());
    if (static_cast<int64_t>(literal.size()) != shape[d]) {
        fail<ShapeError>(loc, "tensor: lists of {} and of {} stand side by side", shape[d], literal.size());
    }
    for (const Literal& entry : literal) check_literal(entry, shape, d + 1, widest, loc);
}

std::byte* copy_literal(const Literal& literal, DType dtype, std::byte* to, const Loc& loc) {
    if (!literal.is_list()) {
        if (!is_floating(dtype)) detail::check_fits("tensor", literal.value(), dtype, loc);
        detail::store(dtype, to, literal.value());
        return to + itemsize(dtype);
    }
    for (const Literal& entry : literal) to = copy_literal(entry, dtype, to, loc);
    return to;
}

}  // namespace

void detail::fail_ragged(std::int64_t size, std::int64_t other, const Loc& loc) {
    fail<ShapeError>(loc, "tensor: lists of {} and of {} stand side by side", size, other);
}

void detail::fail_gradient(const char* op, DType dtype, const Loc& loc) {
    fail<DTypeError>(loc, "{}: only floating dtypes can require a gradient, not {}", op, name(dtype));
}

void fill_elements(const Tensor& to, const void* element) {
    const TensorImpl* impl = to.impl();
    if (impl->numel == 0) return;
    if (on_gpu(impl)) {
        kernels::FillArgs args{itemsize(impl->dtype), 0, on_stream(impl), impl->numel, impl->is_contiguous() ? 0 : impl->rank, {}, {}};
        std::memcpy(&args.value, element, args.size);
        std::copy(impl->sizes, impl->sizes + args.rank, args.sizes);
        std::copy(impl->strides, impl->strides + args.rank, args.strides);
        return gpu::fill(args);
    }
    if (!impl->is_contiguous()) {
        auto* bytes = static_cast<std::byte*>(const_cast<void*>(element));
        return copy_elements(to, detail::make_around(bytes, {}, {}, impl->dtype, cpu, 8, nullptr, nullptr, Loc{}));
    }
    switch (itemsize(impl->dtype)) {
        case 1: return fill_run<std::uint8_t>(impl->data, element, impl->numel);
        case 2: return fill_run<std::uint16_t>(impl->data, element, impl->numel);
        case 4: return fill_run<std::uint32_t>(impl->data, element, impl->numel);
        default: return fill_run<std::uint64_t>(impl->data, element, impl->numel);
    }
}

void zero_elements(const Tensor& to) {
    const TensorImpl* impl = to.impl();
    const std::size_t bytes = static_cast<std::size_t>(impl->numel) * itemsize(impl->dtype);
    if (impl->device.type != DeviceType::cpu) [[unlikely]] {
        if (bytes > 0) device_api::zero(on_stream(impl), impl->device, bytes);
        return;
    }
    if (bytes < static_cast<std::size_t>(kGrain)) [[likely]] {
        std::memset(impl->data, 0, bytes);
        return;
    }
    parallel_for(static_cast<int64_t>(bytes), 4 * kGrain,
                 [&](int64_t begin, int64_t end) { std::memset(impl->data + begin, 0, static_cast<std::size_t>(end - begin)); });
}

// --- Constants -------------------------------------------------------------------------------------------------------------

Tensor empty(const Shape& shape, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("empty", options, default_dtype(), loc);
    Tensor t = detail::make_empty(shape, dtype, detail::device_for(options), loc);
    detail::finish_making(empty_op, t, options, loc);
    return t;
}

Tensor zeros(const Shape& shape, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("zeros", options, default_dtype(), loc);
    Tensor t = detail::make_empty(shape, dtype, detail::device_for(options), loc);
    zero_elements(t);
    detail::finish_making(zeros_op, t, options, loc);
    return t;
}

Tensor ones(const Shape& shape, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("ones", options, default_dtype(), loc);
    Tensor t = detail::make_empty(shape, dtype, detail::device_for(options), loc);
    fill_fresh(t, 1);
    detail::finish_making(ones_op, t, options, loc);
    return t;
}

Tensor full(const Shape& shape, Scalar value, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("full", options, value.dtype(), loc);
    detail::check_fits("full", value, dtype, loc);
    Tensor t = detail::make_empty(shape, dtype, detail::device_for(options), loc);
    fill_fresh(t, value);
    detail::finish_making(full_op, t, options, loc, [&](const MakeAttrs& attrs) { return FullAttrs{attrs, value}; });
    return t;
}

namespace {

Tensor fresh_like(const char* op, const In& x, TensorOptions& options) {
    detail::begin_like(x, op, options);
    const DType dtype = detail::dtype_given(op, options, x.tensor.dtype(), x.loc);
    return detail::make_empty_like(x.tensor.impl(), dtype, x.loc, *options.device);
}

}  // namespace

Tensor empty_like(In x, TensorOptions options) {
    Tensor t = fresh_like("empty_like", x, options);
    detail::finish_making(empty_like_op, t, options, x.loc, &x.tensor);
    return t;
}

Tensor zeros_like(In x, TensorOptions options) {
    Tensor t = fresh_like("zeros_like", x, options);
    zero_elements(t);
    detail::finish_making(zeros_like_op, t, options, x.loc, &x.tensor);
    return t;
}

// full_like() for another op: it begins as `op`, and messages name that.
static Tensor full_like_of(const char* op, const In& x, Scalar value, TensorOptions options) {
    Tensor t = fresh_like(op, x, options);
    detail::check_fits(op, value, t.dtype(), x.loc);
    fill_fresh(t, value);
    const auto attrs = [&](const MakeAttrs& all) { return FullAttrs{all, value}; };
    detail::finish_making(full_like_op, t, options, x.loc, attrs, &x.tensor);
    return t;
}

Tensor ones_like(In x, TensorOptions options) { return full_like_of("ones_like", x, 1, options); }
Tensor full_like(In x, Scalar value, TensorOptions options) { return full_like_of("full_like", x, value, options); }

// --- Ranges ----------------------------------------------------------------------------------------------------------------

Tensor arange(Scalar end, TensorOptions options, Loc loc) { return arange(0, end, 1, options, loc); }
Tensor arange(Scalar start, Scalar end, TensorOptions options, Loc loc) { return arange(start, end, 1, options, loc); }

Tensor arange(Scalar start, Scalar end, Scalar step, TensorOptions options, Loc loc) {
    const bool whole = is_whole(start) && is_whole(end) && is_whole(step);
    const DType dtype = detail::dtype_for("arange", options, whole ? int64 : default_dtype(), loc);
    const int64_t count = whole ? count_steps(start.as_int64(), end.as_int64(), step.as_int64(), loc)
                                : count_steps(start.as_double(), end.as_double(), step.as_double(), loc);
    Tensor t = detail::make_empty({count}, dtype, detail::device_for(options), loc);
    if (whole) {
        // Unsigned, since i * by may be beyond int64 where the sum is not.
        const auto from = static_cast<std::uint64_t>(start.as_int64()), by = static_cast<std::uint64_t>(step.as_int64());
        const auto last = static_cast<int64_t>(from + static_cast<std::uint64_t>(count - 1) * by);
        if (count > 0) check_ends("arange", start, last, dtype, loc);
        if (dtype == int64 && t.device() == cpu) {
            auto* const y = reinterpret_cast<std::uint64_t*>(t.impl()->data);
            parallel_for(count, kGrain, [=](int64_t first, int64_t behind) { fill_range(y, first, behind, from, by); });
        } else {
            fill_with<int64_t>(t, [=](int64_t i) { return static_cast<int64_t>(from + static_cast<std::uint64_t>(i) * by); });
        }
    } else {
        const double from = start.as_double(), by = step.as_double();
        if (count > 0) check_ends("arange", from, from + static_cast<double>(count - 1) * by, dtype, loc);
        fill_with<double>(t, [=](int64_t i) { return from + static_cast<double>(i) * by; });
    }
    detail::finish_making(arange_op, t, options, loc, [&](const MakeAttrs& attrs) { return RangeAttrs{attrs, start, end, step}; });
    return t;
}

// Returns value(t) for t at equal distances from start to end, computed from both ends, so that each is hit exactly.
template <class F>
static Tensor spaced(const OpInfo& op, double start, double end, int64_t steps, double base, TensorOptions options, const Loc& loc, const F& value) {
    const DType dtype = detail::dtype_for(op.name, options, default_dtype(), loc);
    if (steps < 0) fail<ValueError>(loc, "{}: the number of steps is negative: {}", op.name, steps);
    if (dtype == bool_) fail<DTypeError>(loc, "{}: not defined for bool", op.name);
    if (steps > 0) check_ends(op.name, value(start), value(steps > 1 ? end : start), dtype, loc);
    Tensor t = detail::make_empty({steps}, dtype, detail::device_for(options), loc);
    const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
    fill_with<double>(t, [=](int64_t i) {
        return value(i < (steps + 1) / 2 ? start + step * static_cast<double>(i) : end - step * static_cast<double>(steps - 1 - i));
    });
    const auto attrs = [&](const MakeAttrs& all) { return SpaceAttrs{all, start, end, base, steps}; };
    detail::finish_making(op, t, options, loc, attrs);
    return t;
}

Tensor linspace(double start, double end, int64_t steps, TensorOptions options, Loc loc) {
    return spaced(linspace_op, start, end, steps, 0, options, loc, [](double t) { return t; });
}

Tensor logspace(double start, double end, int64_t steps, double base, TensorOptions options, Loc loc) {
    return spaced(logspace_op, start, end, steps, base, options, loc, [=](double t) { return std::pow(base, t); });
}

namespace {

// True if the numbers of `from` may exceed those of `dtype`, an integer.
bool may_overflow(DType from, DType dtype) {
    if (is_floating(dtype) || dtype == bool_ || from == bool_) return false;
    return is_floating(from) || itemsize(from) > itemsize(dtype);
}

Scalar number_at(const void* values, DType dtype, int64_t i) {
    const void* element = static_cast<const std::byte*>(values) + static_cast<std::size_t>(i) * itemsize(dtype);
    if (is_floating(dtype)) return detail::load_double(dtype, element);
    return detail::load_int(dtype, element);
}

// Copies values of the dtype `from`.
Tensor copied(const void* values, const Shape& shape, DType from, DType dtype, const TensorOptions& options, const Loc& loc) {
    Tensor t = detail::make_empty(shape, dtype, cpu, loc);
    if (!values && t.numel() > 0) fail<ValueError>(loc, "tensor_from: values is null");
    for (int64_t i = 0; may_overflow(from, dtype) && i < t.numel(); ++i) detail::check_fits("tensor", number_at(values, from, i), dtype, loc);
    // From bool as uint8: any byte that is not 0 means true.
    const bool to_bool = dtype == bool_ && from == bool_;
    if (t.numel() > 0) kernels::convert(to_bool ? uint8 : from, values, 1, dtype, t.impl()->data, 1, t.numel());
    return detail::moved_to(std::move(t), options, loc);
}

// Lists column j of row i if lower ? j <= i + offset : j >= i + offset.
Tensor triangle_indices(const OpInfo& op, int64_t rows, int64_t columns, int64_t offset, bool lower, const TensorOptions& options, const Loc& loc) {
    if (rows < 0 || columns < 0) fail<ValueError>(loc, "{}: negative sizes: {}, {}", op.name, rows, columns);
    const DType dtype = detail::dtype_for(op.name, options, int64, loc);
    if (std::max(rows, columns) > INT32_MAX) fail<ValueError>(loc, "{}: a matrix of {} x {} is too large", op.name, rows, columns);
    const int64_t by = std::clamp(offset, -rows, columns);  // beyond these nothing changes
    const auto begin_of = [&](int64_t i) { return lower ? 0 : std::clamp<int64_t>(i + by, 0, columns); };
    const auto end_of = [&](int64_t i) { return lower ? std::clamp<int64_t>(i + by + 1, 0, columns) : columns; };
    int64_t count = 0;
    for (int64_t i = 0; i < rows; ++i) count += end_of(i) - begin_of(i);
    const Tensor places = detail::make_empty({2, count}, int64, cpu, loc);
    auto* next = static_cast<int64_t*>(places.raw_data());
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = begin_of(i); j < end_of(i); ++j, ++next) {
            next[0] = i;
            next[count] = j;
        }
    }
    const auto attrs = [&](const MakeAttrs& all) { return TriangleAttrs{all, rows, columns, offset}; };
    Tensor t = copied(places.raw_data(), {2, count}, int64, dtype, options, loc);
    detail::finish_making(op, t, options, loc, attrs);
    return t;
}

}  // namespace

Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, TensorOptions options, Loc loc) {
    return triangle_indices(tril_indices_op, rows, columns, offset, true, options, loc);
}
Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, TensorOptions options, Loc loc) {
    return triangle_indices(triu_indices_op, rows, columns, offset, false, options, loc);
}

Tensor eye(int64_t n, int64_t m, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("eye", options, default_dtype(), loc);
    if (m == -1) m = n;
    const detail::CallLine call(loc);
    Tensor t = detail::make_empty({n, m}, dtype, detail::device_for(options), loc);
    zero_elements(t);
    fill_fresh(detail::make_view(t.impl(), Shape(std::min(n, m)), Shape(m + 1), 0), 1);
    detail::finish_making(eye_op, t, options, loc);
    return t;
}

// --- Literals and memory ---------------------------------------------------------------------------------------------------

Tensor tensor(const Literal& literal, TensorOptions options, Loc loc) {
    if (!literal.is_list()) {  // tensor(1.0)
        const DType dtype = detail::dtype_for("tensor", options, literal.value().dtype(), loc);
        if (!is_floating(dtype)) detail::check_fits("tensor", literal.value(), dtype, loc);
        Tensor t = detail::make_empty(nullptr, 0, 1, dtype, detail::device_for(options), loc);
        fill_fresh(t, literal.value());
        detail::finish_constant(tensor_op, t, options, loc);
        return t;
    }
    const Shape shape = literal_shape(literal, loc);
    Kind widest = shape.numel() == 0 ? Kind::floating : Kind::boolean;
    check_literal(literal, shape, 0, widest, loc);
    const DType by_numbers = widest == Kind::floating ? default_dtype() : widest == Kind::integer ? int64 : bool_;
    const DType dtype = detail::dtype_for("tensor", options, by_numbers, loc);
    Tensor t = detail::make_empty(shape, dtype, cpu, loc);
    copy_literal(literal, dtype, t.impl()->data, loc);
    t = detail::moved_to(std::move(t), options, loc);
    detail::finish_constant(tensor_op, t, options, loc);
    return t;
}

Tensor tensor_from(const void* values, const Shape& shape, DType from, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("tensor", options, from, loc);
    Tensor t = copied(values, shape, from, dtype, options, loc);
    detail::finish_constant(tensor_op, t, options, loc);
    return t;
}

namespace {

void run_deleter(Storage* storage) {
    const std::unique_ptr<std::function<void(void*)>> deleter(static_cast<std::function<void(void*)>*>(storage->context));
    (*deleter)(storage->data);
}

// Returns the number of bytes from the first element to the end of the last one.
std::size_t span_bytes(const Shape& shape, const Shape& strides, DType dtype, const Loc& loc) {
    int64_t last = 0;
    bool overflow = false;
    for (int d = 0; d < shape.rank(); ++d) {
        if (shape[d] == 0) return 0;
        if (strides[d] < 0) fail<ValueError>(loc, "from_blob: a stride must not be negative: {}", strides);
        int64_t reach = 0;
        overflow |= __builtin_mul_overflow(shape[d] - 1, strides[d], &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
    }
    int64_t bytes = 0;
    overflow |= __builtin_mul_overflow(last + 1, static_cast<int64_t>(itemsize(dtype)), &bytes);
    if (overflow) fail<ValueError>(loc, "from_blob: shape {} with strides {} is larger than any memory", shape, strides);
    return static_cast<std::size_t>(bytes);
}

Shape row_major(const Shape& shape) {
    Shape strides = shape;
    int64_t stride = 1;
    for (int d = shape.rank(); d-- > 0;) {
        strides[d] = stride;
        stride *= std::max<int64_t>(shape[d], 1);
    }
    return strides;
}

}  // namespace

Tensor from_blob(void* data, const Shape& shape, TensorOptions options, Loc loc) { return from_blob(data, shape, nullptr, options, loc); }

Tensor from_blob(void* data, const Shape& shape, std::function<void(void*)> deleter, TensorOptions options, Loc loc) {
    detail::checked_numel(shape, options.dtype.value_or(default_dtype()), loc);
    return from_blob(data, shape, row_major(shape), std::move(deleter), options, loc);
}

// Everything that can fail comes before the tensor takes the memory over.
Tensor from_blob(void* data, const Shape& shape, const Shape& strides, std::function<void(void*)> deleter, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("from_blob", options, default_dtype(), loc);
    const Device device = options.device.value_or(cpu);
    detail::check_device("from_blob", device, loc);
    if (strides.rank() != shape.rank()) {
        fail<ShapeError>(loc, "from_blob: {} strides for {} dimensions", strides.rank(), shape.rank());
    }
    const int64_t numel = detail::checked_numel(shape, dtype, loc);
    if (!data && numel > 0) fail<ValueError>(loc, "from_blob: data is null");
    if (device != cpu && numel > 0 && !device_api::can_use(device, data)) {
        fail<DeviceError>(loc, "from_blob: data is not memory of {}", device);
    }
    const std::size_t bytes = span_bytes(shape, strides, dtype, loc);
    if (reinterpret_cast<std::uintptr_t>(data) % itemsize(dtype) != 0) {
        fail<ValueError>(loc, "from_blob: data is not aligned for {}", name(dtype));
    }
    std::unique_ptr<std::function<void(void*)>> kept;
    if (deleter) kept = std::make_unique<std::function<void(void*)>>(std::move(deleter));
    Tensor t = detail::make_around(data, shape, strides, dtype, device, bytes, nullptr, nullptr, loc);
    if (options.requires_grad) t.requires_grad_(true, loc);
    // A watcher may throw.
    if (detail::is_watched()) [[unlikely]]
        record(tensor_op, loc, {}, t, {});
    if (kept) {
        t.impl()->storage->release = run_deleter;
        t.impl()->storage->context = kept.release();
    }
    return t;
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::new_empty(const Shape& shape, Loc loc) const { return tapir::empty(shape, {dtype(loc), impl_->device}, loc); }
Tensor Tensor::new_zeros(const Shape& shape, Loc loc) const { return tapir::zeros(shape, {dtype(loc), impl_->device}, loc); }
Tensor Tensor::new_ones(const Shape& shape, Loc loc) const { return tapir::ones(shape, {dtype(loc), impl_->device}, loc); }
Tensor Tensor::new_full(const Shape& shape, Scalar value, Loc loc) const { return tapir::full(shape, value, {dtype(loc), impl_->device}, loc); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

void make_fields(Fields& f, MakeAttrs& a) { f("shape", a.shape)("dtype", a.dtype)("device", a.device); }
// For tensors made like another, which gives the shape.
void like_fields(Fields& f, MakeAttrs& a) { f("dtype", a.dtype)("device", a.device); }
TensorOptions options_of(const MakeAttrs& a) { return {a.dtype, a.device}; }
Tensor indices_of_triangle(const TriangleAttrs& a, bool lower) {
    return lower ? tril_indices(a.rows, a.columns, a.offset, options_of(a)) : triu_indices(a.rows, a.columns, a.offset, options_of(a));
}
void triangle_fields(Fields& f, TriangleAttrs& a) {
    f("rows", a.rows)("columns", a.columns)("offset", a.offset);
    like_fields(f, a);
}
void space_fields(Fields& f, SpaceAttrs& a) {
    f("start", a.start)("end", a.end)("steps", a.steps);
    like_fields(f, a);
}

bool zeros_into(const FormCall&, const Tensor& out) {
    if (out.device() != cpu) return false;
    if (out.numel() > 0) std::memset(out.raw_data(), 0, out.nbytes());
    return true;
}

// A number that a graph computes from sizes: factor * value, or factor / value.
struct NumberCall {
    int64_t value = 0;
    double factor = 1;
    bool is_reciprocal = false;
    DType dtype = float32;
};
// Makes a number of the program's, which no op has made: so a trace of a graph finds out again how it depends on sizes.
Tensor number_of(const NumberCall& a) {
    const auto value = static_cast<double>(a.value);
    const Tensor number = detail::make_empty({}, a.dtype, cpu, Loc{});
    detail::store(a.dtype, number.raw_data(),
                  a.is_reciprocal     ? Scalar(a.factor / value)
                      : a.factor == 1 ? Scalar(a.value)
                                      : Scalar(a.factor * value));
    number.impl()->trace = 0;
    return number;
}

// Takes whole numbers, some of which may be names, or numbers alone.
SymInt steps_of(const TypeCall& t) {
    Attribute start = t.attributes.get("start"), end = t.attributes.get("end"), step = t.attributes.get("step");
    for (Attribute* each : {&start, &end, &step}) {
        const auto* real = std::get_if<double>(each);
        if (real && *real == std::floor(*real) && std::abs(*real) < 0x1p53) *each = SymInt(static_cast<int64_t>(*real));
    }
    const SymInt *from = std::get_if<SymInt>(&start), *to = std::get_if<SymInt>(&end), *by = std::get_if<SymInt>(&step);
    if (from && to && by) {
        if (!by->is_number()) return types::unknown();
        if (from->is_number() && to->is_number()) return count_steps(from->number(), to->number(), by->number(), t.loc);
        const int64_t sign = by->number() < 0 ? -1 : 1;
        types::need<ValueError>(by->number() != 0, "the step is 0");
        const SymInt way = SymInt(sign) * (*to - *from);
        return (way + SymInt(sign * by->number() - 1)).floor_div(sign * by->number());
    }
    double numbers[3];
    int i = 0;
    for (const Attribute* each : {&start, &end, &step}) {
        const auto* whole = std::get_if<SymInt>(each);
        const auto* real = std::get_if<double>(each);
        if (!real && !(whole && whole->is_number())) return types::unknown();
        numbers[i++] = real ? *real : static_cast<double>(whole->number());
    }
    return count_steps(numbers[0], numbers[1], numbers[2], t.loc);
}

// Returns the number of places in a triangle of a matrix.
SymInt in_triangle(const TypeCall& t, bool lower) {
    const SymInt rows = t.size("rows"), columns = t.size("columns"), offset = t.size("offset");
    if (!offset.is_number()) return types::unknown();
    const int64_t by = offset.number();
    if (!rows.is_number() || !columns.is_number()) {  // a square one, with its diagonal or without
        const bool has_diagonal = by == 0, has_not = by == (lower ? -1 : 1);
        if (!(rows == columns) || !(has_diagonal || has_not)) return types::unknown();
        return (rows * rows + SymInt(has_diagonal ? 1 : -1) * rows).floor_div(2);
    }
    const int64_t n = rows.number(), m = columns.number();
    types::need<ValueError>(n >= 0 && m >= 0 && std::max(n, m) <= INT32_MAX, "these are no sizes of a matrix");
    // Counts the lower one: row i has min(max(i + by + 1, 0), m) places. The upper one has the rest, from one place further on.
    const int64_t shift = std::clamp(by, -n - 1, m + 1) + (lower ? 1 : 0), full = std::clamp<int64_t>(n - std::max<int64_t>(m - shift, 0), 0, n);
    const int64_t first = std::max<int64_t>(-shift, 0), growing = std::max<int64_t>(n - full - first, 0);
    const int64_t below = full * m + growing * (shift + first) + growing * (growing - 1) / 2;
    return lower ? below : n * m - below;
}

}  // namespace

TAPIR_FORM(empty, 0, MakeAttrs, made(t.sizes("shape"), a.dtype, a.device), empty(a.shape, options_of(a)), make_fields(f, a));
TAPIR_INTO_FORM(zeros, 0, MakeAttrs, made(t.sizes("shape"), a.dtype, a.device), zeros(a.shape, options_of(a)), zeros_into, make_fields(f, a));
TAPIR_FORM(ones, 0, MakeAttrs, made(t.sizes("shape"), a.dtype, a.device), ones(a.shape, options_of(a)), make_fields(f, a));
TAPIR_FORM(full, 0, FullAttrs, made(t.sizes("shape"), a.dtype, a.device), full(a.shape, a.value, options_of(a)), f("value", a.value);
           make_fields(f, a));
TAPIR_FORM(empty_like, 1, MakeAttrs, made(t[0].shape, a.dtype, a.device), empty_like(x[0], options_of(a)), like_fields(f, a));
TAPIR_FORM(zeros_like, 1, MakeAttrs, made(t[0].shape, a.dtype, a.device), zeros_like(x[0], options_of(a)), like_fields(f, a));
TAPIR_FORM(full_like, 1, FullAttrs, made(t[0].shape, a.dtype, a.device), full_like(x[0], a.value, options_of(a)), f("value", a.value);
           like_fields(f, a));
TAPIR_FORM(arange, 0, RangeAttrs, made({steps_of(t)}, a.dtype, a.device), arange(a.start, a.end, a.step, options_of(a)),
           f("start", a.start)("end", a.end)("step", a.step);
           like_fields(f, a));
TAPIR_FORM(linspace, 0, SpaceAttrs, made({t.size("steps")}, a.dtype, a.device), linspace(a.start, a.end, a.steps, options_of(a)), space_fields(f, a));
TAPIR_FORM(logspace, 0, SpaceAttrs, made({t.size("steps")}, a.dtype, a.device), logspace(a.start, a.end, a.steps, a.base, options_of(a)),
           f("base", a.base);
           space_fields(f, a));
TAPIR_FORM(tril_indices, 0, TriangleAttrs, made({2, in_triangle(t, true)}, a.dtype, a.device), indices_of_triangle(a, true), triangle_fields(f, a));
TAPIR_FORM(triu_indices, 0, TriangleAttrs, made({2, in_triangle(t, false)}, a.dtype, a.device), indices_of_triangle(a, false), triangle_fields(f, a));
TAPIR_FORM(eye, 0, MakeAttrs, made(t.sizes("shape"), a.dtype, a.device), eye(a.shape[0], a.shape[1], options_of(a)), make_fields(f, a));
TAPIR_FORM(number, 0, NumberCall, made({}, a.dtype, cpu), number_of(a),
           f("value", a.value)("factor", a.factor)("is_reciprocal", a.is_reciprocal)("dtype", a.dtype));

}  // namespace tapir
