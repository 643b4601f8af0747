// OpInfo: the one row that describes an op to the rest of the library: the tape, the docs, the tests,
// the tracer. Each op defines its row with TAPIR_OP, beside its code.
#pragma once

#include <initializer_list>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

class Backward;

/// A backward rule. NonDiff: there is none because nothing flows back (integer and bool results). Composed: the op is never
/// recorded itself, only the ops that it calls are. Given: like NonDiff, for ops that create tensors and read at most the shape and
/// dtype of an input. Overwritten: like Given, for a recorded op in place; the old elements get no gradient.
using BackwardRule = void (*)(Backward&);
void NonDiff(Backward&);
void Composed(Backward&);
void Given(Backward&);
void Overwritten(Backward&);

/// An example call of an op: tests, the ONNX export and the CUDA port run it. The text is PyTorch code too, from
/// which the reference numbers are made (tests/goldens).
///
/// `inputs` describes the tensors x[0], x[1], ...: "f(3,4) i(5)<4"
///   f normal values   p in (0.1, 0.9)   u in (0.3, 2)   d distinct, at least 0.05 apart   b bool   i(...)<n in [0, n)
struct Sample {
    const char* inputs;
    const char* code;
    std::vector<Tensor> (*call)(const std::vector<Tensor>& x);
    const char* torch = nullptr;  // the PyTorch code where it differs; "" where PyTorch has no such op
};

struct OpInfo {
    const char* name = nullptr;
    BackwardRule backward = nullptr;
    const char* doc = nullptr;
    const Sample* samples = nullptr;
    int sample_count = 0;
    int params = 0;  // the number of number arguments of an element-wise op, whose attributes they are

    // Does not look at the rule: gcc's -fsanitize=undefined does not take a function's address as a constant.
    constexpr bool complete() const { return name && doc; }
    /// True if a gradient flows back through the op to one of its inputs, or if the op cuts it off.
    bool is_recorded() const noexcept { return backward != NonDiff && backward != Given; }
    /// True if the numbers of the result are not computed from those of the inputs.
    bool is_given_numbers() const noexcept { return backward == Given || backward == Overwritten; }
};

/// Every op's row, sorted by name.
std::vector<const OpInfo*> all_ops();
const OpInfo* find_op(const char* name);

namespace detail {
inline std::vector<Tensor> outputs(Tensor t) { return {static_cast<Tensor&&>(t)}; }
inline std::vector<Tensor> outputs(std::vector<Tensor> t) { return t; }
template <class Pair>
    requires requires(Pair pair) { pair.values, pair.indices; }
std::vector<Tensor> outputs(const Pair& pair) {
    return {pair.values, pair.indices};
}
template <class Result>
    requires requires(Result result) { result.values, result.inverse, result.counts; }
std::vector<Tensor> outputs(const Result& result) {
    return {result.values, result.inverse, result.counts};
}
template <class Result>
    requires requires(Result result) { result.hist, result.bin_edges; }
std::vector<Tensor> outputs(const Result& result) {
    return {result.hist, result.bin_edges};
}
}  // namespace detail

}  // namespace tapir

/// An example call for TAPIR_SAMPLES: TAPIR_SAMPLE("f(3,4)", softmax(x[0], 1)).
#define TAPIR_SAMPLE(inputs, ...) \
    {inputs, #__VA_ARGS__, []([[maybe_unused]] const std::vector<Tensor>& x) { return ::tapir::detail::outputs(__VA_ARGS__); }}
/// As TAPIR_SAMPLE, where PyTorch writes it differently: TAPIR_SAMPLE_AS("f(3,4)", "x[0].softmax(1)", softmax(x[0], 1)).
#define TAPIR_SAMPLE_AS(inputs, torch, ...) \
    {inputs, #__VA_ARGS__, []([[maybe_unused]] const std::vector<Tensor>& x) { return ::tapir::detail::outputs(__VA_ARGS__); }, torch}

/// Defines the row `NAME_op`. The line must begin with TAPIR_OP(NAME, since the list of all ops is made from these.
#ifdef TAPIR_RUNTIME  // the runtime calls ops and no rules
#define TAPIR_OP(op, rule, documentation, ...)      \
    extern const ::tapir::OpInfo op##_op;           \
    constexpr ::tapir::OpInfo op##_op{.name = #op}; \
    static_assert(true)
#else
#define TAPIR_OP(op, rule, documentation, ...)                                                                                 \
    namespace {                                                                                                                \
    const ::tapir::Sample op##_samples[] = {__VA_ARGS__};                                                                      \
    }                                                                                                                          \
    extern const ::tapir::OpInfo op##_op;                                                                                      \
    constexpr ::tapir::OpInfo op##_op{#op, rule, documentation, op##_samples, sizeof(op##_samples) / sizeof(op##_samples[0])}; \
    static_assert(op##_op.complete() && !__is_same(decltype(rule), decltype(nullptr)),                                         \
                  "an op states its rule (or NonDiff, Given, ...), and its documentation")
#endif
