// Functions of the user's own, with a backward of their own.
//
//     struct Clip : Function<Clip> {
//         static Tensor forward(FunctionContext& context, const std::vector<Tensor>& x) {
//             context.save({x[0]});
//             return clamp(x[0], -1, 1);
//         }
//         static std::vector<Tensor> backward(FunctionContext& context, const std::vector<Tensor>& grads) {
//             return {where(abs(context.saved(0)) <= 1, grads[0], 0.0)};
//         }
//     };
//     Tensor y = Clip::apply({x});
//
// forward runs unrecorded; a Profiler sees its ops one by one. backward gets the gradient of each output (zeros where none came)
// and returns one for each input, undefined for none; it is recorded when higher-order gradients are asked for: write it with ops.
// A graph (trace.h) holds the ops that forward calls, and those of backward where a gradient is traced. A function whose forward looks at
// elements cannot be traced so; `static Tensor symbolic(const std::vector<Tensor>& x)`, the same by ops, takes its place there (with the
// gradient of these ops).
//
// Tapes, profiles and errors call the function "Clip", as its type, or what a `static constexpr const char* name` of it says.
#pragma once

#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// What forward keeps for backward.
class FunctionContext {
 public:
    /// Tensors for backward; checked then for modification in place. Inputs, outputs, or new ones.
    void save(const std::vector<Tensor>& tensors) { saved_ = tensors; }
    /// Throws IndexError.
    Tensor saved(int i, Loc loc = Loc::current()) const;
    /// Numbers for backward.
    std::vector<double> numbers;
    /// Whether input i's gradient is wanted; in backward only.
    bool needs(int i, Loc loc = Loc::current()) const;

 private:
    friend struct CustomFunction;
    std::vector<Tensor> saved_;
    std::vector<bool> needs_;
};

struct OpInfo;

/// Internal: records a custom function.
struct CustomFunction {
    using Forward = std::vector<Tensor> (*)(FunctionContext&, const std::vector<Tensor>&);
    using BackwardFn = std::vector<Tensor> (*)(FunctionContext&, const std::vector<Tensor>&);
    static std::vector<Tensor> apply(const OpInfo& op, Forward forward, BackwardFn backward, const std::vector<Tensor>& inputs,
                                     const Loc& loc);
    /// A row of this name, for good. `signature`: what __PRETTY_FUNCTION__ is in a template whose parameter Self is the function.
    static const OpInfo& row_named(const char* name);
    static const OpInfo& row_of(const char* signature);
    static void rule(class Backward& b);
    /// Whether what is called becomes part of a graph.
    static bool is_traced() noexcept;
};

template <class Self>
struct Function {
    /// One output.
    static Tensor apply(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) {
        return apply_many(inputs, loc)[0];
    }
    /// Any number of outputs.
    static std::vector<Tensor> apply_many(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) {
        if constexpr (requires { Self::symbolic(inputs); }) {
            if (CustomFunction::is_traced()) return as_list(Self::symbolic(inputs));
        }
        return CustomFunction::apply(
            row(),
            [](FunctionContext& context, const std::vector<Tensor>& x) { return as_list(Self::forward(context, x)); },
            [](FunctionContext& context, const std::vector<Tensor>& g) { return as_list(Self::backward(context, g)); },
            inputs, loc);
    }

 private:
    static const OpInfo& row() {
        static const OpInfo& row = [](const char* signature) -> const OpInfo& {
            if constexpr (requires { static_cast<const char*>(Self::name); }) return CustomFunction::row_named(Self::name);
            return CustomFunction::row_of(signature);
        }(__PRETTY_FUNCTION__);
        return row;
    }
    static std::vector<Tensor> as_list(Tensor t) { return {static_cast<Tensor&&>(t)}; }
    static std::vector<Tensor> as_list(std::vector<Tensor> t) { return t; }
};

}  // namespace tapir
