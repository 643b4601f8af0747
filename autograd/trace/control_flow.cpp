// cond, while_loop and scan, called at once: the ops of the functions are recorded. While traced (control_flow_trace.cpp) a call is one op.
#include "tapir/autograd/trace/control_flow.h"

#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir {

void detail::check_arity(const char* what, const TracedFunction& fn, std::size_t inputs, const Loc& loc) {
    if (fn.takes_list || (inputs <= kMostArguments && fn.counts >> inputs & 1)) return;
    std::string counts;
    for (std::size_t n = 0; n <= kMostArguments; ++n) {
        if (fn.counts >> n & 1) counts += fmt::format("{}{}", counts.empty() ? "" : " or ", n);
    }
    fail<ValueError>(loc, "{}: a function of {} tensor{} is given {}", what, counts, counts == "1" ? "" : "s", inputs);
}

namespace {

using Tensors = std::vector<Tensor>;

// Copies results that somebody else holds, like operands and captures: the results of a traced call are values of their own, too.
Tensors owned(Tensors results, const Loc& loc) {
    for (Tensor& t : results) {
        if (t.defined() && !only_owner(t)) t = t.clone(loc);
    }
    return results;
}

Tensor stacked(const Tensors& steps, const Tensor& like, const Loc& loc) {
    if (!steps.empty()) return stack(TensorList(steps, loc), 0);
    Shape shape{0};
    for (const std::int64_t size : like.shape()) shape.push_back(size, loc);
    return gradient_ops::zeros(shape, like.dtype(), like.device());
}

// Null if nothing is traced, or the current call is not.
detail::Tracer* active_tracer() { return detail::is_watched() ? detail::Tracer::current() : nullptr; }

}  // namespace

namespace detail {

Tensors run_while(const TracedFunction& condition, const TracedFunction& body, Tensors carried, bool keep_steps, const Loc& loc) {
    const auto holds = [&] {
        const Tensors given = condition(carried);
        return is_true("while_loop", given.empty() ? Tensor() : given[0], loc);
    };
    std::vector<Tensors> steps(keep_steps ? carried.size() : 0);
    while (holds() && TurnBound::take_turn(loc)) {
        for (std::size_t i = 0; i < steps.size(); ++i) steps[i].push_back(carried[i]);
        Tensors next = body(carried);
        check_carried("while_loop", carried, next, loc, /*and_no_more=*/true);
        carried = std::move(next);
    }
    const Tensors last = carried;
    for (std::size_t i = 0; i < steps.size(); ++i) carried.push_back(stacked(steps[i], last[i], loc));
    return carried;
}

Tensors run_scan(const TracedFunction& combine, Tensors carry, const Tensors& xs, bool reverse, bool keep_steps, const Loc& loc) {
    const std::size_t carries = carry.size();
    const std::int64_t length = xs[0].size(0);
    const auto step = [&](Tensors inputs, const auto& slice) {
        for (const Tensor& x : xs) inputs.push_back(slice(x));
        return combine(inputs);
    };
    std::vector<Tensors> outputs, steps(keep_steps ? carries : 0);
    Tensors like;
    if (length == 0) {  // no step tells the outputs
        const PauseRecording pause;
        like = step(carry, slice_of_none);
        check_carried("scan", carry, like, loc);
        like.erase(like.begin(), like.begin() + static_cast<std::ptrdiff_t>(carries));
        outputs.resize(like.size());
    }
    for (std::int64_t t = 0; t < length; ++t) {
        Tensors made = step(carry, [&loc, at = reverse ? length - 1 - t : t](const Tensor& x) { return select(In(x, loc), 0, at); });
        check_carried("scan", carry, made, loc);
        for (std::size_t i = 0; i < steps.size(); ++i) steps[i].push_back(carry[i]);
        if (t == 0) outputs.resize(made.size() - carries);
        if (made.size() != carries + outputs.size()) {
            fail<ValueError>(loc, "scan: the function gave {} tensors, and {} before", made.size(), carries + outputs.size());
        }
        for (std::size_t k = 0; k < outputs.size(); ++k) {
            outputs[k].push_back(made[carries + k]);
            if (outputs[k][0].shape() != outputs[k].back().shape()) {
                fail<ShapeError>(loc, "scan: output {} has shape {}, and {} before", k, outputs[k].back().shape(), outputs[k][0].shape());
            }
        }
        carry.assign(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(carries));
    }
    Tensors all = carry;
    for (auto* lists : {&outputs, &steps}) {
        for (std::size_t k = 0; k < lists->size(); ++k) {
            Tensors& list = (*lists)[k];
            if (reverse) std::reverse(list.begin(), list.end());
            all.push_back(stacked(list, list.empty() ? (lists == &outputs ? like[k] : carry[k]) : list[0], loc));
        }
    }
    return all;
}

Tensors scan_steps(const TracedFunction& combine, Tensors carry, const Tensors& xs, bool reverse, bool keep_steps, const Loc& loc) {
    if (Tracer* tracer = active_tracer()) return trace_scan(*tracer, combine, carry, xs, reverse, keep_steps, loc);
    return owned(run_scan(combine, std::move(carry), xs, reverse, keep_steps, loc), loc);
}

}  // namespace detail

// --- The public functions ------------------------------------------------------------------------------------------------------------

Tensors detail::cond(const In& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const Tensors& operands) {
    const Loc& loc = pred.loc;
    check_arity("cond", then_fn, operands.size(), loc);
    check_arity("cond", else_fn, operands.size(), loc);
    check_all_defined("cond", operands, loc);
    if (Tracer* tracer = active_tracer()) return trace_cond(*tracer, pred.tensor, then_fn, else_fn, operands, loc);
    return owned(is_true("cond", pred.tensor, loc) ? then_fn(operands) : else_fn(operands), loc);
}

Tensors detail::while_loop(const TracedFunction& condition, const TracedFunction& body, Tensors carried, bool keep_steps, const Loc& loc) {
    if (carried.empty()) fail<ValueError>(loc, "while_loop: nothing is carried, so that the condition would never change");
    check_arity("while_loop", condition, carried.size(), loc);
    check_arity("while_loop", body, carried.size(), loc);
    check_all_defined("while_loop", carried, loc);
    if (Tracer* tracer = active_tracer()) return trace_while(*tracer, condition, body, carried, keep_steps, loc);
    return owned(run_while(condition, body, std::move(carried), keep_steps, loc), loc);
}

ScanResult detail::scan(const TracedFunction& combine, Tensors init, const Tensors& xs, const ScanOptions& options, const Loc& loc) {
    if (xs.empty()) fail<ValueError>(loc, "scan: there are no xs, whose slices are the steps");
    check_arity("scan", combine, init.size() + xs.size(), loc);
    check_all_defined("scan", init, loc);
    check_all_defined("scan", xs, loc);
    Tensors moved;
    for (const Tensor& x : xs) {
        const int dim = options.dim < 0 ? options.dim + x.dim() : options.dim;
        if (dim < 0 || dim >= x.dim()) fail<IndexError>(loc, "scan: dim {} is not there in xs of shape {}", options.dim, x.shape());
        moved.push_back(dim == 0 ? x : movedim(In(x, loc), {dim}, {0}));
        if (moved[0].size(0) != moved.back().size(0)) {
            fail<ShapeError>(loc, "scan: xs have {} and {} slices along dim {}", moved[0].size(0), moved.back().size(0), options.dim);
        }
    }
    const std::size_t carries = init.size();
    Tensors all = scan_steps(combine, std::move(init), moved, options.reverse, /*keep_steps=*/false, loc);
    ScanResult result;
    result.carry = slice_of(all, 0, carries);
    for (std::size_t k = carries; k < all.size(); ++k) {
        Tensor& y = all[k];
        result.outputs.push_back(options.dim == 0 ? y : movedim(In(y, loc), {0}, {options.dim}));
    }
    return result;
}

}  // namespace tapir
