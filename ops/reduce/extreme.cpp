// Finds the largest and smallest elements along a dimension, with their indices.
#include <algorithm>

#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/order_impl.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using namespace reduction;

TAPIR_OP(max, pick_rule, "The largest element along a dimension, and its index.", TAPIR_SAMPLE("d(3,4)", max(x[0], 1).values),
         TAPIR_SAMPLE("d(3,4)", max(x[0], 0, true).values), TAPIR_SAMPLE("d(2,3,4)", max(x[0], -2).values),
         TAPIR_SAMPLE("d(2,40)", max(x[0], 1).values), TAPIR_SAMPLE("d(2,3,4)", max(x[0], 1).indices), TAPIR_SAMPLE("i(3,4)<5", max(x[0], 1).values));
TAPIR_OP(min, pick_rule, "The smallest element along a dimension, and its index.", TAPIR_SAMPLE("d(3,4)", min(x[0], 1).values),
         TAPIR_SAMPLE("d(3,4)", min(x[0], 0, true).values), TAPIR_SAMPLE("d(2,3,4)", min(x[0], -2).values),
         TAPIR_SAMPLE("d(2,3,4)", min(x[0], 1).indices));
TAPIR_OP(argmax, NonDiff, "The index of the largest element.", TAPIR_SAMPLE("d(3,4)", argmax(x[0])), TAPIR_SAMPLE("d(3,4)", argmax(x[0], 1)),
         TAPIR_SAMPLE("d(2,3,4)", argmax(x[0], -2, true)), TAPIR_SAMPLE("d(3,70)", argmax(x[0], 1)), TAPIR_SAMPLE("d(70,3)", argmax(x[0], 0)));
TAPIR_OP(argmin, NonDiff, "The index of the smallest element.", TAPIR_SAMPLE("d(3,4)", argmin(x[0])), TAPIR_SAMPLE("d(3,4)", argmin(x[0], 1)),
         TAPIR_SAMPLE("d(2,3,4)", argmin(x[0], -2, true)));

namespace {

// All tensors are contiguous.
void put_picked(const Tensor& g, const Tensor& indices, int dim, const Tensor& out) {
    const Lines lines(out.impl(), dim);
    const std::int64_t picked = g.numel() / lines.count();
    const kernels::PickedArgs args{itemsize(g.dtype()), picked,          lines.size, lines.inner, kernel_data<std::int64_t>(indices),
                                   kernel_data(g),      kernel_data(out)};
    TAPIR_LAUNCH(g, g.numel(), /*work=*/1, put_picked, args);
}

}  // namespace

void pick_rule(Backward& b) {
    if (!b.needs(0) || !b.grad(0).defined()) return;
    const auto [dim, dropped] = b.attrs<PickAttrs>();
    const Shape shape = b.input_shape(0);
    Tensor g = b.grad(0), indices = b.saved(0);
    if (b.recording()) {
        const Tensor zeros = gradient_ops::zeros(shape, g.dtype(), g.device());
        if (shape.rank() == 0) return b.give(0, g);
        if (dropped) {
            g = unsqueeze(g, dim);
            indices = unsqueeze(indices, dim);
        }
        return b.give(0, scatter_add(zeros, dim, indices, g));
    }
    g = contiguous(g);
    indices = contiguous(indices);
    Tensor out = gradient_ops::zeros(shape, g.dtype(), g.device());
    if (g.numel() > 0) put_picked(g, indices, dim, out);
    b.give(0, std::move(out));
}

namespace {

struct ArgCall {
    Dims dim{};  // none: over everything
    bool keepdim = false;
};

// Finds the best of lines of a dtype that is computed in another, T: converts part by part, so that there is never a wider copy of all of
// them. values: null if not wanted.
template <class T>
void extreme_of_converted(const Tensor& x, const Lines& lines, bool largest, std::int64_t* indices, T* values) {
    constexpr std::int64_t kPart = 4096, kColumns = 256;  // elements that are converted at once
    const std::int64_t block = lines.size * lines.inner;
    const auto bytes = static_cast<std::int64_t>(itemsize(x.dtype()));
    const auto convert = [&](T* to, std::int64_t at, std::int64_t n) {
        kernels::convert(x.dtype(), x.impl()->data + at * bytes, 1, dtype_of<T>, to, 1, n);
    };
    const auto best_of = [&](const T* part, std::int64_t size, std::int64_t inner, T* best, std::int64_t* found, std::int64_t count) {
        kernels::extreme({dtype_of<T>, size, inner, part, best}, largest, found, 0, count);
    };
    if (block <= kPart) {  // whole lines, several at once
        const std::int64_t together = kPart / block;
        share_out((lines.outer + together - 1) / together, together * block, [&](std::int64_t begin, std::int64_t end) {
            alignas(64) T part[kPart];
            for (std::int64_t group = begin; group < end; ++group) {
                const std::int64_t first = group * together, n = std::min(together, lines.outer - first), line = first * lines.inner;
                convert(part, first * block, n * block);
                best_of(part, lines.size, lines.inner, values ? values + line : nullptr, indices + line, n * lines.inner);
            }
        });
        return;
    }
    const std::int64_t width = std::min(lines.inner, kColumns), strips = (lines.inner + width - 1) / width, rows = kPart / width;
    const auto is_better = [largest](T now, T before) { return (largest ? now > before : now < before) || (now != now && before == before); };
    share_out(lines.outer * strips, lines.size * width, [&](std::int64_t begin, std::int64_t end) {
        alignas(64) T part[kPart];
        T best[kColumns], now[kColumns];
        std::int64_t found[kColumns];
        for (std::int64_t strip = begin; strip < end; ++strip) {
            const std::int64_t outer = strip / strips, column = strip % strips * width, w = std::min(width, lines.inner - column);
            std::int64_t* const to = indices + outer * lines.inner + column;
            for (std::int64_t row = 0; row < lines.size; row += rows) {
                const std::int64_t n = std::min(rows, lines.size - row);
                for (std::int64_t i = 0; i < n; ++i) {
                    if (w == lines.inner) {
                        convert(part, outer * block + row * w, n * w);
                        break;
                    }
                    convert(part + i * w, outer * block + (row + i) * lines.inner + column, w);
                }
                best_of(part, n, w, now, found, w);
                for (std::int64_t j = 0; j < w; ++j) {
                    if (row > 0 && !is_better(now[j], best[j])) continue;
                    best[j] = now[j];
                    to[j] = row + found[j];
                }
            }
            if (values) std::copy_n(best, w, values + outer * lines.inner + column);
        }
    });
}

struct Found {
    Tensor values;  // of x's dtype or the computed one; undefined unless asked for
    Tensor indices;
};

Found find_extreme(const char* op, const In& x, int dim, Over o, bool largest, bool with_values) {
    const TensorImpl* impl = x.tensor.impl();
    if (reduced_numel(impl, o) == 0) {
        fail<ShapeError>(x.loc, "{}: no elements to choose from in shape {}", op, x.tensor.shape());
    }
    Found found;
    if (on_gpu(impl)) {
        found.indices = make_result(impl, o, int64, x.loc);
        if (with_values) found.values = make_result(impl, o, impl->dtype, x.loc);
        if (impl->numel == 0) return found;
        const Plan plan{largest ? kernels::Reduction::max : kernels::Reduction::min, impl->dtype};
        const kernels::ReduceArgs args = arguments(impl, o, plan, found.values.impl());
        gpu::extreme(args, static_cast<std::int64_t*>(found.indices.raw_data()), found.indices.numel());
        return found;
    }
    const DType computed = compute_type(impl->dtype);
    const Tensor in = [&] {
        const detail::UnrecordedPartsOf parts(x.loc);
        return contiguous(x);
    }();
    found.indices = make_result(impl, o, int64, x.loc);
    if (with_values) found.values = make_result(impl, o, computed, x.loc);
    if (in.numel() == 0) return found;
    const Lines lines(in.impl(), dim);
    if (computed != impl->dtype) {
        void* const values = with_values ? found.values.raw_data() : nullptr;
        auto* const to = static_cast<std::int64_t*>(found.indices.raw_data());
        if (computed == float32) {
            extreme_of_converted<float>(in, lines, largest, to, static_cast<float*>(values));
        } else {
            extreme_of_converted<std::int64_t>(in, lines, largest, to, static_cast<std::int64_t*>(values));
        }
        return found;
    }
    const kernels::LineArgs args{in.dtype(), lines.size, lines.inner, in.raw_data(), with_values ? found.values.raw_data() : nullptr};
    auto* indices = static_cast<std::int64_t*>(found.indices.raw_data());
    share_out(lines.outer * lines.inner, lines.size,
              [&](std::int64_t begin, std::int64_t end) { kernels::extreme(args, largest, indices, begin, end); });
    return found;
}

ValuesIndices extreme_along(const OpInfo& op, const In& x, int dim, bool keepdim, bool largest) {
    detail::check_defined(x, op.name);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), op.name, x.loc);
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        ValuesIndices made;
        const auto of_group = [&](const detail::Batched& in) { return extreme_along(op, In(in[0], x.loc), d + 1, keepdim, largest); };
        if (detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(d, keepdim)}, of_group, made)) return made;
    }
    Found found = find_extreme(op.name, x, d, over(op.name, dim, x.tensor.dim(), keepdim, x.loc), largest, true);
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        found.values = to(found.values, x.tensor.dtype());
    }
    if (detail::thread.observed) {
        const PickAttrs attrs{d, !keepdim && x.tensor.dim() > 0};
        record(op, x.loc, {&x.tensor}, found.values, {&found.indices}, attrs, Told{op, {&x.tensor}, {&found.values, &found.indices}}, attrs);
    }
    return {std::move(found.values), std::move(found.indices)};
}

Tensor arg_extreme(const OpInfo& op, const In& x, int dim, bool keepdim, bool largest) {
    detail::check_defined(x, op.name);
    const Over o = over(op.name, dim, x.tensor.dim(), keepdim, x.loc);
    const int d = detail::wrap_dim(dim, x.tensor.dim(), op.name, x.loc);
    if (detail::in_batch() && x.tensor.dim() > 0) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return arg_extreme(op, In(in[0], x.loc), d + 1, keepdim, largest); };
        if (Tensor y = detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(d, keepdim)}, of_group); y.defined()) return y;
    }
    Tensor out = find_extreme(op.name, x, d, o, largest, false).indices;
    if (detail::thread.observed) record(op, x.loc, {&x.tensor}, out, {}, ArgCall{d, keepdim});
    return out;
}

Tensor arg_extreme_of_all(const OpInfo& op, const In& x, bool largest) {
    detail::check_defined(x, op.name);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor lines = reshape(in[0], {in.count(), -1});
            return arg_extreme(op, In(lines, x.loc), 1, false, largest);
        };
        if (Tensor y = detail::in_group({op, x.loc, {&x.tensor}, detail::batch_key(-1)}, of_group); y.defined()) return y;
    }
    Tensor out;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        out = arg_extreme(op, In(reshape(x, {-1}), x.loc), 0, false, largest);
    }
    if (detail::thread.observed) record(op, x.loc, {&x.tensor}, out, {}, ArgCall{});
    return out;
}

}  // namespace

ValuesIndices max(In x, Dim dim, Flag keepdim) { return extreme_along(max_op, x, dim, keepdim, true); }
ValuesIndices min(In x, Dim dim, Flag keepdim) { return extreme_along(min_op, x, dim, keepdim, false); }
Tensor argmax(In x) { return arg_extreme_of_all(argmax_op, x, true); }
Tensor argmin(In x) { return arg_extreme_of_all(argmin_op, x, false); }
Tensor argmax(In x, Dim dim, Flag keepdim) { return arg_extreme(argmax_op, x, dim, keepdim, true); }
Tensor argmin(In x, Dim dim, Flag keepdim) { return arg_extreme(argmin_op, x, dim, keepdim, false); }

Tensor Tensor::argmax(Loc loc) const { return tapir::argmax(In(*this, loc)); }
Tensor Tensor::argmax(Dim dim, Flag keepdim, Loc loc) const { return tapir::argmax(In(*this, loc), dim, keepdim); }
Tensor Tensor::argmin(Loc loc) const { return tapir::argmin(In(*this, loc)); }
Tensor Tensor::argmin(Dim dim, Flag keepdim, Loc loc) const { return tapir::argmin(In(*this, loc), dim, keepdim); }
ValuesIndices Tensor::max(Dim dim, Flag keepdim, Loc loc) const { return tapir::max(In(*this, loc), dim, keepdim); }
ValuesIndices Tensor::min(Dim dim, Flag keepdim, Loc loc) const { return tapir::min(In(*this, loc), dim, keepdim); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

void pick_fields(Fields& f, PickAttrs& a) {
    bool keepdim = !a.dropped;
    f("dim", a.dim)("keepdim", keepdim);
    a.dropped = !keepdim;
}

}  // namespace

TAPIR_FORM(max, 1, PickAttrs, picked(chosen(t[0], {a.dim}), a.dim, !a.dropped), detail::outputs(max(x[0], a.dim, !a.dropped)), pick_fields(f, a));
TAPIR_FORM(min, 1, PickAttrs, picked(chosen(t[0], {a.dim}), a.dim, !a.dropped), detail::outputs(min(x[0], a.dim, !a.dropped)), pick_fields(f, a));
TAPIR_FORM(argmax, 1, ArgCall, reduced(chosen(t[0], a.dim), a.dim, a.keepdim, DType::int64),
           a.dim.empty() ? argmax(x[0]) : argmax(x[0], static_cast<int>(a.dim.raw(0)), a.keepdim), f("dim", a.dim)("keepdim", a.keepdim));
TAPIR_FORM(argmin, 1, ArgCall, reduced(chosen(t[0], a.dim), a.dim, a.keepdim, DType::int64),
           a.dim.empty() ? argmin(x[0]) : argmin(x[0], static_cast<int>(a.dim.raw(0)), a.keepdim), f("dim", a.dim)("keepdim", a.keepdim));

}  // namespace tapir
