// OpInfo: the one row that describes an op to the rest of the library: the tape, the docs, the tests,
// the tracer. Each op defines its row with TAPIR_OP, beside its code.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

class Backward;
struct OpInfo;

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

/// What can make an op's results nan or infinite; a row states it with TAPIR_HAZARDS. watch/check_finite.cpp has the words.
namespace hazard {
enum : std::uint32_t {
    division = 1,              // by its last operand
    logarithm = 1 << 1,        // of its last operand
    logarithm_of_1p = 1 << 2,  // of 1 + x
    root = 1 << 3,             // an even one
    domain = 1 << 4,           // it is defined on an interval
    exponential = 1 << 5,      // it grows as e^x
    hyperbolic = 1 << 6,       // it grows as e^|x|
    power = 1 << 7,            // of its first operand, by its last
    average = 1 << 8,          // of elements, of which there may be none
    correction = 1 << 9,       // of a count that its one number is taken from
    targets = 1 << 10,         // the mean over targets that it does not ignore
    differences = 1 << 11,     // inf - inf
    products = 1 << 12,        // 0 * inf, and sums of such
    rows_of_exponentials = 1 << 13,
    steep_at_zero = 1 << 14,  // its derivative is infinite there
    steep_at_ends = 1 << 15,  // at the ends of its domain
};
}  // namespace hazard

namespace detail {
template <const OpInfo& op>
constexpr std::uint32_t hazards_of = 0;
}  // namespace detail

struct OpInfo {
    const char* name = nullptr;
    BackwardRule backward = nullptr;
    const char* doc = nullptr;
    const Sample* samples = nullptr;
    int sample_count = 0;
    int params = 0;  // the number of number arguments of an element-wise op, whose attributes they are
    std::uint32_t hazards = 0;

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

/// Defines the row `NAME_op`. The build lists all rows: ops/op_list.cmake.
#ifdef TAPIR_RUNTIME  // the runtime calls ops and no rules
#define TAPIR_OP(op, rule, documentation, ...)      \
    extern const ::tapir::OpInfo op##_op;           \
    constexpr ::tapir::OpInfo op##_op{.name = #op}; \
    static_assert(true)
#define TAPIR_HAZARDS(op, flags) static_assert(true)
#else
/// States, before a row, what can make its results nan or infinite: TAPIR_HAZARDS(sqrt, hazard::root | hazard::steep_at_zero);
#define TAPIR_HAZARDS(op, flags)          \
    extern const ::tapir::OpInfo op##_op; \
    template <>                           \
    constexpr std::uint32_t detail::hazards_of<op##_op> = flags
#define TAPIR_OP(op, rule, documentation, ...)                                                                                            \
    namespace {                                                                                                                           \
    const ::tapir::Sample op##_samples[] = {__VA_ARGS__};                                                                                 \
    }                                                                                                                                     \
    extern const ::tapir::OpInfo op##_op;                                                                                                 \
    constexpr ::tapir::OpInfo op##_op{                                                                                                    \
        #op, rule, documentation, op##_samples, sizeof(op##_samples) / sizeof(op##_samples[0]), 0, ::tapir::detail::hazards_of<op##_op>}; \
    static_assert(op##_op.complete() && !__is_same(decltype(rule), decltype(nullptr)),                                                    \
                  "an op states its rule (or NonDiff, Given, ...), and its documentation")
#endif
