// cond, while_loop, scan: control flow that depends on values, as functions. They run at once, like if and for, and are recorded like
// these. While a graph is traced (trace.h) they become nodes that hold the branches and bodies as graphs; otherwise the graph would
// hold only what this one run did.
//
//     Tensor y = cond(x.sum() > 0, [&] { return x * 2; }, [&] { return -x; });
//     std::vector<Tensor> end = while_loop([](const Tensor& i, const Tensor&) { return i < 10; },
//                                          [&](const Tensor& i, const Tensor& h) { return std::pair{i + 1, tanh(matmul(h, w))}; }, {i, h});
//     auto [carry, outputs] = scan([&](const Tensor& h, const Tensor& x) { auto next = cell(x, h); return std::pair{next, next}; }, {h}, {xs});
//
// A branch or body takes Tensors (at most 8) or one std::vector<Tensor>, returns a Tensor, a list, or a pair or tuple of these, and may use
// any tensor it sees (captures). A trace runs each, also a branch that is not taken; none may write to tensors that it did not make: TapeError.
// Results are new tensors: one that was an operand or a capture is copied. (PyTorch: torch.cond, torch.while_loop, torch.scan.)
#pragma once

#include "tapir/autograd/traced_function.h"

namespace tapir {

namespace detail {
std::vector<Tensor> cond(const In& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const std::vector<Tensor>& operands);
std::vector<Tensor> while_loop(const TracedFunction& condition, const TracedFunction& body, std::vector<Tensor> carried, bool keep_steps,
                               const Loc& loc);
}  // namespace detail

/// Returns then_fn(operands...) if pred, of one element, is true, else else_fn(operands...). While traced, both must return the same number
/// of results with the same shapes and dtypes, else ShapeError. Throws ValueError if pred does not have exactly one element.
template <class Then, class Else>
auto cond(In pred, Then&& then_fn, Else&& else_fn, const std::vector<Tensor>& operands = {}) {
    using Result = detail::ResultOf<Then>;
    static_assert(std::is_same_v<Result, detail::ResultOf<Else>>, "cond: both branches are to give the same type");
    return detail::FromList<Result>::get(
        detail::cond(pred, detail::traced(then_fn, pred.loc, "cond"), detail::traced(else_fn, pred.loc, "cond"), operands));
}

/// Repeats carried = body(carried...) as long as condition(carried...), a tensor of one element, is true. Returns the last carried. Its
/// shapes and dtypes must stay: ShapeError, DTypeError. Throws ValueError if nothing is carried.
template <class Condition, class Body>
std::vector<Tensor> while_loop(Condition&& condition, Body&& body, std::vector<Tensor> carried, Loc loc = Loc::current()) {
    static_assert(std::is_same_v<detail::ResultOf<Condition>, Tensor>, "while_loop: the condition is to give a Tensor, so that it can be traced");
    return detail::while_loop(detail::traced(condition, loc, "while_loop"), detail::traced(body, loc, "while_loop"), std::move(carried),
                              /*keep_steps=*/false, loc);
}

struct ScanOptions {
    int dim = 0;           ///< dimension of xs along which the steps go, and of the outputs
    bool reverse = false;  ///< from the last slice to the first; outputs stay in the order of xs
};

struct ScanResult {
    std::vector<Tensor> carry;    ///< after the last step
    std::vector<Tensor> outputs;  ///< further results of the steps, stacked along dim
};

namespace detail {
ScanResult scan(const TracedFunction& combine, std::vector<Tensor> init, const std::vector<Tensor>& xs, const ScanOptions& options, const Loc& loc);
}

/// For each slice of xs along a dimension: (carry, output) = combine(carry..., slices...). The results of combine are read as one list: first
/// the next carry, as many tensors as init has, of their shapes and dtypes, then the outputs to be stacked. Throws ValueError if there are no
/// xs, ShapeError if their sizes along dim differ, or if the carry's shape changes.
template <class Combine>
ScanResult scan(Combine&& combine, std::vector<Tensor> init, const std::vector<Tensor>& xs, const ScanOptions& options = {},
                Loc loc = Loc::current()) {
    return detail::scan(detail::traced(combine, loc, "scan"), std::move(init), xs, options, loc);
}

}  // namespace tapir
