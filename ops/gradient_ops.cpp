// The ops that backward needs: adding, summing over broadcast dimensions, collected products and rows.
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/deterministic.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::gradient_ops {

// These have no line of their own, but that of the rule or the call that they serve, which a CallerScope names.
static In at(const Tensor& x) { return In(x, Loc{}); }

Tensor add(const Tensor& a, const Tensor& b) { return tapir::add(at(a), at(b)); }

Tensor sum_to(const Tensor& g, const Shape& shape) {
    const int extra = g.dim() - shape.rank();
    Dims dims;
    for (int d = 0; d < g.dim(); ++d) {
        const std::int64_t size = g.impl()->sizes[d];
        if (size != 1 && (d < extra || shape.raw(d - extra) == 1)) dims.push_back(d);
    }
    const Tensor summed = dims.empty() ? g : sum(at(g), dims, /*keepdim=*/true);
    return summed.shape() == shape ? summed : reshape(at(summed), shape);
}

Tensor cast(const Tensor& g, DType dtype) { return to(at(g), dtype); }

Tensor zeros(const Shape& shape, DType dtype, Device device) {
    if (detail::is_tracing()) [[unlikely]]
        return tapir::zeros(shape, {dtype, device});
    Tensor out = detail::make_empty(shape, dtype, device, Loc{});
    zero_elements(out);
    return out;
}

Tensor ones(const Shape& shape, DType dtype, Device device) {
    if (detail::is_tracing()) [[unlikely]]
        return tapir::ones(shape, {dtype, device});
    Tensor out = detail::make_empty(shape, dtype, device, Loc{});
    alignas(8) std::byte one[8];
    detail::store(dtype, one, 1);
    fill_elements(out, one);
    return out;
}

Tensor product(const Tensor& g, const Tensor& x) { return matmul(at(transpose(at(g), 0, 1)), at(x)); }

void product_into(const Tensor& into, const Tensor& g, const Tensor& x) {
    const TensorImpl* c = into.impl();
    const bool direct = (c->dtype == float32 || c->dtype == float64) && g.dtype() == c->dtype && x.dtype() == c->dtype;
    if (!direct) return add_into(into, product(g, x).to(into.dtype()));
    const auto run = [&](const TensorImpl* a, const TensorImpl* b) {
        multiply({c->dtype, a->sizes[1], b->sizes[1], a->sizes[0], a->data, a->strides[1], a->strides[0], b->data, b->strides[0], b->strides[1],
                  c->data, b->sizes[1], nullptr, /*accumulate=*/true},
                 c->device);
    };
    if (!on_gpu(c)) [[likely]]
        return run(g.impl(), x.impl());
    const Tensor packed_g = matrix_for_device(g), packed_x = matrix_for_device(x);
    for (const Tensor* t : {&into, &packed_g, &packed_x}) on_stream(*t);
    run(packed_g.impl(), packed_x.impl());
}

void add_into(const Tensor& into, const Tensor& g) {
    static const ElementwiseOp& op = row_of(Elementwise::add);
    const Tensor* in[] = {&into, &g};
    elementwise::run({op.index, -1, kernels::compute_of(into.dtype())}, into, in, 2);
}

Tensor rows_to_dense(const Tensor& indices, const Tensor& g, const Shape& shape) {
    return index_add(at(zeros(shape, g.dtype(), g.device())), 0, indices, g);
}

namespace {

// Sums in the order of the rows, so that the result is the same each time. Indices are not negative, as an op has checked them.
void rows_into_in_order(const Tensor& into, const std::vector<SparseRows>& parts) {
    std::vector<Tensor> indices, values;
    for (const SparseRows& part : parts) {
        indices.push_back(part.indices);
        values.push_back(part.values);
    }
    const std::int64_t width = into.numel() / into.impl()->sizes[0];
    const Region region{Shape(width), Shape(1), 0, 0, width};
    add_region(into.impl(), region, concatenate(indices), concatenate(values));
}

// Adds all parts in as few launches as possible.
void rows_into_on_gpu(const Tensor& into, const std::vector<SparseRows>& parts) {
    device_api::select(into.device());
    kernels::AddRowsArgs args{};
    args.dtype = into.dtype();
    args.x = on_stream(into.impl());
    args.rows = into.impl()->sizes[0];
    args.width = args.rows > 0 ? into.numel() / args.rows : 0;
    std::vector<Tensor> kept;  // until the launch
    const auto launch = [&] {
        if (args.parts > 0) gpu::add_rows(args);
        args.parts = 0;
        kept.clear();
    };
    for (const SparseRows& part : parts) {
        if (args.parts == kernels::AddRowsArgs::kMaxParts) launch();
        kept.push_back(contiguous(to(part.indices, int64)));
        const auto* index = reinterpret_cast<const std::int64_t*>(on_stream(kept.back().impl()));
        kept.push_back(contiguous(to(part.values, into.dtype())));
        args.part[args.parts++] = {index, on_stream(kept.back().impl()), part.indices.numel()};
    }
    launch();
}

}  // namespace

void rows_into(const Tensor& into, const std::vector<SparseRows>& parts) {
    if (!on_gpu(into)) {
        for (const SparseRows& part : parts) rows_into(into, part.indices, part.values);
    } else if (is_deterministic() && row_count(parts) > 1) {
        rows_into_in_order(into, parts);
    } else {
        rows_into_on_gpu(into, parts);
    }
}

void rows_into(const Tensor& into, const Tensor& indices, const Tensor& g) {
    if (on_gpu(into)) return rows_into(into, {{indices, g}});
    const std::int64_t n = indices.numel(), width = n > 0 ? g.numel() / n : 0, count = into.impl()->sizes[0];
    const Tensor positions = contiguous(to(indices, int64)), rows = contiguous(to(g, into.dtype()));
    const auto* position = static_cast<const std::int64_t*>(positions.raw_data());
    const bool direct = into.dtype() == float32 || into.dtype() == float64;
    const auto bytes = width * static_cast<std::int64_t>(itemsize(into.dtype()));
    for (std::int64_t r = 0; r < n; ++r) {
        const std::int64_t row = position[r] < 0 ? position[r] + count : position[r];
        if (direct) {
            kernels::add_run(kernels::compute_of(into.dtype()), width, into.impl()->data + row * bytes, 1, rows.impl()->data + r * bytes, 1);
        } else {
            add_into(detail::make_view(into.impl(), {width}, {1}, row * width), detail::make_view(rows.impl(), {width}, {1}, r * width));
        }
    }
}

Tensor sum_of_parts(const Tensor& grad, const std::vector<PartOfRows>& parts, const Shape& shape) {
    // The terms of a row are added in launches one after the other.
    std::vector<int> terms_of(static_cast<std::size_t>(shape[0]), grad.defined() ? 1 : 0), turns;
    std::int64_t begun = 0;  // rows that the first launch writes
    for (const PartOfRows& part : parts) {
        const auto first = terms_of.begin() + part.first, end = first + part.g.size(0);
        turns.push_back(*std::max_element(first, end));
        std::fill(first, end, turns.back() + 1);
        if (turns.back() == 0) begun += part.g.size(0);
    }
    const TensorImpl* const like = parts[0].g.impl();
    kernels::AddPartsArgs args;
    args.writes = !grad.defined() && begun == shape[0];
    Tensor out = grad;
    if (!out.defined()) out = args.writes ? detail::make_empty(shape, like->dtype, like->device, Loc{}) : zeros(shape, like->dtype, like->device);
    args.dtype = like->dtype;
    args.x = on_stream(out);
    const auto add_now = [&] {
        if (args.parts > 0) gpu::add_parts(args);
        args.parts = 0;
    };
    const std::int64_t width = out.impl()->strides[0];
    const int last = *std::max_element(turns.begin(), turns.end());
    for (int turn = 0; turn <= last; ++turn) {
        for (std::size_t k = 0; k < parts.size(); ++k) {
            if (turns[k] != turn) continue;
            if (args.parts == kernels::AddPartsArgs::kMaxParts) add_now();
            args.part[args.parts++] = {on_stream(parts[k].g), parts[k].first * width, parts[k].g.numel()};
        }
        add_now();
        args.writes = false;
    }
    return out;
}

Tensor concatenate(const std::vector<Tensor>& parts, int dim) { return parts.size() == 1 ? parts[0] : cat(TensorList(parts, Loc{}), dim); }

Tensor sum_of(const std::vector<Tensor>& terms) {
    return terms.size() == 2 ? add(terms[0], terms[1]) : sum(at(stack(TensorList(terms, Loc{}), 0)), {0});
}

Tensor stacked(const std::vector<Tensor>& parts) { return stack(TensorList(parts, Loc{}), 0); }

Tensor dense_copy(const Tensor& g) { return clone(at(g)); }

void copy_rows(const Tensor& into, std::int64_t row, const Tensor& rows) {
    const TensorImpl* to = into.impl();
    const TensorImpl* from = rows.impl();
    const std::int64_t n = from->sizes[0], width = to->sizes[1];
    if (from->is_contiguous() && from->dtype == to->dtype) [[likely]] {
        const auto size = static_cast<std::int64_t>(itemsize(to->dtype));
        std::memcpy(to->data + row * width * size, from->data, static_cast<std::size_t>(n * width * size));
        return;
    }
    copy_elements(detail::make_view(to, {n, width}, {width, 1}, row * width), rows);
}

}  // namespace tapir::gradient_ops
