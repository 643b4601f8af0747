// Finds the op that made the first nan or infinity.
#pragma once

#include "tapir/core/error.h"

namespace tapir {

/// An op, or its backward rule, made nan or inf from operands without any.
class NonFiniteError : public Error {
    using Error::Error;
};

/// While it lives, this thread's ops are checked as they run, forward and backward. The first op whose output has nan where no
/// input had nan, or inf where no input had nan or inf, throws NonFiniteError. So no op is blamed for nan that data or weights had
/// before. The numbers that an op is given count as inputs, as large as they are in the result's dtype: the value of pad() or
/// masked_fill(), the bounds of clamp(), the factor in x * inf. Ops that make a tensor of given numbers, like full(), tensor(),
/// empty() and fill_(), are not checked. In an optimizer's step each parameter and its state are checked: "sgd:
/// makes". The options of an optimizer do not count as numbers given: an lr of inf is found.
///
///     model.cpp:12: sqrt: its backward rule makes inf of finite values: the gradient of input 0 is float32 (3,): min 0.25, ...
///       gradient that came in: float32 (3,): min 1, max 1, mean 1
///       saved by the op: float32 (3,): min 0, max 2, mean 1, 1 zero
///       likely cause: the derivative of sqrt at 0 is infinite: add a small number before it
///
/// In backward the sums are checked, too: of the gradients of a value that was used several times, over broadcast dimensions,
/// and of a leaf's gradient with its grad(). If finite contributions add up to inf or nan, the error names the op of the last
/// contribution, and the value or the parameter. Products g^T x and rows of embeddings are collected: their sum is checked when it
/// is computed, for leaves at the end of the backward. The gradient that backward() is given is not checked, also if its tensor is
/// a leaf with a grad() to which it is added: there is no op to name.
///
/// The line is that of the forward call. An op in place has written its result by then. An optimizer's step is completed: its first
/// finding is thrown at its end. Gradients of leaves are as they were before the backward. Checking reads every input and
/// output: expect a step to take several times as long.
///
/// Other threads need scopes of their own.
class CheckFiniteScope {
 public:
    [[nodiscard]] explicit CheckFiniteScope(bool on = true);
    ~CheckFiniteScope();
    CheckFiniteScope(const CheckFiniteScope&) = delete;
    CheckFiniteScope& operator=(const CheckFiniteScope&) = delete;

 private:
    class Watcher;
    Watcher* watcher_ = nullptr;
};

}  // namespace tapir
