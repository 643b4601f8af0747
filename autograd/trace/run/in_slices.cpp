// in_slices: runs a graph for some examples of a batch at a time, so that their results stay in the cache (passes/pass_slice_batch.cpp).
#include <algorithm>
#include <mutex>

#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/passes/slice_batch_impl.h"
#include "tapir/autograd/trace/run/frame_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/pool_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

void check(const FormCall& x, const SliceAttrs& a) {
    if (!a.body) fail<ValueError>(Loc{}, "in_slices: its graph is missing");
    if (std::ssize(a.body->inputs()) != x.count)
        fail<ValueError>(Loc{}, "in_slices: {} operands are given, its graph needs {}", x.count, a.body->inputs().size());
    if (a.body->outputs().size() > detail::kMostResults) detail::fail_results(a.body->outputs().size());
    if (a.sliced < 1 || a.sliced > x.count || a.examples < 1)
        fail<ValueError>(Loc{}, "in_slices: {} of {} operands are cut into slices of {}", a.sliced, x.count, a.examples);
    for (int i = 0; i < a.sliced; ++i) {
        if (x[i].dim() == 0 || x[i].size(0) != x[0].size(0))
            fail<ShapeError>(Loc{}, "in_slices: operands of shapes {} and {} are cut", x[0].shape(), x[i].shape());
    }
}

// A tensor for the rows of all slices, in the layout of one slice.
Tensor room_for(const Tensor& part, std::int64_t rows) {
    detail::Geometry all(part);
    all.shape.raw(0) = rows;
    return all.make(Loc{});
}

Tensor rows_of(const TensorImpl* whole, std::int64_t begin, std::int64_t rows) {
    Shape shape(whole->sizes, whole->rank);
    shape.raw(0) = rows;
    return detail::make_view(whole, whole->rank, shape.data(), whole->strides, begin * whole->strides[0]);
}

void check_rows(const Tensor& output, std::size_t number, std::int64_t rows) {
    if (output.dim() > 0 && output.size(0) == rows) return;
    fail<ShapeError>(Loc{}, "in_slices: output {} of shape {} has not a row for each of {} examples", number, output.shape(), rows);
}

// The number of slices: as many for each thread, if there are enough examples for all threads. Else the ops share each image out.
std::int64_t slices_of(std::int64_t batch, std::int64_t examples) {
    const std::int64_t threads = detail::in_part() ? 1 : num_threads(), least = (batch + examples - 1) / examples;
    if (batch < 2 * threads && batch % threads != 0) return 1;
    return std::clamp<std::int64_t>((least + threads - 1) / threads * threads, 1, std::max<std::int64_t>(batch, 1));
}

detail::Written run(const FormCall& x, const SliceAttrs& a, Tensor* results) {
    check(x, a);
    const std::size_t outputs = a.body->outputs().size();
    if (!detail::nobody_looks()) {
        detail::put_results(results, (*a.body)(x.list(), Loc{}));
        return {};
    }
    const std::int64_t batch = x[0].size(0), count = slices_of(batch, a.examples);
    if (count == 1) {
        detail::run_in_order(*a.body, x.inputs, results, Loc{});
        for (std::size_t k = 0; k < outputs; ++k) check_rows(results[k], k, batch);
        return {};
    }
    const Loc line = detail::call_line;
    std::once_flag has_room;
    detail::share_parts(count, num_threads(), [&](std::int64_t s) {
        const detail::CallLine of_caller(line);  // this may be a thread of the pool
        const detail::PauseRecording pause;
        const std::int64_t begin = s * (batch / count) + std::min(s, batch % count), rows = batch / count + (s < batch % count ? 1 : 0);
        std::vector<Tensor> parts(static_cast<std::size_t>(a.sliced)), made(outputs);
        detail::Given given(static_cast<std::size_t>(x.count));
        std::copy(x.inputs, x.inputs + x.count, given.data);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            parts[i] = rows_of(x.inputs[i]->impl(), begin, rows);
            given.data[i] = &parts[i];
        }
        detail::run_in_order(*a.body, given.data, made.data(), Loc{});
        for (std::size_t k = 0; k < outputs; ++k) check_rows(made[k], k, rows);
        std::call_once(has_room, [&] {
            for (std::size_t k = 0; k < outputs; ++k) results[k] = room_for(made[k], batch);
        });
        for (std::size_t k = 0; k < outputs; ++k) rows_of(results[k].impl(), begin, rows).copy_(made[k]);
    });
    return {};
}

ResultTypes types_of(const TypeCall& t, const SliceAttrs& a) {
    types::need<ValueError>(a.body != nullptr, "its graph is missing");
    types::need<ValueError>(static_cast<int>(a.body->inputs().size()) == t.count, "its graph has another number of inputs");
    const auto results = detail::stated_results(*a.body, {t.operands, t.operands + t.count}, t.loc);
    if (!results) return types::unstated();
    ResultTypes made;
    for (const ValueType& result : *results) made.push_back(result);
    return made;
}

}  // namespace

TAPIR_FORM(in_slices, Operands::from(1), SliceAttrs, types_of(t, a), run(x, a, results),
           f("body", a.body)("sliced", a.sliced)("examples", a.examples));

}  // namespace tapir
