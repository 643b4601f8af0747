// cond, while_loop, scan: control flow that depends on values, as functions. They do what if and for do, at once, and are recorded as these
// are; while a graph is traced (trace.h) they become nodes of their own, with the branches and bodies as graphs in them, where a
// graph would otherwise hold what this one run did.
//
//     Tensor y = cond(x.sum() > 0, [&] { return x * 2; }, [&] { return -x; });
//     std::vector<Tensor> end = while_loop([](const Tensor& i, const Tensor&) { return i < 10; },
//                                          [&](const Tensor& i, const Tensor& h) { return std::pair{i + 1, tanh(matmul(h, w))}; }, {i, h});
//     auto [carry, outputs] = scan([&](const Tensor& h, const Tensor& x) { auto next = cell(x, h); return std::pair{next, next}; }, {h}, {xs});
//
// A branch or body takes Tensors (at most 8) or one std::vector<Tensor>, gives a Tensor, a list, or a pair or tuple of these, and may use any other tensor
// it can see (captures). Traced, each is run to see what it does, also a branch that is not taken, and must not write to tensors that it did
// not make: TapeError. Results are new tensors: one that was given or captured is copied. (PyTorch: torch.cond, torch.while_loop, torch.scan.)
#pragma once

#include "tapir/autograd/traced_function.h"

namespace tapir {

namespace detail {
std::vector<Tensor> cond(const In& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const std::vector<Tensor>& operands);
std::vector<Tensor> while_loop(const TracedFunction& condition, const TracedFunction& body, std::vector<Tensor> carried, bool keep_steps,
                               const Loc& loc);
}  // namespace detail

/// then_fn(operands...) where pred, of one element, is true, else else_fn(operands...). What both give must be of the same number, shapes
/// and dtypes: traced, a ShapeError otherwise. Throws ValueError where pred has not one element.
template <class Then, class Else>
auto cond(In pred, Then&& then_fn, Else&& else_fn, const std::vector<Tensor>& operands = {}) {
    using Result = detail::ResultOf<Then>;
    static_assert(std::is_same_v<Result, detail::ResultOf<Else>>, "cond: both branches are to give the same type");
    return detail::FromList<Result>::get(
        detail::cond(pred, detail::traced(then_fn, pred.loc, "cond"), detail::traced(else_fn, pred.loc, "cond"), operands));
}

/// carried = body(carried...) for as long as condition(carried...), a tensor of one element, is true. Gives what is carried at the end. Its
/// shapes and dtypes stay: ShapeError, DTypeError. Throws ValueError where nothing is carried.
template <class Condition, class Body>
std::vector<Tensor> while_loop(Condition&& condition, Body&& body, std::vector<Tensor> carried, Loc loc = Loc::current()) {
    static_assert(std::is_same_v<detail::ResultOf<Condition>, Tensor>, "while_loop: the condition is to give a Tensor, so that it can be traced");
    return detail::while_loop(detail::traced(condition, loc, "while_loop"), detail::traced(body, loc, "while_loop"), std::move(carried),
                              /*keep_steps=*/false, loc);
}

struct ScanOptions {
    int dim = 0;           ///< of xs, which the steps go along, and of the outputs
    bool reverse = false;  ///< from the last slice to the first; outputs stay in the order of xs
};

struct ScanResult {
    std::vector<Tensor> carry;    ///< after the last step
    std::vector<Tensor> outputs;  ///< what the steps gave beside it, stacked along dim
};

namespace detail {
ScanResult scan(const TracedFunction& combine, std::vector<Tensor> init, const std::vector<Tensor>& xs, const ScanOptions& options, const Loc& loc);
}

/// For each slice of xs along a dimension: (carry, output) = combine(carry..., slices...). What combine gives is read as one list: first the
/// next carry, as many tensors as init has, of their shapes and dtypes, then what is to be stacked. Throws ValueError where there are no xs,
/// ShapeError where their sizes along dim differ, or where the carry's shape changes.
template <class Combine>
ScanResult scan(Combine&& combine, std::vector<Tensor> init, const std::vector<Tensor>& xs, const ScanOptions& options = {},
                Loc loc = Loc::current()) {
    return detail::scan(detail::traced(combine, loc, "scan"), std::move(init), xs, options, loc);
}

}  // namespace tapir
