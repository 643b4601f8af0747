// Writes the element-wise ops as ONNX: each as the operator that its row names, if that means exactly the same, else by evaluating
// the expression of its row on OnnxValues.
#include <string_view>
#include <unordered_map>

#include "tapir/autograd/op.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using V = OnnxValue;
using enum ElementTypes;

// True if onnxruntime has the operator for float64. The list has those operators that an expression can replace.
bool has_double(std::string_view onnx) {
    for (const std::string_view other :
         {"Cos", "Tan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid", "PRelu"}) {
        if (onnx == other) return false;
    }
    return true;
}

// False for operators with an attribute, or a difference to Tapir's op, so that rows that name them cannot be written so.
bool is_alike(std::string_view onnx, DType dtype) {
    for (const std::string_view other :
         {"Clip", "HardSigmoid", "Shrink", "Mod", "PRelu", "Celu", "Softplus", "And", "Or", "Xor", "Not", "BitShift", "Sign", "HardSwish"}) {
        if (onnx == other) return false;
    }
    if (dtype == DType::float64 && !has_double(onnx)) return false;
    if (onnx == "IsNaN" || onnx == "IsInf") return is_floating(dtype);
    if (onnx == "Pow" || onnx == "Floor" || onnx == "Ceil" || onnx == "Round" || onnx == "Relu") return is_floating(dtype);
    return true;
}

// Returns the dtype that ONNX runtimes compute in: they have few ops of small integers.
DType computed_as(DType dtype) { return dtype == DType::uint8 || dtype == bool_ ? DType::int32 : dtype; }

// Promotes a comparison's operands: tensors win over numbers of the same kind.
DType met(const OnnxCall& x) {
    const auto rank = [](DType dtype) { return is_floating(dtype) ? 2 : dtype == bool_ ? 0 : 1; };
    DType best = bool_;
    bool any = false, is_scalar = true;
    for (int i = 0; i < x.count(); ++i) {
        const DType dtype = x.dtype(i);
        const bool scalar = x.rank(i) == 0;
        if (!any) {
            best = dtype;
            is_scalar = scalar;
        } else if (scalar == is_scalar) {
            best = promote(best, dtype);
        } else if (const bool wins = rank(dtype) > rank(best) || (rank(dtype) == rank(best) && !scalar); wins) {
            // a number of another kind: the default dtype of that
            best = scalar && is_floating(dtype) && !is_floating(best) ? default_dtype() : dtype;
            is_scalar = scalar;
        } else if (rank(dtype) == rank(best) && !scalar) {
            best = dtype;
            is_scalar = false;
        }
        any = true;
    }
    return best;
}

OnnxValues operands(const OnnxCall& x, DType dtype) {
    OnnxValues values;
    for (int i = 0; i < x.count(); ++i) {
        const OnnxValue& value = x[i];
        values.push_back(value.is_number() ? x.scalar(value.number(), dtype) : x.cast(value, dtype));
    }
    x.builder().number_dtype = dtype;
    return values;
}

constexpr const char* NoOnnx = nullptr;

struct Row {
    Elementwise op;
    std::string_view name;
    const char* onnx;  // null: it is composed
    ElementTypes types;
    bool to_bool;
    V (*expression)(const OnnxValues& operands, const double* params);
    const char* params[2];
};

// True for comparisons that compare bools themselves.
bool is_of_bools(Elementwise op) {
    using enum Elementwise;
    return op == eq || op == ne || op == logical_and || op == logical_or || op == logical_xor || op == logical_not;
}

V bits(const char* op, const OnnxCall& x) {
    const DType dtype = x.result_dtype();
    const OnnxValues v = operands(x, dtype);
    if (dtype == bool_) return op[7] == 'A' ? v[0] & v[1] : op[7] == 'O' ? v[0] | v[1] : v[0] ^ v[1];
    if (x.opset() >= 18) return x.node(op, {v[0], v[1]});
    // Works bit by bit, along a new last dimension.
    OnnxInts powers;
    for (int k = 0; k < 63; ++k) powers.push_back(std::int64_t{1} << k);
    const V low = x.ints(powers);
    const auto bits_of = [&](const V& t, int rank) {
        const V each = x.unsqueeze(x.cast(t, int64), {rank});
        return x.concat({remainder(floor_divide(each, low), 2), x.cast(each < 0, int64)}, rank);
    };
    powers.push_back(INT64_MIN);
    const int rank = x.result_shape().count();
    const V a = x.expand(v[0], x.result_shape()), b = x.expand(v[1], x.result_shape()), p = bits_of(a, rank), q = bits_of(b, rank);
    const V both = op[7] == 'A' ? p * q : op[7] == 'O' ? x.node("Max", {p, q}) : abs(p - q);
    return x.node("MatMul", {both, x.ints(powers)});  // runtimes add large integers as floats, but not in products of matrices
}

// Computes in int64, if the power stays within it.
V shifted(const OnnxCall& x, bool left) {
    const OnnxValues v = operands(x, int64);
    const int width = x.result_dtype() == DType::uint8 ? 8 : x.result_dtype() == DType::int32 ? 32 : 64;
    const V out = (v[1] < 0) | (v[1] >= (width == 64 ? 63 : width)), by = where(out, 0, v[1]), power = pow(x.scalar(2, int64), by);
    if (left) {
        const V top = width == 64 ? where(v[1] == 63, v[0] * INT64_MIN, 0) : V(0);
        return where(out, width == 64 ? top : x.scalar(0, int64), v[0] * power);
    }
    return where(out, where(v[0] < 0, -1, 0), floor_divide(v[0], power));
}

V apply(const Row& row, const OnnxCall& x) {
    if (row.types == Integral) {
        if (row.onnx == std::string_view("BitShift")) return shifted(x, row.op == Elementwise::bitwise_left_shift);
        return bits(row.onnx, x);
    }
    const DType met_in = row.to_bool ? met(x) : x.result_dtype();
    const bool bool_as_is = row.to_bool && is_of_bools(row.op);
    const DType dtype = bool_as_is && met_in == bool_ ? bool_ : computed_as(met_in);
    const OnnxValues v = operands(x, dtype);
    const bool is_double = dtype == DType::float64;
    if (row.op == Elementwise::leaky_relu && !is_double) return x.node("LeakyRelu", {v[0]}, {{"alpha", x.real("negative_slope")}});
    if (row.op == Elementwise::elu && !is_double) return x.node("Elu", {v[0]}, {{"alpha", x.real("alpha")}});
    if (row.op == Elementwise::clamp || row.op == Elementwise::hardtanh) {
        const double low = x.real(row.params[0]), high = x.real(row.params[1]);
        if (low <= high) {
            const bool is_low = low > -__builtin_inf(), is_high = high < __builtin_inf();
            if (is_low && is_high) return x.node("Clip", {v[0], x.scalar(low, dtype), x.scalar(high, dtype)});
            if (is_low) return x.node("Max", {v[0], x.scalar(low, dtype)});  // a Clip with one bound would make infinity finite
            return is_high ? x.node("Min", {v[0], x.scalar(high, dtype)}) : v[0];
        }
    }
    if (row.op == Elementwise::relu6) return x.node("Clip", {v[0], x.scalar(0, dtype), x.scalar(6, dtype)});
    if (row.op == Elementwise::hardsigmoid && !is_double) return x.node("HardSigmoid", {v[0]}, {{"alpha", 1.0 / 6}, {"beta", 0.5}});
    if (row.op == Elementwise::softplus && !is_double && x.real("beta") == 1 && x.real("threshold") == 20) return x.node("Softplus", {v[0]});
    if (row.op == Elementwise::logsigmoid && !is_double) return -x.node("Softplus", {-v[0]});
    if (row.op == Elementwise::parametric_relu && is_floating(dtype) && !is_double && x.shape(0) == x.result_shape())
        return x.node("PRelu", {v[0], v[1]});
    if (row.onnx && !row.params[0] && is_alike(row.onnx, dtype)) {
        return x.node(row.onnx, row.to_bool ? bool_ : dtype, v);
    }
    double params[2] = {};
    for (int i = 0; i < 2 && row.params[i]; ++i) params[i] = x.real(row.params[i]);
    return row.expression(v, params);
}

using K = double;  // a template has its own K
#define TAPIR_ROW(name, onnx, types, to_bool, p0, p1, ...)                                                                  \
    Row{Elementwise::name, #name, onnx, types, to_bool, [](const OnnxValues& v, [[maybe_unused]] const double* p) -> V { return __VA_ARGS__; }, \
        {p0, p1}},
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_ROW(name, onnx, types, false, nullptr, nullptr, [](const V& x) -> V { return forward; }(v[0]))
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_ROW(name, onnx, types, false, #p0, nullptr, [](const V& x, double p0) -> V { return forward; }(v[0], p[0]))
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward) \
    TAPIR_ROW(name, onnx, types, false, #p0, #p1, [](const V& x, double p0, double p1) -> V { return forward; }(v[0], p[0], p[1]))
#define TAPIR_PREDICATE(name, onnx, doc, forward) TAPIR_ROW(name, onnx, Number, true, nullptr, nullptr, [](const V& x) -> V { return forward; }(v[0]))
// A template, so that the expressions for integers are not compiled.
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b)                                      \
    TAPIR_ROW(name, onnx, types, false, nullptr, nullptr, []<class K = double>(const auto& a, [[maybe_unused]] const auto& b) -> V { \
        if constexpr (types == Integral) {                                                                                           \
            return a;                                                                                                                \
        } else {                                                                                                                     \
            return forward;                                                                                                          \
        }                                                                                                                            \
    }(v[0], v[1]))
#define TAPIR_COMPARE(name, onnx, doc, forward) \
    TAPIR_ROW(name, onnx, Number, true, nullptr, nullptr, [](const V& a, const V& b) -> V { return forward; }(v[0], v[1]))
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b, backward_c) \
    TAPIR_ROW(name, onnx, types, false, nullptr, nullptr, [](const V& a, const V& b, const V& c) -> V { return forward; }(v[0], v[1], v[2]))
const Row kRows[] = {
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
};
#undef TAPIR_ROW
constexpr int kRowCount = sizeof kRows / sizeof kRows[0];

// Each row has a function of its own.
template <int I>
OnnxValues write(const OnnxCall& x) {
    return {apply(kRows[I], x)};
}
template <int... I>
auto forms(std::integer_sequence<int, I...>) {
    return new std::unordered_map<std::string_view, OnnxForm>{{kRows[I].name, OnnxForm{kRows[I].name.data(), write<I>}}...};
}

}  // namespace

const OnnxForm* elementwise_onnx(std::string_view op) {
    static const auto* all = forms(std::make_integer_sequence<int, kRowCount>());  // never freed: used until the program ends
    const auto found = all->find(op);
    return found == all->end() ? nullptr : &found->second;
}

}  // namespace tapir
