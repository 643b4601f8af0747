// Element-wise ops: rows, promotion, the fast path, backward.
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/mask.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/autocast_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/index_impl.h"
#include "tapir/ops/kernels/launch.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/normalization/channels_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

using kernels::Compute;
using kernels::Loop;
using enum ElementTypes;

// --- Rows ----------------------------------------------------------------------------------------------------------------

TAPIR_OP(ldexp, Composed, "x * 2^other.", TAPIR_SAMPLE("f(3,4) i(3,4)<9", ldexp(x[0], x[1])), TAPIR_SAMPLE("f(2,1) f(3)", ldexp(x[0], x[1])));

namespace {

void elementwise_rule(Backward& b);

// The backward expressions on tensors: ordinary functions, one for each operand of each row.
namespace rules {

using K = double;

// The functions of kernels/rule_functions.h, on tensors.
class Flow {
 public:
    explicit Flow(Tensor g) : value_(std::move(g)) {}
    operator const Tensor&() const { return value_; }  // NOLINT: implicit by design
    friend Flow operator*(const Flow& g, In factor) { return Flow(gated_mul(In(g.value_, factor.loc), factor)); }
    friend Flow operator/(const Flow& g, In divisor) { return Flow(gated_div(In(g.value_, divisor.loc), divisor)); }
    friend Flow operator*(K number, const Flow& g) { return Flow(mul(number, g.value_)); }
    friend Flow operator*(const Flow& g, K number) { return Flow(mul(g.value_, number)); }
    friend Flow operator/(const Flow& g, K number) { return Flow(div(g.value_, number)); }
    friend Flow operator-(const Flow& g) { return Flow(neg(g.value_)); }
    friend Flow absorbing_mul(const Flow& g, In factor) { return Flow(tapir::absorbing_mul(In(g.value_, factor.loc), factor)); }
    friend Flow where(In condition, const Flow& a, const Flow& b) { return Flow(tapir::where(condition, a.value_, b.value_)); }
    friend Flow where(In condition, const Flow& a, K b) { return Flow(tapir::where(condition, a.value_, b)); }
    friend Flow where(In condition, K a, const Flow& b) { return Flow(tapir::where(condition, a, b.value_)); }
    friend Flow where(In condition, In a, const Flow& b) { return Flow(tapir::where(condition, a, b.value_)); }

 private:
    Tensor value_;
};
using tapir::absorbing_mul;
using tapir::where;

Tensor over_squares(const Tensor& part, const Tensor& other) {
    const Tensor length = hypot(part, other);
    return absorbing_mul(1.0 / length, gated_div(part, length));
}
Tensor slope_of_exponent(const Tensor& a, const Tensor& b, const Tensor& y) {
    const Tensor is_beyond = (y == K(__builtin_inf())) & (a > K(1)) & (a < K(3));
    return where(is_beyond, pow(a, b - K(1)) * (a * log(a)), gated_mul(y, log(a)));
}

#define ZeroGrad gated_mul(K(0), static_cast<const Tensor&>(g))
#define TAPIR_RULE(function, expression)                                                                                \
    Tensor function([[maybe_unused]] const Flow& g, [[maybe_unused]] const Tensor& a, [[maybe_unused]] const Tensor& b, \
                    [[maybe_unused]] const Tensor& c, [[maybe_unused]] const Tensor& y) {                               \
        return expression;                                                                                              \
    }
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward) \
    Tensor name##_backward([[maybe_unused]] const Flow& g, [[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& y) { return backward; }
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward)                                      \
    Tensor name##_backward([[maybe_unused]] const Flow& g, [[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& y, \
                           [[maybe_unused]] double p0) {                                                                       \
        return backward;                                                                                                       \
    }
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward)                              \
    Tensor name##_backward([[maybe_unused]] const Flow& g, [[maybe_unused]] const Tensor& x, [[maybe_unused]] const Tensor& y, \
                           [[maybe_unused]] double p0, [[maybe_unused]] double p1) {                                           \
        return backward;                                                                                                       \
    }
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b) \
    TAPIR_RULE(name##_backward_a, backward_a)                                                   \
    TAPIR_RULE(name##_backward_b, backward_b)
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b, backward_c) \
    TAPIR_RULE(name##_backward_a, backward_a)                                                                \
    TAPIR_RULE(name##_backward_b, backward_b)                                                                \
    TAPIR_RULE(name##_backward_c, backward_c)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
#undef TAPIR_RULE
#undef ZeroGrad

}  // namespace rules

constexpr bool is_g(const char* expression) { return expression[0] == 'g' && expression[1] == '\0'; }

template <Elementwise op>
constexpr std::uint32_t row_hazards = 0;
#define TAPIR_ROW_HAZARDS(name, flags)                            \
    template <>                                                   \
    constexpr std::uint32_t row_hazards<Elementwise::name> = [] { \
        using namespace hazard;                                   \
        return static_cast<std::uint32_t>(flags);                 \
    }();
#include "tapir/ops/elementwise/elementwise.def"

template <Elementwise op>
constexpr OpInfo info(const char* name, const char* doc, int params = 0, BackwardRule rule = elementwise_rule) {
    if (detail::is_runtime) {
        OpInfo row;
        row.name = name;
        return row;
    }
    return {name, rule, doc, nullptr, 0, params, row_hazards<op>};
}

// Calls a rule with the operands [g, a, b, c, y].
#ifdef TAPIR_RUNTIME
#define TAPIR_CALL(...) nullptr
#else
#define TAPIR_CALL(...) [](const Tensor* const* t, [[maybe_unused]] const double* p) -> Tensor { return rules::__VA_ARGS__; }
#endif

}  // namespace

const ElementwiseOp elementwise_ops[kElementwiseOps] = {
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward) \
    {info<Elementwise::name>(#name, doc),                                         \
     Elementwise::name,                                                           \
     saves,                                                                       \
     1,                                                                           \
     types,                                                                       \
     false,                                                                       \
     {is_g(#backward)},                                                           \
     low,                                                                         \
     high,                                                                        \
     {TAPIR_CALL(name##_backward(rules::Flow(*t[0]), *t[1], *t[4]))}},
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward) \
    {info<Elementwise::name>(#name, doc, 1),                                              \
     Elementwise::name,                                                                   \
     saves,                                                                               \
     1,                                                                                   \
     types,                                                                               \
     false,                                                                               \
     {is_g(#backward)},                                                                   \
     low,                                                                                 \
     high,                                                                                \
     {TAPIR_CALL(name##_backward(rules::Flow(*t[0]), *t[1], *t[4], p[0]))}},
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward) \
    {info<Elementwise::name>(#name, doc, 2),                                                      \
     Elementwise::name,                                                                           \
     saves,                                                                                       \
     1,                                                                                           \
     types,                                                                                       \
     false,                                                                                       \
     {is_g(#backward)},                                                                           \
     low,                                                                                         \
     high,                                                                                        \
     {TAPIR_CALL(name##_backward(rules::Flow(*t[0]), *t[1], *t[4], p[0], p[1]))}},
#define TAPIR_PREDICATE(name, onnx, doc, forward) \
    {info<Elementwise::name>(#name, doc, 0, NonDiff), Elementwise::name, SaveNone, 1, Bool, true, {}, -3, 3, {}},
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b) \
    {info<Elementwise::name>(#name, doc),                                                       \
     Elementwise::name,                                                                         \
     saves,                                                                                     \
     2,                                                                                         \
     types,                                                                                     \
     false,                                                                                     \
     {is_g(#backward_a), is_g(#backward_b)},                                                    \
     low,                                                                                       \
     high,                                                                                      \
     {TAPIR_CALL(name##_backward_a(rules::Flow(*t[0]), *t[1], *t[2], *t[3], *t[4])),            \
      TAPIR_CALL(name##_backward_b(rules::Flow(*t[0]), *t[1], *t[2], *t[3], *t[4]))}},
#define TAPIR_COMPARE(name, onnx, doc, forward) \
    {info<Elementwise::name>(#name, doc, 0, NonDiff), Elementwise::name, SaveNone, 2, Bool, true, {}, -3, 3, {}},
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b, backward_c) \
    {info<Elementwise::name>(#name, doc),                                                                    \
     Elementwise::name,                                                                                      \
     saves,                                                                                                  \
     3,                                                                                                      \
     types,                                                                                                  \
     false,                                                                                                  \
     {is_g(#backward_a), is_g(#backward_b), is_g(#backward_c)},                                              \
     low,                                                                                                    \
     high,                                                                                                   \
     {TAPIR_CALL(name##_backward_a(rules::Flow(*t[0]), *t[1], *t[2], *t[3], *t[4])),                         \
      TAPIR_CALL(name##_backward_b(rules::Flow(*t[0]), *t[1], *t[2], *t[3], *t[4])),                         \
      TAPIR_CALL(name##_backward_c(rules::Flow(*t[0]), *t[1], *t[2], *t[3], *t[4]))}},
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
};
#undef TAPIR_CALL

namespace {

// Returns a loop of this machine. The table is looked up on first use, since a static tensor may be made before this file's statics are.
inline Loop forward_loop(Elementwise op, Compute compute) {
    static const kernels::ForwardTable* const table = kernels::elementwise_forward();
    return table->loop[static_cast<int>(op)][static_cast<int>(compute)];
}
constexpr bool divides(Elementwise op) { return op == Elementwise::fmod || op == Elementwise::remainder || op == Elementwise::floor_divide; }
// Integers divided by integers: the second operand is checked first.
constexpr bool looks_at_integers(Elementwise op, Compute compute) { return divides(op) && (compute == Compute::i32 || compute == Compute::i64); }
// The loops of the ways that check nothing; null also if something must be checked.
[[gnu::noinline]] const kernels::ForwardTable* make_quick_table() {
    static kernels::ForwardTable quick = *kernels::elementwise_forward();
    for (int k = 0; k < kElementwiseOps; ++k) {
        for (const Compute c : {Compute::i32, Compute::i64}) {
            if (looks_at_integers(static_cast<Elementwise>(k), c)) quick.loop[k][static_cast<int>(c)] = nullptr;
        }
    }
    return &quick;
}
inline Loop quick_loop(Elementwise op, Compute compute) {
    static const kernels::ForwardTable* const table = make_quick_table();
    return table->loop[static_cast<int>(op)][static_cast<int>(compute)];
}
inline Loop backward_loop(Elementwise op, int operand, Compute compute) {
    if constexpr (detail::is_runtime) return nullptr;
    static const kernels::BackwardTable* const table = kernels::elementwise_backward();
    return table->loop[static_cast<int>(op)][operand][static_cast<int>(compute) - static_cast<int>(Compute::f32)];
}

// True if a loop computes this dtype without conversion.
inline bool computed_directly(DType dtype) noexcept { return dtype == float32 || dtype == float64 || dtype == int64 || dtype == int32; }

inline bool same_sizes(const TensorImpl* a, const TensorImpl* b) noexcept {
    if (a->rank != b->rank || a->numel != b->numel) return false;
    for (int d = 0; d < a->rank; ++d) {
        if (a->sizes[d] != b->sizes[d]) return false;
    }
    return true;
}

inline bool is_plain(const TensorImpl* t) noexcept { return t->is_contiguous() && t->device.type == DeviceType::cpu; }

constexpr std::int64_t kParallelElements = 32 * 1024;  // below, waking threads costs more than it gains

void run_plain(Loop loop, std::int64_t n, void* out, unsigned out_size, const void* const* in, unsigned in_size, int count, const double* params) {
    if (n < kParallelElements) [[likely]] {
        kernels::run_contiguous(loop, n, out, out_size, in, in_size, count, params);
        return;
    }
    parallel_for(n, kParallelElements / 2, [&](std::int64_t begin, std::int64_t end) {
        const void* parts[kernels::kMaxOperands];
        for (int k = 0; k < count; ++k) parts[k] = static_cast<const std::byte*>(in[k]) + begin * in_size;
        kernels::run_contiguous(loop, end - begin, static_cast<std::byte*>(out) + begin * out_size, out_size, parts, in_size, count, params);
    });
}

// Returns the dtype of the result of an op whose operands promote to `common`.
DType compute_dtype(const ElementwiseOp& op, DType common) {
    if (op.types == Float && !is_floating(common)) return default_dtype();
    if (op.index == Elementwise::square && common == bool_) return int64;  // as PyTorch, which computes it as x^2
    return common;
}

// Decides promotion: tensors with dimensions win over 0-d tensors, and these over numbers, within a category.
struct Promotion {
    DType dims = bool_, zero = bool_, numbers = bool_;
    bool has_dims = false, has_zero = false, has_numbers = false;

    static int category(DType d) { return is_floating(d) ? 2 : d == DType::boolean ? 0 : 1; }
    void tensor(const Tensor& t) {
        DType& slot = t.dim() > 0 ? dims : zero;
        bool& has = t.dim() > 0 ? has_dims : has_zero;
        slot = has ? promote(slot, t.dtype()) : t.dtype();
        has = true;
    }
    void number(Scalar s) {
        numbers = has_numbers ? promote(numbers, s.dtype()) : s.dtype();
        has_numbers = true;
    }
    static DType combine(DType strong, bool has_strong, DType weak, bool has_weak) {
        if (!has_strong) return weak;
        if (!has_weak || category(weak) <= category(strong)) return strong;
        return weak;
    }
    DType result() const {
        const DType zero_and_numbers = combine(zero, has_zero, numbers, has_numbers);
        return combine(dims, has_dims, zero_and_numbers, has_zero || has_numbers);
    }
};

// Makes a number an operand: a 0-d tensor that lives on the stack of the call.
Tensor number_tensor(Scalar value, DType dtype, const Loc& loc) {
    Tensor t = detail::make_empty({}, dtype, Device{}, loc);
    detail::store(dtype, t.raw_data(), value);
    t.impl()->trace = 0;  // the number belongs to the program, not to the trace
    return t;
}

// Returns the dtype that a number takes beside a tensor: the one that the op computes in.
DType number_dtype(DType common) { return kernels::stored_as(kernels::compute_of(common)); }

Shape shape_of(const ElementwiseOp& op, const Tensor* const* in, int count, const Loc& loc) {
    Shape shape = in[0]->shape();
    for (int k = 1; k < count; ++k) shape = broadcast_shapes(shape, in[k]->shape(), op.info.name, loc);
    return shape;
}

void record_elementwise(const ElementwiseOp& op, const Loc& loc, const Tensor* const* in, int count, const Tensor& out, const double* params) {
    Log* log = detail::thread.log;
    bool any = false;
    for (int k = 0; k < count && log; ++k) any |= tracked(in[k]->impl(), *log, loc);
    const bool recorded = any && !op.to_bool && is_floating(out.dtype());
    if (!recorded && !detail::is_watched() && !detail::thread.observed.elsewhere()) return;
    const Tensor* saved[4];
    int saved_count = 0;
    for (int k = 0; k < count; ++k) {
        if (op.saves >> k & 1) saved[saved_count++] = in[k];
    }
    if (op.saves & SaveY) saved[saved_count++] = &out;
    TensorImpl* result = out.impl();
    finish_op({op.info, loc, in, count, &result, 1, saved, saved_count, params, static_cast<std::size_t>(op.info.params) * sizeof(double),
               /*is_object=*/false, params, params ? op.info.params : 0},
              recorded);
}

Tensor make_result(const Shape& shape, const Tensor* const* in, int count, DType dtype, Device device, const Loc& loc) {
    return make_in_layout(shape, dtype, device, lies_channels_last(shape, in, count), loc);
}

// Returns the operands' device. Numbers, which are 0-d tensors of the CPU, may stand beside any.
Device common_device(const ElementwiseOp& op, const Tensor* const* in, int count, const Loc& loc) {
    int first = 0;
    while (first < count - 1 && in[first]->impl()->rank == 0 && in[first]->impl()->device == cpu) ++first;
    const Device device = in[first]->impl()->device;
    for (int k = 0; k < count; ++k) {
        const TensorImpl* x = in[k]->impl();
        if (x->device != device && !(x->rank == 0 && x->device == cpu)) {
            detail::check_same_device(op.info.name, *in[first], *in[k], loc);
        }
    }
    detail::begin_op(op.info.name, in[first]->impl(), loc);
    return device;
}

// Throws ValueError for a 0 among integer divisors of the CPU. `result`: the shape; an empty one divides nothing.
void check_integers(const ElementwiseOp& op, const Tensor& b, const Shape& result, const Loc& loc) {
    if (b.device() != cpu || result.numel() == 0) return;
    const detail::UnrecordedPartsOf parts(loc);
    if (!all(b).item<bool>()) fail<ValueError>(loc, "{}: integer division by 0", op.info.name);
}

// Throws ValueError for integers to the power of a negative integer, as PyTorch does for a number; if a tensor holds the exponents,
// such powers are cut off: 0, or 1 and -1. Also throws it for an exponent that the integers' dtype does not hold.
void check_exponent(const ElementwiseOp& op, Scalar exponent, DType common, const Loc& loc) {
    if (is_floating(common) || op.index != Elementwise::pow) return;
    if (exponent.as_double() < 0) {
        fail<ValueError>(loc, "{}: integers to negative integer powers are not allowed: write x.to(float32) first", op.info.name);
    }
    detail::check_fits(op.info.name, exponent, common, loc);
}

// Returns the smallest and the largest integer of the dtype.
std::pair<std::int64_t, std::int64_t> ends_of(DType dtype) noexcept {
    if (dtype == uint8) return {0, 255};
    if (dtype == int32) return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
    return {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
}

[[noreturn]] void fail_beyond(const char* op, Scalar bound, DType dtype, const Loc& loc) {
    fail<ValueError>(loc, "{}: {} does not fit into {}, and would be a result", op, bound.as_double(), name(dtype));
}

// Replaces a number that the integers' dtype beside it does not hold by the end of the range, if that gives the same; unchanged, it would
// wrap around. Throws ValueError if it would be the result.
Scalar bound_of(const ElementwiseOp& op, Scalar number, DType common, const Loc& loc) {
    const bool is_upper = op.index == Elementwise::minimum || op.index == Elementwise::fmin;
    const bool is_bound = is_upper || op.index == Elementwise::maximum || op.index == Elementwise::fmax;
    if (!is_bound || is_floating(common) || common == bool_) return number;
    const auto [lowest, largest] = ends_of(common);
    const std::int64_t value = number.as_int64();
    if (value >= lowest && value <= largest) return number;
    if (is_upper == (value < lowest)) fail_beyond(op.info.name, number, common, loc);
    return value < lowest ? lowest : largest;
}

// Throws DTypeError for ops that have no meaning for truth values, as PyTorch does. `suffix`: "_" for ops that write in place.
void check_bool(const ElementwiseOp& op, DType dtype, const char* suffix, const Loc& loc) {
    if (dtype != bool_ || (op.index != Elementwise::neg && op.index != Elementwise::sub)) return;
    fail<DTypeError>(loc, "{}{}: not defined for bool: write {}", op.info.name, suffix,
                     op.index == Elementwise::neg ? "logical_not(x), or !x" : "logical_xor(a, b)");
}

// Handles everything that the fast path does not take.
[[gnu::noinline]] Tensor general(const ElementwiseOp& op, const Tensor* const* in, int count, DType common, const double* params, const Loc& loc) {
    if (detail::thread.autocast && (common == float16 || common == bfloat16) && detail::wants_float32(op.index)) {
        Tensor wide[3];
        const Tensor* operands[3];
        for (int k = 0; k < count; ++k) {
            wide[k] = detail::autocast_to_float32(In(*in[k], loc));
            operands[k] = wide[k].defined() ? &wide[k] : in[k];
        }
        return general(op, operands, count, float32, params, loc);
    }
    const Device device = common_device(op, in, count, loc);
    const DType dtype = compute_dtype(op, common);
    const Compute compute = kernels::compute_of(dtype);
    const Loop loop = forward_loop(op.index, compute);
    if (!loop) fail<DTypeError>(loc, "{}: not defined for {}", op.info.name, name(dtype));
    check_bool(op, dtype, "", loc);
    const Shape shape = shape_of(op, in, count, loc);
    if (looks_at_integers(op.index, compute)) [[unlikely]]
        check_integers(op, *in[1], shape, loc);
    const Tensor out = make_result(shape, in, count, op.to_bool ? bool_ : dtype, device, loc);
    elementwise::run({op.index, -1, compute, op.to_bool, params}, out, in, count);
    if (detail::thread.observed) record_elementwise(op, loc, in, count, out, params);
    return out;
}

}  // namespace

int in_order_of_memory(const TensorImpl* y, int (&order)[kMaxRank]) noexcept {
    int count = 0;
    for (int d = 0; d < y->rank; ++d) {
        if (y->sizes[d] == 1) continue;
        int at = count++;
        for (; at > 0 && std::abs(y->strides[order[at - 1]]) < std::abs(y->strides[d]); --at) order[at] = order[at - 1];
        order[at] = d;
    }
    return count;
}

// --- Running -------------------------------------------------------------------------------------------------------------

namespace elementwise {

DType result_type(const Tensor* const* operands, int count) {
    Promotion promotion;
    for (int k = 0; k < count; ++k) promotion.tensor(*operands[k]);
    return promotion.result();
}

namespace {

bool are_alike(const TensorImpl* y, const Tensor* const* in, int count) noexcept {
    if (!y->is_contiguous()) return false;
    for (int k = 0; k < count; ++k) {
        if (!in[k]->impl()->is_contiguous() || !same_sizes(in[k]->impl(), y)) return false;
    }
    return true;
}

// Merges dimensions that are contiguous in every operand: longer runs.
void set_geometry(kernels::ElementwiseArgs& args, const TensorImpl* y, const Tensor* const* in) {
    int rank = 0;
    const bool alike = are_alike(y, in, args.operands);
    if (alike) {
        rank = 1;
        args.sizes[0] = y->numel;
        args.out_strides[0] = 1;
        for (int k = 0; k < args.operands; ++k) args.in[k].strides[0] = 1;
    }
    int order[kMaxRank];
    const int dims = alike ? 0 : in_order_of_memory(y, order);
    for (int i = 0; i < dims; ++i) {
        const int d = order[i];
        std::int64_t strides[kernels::kMaxOperands];
        for (int k = 0; k < args.operands; ++k) {
            const TensorImpl* x = in[k]->impl();
            const int own = d - (y->rank - x->rank);
            strides[k] = own < 0 || x->sizes[own] == 1 ? 0 : x->strides[own];
        }
        bool merge = rank > 0 && args.out_strides[rank - 1] == y->strides[d] * y->sizes[d];
        for (int k = 0; k < args.operands && merge; ++k) merge = args.in[k].strides[rank - 1] == strides[k] * y->sizes[d];
        if (!merge) args.sizes[rank++] = 1;
        args.sizes[rank - 1] *= y->sizes[d];
        args.out_strides[rank - 1] = y->strides[d];
        for (int k = 0; k < args.operands; ++k) args.in[k].strides[rank - 1] = strides[k];
    }
    args.rank = rank;
    args.out = y->data;
    args.out_dtype = y->dtype;
    args.numel = y->numel;
    for (int k = 0; k < args.operands; ++k) {
        args.in[k].data = in[k]->raw_data();
        args.in[k].dtype = in[k]->dtype();
    }
}

Loop loop_of(const kernels::ElementwiseKernel& kernel) {
    return kernel.gradient_of < 0 ? forward_loop(kernel.op, kernel.compute) : backward_loop(kernel.op, kernel.gradient_of, kernel.compute);
}

// Passes a 0-d tensor of the CPU among the operands to the device as a number.
[[gnu::noinline]] void run_on_gpu(const kernels::ElementwiseKernel& kernel, const TensorImpl* y, const Tensor* const* in, int count) {
    kernels::ElementwiseArgs args;
    args.kernel = kernel;
    args.operands = count;
    set_geometry(args, y, in);
    for (int k = 0; k < count; ++k) {
        const TensorImpl* x = in[k]->impl();
        if (on_gpu(x)) {
            args.in[k].data = on_stream(x);
            continue;
        }
        kernels::convert(x->dtype, x->data, 0, kernels::stored_as(kernel.compute), &args.in[k].number, 1, 1);
        args.in[k].data = nullptr;
    }
    args.out = on_stream(y);
    gpu::elementwise(args);
}

}  // namespace

bool into(const ElementwiseOp& op, const FormCall& x, const Tensor& out) {
    if (x.count != op.operands) return false;
    const TensorImpl* y = out.impl();
    if (computed_directly(y->dtype) && !op.to_bool) {  // the fast path
        const void* data[3];
        bool alike = is_plain(y);
        for (int k = 0; k < x.count; ++k) {
            const TensorImpl* operand = x.inputs[k]->impl();
            alike = alike && operand->dtype == y->dtype && is_plain(operand) && same_sizes(operand, y);
            data[k] = operand->data;
        }
        const Loop loop = alike ? quick_loop(op.index, kernels::compute_of(y->dtype)) : nullptr;
        if (loop) {
            const auto size = static_cast<unsigned>(itemsize(y->dtype));
            if (y->numel > 0) run_plain(loop, y->numel, y->data, size, data, size, x.count, static_cast<const double*>(x.attrs));
            return true;
        }
    }
    if (on_gpu(out)) return false;
    // A number beside tensors has the dtype that they are computed in, or a smaller one.
    const DType dtype = compute_dtype(op, result_type(x.inputs, x.count));
    const Compute compute = kernels::compute_of(dtype);
    const Loop loop = quick_loop(op.index, compute);
    if (!loop || out.dtype() != (op.to_bool ? bool_ : dtype) || (dtype == bool_ && (op.index == Elementwise::neg || op.index == Elementwise::sub))) {
        return false;
    }
    run({op.index, -1, compute, op.to_bool, static_cast<const double*>(x.attrs)}, out, x.inputs, x.count);
    return true;
}

kernels::Loop loop_without_checks(Elementwise op, Compute compute) { return quick_loop(op, compute); }

void copy_on_gpu(const Tensor& to, const Tensor& from) {
    kernels::ElementwiseArgs args;
    args.operands = 1;
    const Tensor* in[] = {&from};
    set_geometry(args, to.impl(), in);
    args.in[0].data = on_stream(from);
    args.out = on_stream(to);
    gpu::copy(args);
}

namespace {

// The bands that run_rows computes; 0 if rows are too short for it.
std::int64_t bands_of(const kernels::ElementwiseArgs& args) {
    constexpr std::int64_t long_row = 256, short_row = 64;
    if (args.rank < 2) return 0;
    const std::int64_t rows = args.sizes[args.rank - 2], width = args.sizes[args.rank - 1];
    if (width < short_row || (width < long_row && width % kernels::kLanes != 0)) return 0;
    return args.numel / (rows * width) * kernels::bands_of_rows(rows);
}

}  // namespace

void run(const kernels::ElementwiseKernel& kernel, const Tensor& out, const Tensor* const* in, int count) {
    const TensorImpl* y = out.impl();
    if (y->numel == 0) return;
    if (on_gpu(y)) return run_on_gpu(kernel, y, in, count);
    const Loop loop = loop_of(kernel);
    const DType dtype = kernels::stored_as(kernel.compute);
    bool plain = is_plain(y) && y->dtype == (kernel.to_bool ? bool_ : dtype);
    unsigned repeated = 0;
    const void* data[kernels::kMaxOperands];
    for (int k = 0; k < count && plain; ++k) {
        const TensorImpl* x = in[k]->impl();
        plain = x->dtype == dtype;
        data[k] = x->data;
        if (x->is_contiguous() && same_sizes(y, x)) continue;
        plain = plain && x->numel == 1;
        repeated |= 1u << k;
    }
    if (plain) {
        const auto out_size = static_cast<unsigned>(itemsize(y->dtype)), in_size = static_cast<unsigned>(itemsize(dtype));
        if (repeated == 0) return run_plain(loop, y->numel, y->data, out_size, data, in_size, count, kernel.params);
        if (y->numel < kParallelElements) {
            return kernels::run_repeated(loop, y->numel, y->data, out_size, data, in_size, count, kernel.params, repeated);
        }
    }
    kernels::ElementwiseArgs args{};
    args.kernel = kernel;
    args.loop = loop;
    args.operands = count;
    set_geometry(args, y, in);
    if (const std::int64_t bands = bands_of(args); bands > 0) {
        return share_out(bands, y->numel / bands, [&](std::int64_t begin, std::int64_t end) { kernels::run_rows(args, begin, end); });
    }
    parallel_for(y->numel, kParallelElements / 2, [&](std::int64_t begin, std::int64_t end) { kernels::run_general(args, begin, end); });
}

namespace {

// Returns true if the call was computed together with its peers in batch().
[[gnu::noinline]] bool in_group(const ElementwiseOp& op, const Tensor* const* in, int count, const double* params, const Loc& loc, Tensor& out) {
    for (int k = 1; k < count; ++k) {  // a 0-d operand of another dtype would have dimensions in a group, and count for the result's dtype
        if (in[k]->dtype() != in[0]->dtype() && (in[k]->dim() == 0 || in[0]->dim() == 0)) return false;
    }
    detail::BatchKey key;
    for (int p = 0; p < op.info.params; ++p) key.add(params[p]);
    const auto rule = [&](const detail::Batched& b, Tensor* results) {
        const auto x = [&](int k) { return detail::aligned(b, k, count); };
        results[0] = count == 1 ? unary(op, x(0), params, loc) : count == 2 ? binary(op, x(0), x(1), loc) : ternary(op, x(0), x(1), x(2), loc);
    };
    return detail::batched({op.info, loc, in, count, key, {.shared = 0b111}}, rule, {&out});
}

// Handles one or two operands that are not plain. Those of one device, shape and dtype, without gaps, still have a fast path.
[[gnu::noinline]] Tensor not_plain(const ElementwiseOp& op, const Tensor* const* in, int count, Loop loop, const double* params, const Loc& loc) {
    if (Tensor out; detail::in_batch() && in_group(op, in, count, params, loc, out)) return out;
    const TensorImpl *x = in[0]->impl(), *z = in[count - 1]->impl();
    const bool alike = loop && x->device == z->device && x->dtype == z->dtype && (on_gpu(x) || is_plain(x)) && are_alike(x, in, count);
    if (!alike) return general(op, in, count, result_type(in, count), params, loc);
    detail::begin_op(op.info.name, x, loc);
    const Tensor out = detail::make_empty_like(x, op.to_bool ? bool_ : x->dtype, loc);
    run({op.index, -1, kernels::compute_of(x->dtype), op.to_bool, params}, out, in, count);
    if (detail::thread.observed) record_elementwise(op, loc, in, count, out, params);
    return out;
}

}  // namespace

Tensor unary(const ElementwiseOp& op, const Tensor& x, const double* params, const Loc& loc) {
    if (!x.defined()) [[unlikely]]
        detail::fail_undefined(op.info.name, loc);
    const TensorImpl* impl = x.impl();
    const Tensor* in[] = {&x};
    const Loop loop = computed_directly(impl->dtype) ? quick_loop(op.index, kernels::compute_of(impl->dtype)) : nullptr;
    if (!is_plain(impl) || !loop) [[unlikely]]
        return not_plain(op, in, 1, loop, params, loc);
    if (detail::watching_ops) [[unlikely]] {
        if (Tensor made; detail::in_batch() && in_group(op, in, 1, params, loc, made)) return made;
        detail::begin_watched_op(op.info.name, impl, loc);
    }
    const DType dtype = op.to_bool ? bool_ : impl->dtype;
    Tensor out = detail::make_empty_like(impl, dtype, loc);
    const void* data[] = {impl->data};
    run_plain(loop, impl->numel, out.raw_data(), static_cast<unsigned>(itemsize(dtype)), data, static_cast<unsigned>(itemsize(impl->dtype)), 1,
              params);
    if (detail::thread.observed) record_elementwise(op, loc, in, 1, out, params);
    return out;
}

Tensor binary(const ElementwiseOp& op, const Tensor& a, const Tensor& b, const Loc& loc) {
    if (!a.defined() || !b.defined()) [[unlikely]]
        detail::fail_undefined(op.info.name, loc);
    const TensorImpl *x = a.impl(), *z = b.impl();
    const Tensor* in[] = {&a, &b};
    const Loop loop = computed_directly(x->dtype) ? quick_loop(op.index, kernels::compute_of(x->dtype)) : nullptr;
    if (!loop || x->dtype != z->dtype || !is_plain(x) || !is_plain(z) || !same_sizes(x, z)) [[unlikely]]
        return not_plain(op, in, 2, loop, nullptr, loc);
    if (detail::watching_ops) [[unlikely]] {
        if (Tensor made; detail::in_batch() && in_group(op, in, 2, nullptr, loc, made)) return made;
        detail::begin_watched_op(op.info.name, x, loc);
    }
    const DType dtype = op.to_bool ? bool_ : x->dtype;
    Tensor out = detail::make_empty_like(x, dtype, loc);
    const void* data[] = {x->data, z->data};
    run_plain(loop, x->numel, out.raw_data(), static_cast<unsigned>(itemsize(dtype)), data, static_cast<unsigned>(itemsize(x->dtype)), 2, nullptr);
    if (detail::thread.observed) record_elementwise(op, loc, in, 2, out, nullptr);
    return out;
}

namespace {

Tensor with_number(const ElementwiseOp& op, const Tensor& t, Scalar number, int place, const Loc& loc);

// Items may have other numbers where these do not decide on a dtype.
bool in_group_with_numbers(const ElementwiseOp& op, const Tensor& t, Scalar number, int place, const Loc& loc, Tensor& out) {
    const auto rule = [&](const detail::Batched& b, Tensor* results) {
        const std::span<const double> numbers = b.numbers();
        const auto is_first = [&](double other) { return other == numbers[0] && std::signbit(other) == std::signbit(numbers[0]); };
        if (std::all_of(numbers.begin(), numbers.end(), is_first)) {
            results[0] = with_number(op, b[0], number, place, loc);
            return;
        }
        Shape shape = b[0].shape();
        for (int d = 1; d < shape.rank(); ++d) shape.raw(d) = 1;
        Tensor of_rows = detail::make_empty(shape, t.dtype(), cpu, loc);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            detail::store(t.dtype(), of_rows.impl()->data + i * itemsize(t.dtype()), Scalar(numbers[i]));
        }
        of_rows = of_rows.to(t.device());
        results[0] = place == 1 ? binary(op, b[0], of_rows, loc) : binary(op, of_rows, b[0], loc);
    };
    detail::BatchCall call(op.info, loc, {&t}, detail::batch_key(place, /*numbers differ*/ true));
    call.set_number(number.as_double());
    return detail::batched(call, rule, {&out});
}

[[gnu::noinline]] bool in_group_with_number(const ElementwiseOp& op, const Tensor& t, Scalar number, int place, const Loc& loc, Tensor& out) {
    const bool is_exact = number.kind() == Scalar::Kind::floating || std::abs(number.as_double()) < 0x1p53;
    if ((t.dtype() == float32 || t.dtype() == float64) && is_exact && !std::isnan(number.as_double())) {
        return in_group_with_numbers(op, t, number, place, loc, out);
    }
    const bool is_whole = number.kind() != Scalar::Kind::floating;
    const detail::BatchKey key =
        is_whole ? detail::batch_key(number.kind(), place, number.as_int64()) : detail::batch_key(number.kind(), place, number.as_double());
    const auto rule = [&](const detail::Batched& b, Tensor* results) { results[0] = with_number(op, b[0], number, place, loc); };
    return detail::batched({op.info, loc, {&t}, key}, rule, {&out});
}

// Takes a tensor and a number, which is operand `place`. The fast path keeps the number on the stack.
Tensor with_number(const ElementwiseOp& op, const Tensor& t, Scalar number, int place, const Loc& loc) {
    if (!t.defined()) [[unlikely]]
        detail::fail_undefined(op.info.name, loc);
    const TensorImpl* x = t.impl();
    if (!is_floating(x->dtype) && number.kind() == Scalar::Kind::integer) [[unlikely]]
        number = bound_of(op, number, x->dtype, loc);
    if (op.to_bool && !is_floating(x->dtype) && number.kind() == Scalar::Kind::integer && !detail::fits(number, x->dtype)) [[unlikely]] {
        return with_number(op, t.to(int64, loc), number, place, loc);  // uint8 < 300: cut to 8 bits, the number would change
    }
    const Loop loop = computed_directly(x->dtype) ? quick_loop(op.index, kernels::compute_of(x->dtype)) : nullptr;
    const bool keeps_dtype = is_floating(x->dtype) || number.kind() != Scalar::Kind::floating;
    if (loop && keeps_dtype && is_plain(x) && x->numel < kParallelElements) [[likely]] {
        if (place == 1) check_exponent(op, number, x->dtype, loc);
        if (detail::watching_ops) [[unlikely]] {
            if (Tensor made; detail::in_batch() && in_group_with_number(op, t, number, place, loc, made)) return made;
            detail::begin_watched_op(op.info.name, x, loc);
        }
        const DType dtype = op.to_bool ? bool_ : x->dtype;
        Tensor out = detail::make_empty_like(x, dtype, loc);
        alignas(8) std::byte element[8];
        detail::store(x->dtype, element, number);
        const void* data[2];
        data[1 - place] = x->data;
        data[place] = element;
        kernels::run_repeated(loop, x->numel, out.raw_data(), static_cast<unsigned>(itemsize(dtype)), data, static_cast<unsigned>(itemsize(x->dtype)),
                              2, nullptr, 1u << place);
        Log* log = detail::thread.log;
        if ((log && tracked(x, *log, loc)) || detail::is_watched() || detail::thread.observed.elsewhere()) {
            const Tensor operand = number_tensor(number, x->dtype, loc);
            const Tensor* in[2];
            in[1 - place] = &t;
            in[place] = &operand;
            record_elementwise(op, loc, in, 2, out, nullptr);
        }
        return out;
    }
    if (Tensor made; detail::in_batch() && in_group_with_number(op, t, number, place, loc, made)) return made;
    Promotion promotion;
    promotion.tensor(t);
    promotion.number(number);
    const DType common = promotion.result();
    if (place == 1) check_exponent(op, number, common, loc);
    const Tensor operand = number_tensor(number, number_dtype(compute_dtype(op, common)), loc);
    const Tensor* in[2];
    in[1 - place] = &t;
    in[place] = &operand;
    return general(op, in, 2, common, nullptr, loc);
}

}  // namespace

Tensor binary(const ElementwiseOp& op, const Tensor& a, Scalar b, const Loc& loc) { return with_number(op, a, b, 1, loc); }
Tensor binary(const ElementwiseOp& op, Scalar a, const Tensor& b, const Loc& loc) { return with_number(op, b, a, 0, loc); }

Tensor ternary(const ElementwiseOp& op, const Tensor& a, const Tensor& b, const Tensor& c, const Loc& loc) {
    if (!a.defined() || !b.defined() || !c.defined()) detail::fail_undefined(op.info.name, loc);
    const Tensor* in[] = {&a, &b, &c};
    if (Tensor made; detail::in_batch() && in_group(op, in, 3, nullptr, loc, made)) return made;
    return general(op, in, 3, result_type(in, 3), nullptr, loc);
}

// --- In place ------------------------------------------------------------------------------------------------------------

namespace {

// True if the rule has saved a tensor that is about to be overwritten.
bool rereads_self(const ElementwiseOp& op, const Tensor* const* in, int count) {
    bool rereads = op.saves & SaveA;
    for (int k = 1; k < count; ++k) rereads |= (op.saves >> k & 1) && in[k]->is_same(*in[0]);
    return rereads;
}

// Returns the form that gives a result of its own, for messages: "t = t / x".
std::string out_of_place(std::string_view op) {
    constexpr std::pair<std::string_view, char> kOperators[] = {{"add", '+'}, {"sub", '-'}, {"mul", '*'}, {"div", '/'}};
    for (const auto& [name, sign] : kOperators) {
        if (op == name) return fmt::format("t = t {} x", sign);
    }
    return fmt::format("t = {}(t, ...)", op);
}

// Writes op(self, others) into self. `in[0]` is self.
void in_place(const ElementwiseOp& op, Tensor& self, const Tensor* const* in, int count, DType common, const double* params, const Loc& loc) {
    for (int k = 0; k < count; ++k) {
        if (!in[k]->defined()) detail::fail_undefined(op.info.name, loc);
    }
    if (common_device(op, in, count, loc) != self.impl()->device) detail::check_same_device(op.info.name, self, *in[1], loc);
    const DType dtype = compute_dtype(op, common);
    const Loop loop = forward_loop(op.index, kernels::compute_of(dtype));
    if (!loop) fail<DTypeError>(loc, "{}_: not defined for {}", op.info.name, name(dtype));
    check_bool(op, dtype, "_", loc);
    if (Promotion::category(dtype) > Promotion::category(self.dtype())) {
        fail<DTypeError>(loc, "{}_: a result of {} cannot be written into {}; write {}, or convert t with to({}) first", op.info.name, name(dtype),
                         name(self.dtype()), out_of_place(op.info.name), name(dtype));
    }
    const Shape shape = shape_of(op, in, count, loc);
    if (!(shape == self.shape())) {
        fail<ShapeError>(loc, "{}_: a result of shape {} cannot be written into {}", op.info.name, shape, self.shape());
    }
    if (looks_at_integers(op.index, kernels::compute_of(dtype))) check_integers(op, *in[1], shape, loc);
    check_in_place(op.info.name, self, {in[count - 1]}, loc);
    if (count > 2) check_in_place(op.info.name, self, {in[1]}, loc);
    Log* log = detail::thread.log;
    bool record_it = log && tracked(self.impl(), *log, loc);
    for (int k = 1; k < count && log; ++k) record_it |= tracked(in[k]->impl(), *log, loc);
    // Copies operands that are overwritten but read again: by the loop when they overlap, by the rule when it saved them.
    Tensor copies[3];
    const Tensor* operands[3] = {in[0]};
    for (int k = 1; k < count; ++k) {
        operands[k] = in[k];
        if (in[k]->is_same(self) || !in[k]->shares_storage(self)) continue;
        copies[k] = copy_before_write(*in[k], loc);
        operands[k] = &copies[k];
    }
    if (record_it && rereads_self(op, in, count)) {
        copies[0] = copy_before_write(self, loc);
        for (int k = 0; k < count; ++k) {
            if (in[k]->is_same(self)) operands[k] = &copies[0];
        }
    }
    run({op.index, -1, kernels::compute_of(dtype), op.to_bool, params}, self, operands, count);
    mark_written(self, loc);
    if (detail::thread.observed) record_elementwise(op, loc, operands, count, self, params);
}

}  // namespace

void unary_(const ElementwiseOp& op, Tensor& x, const double* params, const Loc& loc) {
    const Tensor* in[] = {&x};
    if (!x.defined()) detail::fail_undefined(op.info.name, loc);
    in_place(op, x, in, 1, x.dtype(), params, loc);
}

void binary_(const ElementwiseOp& op, Tensor& a, const Tensor& b, const Loc& loc) {
    if (!a.defined() || !b.defined()) detail::fail_undefined(op.info.name, loc);
    const Tensor* in[] = {&a, &b};
    in_place(op, a, in, 2, result_type(in, 2), nullptr, loc);
}

void ternary_(const ElementwiseOp& op, Tensor& a, const Tensor& b, const Tensor& c, const Loc& loc) {
    if (!a.defined() || !b.defined() || !c.defined()) detail::fail_undefined(op.info.name, loc);
    const Tensor* in[] = {&a, &b, &c};
    in_place(op, a, in, 3, result_type(in, 3), nullptr, loc);
}

void binary_(const ElementwiseOp& op, Tensor& a, Scalar b, const Loc& loc) {
    if (!a.defined()) detail::fail_undefined(op.info.name, loc);
    Promotion promotion;
    promotion.tensor(a);
    promotion.number(b);
    const DType common = promotion.result();
    check_exponent(op, b, common, loc);
    const Scalar bound = b.kind() == Scalar::Kind::integer ? bound_of(op, b, common, loc) : b;
    const Tensor number = number_tensor(bound, number_dtype(compute_dtype(op, common)), loc);
    const Tensor* in[] = {&a, &number};
    in_place(op, a, in, 2, common, nullptr, loc);
}

}  // namespace elementwise

namespace {

// True if each dimension steps over all that those of smaller steps reach: then no two elements share memory.
bool elements_are_apart(const TensorImpl* t) noexcept {
    if (t->is_contiguous()) return true;
    std::int64_t reach = 0;
    for (unsigned left = (1u << t->rank) - 1; left;) {
        int next = -1;  // the dimension of the smallest steps
        for (int d = 0; d < t->rank; ++d) {
            if (left >> d & 1 && (next < 0 || std::abs(t->strides[d]) < std::abs(t->strides[next]))) next = d;
        }
        left &= ~(1u << next);
        if (t->sizes[next] <= 1) continue;
        if (std::abs(t->strides[next]) <= reach) return false;
        reach += std::abs(t->strides[next]) * (t->sizes[next] - 1);
    }
    return true;
}

// True if two of its elements are the same in memory, as after expand(), or in windows that overlap. The strides decide this
// in nearly all cases; elements are marked one by one only if the dimensions interleave.
bool has_shared_elements(const TensorImpl* t) {
    if (t->numel == 0 || elements_are_apart(t)) [[likely]]
        return false;
    std::int64_t lowest = 0, highest = 0;
    for (int d = 0; d < t->rank; ++d) {
        const std::int64_t reach = t->strides[d] * (t->sizes[d] - 1);
        if (t->sizes[d] > 1 && reach == 0) return true;
        (reach < 0 ? lowest : highest) += reach;
    }
    if (t->numel > highest - lowest + 1) return true;  // more elements than places
    std::vector<bool> is_taken(static_cast<std::size_t>(highest - lowest + 1));
    std::int64_t at[kMaxRank] = {}, place = -lowest;
    for (std::int64_t i = 0; i < t->numel; ++i) {
        if (is_taken[static_cast<std::size_t>(place)]) return true;
        is_taken[static_cast<std::size_t>(place)] = true;
        for (int d = t->rank - 1; d >= 0; --d) {
            place += t->strides[d];
            if (++at[d] < t->sizes[d]) break;
            place -= t->strides[d] * t->sizes[d];
            at[d] = 0;
        }
    }
    return false;
}

}  // namespace

namespace {

// True if this recorded view looks at the elements of a leaf that requires a gradient: then there are only views between the two.
bool is_view_of_leaf(const TensorImpl* view, const Log& log) noexcept {
    if (view->node.tape != log.id) return false;
    for (std::uint32_t value = view->node.index; value != kNoValue;) {
        if (value & Log::kOuter) return false;  // from outside of a TapeScope
        const Record& record = *log.records[log.maker_of(value)];
        if (record.flags & Record::kLeaf) {
            return !(record.flags & Record::kReleased) && record.saved()[0].impl->storage == view->storage;
        }
        if (record.input_count == 0) return false;
        value = record.inputs()[0];
    }
    return false;
}

[[noreturn]] void fail_leaf_written(const char* op, const Loc& loc) {
    fail<TapeError>(loc,
                    "{}_: a leaf that requires a gradient is written to while the tape records; end the tape first, "
                    "or use NoGradScope",
                    op);
}

}  // namespace

void check_in_place(const char* op, const Tensor& self, std::initializer_list<const Tensor*> sources, const Loc& loc) {
    TensorImpl* impl = self.impl();
    if (!impl->is_contiguous() && has_shared_elements(impl)) [[unlikely]] {
        fail<ValueError>(loc, "{}_: several elements of the {} tensor share memory; clone() it first", op, self.shape());
    }
    if (detail::watching_ops) [[unlikely]] {
        detail::log_placement(impl);
        if (detail::is_watched()) detail::tell_write(self);
    }
    Log* log = detail::thread.log;
    if (!log) return;
    if (impl->flags & TensorImpl::kRequiresGrad) fail_leaf_written(op, loc);
    bool any = tracked(impl, *log, loc);
    if (any) log->value_of(impl, loc);  // refuses a tensor that was overwritten through another view
    for (const Tensor* source : sources) {
        if (!source->defined() || !tracked(source->impl(), *log, loc)) continue;
        any = true;
        detail::at_line(loc, [&] { log->value_of(source->impl(), loc); });  // the same check for operands; a leaf gets its record
    }
    if constexpr (!detail::is_runtime) {
        if (any) take_room(*log, loc);
    }
    if (any && (impl->flags & TensorImpl::kView)) {
        // matmul(x, w).squeeze(0): the tensor that it was a view of is gone, so nothing else sees the write, and it counts as a
        // tensor of its own from here on. (Tensors that records saved would hold the storage too.)
        if (__atomic_load_n(&impl->storage->refs, __ATOMIC_ACQUIRE) != 1 || !elements_are_apart(impl)) {
            if (is_view_of_leaf(impl, *log)) fail_leaf_written(op, loc);
            fail<TapeError>(loc,
                            "{}_: writing into a view is not recorded; write through the tensor it is a view of: "
                            "x.index_put_({{...}}, value)",
                            op);
        }
        impl->flags &= static_cast<std::uint8_t>(~TensorImpl::kView);
    }
}

extern const OpInfo clone_op;

Tensor copy_before_write(const Tensor& operand, const Loc& loc) {
    NodeRef node = operand.impl()->node;
    if (Log* log = detail::thread.log) {
        const std::uint32_t value = log->value_of(operand.impl(), loc);  // this may be a leaf's first use
        if (value != kNoValue) node = {log->id, value};
    }
    Tensor copy;
    {
        const detail::UnrecordedPartsOf parts(loc);
        copy = operand.clone(loc);
    }
    if (detail::is_tracing()) {  // the graph must know of it
        const Tensor* from = &operand;
        TensorImpl* result = copy.impl();
        finish_op({clone_op, loc, &from, 1, &result, 1, nullptr, 0}, /*recorded=*/false);
    }
    copy.impl()->node = node;
    return copy;
}

void mark_written(const Tensor& self, const Loc& loc) {
    TensorImpl* impl = self.impl();
    if (detail::is_tracing()) [[unlikely]]
        tell_written(self, loc);
    // A view that is out of date stays behind: it stands for another value.
    const bool is_current = !(impl->flags & TensorImpl::kView) || impl->node_version == impl->storage->version_now();
    impl->storage->mark_written(detail::caller(loc));
    if (is_current) impl->node_version = impl->storage->version_now();
}

// --- Backward ------------------------------------------------------------------------------------------------------------

namespace {

Tensor fused_gradient(const ElementwiseOp& op, int operand, const Tensor* const* in, int count, const double* params, bool into_g) {
    const Tensor& g = *in[0];
    const Compute compute = kernels::compute_of(g.dtype());
    const Tensor out = into_g ? g
        : g.is_contiguous()   ? detail::make_empty_like(g.impl(), g.dtype(), Loc{})
                              : make_result(g.shape(), in, 1, g.dtype(), g.device(), Loc{});
    elementwise::run({op.index, static_cast<std::int8_t>(operand), compute, false, params}, out, in, count);
    return out;
}

void elementwise_rule(Backward& b) {
    const auto& op = *reinterpret_cast<const ElementwiseOp*>(b.record().op);
    int computed = 0;
    for (int k = 0; k < op.operands; ++k) {
        if (!b.needs(k)) continue;
        if (op.passes[k]) {
            b.give(k, b.grad());
        } else {
            computed |= 1 << k;
        }
    }
    if (computed == 0) return;

    static const Tensor undefined;
    const Tensor g = b.grad();
    Tensor saved[4];
    const Tensor* fused[kernels::kMaxOperands] = {&g};                                                // g and the saved tensors
    const Tensor* all[kernels::kMaxOperands] = {&g, &undefined, &undefined, &undefined, &undefined};  // the same at their places, for the rules
    int count = 1;
    for (unsigned left = op.saves; left != 0; left &= left - 1) {
        const int k = std::countr_zero(left);
        saved[k] = b.saved(count - 1);
        fused[count++] = all[k + 1] = &saved[k];
    }
    const double* params = op.info.params ? &b.attrs<double>() : nullptr;
    for (int k = 0; k < op.operands; ++k) {
        if (computed >> k & 1) b.give(k, b.recording() ? op.rule[k](all, params) : fused_gradient(op, k, fused, count, params, false));
    }
}

}  // namespace

// --- The bounds of clamp() -------------------------------------------------------------------------------------------------

namespace {

// If min is above max, all elements become max, as with bounds that are tensors.
double lower_bound(double min, double max) noexcept { return min > max ? max : min; }

// True if the kernel of x's dtype has no such bounds: it takes nan for no bound, and cuts fractions off if x holds integers.
bool are_beyond(double min, double max, const Tensor& x) noexcept {
    if (std::isnan(min) || std::isnan(max)) return true;
    if (!x.defined() || is_floating(x.dtype())) return false;
    return std::trunc(min) != min || std::trunc(max) != max;
}

// Throws ValueError if all of x would become a bound that its integers do not hold.
void check_bounds(const char* op, const Tensor& x, const double* bounds, const Loc& loc) {
    if (!x.defined() || is_floating(x.dtype()) || x.dtype() == bool_) [[likely]]
        return;
    const auto [lowest, largest] = ends_of(x.dtype());
    if (bounds[0] >= static_cast<double>(largest) + 1) fail_beyond(op, bounds[0], x.dtype(), loc);
    if (bounds[1] < static_cast<double>(lowest)) fail_beyond(op, bounds[1], x.dtype(), loc);
}

// Fractions turn integers into floats, as in PyTorch; a nan bound makes all elements nan.
Tensor clamp_beyond(const In& x, double min, double max) {
    detail::check_defined(x, "clamp");
    const detail::RecordedParts parts(x.loc);
    const Tensor y = is_floating(x->dtype) ? x.tensor : to(x, default_dtype());
    if (std::isnan(min) || std::isnan(max)) return mul(y, std::numeric_limits<double>::quiet_NaN());
    return clamp(y, min, max);
}

// True if a double would lose digits of it.
bool is_exact(Scalar bound) noexcept {
    return bound.kind() == Scalar::Kind::integer && static_cast<std::uint64_t>(bound.as_int64()) + (1ull << 53) > 1ull << 54;
}
// True if a bound that is a fraction by its type stands beside integers.
bool is_integer_beside(Scalar bound, const Tensor& x) noexcept { return bound.kind() == Scalar::Kind::floating && !is_floating(x.dtype()); }

}  // namespace

// --- The public functions --------------------------------------------------------------------------------------------------

// Throws for numbers that PyTorch refuses. Most ops have none, and pay nothing.
template <Elementwise op>
static void check_params([[maybe_unused]] const Tensor& x, [[maybe_unused]] const double* params, [[maybe_unused]] const Loc& loc) {
    if constexpr (op == Elementwise::softshrink) {
        if (!(params[0] >= 0)) fail<ValueError>(loc, "softshrink: lambd must not be negative, got {}", params[0]);
    } else if constexpr (op == Elementwise::celu) {
        if (params[0] == 0) fail<ValueError>(loc, "celu: alpha must not be 0");
    } else if constexpr (op == Elementwise::hardtanh) {
        if (params[0] > params[1]) fail<ValueError>(loc, "hardtanh: min_val {} is above max_val {}", params[0], params[1]);
    }
    if constexpr (op == Elementwise::hardtanh || op == Elementwise::clamp)
        check_bounds(op == Elementwise::clamp ? "clamp" : "hardtanh", x, params, loc);
}

#define TAPIR_UNARY0(name, ...)                                                                                       \
    Tensor name(In x) { return elementwise::unary(row_of(Elementwise::name), x.tensor, nullptr, x.loc); }             \
    Tensor Tensor::name(Loc loc) const { return elementwise::unary(row_of(Elementwise::name), *this, nullptr, loc); } \
    Tensor& Tensor::name##_(Loc loc) {                                                                                \
        elementwise::unary_(row_of(Elementwise::name), *this, nullptr, loc);                                          \
        return *this;                                                                                                 \
    }
#define TAPIR_UNARY1(name, p0, d0, ...)                                                       \
    Tensor name(In x, double p0) {                                                            \
        const double params[] = {p0};                                                         \
        check_params<Elementwise::name>(x.tensor, params, x.loc);                             \
        return elementwise::unary(row_of(Elementwise::name), x.tensor, params, x.loc);        \
    }                                                                                         \
    Tensor Tensor::name(double p0, Loc loc) const { return tapir::name(In(*this, loc), p0); } \
    Tensor& Tensor::name##_(double p0, Loc loc) {                                             \
        const double params[] = {p0};                                                         \
        check_params<Elementwise::name>(*this, params, loc);                                  \
        elementwise::unary_(row_of(Elementwise::name), *this, params, loc);                   \
        return *this;                                                                         \
    }
#define TAPIR_UNARY2(name, p0, d0, p1, d1, ...)                                                                  \
    Tensor name(In x, double p0, double p1) {                                                                    \
        if constexpr (Elementwise::name == Elementwise::clamp) {                                                 \
            p0 = lower_bound(p0, p1);                                                                            \
            if (are_beyond(p0, p1, x.tensor)) [[unlikely]]                                                       \
                return clamp_beyond(x, p0, p1);                                                                  \
        }                                                                                                        \
        const double params[] = {p0, p1};                                                                        \
        check_params<Elementwise::name>(x.tensor, params, x.loc);                                                \
        return elementwise::unary(row_of(Elementwise::name), x.tensor, params, x.loc);                           \
    }                                                                                                            \
    Tensor Tensor::name(double p0, double p1, Loc loc) const { return tapir::name(In(*this, loc), p0, p1); }     \
    Tensor& Tensor::name##_(double p0, double p1, Loc loc) {                                                     \
        if constexpr (Elementwise::name == Elementwise::clamp) {                                                 \
            p0 = lower_bound(p0, p1);                                                                            \
            if (are_beyond(p0, p1, *this)) [[unlikely]] {                                                        \
                for (const double bound : {p0, p1}) static_cast<void>(number_as("clamp_", bound, dtype(), loc)); \
                return mul_(std::numeric_limits<double>::quiet_NaN(), loc);                                      \
            }                                                                                                    \
        }                                                                                                        \
        const double params[] = {p0, p1};                                                                        \
        check_params<Elementwise::name>(*this, params, loc);                                                     \
        elementwise::unary_(row_of(Elementwise::name), *this, params, loc);                                      \
        return *this;                                                                                            \
    }
#define TAPIR_PREDICATE(name, ...)                                                                        \
    Tensor name(In x) { return elementwise::unary(row_of(Elementwise::name), x.tensor, nullptr, x.loc); } \
    Tensor Tensor::name(Loc loc) const { return tapir::name(In(*this, loc)); }
#define TAPIR_COMPARE(name, ...)                                                                                                          \
    Tensor name(In a, In b) { return elementwise::binary(row_of(Elementwise::name), a.tensor, b.tensor, a.loc); }                         \
    Tensor name(In a, Scalar b) { return elementwise::binary(row_of(Elementwise::name), a.tensor, b, a.loc); }                            \
    Tensor name(Scalar a, In b) { return elementwise::binary(row_of(Elementwise::name), a, b.tensor, b.loc); }                            \
    Tensor Tensor::name(const Tensor& other, Loc loc) const { return elementwise::binary(row_of(Elementwise::name), *this, other, loc); } \
    Tensor Tensor::name(Scalar other, Loc loc) const { return elementwise::binary(row_of(Elementwise::name), *this, other, loc); }
#define TAPIR_BINARY(name, ...)                                             \
    TAPIR_COMPARE(name, )                                                   \
    Tensor& Tensor::name##_(const Tensor& other, Loc loc) {                 \
        elementwise::binary_(row_of(Elementwise::name), *this, other, loc); \
        return *this;                                                       \
    }                                                                       \
    Tensor& Tensor::name##_(Scalar other, Loc loc) {                        \
        elementwise::binary_(row_of(Elementwise::name), *this, other, loc); \
        return *this;                                                       \
    }
#define TAPIR_TERNARY(name, ...)                                                                                                   \
    Tensor name(In a, In b, In c) { return elementwise::ternary(row_of(Elementwise::name), a.tensor, b.tensor, c.tensor, a.loc); } \
    Tensor Tensor::name(const Tensor& b, const Tensor& c, Loc loc) const {                                                         \
        return elementwise::ternary(row_of(Elementwise::name), *this, b, c, loc);                                                  \
    }                                                                                                                              \
    Tensor& Tensor::name##_(const Tensor& b, const Tensor& c, Loc loc) {                                                           \
        elementwise::ternary_(row_of(Elementwise::name), *this, b, c, loc);                                                        \
        return *this;                                                                                                              \
    }
#include "tapir/ops/elementwise/elementwise.def"

// Only for rules: see elementwise.def.
Tensor gated_mul(In a, In b) { return elementwise::binary(row_of(Elementwise::gated_mul), a.tensor, b.tensor, b.loc); }
Tensor gated_mul(Scalar a, In b) { return elementwise::binary(row_of(Elementwise::gated_mul), a, b.tensor, b.loc); }
Tensor gated_div(In a, In b) { return elementwise::binary(row_of(Elementwise::gated_div), a.tensor, b.tensor, b.loc); }
Tensor absorbing_mul(In a, In b) { return elementwise::binary(row_of(Elementwise::absorbing_mul), a.tensor, b.tensor, b.loc); }

#define TAPIR_OPERATOR(symbol, name)                                                                                         \
    Tensor operator symbol(In a, In b) { return elementwise::binary(row_of(Elementwise::name), a.tensor, b.tensor, a.loc); } \
    Tensor operator symbol(In a, Scalar b) { return elementwise::binary(row_of(Elementwise::name), a.tensor, b, a.loc); }    \
    Tensor operator symbol(Scalar a, In b) { return elementwise::binary(row_of(Elementwise::name), a, b.tensor, b.loc); }
TAPIR_OPERATOR(+, add)
TAPIR_OPERATOR(-, sub)
TAPIR_OPERATOR(*, mul)
TAPIR_OPERATOR(/, div)
TAPIR_OPERATOR(%, remainder)
TAPIR_OPERATOR(==, eq)
TAPIR_OPERATOR(!=, ne)
TAPIR_OPERATOR(<, lt)
TAPIR_OPERATOR(<=, le)
TAPIR_OPERATOR(>, gt)
TAPIR_OPERATOR(>=, ge)
TAPIR_OPERATOR(&, bitwise_and)
TAPIR_OPERATOR(|, bitwise_or)
TAPIR_OPERATOR(^, bitwise_xor)
TAPIR_OPERATOR(<<, bitwise_left_shift)
TAPIR_OPERATOR(>>, bitwise_right_shift)
#undef TAPIR_OPERATOR

Tensor operator-(In x) { return elementwise::unary(row_of(Elementwise::neg), x.tensor, nullptr, x.loc); }
Tensor operator!(In x) { return logical_not(x); }
Tensor bitwise_not(In x) {
    detail::check_defined(x, "bitwise_not");
    const DType dtype = x.tensor.dtype();
    if (dtype == bool_) return logical_not(x);
    if (is_floating(dtype)) fail<DTypeError>(x.loc, "bitwise_not: not defined for {}", name(dtype));
    return bitwise_xor(x, -1);
}
Tensor operator~(In x) { return bitwise_not(x); }

#define TAPIR_ASSIGN(symbol, name)                                                        \
    Tensor& operator symbol(Tensor & a, In b) { return a.name##_(b.tensor, b.loc); }      \
    Tensor& operator symbol(Tensor & a, NumberIn b) { return a.name##_(b.value, b.loc); } \
    Tensor operator symbol(Tensor&& a, In b) {                                            \
        detail::check_seen(#symbol, a, b.loc);                                            \
        return a.name##_(b.tensor, b.loc);                                                \
    }                                                                                     \
    Tensor operator symbol(Tensor&& a, NumberIn b) {                                      \
        detail::check_seen(#symbol, a, b.loc);                                            \
        return a.name##_(b.value, b.loc);                                                 \
    }
TAPIR_ASSIGN(+=, add)
TAPIR_ASSIGN(-=, sub)
TAPIR_ASSIGN(*=, mul)
TAPIR_ASSIGN(/=, div)
#undef TAPIR_ASSIGN

static DType dtype_of_ends(const Tensor& start, const Tensor& end) {
    const Tensor* ends[] = {&start, &end};
    return elementwise::result_type(ends, 2);
}

Tensor lerp(In start, In end, Scalar weight) {
    detail::check_defined(start, "lerp");
    detail::check_defined(end, "lerp");
    const DType ends = dtype_of_ends(start.tensor, end.tensor);
    const Tensor number = number_tensor(weight, is_floating(ends) ? number_dtype(ends) : float32, start.loc);
    if (!is_floating(ends)) return lerp(start, end, number);
    const Tensor* in[] = {&start.tensor, &end.tensor, &number};
    return general(row_of(Elementwise::lerp), in, 3, ends, nullptr, start.loc);
}

namespace {

template <class B>
Tensor rounded_quotient(const In& a, const B& b, const char* rounding_mode) {
    const detail::ComposedOp composed("div");
    const std::string word = detail::checked_word("div", rounding_mode, a.loc);
    if (word == "floor") return floor_divide(a, b);
    if (word != "trunc") fail<ValueError>(a.loc, "div: rounding_mode is \"trunc\" or \"floor\", not \"{}\"", word);
    const detail::RecordedParts parts(a.loc);
    // The remainder has a's sign, so that the division below leaves none.
    const Tensor rest = fmod(a, b);
    return is_floating(rest.dtype()) ? trunc(a / b) : floor_divide(a.tensor - rest, b);
}

}  // namespace

Tensor div(In a, In b, const char* rounding_mode) {
    detail::check_defined(a, "div");
    detail::check_defined(b, "div");
    return rounded_quotient(a, b, rounding_mode);
}
Tensor div(In a, Scalar b, const char* rounding_mode) {
    detail::check_defined(a, "div");
    return rounded_quotient(a, b, rounding_mode);
}

Tensor polygamma(std::int64_t n, In x) {
    if (n < 0) fail<ValueError>(x.loc, "polygamma: n must not be negative, got {}", n);
    return polygamma(x, static_cast<double>(n));
}

Tensor ldexp(In x, In other) {
    const detail::ComposedOp composed("ldexp");
    detail::check_defined(x, "ldexp");
    detail::check_defined(other, "ldexp");
    const detail::RecordedParts parts(x.loc);
    if (!is_floating(x->dtype) || is_floating(other->dtype)) return mul(x, pow(2.0, other));
    const DType wide = computed_in(x->dtype);  // a power may exceed 16 bits even if the result does not
    return mul(x.tensor.to(wide, x.loc), pow(2.0, other.tensor.to(wide, x.loc))).to(x->dtype, x.loc);
}

Tensor gelu(In x, const char* approximate) {
    const std::string word = detail::checked_word("gelu", approximate, x.loc);
    if (word == "tanh") return gelu_tanh(x);
    if (word != "none") fail<ValueError>(x.loc, "gelu: approximate must be \"none\" or \"tanh\", got \"{}\"", word);
    return gelu(x);
}

Tensor clamp_min(In x, Scalar min) {
    detail::check_defined(x, "clamp_min");
    if (is_exact(min)) return maximum(x, min);
    if (!is_integer_beside(min, x.tensor)) return clamp(x, min.as_double());
    const detail::RecordedParts parts(x.loc);
    return clamp(to(x, default_dtype()), min.as_double());
}
Tensor clamp_max(In x, Scalar max) {
    detail::check_defined(x, "clamp_max");
    if (is_exact(max)) return minimum(x, max);
    if (!is_integer_beside(max, x.tensor)) return clamp(x, -std::numeric_limits<double>::infinity(), max.as_double());
    const detail::RecordedParts parts(x.loc);
    return clamp(to(x, default_dtype()), -std::numeric_limits<double>::infinity(), max.as_double());
}
Tensor clamp(In x, In min, In max) {
    detail::check_defined(x, "clamp");
    const detail::RecordedParts parts(x.loc);
    return minimum(maximum(x, min), max);
}

// --- Methods -------------------------------------------------------------------------------------------------------------

Tensor Tensor::lerp(const Tensor& end, Scalar weight, Loc loc) const { return tapir::lerp(In(*this, loc), In(end, loc), weight); }
Tensor& Tensor::lerp_(const Tensor& end, Scalar weight, Loc loc) {
    detail::check_defined(In(*this, loc), "lerp_");
    detail::check_defined(In(end, loc), "lerp_");
    const DType ends = dtype_of_ends(*this, end);
    const Tensor number = number_tensor(weight, is_floating(ends) ? number_dtype(ends) : float32, loc);
    if (!is_floating(ends)) return lerp_(end, number, loc);
    const Tensor* in[] = {this, &end, &number};
    elementwise::in_place(row_of(Elementwise::lerp), *this, in, 3, ends, nullptr, loc);
    return *this;
}
Tensor Tensor::clamp(const Tensor& min, const Tensor& max, Loc loc) const { return tapir::clamp(In(*this, loc), In(min, loc), In(max, loc)); }
Tensor Tensor::clamp_min(Scalar min, Loc loc) const { return tapir::clamp_min(In(*this, loc), min); }
Tensor Tensor::clamp_max(Scalar max, Loc loc) const { return tapir::clamp_max(In(*this, loc), max); }
Tensor& Tensor::clamp_min_(Scalar min, Loc loc) { return clamp_(min.as_double(), std::numeric_limits<double>::infinity(), loc); }
Tensor& Tensor::clamp_max_(Scalar max, Loc loc) { return clamp_(-std::numeric_limits<double>::infinity(), max.as_double(), loc); }
Tensor Tensor::div(const Tensor& other, const char* rounding_mode, Loc loc) const {
    return tapir::div(In(*this, loc), In(other, loc), rounding_mode);
}
Tensor Tensor::div(Scalar other, const char* rounding_mode, Loc loc) const { return tapir::div(In(*this, loc), other, rounding_mode); }
Tensor Tensor::ldexp(const Tensor& other, Loc loc) const { return tapir::ldexp(In(*this, loc), In(other, loc)); }
Tensor Tensor::bitwise_not(Loc loc) const { return tapir::bitwise_not(In(*this, loc)); }

}  // namespace tapir
