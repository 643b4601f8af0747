// User-defined functions with their own backward.
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
// Both may take tensors one by one, and return a Tensor, a pair or a tuple:
//
//     struct Scaled : Function<Scaled> {
//         static Tensor forward(FunctionContext& context, const Tensor& x, const Tensor& scale);
//         static std::pair<Tensor, Tensor> backward(FunctionContext& context, const Tensor& gradient);
//     };
//     Tensor y = Scaled::apply(x, scale);
//
// forward runs unrecorded; a Profiler sees its ops one by one. backward gets the gradient of each output (zeros if none arrived)
// and returns one gradient per input, undefined for none. It is recorded when higher-order gradients are asked for: write it with ops.
// A graph (trace.h) holds the ops that forward calls, and those of backward where a gradient is traced. A function whose forward reads
// elements cannot be traced this way: give it `static Tensor symbolic(const std::vector<Tensor>& x)`, which computes the same with ops.
// The graph then holds these ops, and their gradient.
//
// In batch() a function runs for each item by itself, unless it names one that runs for a group of items:
//
//     using Batched = Clip;                                    // itself: its code fits blocks, too
//     static constexpr std::uint64_t shared_in_batch = 0b10;   // optional, bit i: input i
//
// That one gets each input as a block with a dimension for the items in front, (items, ...), and returns blocks. An input that may be shared is passed
// as it is where it is one tensor in all items; its gradient may have the items' dimension in front, and is summed over it.
//
// Tapes, profiles and errors call the function by its type, "Clip", or by its `static constexpr const char* name`.
#pragma once

#include <any>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// Holds what forward keeps for backward.
class FunctionContext {
 public:
    /// Keeps tensors for backward, which checks that they were not modified in place. Inputs, outputs, or new ones.
    void save(const std::vector<Tensor>& tensors) { saved_ = tensors; }
    /// Throws IndexError.
    Tensor saved(int i, Loc loc = Loc::current()) const;
    /// Numbers for backward.
    std::vector<double> numbers;
    /// Anything else for backward, which gets a copy: std::any_cast<const T&>(context.state).
    std::any state;
    /// True if input i's gradient is wanted. Only valid in backward.
    bool needs(int i, Loc loc = Loc::current()) const;

 private:
    friend struct CustomFunction;
    std::vector<Tensor> saved_;
    std::vector<bool> needs_;
};

struct OpInfo;

namespace detail {
template <class... T>
concept AreTensors = (std::is_base_of_v<Tensor, T> && ...);
}

/// Internal: records a custom function.
struct CustomFunction {
    using Forward = std::vector<Tensor> (*)(FunctionContext&, const std::vector<Tensor>&);
    using BackwardFn = std::vector<Tensor> (*)(FunctionContext&, const std::vector<Tensor>&);
    /// gradients: the number of them that backward takes; 0: a list. state: what the context has from the start.
    static std::vector<Tensor> apply(const OpInfo& op, Forward forward, BackwardFn backward, std::size_t gradients, const std::vector<Tensor>& inputs,
                                     const Loc& loc, std::any state = {});
    /// Throws ValueError if forward or backward takes another number of tensors.
    static void check_count(const OpInfo& op, const char* what, std::size_t takes, std::size_t given, const Loc& loc);
    /// Returns a row of this name that lives forever. `signature`: __PRETTY_FUNCTION__ of a template whose parameter Self is the function.
    static const OpInfo& row_named(const char* name);
    static const OpInfo& row_of(const char* signature);
    static void rule(class Backward& b);
    /// True if the ops that run now become part of a graph.
    static bool is_traced() noexcept;
    /// Waits, in an item of batch(), for the same function of other items, and calls of_group(blocks) for all. Returns the outputs of this item; none
    /// where it is to run alone. `shared`: a bit for each input that may be shared.
    using OfGroup = std::vector<Tensor> (*)(const std::vector<Tensor>& blocks, const Loc& loc);
    static std::vector<Tensor> apply_in_group(const OpInfo& op, OfGroup of_group, std::uint64_t shared, const std::vector<Tensor>& inputs,
                                              const Loc& loc);
};

template <class Self>
struct Function {
    /// One output. Throws ValueError if forward takes another number of tensors.
    static Tensor apply(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) { return apply_many(inputs, loc)[0]; }
    /// Overload without braces, for up to 4 tensors.
    template <class A>
        requires detail::AreTensors<A>
    static Tensor apply(const A& a, Loc loc = Loc::current()) {
        return apply_many({a}, loc)[0];
    }
    template <class A, class B>
        requires detail::AreTensors<A, B>
    static Tensor apply(const A& a, const B& b, Loc loc = Loc::current()) {
        return apply_many({a, b}, loc)[0];
    }
    template <class A, class B, class C>
        requires detail::AreTensors<A, B, C>
    static Tensor apply(const A& a, const B& b, const C& c, Loc loc = Loc::current()) {
        return apply_many({a, b, c}, loc)[0];
    }
    template <class A, class B, class C, class D>
        requires detail::AreTensors<A, B, C, D>
    static Tensor apply(const A& a, const B& b, const C& c, const D& d, Loc loc = Loc::current()) {
        return apply_many({a, b, c, d}, loc)[0];
    }
    /// Any number of outputs.
    static std::vector<Tensor> apply_many(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) {
        if constexpr (requires { Self::symbolic(inputs); }) {
            if (CustomFunction::is_traced()) return as_list(Self::symbolic(inputs));
        }
        if constexpr (requires { typename Self::Batched; }) {
            constexpr std::uint64_t shared = [] {
                if constexpr (requires { Self::shared_in_batch; }) return std::uint64_t{Self::shared_in_batch};
                return std::uint64_t{0};
            }();
            const auto of_group = [](const std::vector<Tensor>& blocks, const Loc& line) { return Self::Batched::apply_of_group(blocks, line); };
            std::vector<Tensor> outputs = CustomFunction::apply_in_group(row(), of_group, shared, inputs, loc);
            if (!outputs.empty()) return outputs;
        }
        return apply_of_group(inputs, loc);
    }
    /// Internal: apply_many() without waiting for others.
    static std::vector<Tensor> apply_of_group(const std::vector<Tensor>& inputs, const Loc& loc) {
        constexpr std::size_t kForward = count_of<true>(), kBackward = count_of<false>();
        if constexpr (kForward != 0) CustomFunction::check_count(row(), "forward", kForward, inputs.size(), loc);
        return CustomFunction::apply(
            row(), [](FunctionContext& context, const std::vector<Tensor>& x) { return call<true, kForward>(context, x); },
            [](FunctionContext& context, const std::vector<Tensor>& g) { return call<false, kBackward>(context, g); }, kBackward, inputs, loc);
    }

 private:
    template <bool is_forward, std::size_t... I>
    static constexpr bool takes(std::index_sequence<I...>) {
        if constexpr (is_forward) {
            return requires(FunctionContext& context, const Tensor& x) { Self::forward(context, (static_cast<void>(I), x)...); };
        } else {
            return requires(FunctionContext& context, const Tensor& x) { Self::backward(context, (static_cast<void>(I), x)...); };
        }
    }
    /// The number of tensors that it takes; 0: a list.
    template <bool is_forward, std::size_t Count = 1>
    static constexpr std::size_t count_of() {
        if constexpr (Count > 8) {
            return 0;
        } else if constexpr (takes<is_forward>(std::make_index_sequence<Count>())) {
            return Count;
        } else {
            return count_of<is_forward, Count + 1>();
        }
    }
    template <bool is_forward, std::size_t Count>
    static std::vector<Tensor> call(FunctionContext& context, const std::vector<Tensor>& x) {
        const auto of = [&](const auto&... arguments) {
            if constexpr (is_forward) {
                return as_list(Self::forward(context, arguments...));
            } else {
                return as_list(Self::backward(context, arguments...));
            }
        };
        if constexpr (Count == 0) {
            return of(x);
        } else {
            return [&]<std::size_t... I>(std::index_sequence<I...>) { return of(x[I]...); }(std::make_index_sequence<Count>());
        }
    }
    static const OpInfo& row() {
        static const OpInfo& row = [](const char* signature) -> const OpInfo& {
            if constexpr (requires { static_cast<const char*>(Self::name); }) return CustomFunction::row_named(Self::name);
            return CustomFunction::row_of(signature);
        }(__PRETTY_FUNCTION__);
        return row;
    }
    static std::vector<Tensor> as_list(Tensor t) { return {static_cast<Tensor&&>(t)}; }
    static std::vector<Tensor> as_list(std::vector<Tensor> t) { return t; }
    static std::vector<Tensor> as_list(std::pair<Tensor, Tensor> t) { return {t.first, t.second}; }
    template <class... T>
    static std::vector<Tensor> as_list(const std::tuple<T...>& t) {
        return std::apply([](const auto&... tensors) { return std::vector<Tensor>{tensors...}; }, t);
    }
};

}  // namespace tapir
