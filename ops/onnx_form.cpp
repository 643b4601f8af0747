// Writes ops as ONNX: the functions that forms write with.
#include "tapir/ops/onnx_form.h"

#include <cmath>
#include <string_view>

#include "tapir/autograd/attributes.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/view/view.h"

namespace tapir {

using std::int64_t;

SymInt numel(const OnnxSizes& shape) {
    SymInt n = 1;
    for (const SymInt& size : shape) n = n * size;
    return n;
}

// --- Lists ------------------------------------------------------------------------------------------------------------------------

namespace {
constexpr int64_t kMostElements = int64_t{1} << 26;  // of a table that the model is given
constexpr int64_t kMostSmall = 1 << 16;
}  // namespace

void detail::refuse_element(int64_t i, std::size_t size) {
    throw OnnxRefusal{fmt::format("it has {} of the dimensions, operands or numbers of which it needs number {}", size, i)};
}

std::size_t detail::onnx_count(int64_t count) {
    if (count < 0 || count > kMostElements) throw OnnxRefusal{fmt::format("it would need {} numbers", count)};
    return static_cast<std::size_t>(count);
}

// --- OnnxCall ---------------------------------------------------------------------------------------------------------------------

OnnxCall::OnnxCall(OnnxBuilder& builder, const Attributes& attributes, OnnxValues inputs, OnnxList<Info> input_infos, OnnxList<Info> results)
    : builder_(builder), attributes_(attributes), inputs_(std::move(inputs)), infos_(std::move(input_infos)), results_(std::move(results)) {}

void OnnxCall::refuse(const std::string& why) const { throw OnnxRefusal{why}; }

void OnnxCall::need_room(std::initializer_list<int64_t> sizes) {
    int64_t count = 1;
    for (const int64_t size : sizes) {
        if (size < 0 || __builtin_mul_overflow(count, size, &count) || count > kMostElements) throw OnnxRefusal{"its table would be too large"};
    }
}

const OnnxValue& OnnxCall::operator[](int64_t i) const {
    if (i < 0 || i >= count()) refuse(fmt::format("it has {} inputs, and needs number {}", count(), i));
    return inputs_[i];
}

const OnnxCall::Info& OnnxCall::input(int64_t i) const {
    (*this)[i];
    return infos_[i];
}

// The text of a graph may give any kind of number for another.
template <class T>
T OnnxCall::attribute(const char* name) const {
    const Attribute value = attributes_.get(name);
    const T* it = std::get_if<T>(&value);
    if (!it) refuse(fmt::format("{} = {} is of another kind", name, to_string(value)));
    return *it;
}

std::int64_t OnnxCall::integer(const char* name) const {
    const SymInt number = size(name);
    if (!number.is_number()) refuse(fmt::format("{} = {} depends on named dimensions", name, number.str()));
    return number.number();
}

int OnnxCall::small(const char* name) const {
    const int64_t number = integer(name);
    if (number < -kMostSmall || number > kMostSmall) refuse(fmt::format("{} = {} is out of range", name, number));
    return static_cast<int>(number);
}

static void check_moderate(const char* name, int64_t number) {
    if (number < INT32_MIN || number > INT32_MAX) throw OnnxRefusal{fmt::format("{} = {} is out of range", name, number)};
}

int64_t OnnxCall::moderate(const char* name) const {
    const int64_t number = integer(name);
    check_moderate(name, number);
    return number;
}

OnnxInts OnnxCall::integers(const char* name) const {
    OnnxInts numbers;
    for (const SymInt& number : sizes(name)) {
        if (!number.is_number()) refuse(fmt::format("{} = {} depends on named dimensions", name, number.str()));
        check_moderate(name, number.number());
        numbers.push_back(number.number());
    }
    return numbers;
}

double OnnxCall::real(const char* name) const {
    const Attribute value = attributes_.get(name);
    if (const auto* number = std::get_if<SymInt>(&value)) {
        if (!number->is_number()) refuse(fmt::format("{} = {} depends on named dimensions", name, number->str()));
        return static_cast<double>(number->number());
    }
    if (const auto* flag = std::get_if<bool>(&value)) return *flag;
    return attribute<double>(name);
}

bool OnnxCall::flag(const char* name) const { return attribute<bool>(name); }
DType OnnxCall::dtype_named(const char* name) const { return attribute<DType>(name); }
std::string OnnxCall::choice(const char* name) const { return attribute<std::string>(name); }
Scalar OnnxCall::number(const char* name) const {
    const Attribute value = attributes_.get(name);
    if (const auto* real = std::get_if<double>(&value)) return *real;
    if (const auto* flag = std::get_if<bool>(&value)) return *flag;
    return integer(name);
}
OnnxValue OnnxCall::number_as(const char* name, DType dtype) const {
    const Attribute value = attributes_.get(name);
    if (const auto* size = std::get_if<SymInt>(&value)) return size_as(*size, dtype);
    return scalar(number(name), dtype);
}
SymInt OnnxCall::size(const char* name) const { return attribute<SymInt>(name); }
OnnxSizes OnnxCall::sizes(const char* name) const { return attribute<std::vector<SymInt>>(name); }
std::shared_ptr<const Graph> OnnxCall::graph(const char* name) const {
    auto graph = attribute<std::shared_ptr<const Graph>>(name);
    if (!graph) refuse(fmt::format("its {} is missing", name));
    return graph;
}

// --- Nodes ------------------------------------------------------------------------------------------------------------------------

namespace {

Tensor scalar_tensor(Scalar number, DType dtype) {
    if (is_floating(dtype)) {  // a constant beyond the dtype is infinite, as is what the op computes with it
        const double value = number.as_double();
        return full({}, detail::fits(number, dtype) ? value : std::copysign(HUGE_VAL, value), dtype);
    }
    if (dtype == bool_) return full({}, number.as_double() != 0, dtype);
    return full({}, number.as_int64(), dtype);
}

// Returns a value that a node can take: a number becomes a constant of this dtype.
OnnxValue lowered(OnnxBuilder& builder, const OnnxValue& value, DType dtype) {
    return value.is_number() ? builder.constant(scalar_tensor(value.number(), dtype)) : value;
}

OnnxValue add_node(OnnxBuilder& builder, const char* op, DType dtype, const OnnxValues& inputs, const OnnxAttributes& attributes = {}) {
    OnnxValues given;
    for (const OnnxValue& input : inputs) {
        given.push_back(input.is_number() ? lowered(builder, input, input.builder() ? input.dtype() : dtype) : input);
    }
    return builder.add(op, given, attributes, {dtype})[0];
}

OnnxBuilder& builder_of(const OnnxValue& a, const OnnxValue& b = {}, const OnnxValue& c = {}) {
    for (const OnnxValue* value : {&a, &b, &c}) {
        if (value->builder()) return *value->builder();
    }
    fail<ValueError>(Loc::current(), "onnx: numbers alone are no values");
}

// Returns the dtype of two operands: that of the one that is not a number.
DType common(const OnnxValue& a, const OnnxValue& b) {
    if (!a.is_number()) return a.dtype();
    if (!b.is_number()) return b.dtype();
    return a.builder() ? a.dtype() : b.dtype();
}

OnnxValue binary(const char* op, const OnnxValue& a, const OnnxValue& b) {
    OnnxBuilder& builder = builder_of(a, b);
    const DType dtype = common(a, b);
    return builder.add(op, {lowered(builder, cast(a, dtype), dtype), lowered(builder, cast(b, dtype), dtype)}, {}, {dtype})[0];
}

OnnxValue comparison(const char* op, const OnnxValue& a, const OnnxValue& b) {
    OnnxBuilder& builder = builder_of(a, b);
    const DType dtype = common(a, b);
    return builder.add(op, {lowered(builder, cast(a, dtype), dtype), lowered(builder, cast(b, dtype), dtype)}, {}, {bool_})[0];
}

OnnxValue logical(const char* op, const OnnxValue& a, const OnnxValue& b) {
    OnnxBuilder& builder = builder_of(a, b);
    return builder.add(op, {lowered(builder, cast(a, bool_), bool_), lowered(builder, cast(b, bool_), bool_)}, {}, {bool_})[0];
}

OnnxValue unary(const char* op, const OnnxValue& x) {
    OnnxBuilder& builder = builder_of(x);
    return builder.add(op, {lowered(builder, x, x.dtype())}, {}, {x.dtype()})[0];
}

bool is_integer(const OnnxValue& x) { return !is_floating(x.dtype()); }

}  // namespace

OnnxValue OnnxCall::node(const char* op, const OnnxValues& inputs, const OnnxAttributes& attributes) const {
    return node(op, inputs.empty() ? result_dtype() : inputs[0].dtype(), inputs, attributes);
}

OnnxValue OnnxCall::node(const char* op, DType dtype, const OnnxValues& inputs, const OnnxAttributes& attributes) const {
    return add_node(builder_, op, dtype, inputs, attributes);
}

OnnxValues OnnxCall::nodes(const char* op, const OnnxDTypes& dtypes, const OnnxValues& inputs, const OnnxAttributes& attributes) const {
    OnnxValues given;
    for (const OnnxValue& input : inputs) given.push_back(lowered(builder_, input, input.builder() ? input.dtype() : dtypes[0]));
    return builder_.add(op, given, attributes, dtypes);
}

OnnxValue OnnxCall::scalar(Scalar number, DType dtype) const { return builder_.constant(scalar_tensor(number, dtype)); }

OnnxValue OnnxCall::ints(const OnnxInts& numbers) const { return builder_.constant(tensor(static_cast<const std::vector<int64_t>&>(numbers))); }

OnnxValue OnnxCall::sizes(const OnnxSizes& sizes) const {
    OnnxInts numbers;
    for (const SymInt& size : sizes) {
        if (size.is_number()) numbers.push_back(size.number());
    }
    if (numbers.size() == sizes.size()) return ints(numbers);
    OnnxValues parts;
    for (int i = 0; i < sizes.count();) {  // numbers in a row become one constant
        numbers.clear();
        for (; i < sizes.count() && sizes[i].is_number(); ++i) numbers.push_back(sizes[i].number());
        if (!numbers.empty()) parts.push_back(ints(numbers));
        if (i < sizes.count()) parts.push_back(size_1d(sizes[i++]));
    }
    return parts.size() == 1 ? parts[0] : concat(parts, 0);
}

OnnxValue OnnxCall::size_0d(const SymInt& size) const { return size.is_number() ? scalar(size.number(), int64) : squeeze(size_1d(size), {0}); }

OnnxValue OnnxCall::size_as(const SymInt& size, DType dtype) const {
    return size.is_number() ? scalar(size.number(), dtype) : cast(size_0d(size), dtype);
}

OnnxValue OnnxCall::cast(const OnnxValue& x, DType dtype) const { return tapir::cast(x, dtype); }

OnnxValue OnnxCall::reshape(const OnnxValue& x, const OnnxSizes& shape) const {
    int unknown = 0, zeros = 0;
    for (const SymInt& size : shape) {
        unknown += !size.is_number();
        zeros += size == SymInt(0);
    }
    if (unknown == 1 && zeros == 0) {  // one size is computed from the others
        OnnxInts numbers;
        for (const SymInt& size : shape) numbers.push_back(size.is_number() ? size.number() : -1);
        return node("Reshape", x.dtype(), {x, ints(numbers)});
    }
    const OnnxAttributes attributes = unknown + zeros > 0 ? OnnxAttributes{{"allowzero", 1}} : OnnxAttributes{};
    return node("Reshape", x.dtype(), {x, sizes(shape)}, attributes);
}

OnnxValue OnnxCall::reshape_to(const OnnxValue& x, const OnnxValue& shape) const { return node("Reshape", x.dtype(), {x, shape}); }
OnnxValue OnnxCall::expand(const OnnxValue& x, const OnnxSizes& shape) const { return node("Expand", x.dtype(), {x, sizes(shape)}); }
OnnxValue OnnxCall::permute(const OnnxValue& x, const OnnxInts& dims) const {
    for (int d = 0; d < dims.count(); ++d) {
        if (dims[d] != static_cast<int64_t>(d)) return node("Transpose", x.dtype(), {x}, {{"perm", dims}});
    }
    return x;
}

OnnxValue OnnxCall::matrix_transpose(const OnnxValue& x, int rank) const {
    if (rank < 2) refuse("of what is no matrix");
    OnnxInts dims;
    for (int d = 0; d < rank; ++d) dims.push_back(d < rank - 2 ? d : 2 * rank - 3 - d);
    return permute(x, dims);
}

OnnxValue OnnxCall::unsqueeze(const OnnxValue& x, const OnnxInts& dims) const {
    return dims.empty() ? x : node("Unsqueeze", x.dtype(), {x, ints(dims)});
}
OnnxValue OnnxCall::squeeze(const OnnxValue& x, const OnnxInts& dims) const { return dims.empty() ? x : node("Squeeze", x.dtype(), {x, ints(dims)}); }

OnnxValue OnnxCall::slice(const OnnxValue& x, int dim, const SymInt& start, const SymInt& end, int64_t step) const {
    return node("Slice", x.dtype(), {x, sizes({start}), sizes({end}), ints({dim}), ints({step})});
}

OnnxValue OnnxCall::gather(const OnnxValue& x, const OnnxValue& indices, int dim) const {
    return node("Gather", x.dtype(), {x, indices.is_number() ? scalar(indices.number(), int64) : indices}, {{"axis", dim}});
}

OnnxValue OnnxCall::concat(const OnnxValues& x, int dim) const {
    if (x.empty()) refuse("it joins nothing");
    return node("Concat", x[0].dtype(), x, {{"axis", dim}});
}

OnnxValue OnnxCall::reduce(const char* op, const OnnxValue& x, const OnnxInts& dims, bool keepdim) const {
    const std::string_view name = op;
    const bool is_double = x.dtype() == DType::float64;  // onnxruntime does not have all norms for it
    if (name == "ReduceL1" && (is_double || dims.empty())) return reduce("ReduceSum", abs(x), dims, keepdim);
    if (name == "ReduceL2" && dims.empty()) return abs(x);
    if (name == "ReduceL2" && is_double) return sqrt(reduce("ReduceSumSquare", x, dims, keepdim));
    if (dims.empty()) return x;  // a 0-d tensor
    const bool is_operand = opset() >= 18 || name == "ReduceSum";
    if (is_operand) return node(op, x.dtype(), {x, ints(dims)}, {{"keepdims", keepdim}});
    return node(op, x.dtype(), {x}, {{"axes", dims}, {"keepdims", keepdim}});
}

OnnxValue OnnxCall::reduce_all(const char* op, const OnnxValue& x, int rank) const {
    OnnxInts dims;
    for (int d = 0; d < rank; ++d) dims.push_back(d);
    return reduce(op, x, dims, false);
}

OnnxValue OnnxCall::extreme(bool largest, const OnnxValue& x, const OnnxInts& dims, bool keepdim) const {
    const OnnxValue found = reduce(largest ? "ReduceMax" : "ReduceMin", x, dims, keepdim);
    if (!is_floating(x.dtype()) || dims.empty()) return found;
    return where(reduce("ReduceMax", cast(is_nan(x), DType::int32), dims, keepdim) > 0, NAN, found);
}

OnnxValue OnnxCall::end_of(DType dtype, bool highest) const {
    if (is_floating(dtype)) return scalar(highest ? INFINITY : -INFINITY, dtype);
    if (dtype == DType::int32) return scalar(highest ? INT32_MAX : INT32_MIN, dtype);
    return scalar(highest ? INT64_MAX : INT64_MIN, dtype);
}

OnnxValue OnnxCall::shape_of(const OnnxValue& x) const { return node("Shape", int64, {x}); }
OnnxValue OnnxCall::range(const SymInt& count) const { return node("Range", int64, {scalar(0, int64), size_0d(count), scalar(1, int64)}); }

OnnxValue OnnxCall::filled(const OnnxSizes& shape, Scalar number, DType dtype) const {
    return node("Expand", dtype, {scalar(number, dtype), sizes(shape)});
}

OnnxValue OnnxCall::where(const OnnxValue& condition, const OnnxValue& a, const OnnxValue& b) const { return tapir::where(condition, a, b); }

// --- Values as numbers ------------------------------------------------------------------------------------------------------------

OnnxValue cast(const OnnxValue& a, DType dtype) {
    if (a.is_number()) return a.builder() ? OnnxValue(*a.builder(), a.number(), dtype) : a;
    if (a.dtype() == dtype || a.is_left_out()) return a;
    return builder_of(a).add("Cast", {a}, {{"to", static_cast<int64_t>(dtype)}}, {dtype})[0];  // the builder knows ONNX's number
}

OnnxValue operator+(const OnnxValue& a, const OnnxValue& b) { return binary("Add", a, b); }
OnnxValue operator-(const OnnxValue& a, const OnnxValue& b) { return binary("Sub", a, b); }
OnnxValue operator*(const OnnxValue& a, const OnnxValue& b) { return binary("Mul", a, b); }
OnnxValue operator/(const OnnxValue& a, const OnnxValue& b) { return binary("Div", a, b); }
OnnxValue operator-(const OnnxValue& a) { return unary("Neg", a); }
OnnxValue operator<(const OnnxValue& a, const OnnxValue& b) { return comparison("Less", a, b); }
OnnxValue operator<=(const OnnxValue& a, const OnnxValue& b) { return comparison("LessOrEqual", a, b); }
OnnxValue operator>(const OnnxValue& a, const OnnxValue& b) { return comparison("Greater", a, b); }
OnnxValue operator>=(const OnnxValue& a, const OnnxValue& b) { return comparison("GreaterOrEqual", a, b); }
OnnxValue operator==(const OnnxValue& a, const OnnxValue& b) { return comparison("Equal", a, b); }
OnnxValue operator!=(const OnnxValue& a, const OnnxValue& b) {
    if (!a.is_number() && a.dtype() == bool_ && b.is_number() && b.number().as_double() == 0) return a;
    return !(a == b);
}
OnnxValue operator&(const OnnxValue& a, const OnnxValue& b) { return logical("And", a, b); }
OnnxValue operator|(const OnnxValue& a, const OnnxValue& b) { return logical("Or", a, b); }
OnnxValue operator^(const OnnxValue& a, const OnnxValue& b) { return logical("Xor", a, b); }
OnnxValue operator!(const OnnxValue& a) { return unary("Not", cast(a, bool_)); }

OnnxValue where(const OnnxValue& condition, const OnnxValue& a, const OnnxValue& b) {
    OnnxBuilder& builder = builder_of(condition, a, b);
    const DType dtype = a.is_number() && b.is_number() && !a.builder() && !b.builder() ? builder.number_dtype : common(a, b);
    if (dtype == bool_) return (condition & a) | ((!condition) & b);  // runtimes have no Where of bool
    return builder.add(
        "Where", {lowered(builder, cast(condition, bool_), bool_), lowered(builder, cast(a, dtype), dtype), lowered(builder, cast(b, dtype), dtype)},
        {}, {dtype})[0];
}

OnnxValue abs(const OnnxValue& x) { return unary("Abs", x); }
OnnxValue sign(const OnnxValue& x) { return unary("Sign", x); }
OnnxValue square(const OnnxValue& x) { return x * x; }
OnnxValue sqrt(const OnnxValue& x) { return unary("Sqrt", x); }
OnnxValue rsqrt(const OnnxValue& x) { return unary("Reciprocal", sqrt(x)); }
OnnxValue floor(const OnnxValue& x) { return is_integer(x) ? x : unary("Floor", x); }
OnnxValue ceil(const OnnxValue& x) { return is_integer(x) ? x : unary("Ceil", x); }
OnnxValue round(const OnnxValue& x) { return is_integer(x) ? x : unary("Round", x); }
OnnxValue trunc(const OnnxValue& x) { return is_integer(x) ? x : where(x < 0, ceil(x), floor(x)); }
OnnxValue exp(const OnnxValue& x) { return unary("Exp", x); }
OnnxValue exp2(const OnnxValue& x) { return pow(2, x); }
OnnxValue log(const OnnxValue& x) { return unary("Log", x); }
OnnxValue log2(const OnnxValue& x) { return log(x) / 0.69314718055994530942; }
OnnxValue log10(const OnnxValue& x) { return log(x) / 2.30258509299404568402; }
// Exact near 0, after W. Kahan: u has the same error as its logarithm.
OnnxValue expm1(const OnnxValue& x) {
    const OnnxValue u = exp(x), near = where(u == 1, x, (u - 1) * x / log(u));
    return where(abs(x) < 1, near, u - 1);
}
OnnxValue log1p(const OnnxValue& x) {
    const OnnxValue u = x + 1, near = where(u == 1, x, log(u) * x / (u - 1));
    return where(abs(x) < 1, near, log(u));
}
OnnxValue sin(const OnnxValue& x) { return unary("Sin", x); }
// onnxruntime has these only for float32.
OnnxValue cos(const OnnxValue& x) {
    if (x.dtype() != DType::float64) return unary("Cos", x);
    const OnnxValue half = sin(x * 0.5);  // x / 2 is exact, as x + pi / 2 is not
    return 1 - half * half * 2;
}
OnnxValue tan(const OnnxValue& x) { return x.dtype() == DType::float64 ? sin(x) / cos(x) : unary("Tan", x); }
OnnxValue asin(const OnnxValue& x) { return unary("Asin", x); }
OnnxValue acos(const OnnxValue& x) { return unary("Acos", x); }
OnnxValue atan(const OnnxValue& x) { return unary("Atan", x); }
OnnxValue sinh(const OnnxValue& x) {
    if (x.dtype() != DType::float64) return unary("Sinh", x);
    const OnnxValue away = abs(x), u = expm1(where(away < 20, away, 0)), root = exp(away * 0.5);
    const OnnxValue y = where(away < 20, (u + u / (u + 1)) * 0.5, root * 0.5 * root);
    return where(x < 0, -y, y);
}
OnnxValue cosh(const OnnxValue& x) {
    if (x.dtype() != DType::float64) return unary("Cosh", x);
    const OnnxValue root = exp(abs(x) * 0.5);
    return root * 0.5 * root + 0.5 / root / root;
}
OnnxValue tanh(const OnnxValue& x) { return unary("Tanh", x); }
OnnxValue asinh(const OnnxValue& x) {
    if (x.dtype() != DType::float64) return unary("Asinh", x);
    const OnnxValue away = abs(x), a = where(away < 1e8, away, 0);
    const OnnxValue y = where(away < 1e8, log1p(a + a * a / (sqrt(a * a + 1) + 1)), log(away) + 0.69314718055994530942);
    return where(x < 0, -y, y);
}
OnnxValue acosh(const OnnxValue& x) {
    if (x.dtype() != DType::float64) return unary("Acosh", x);
    const OnnxValue beyond = where(x < 1e8, x, 1) - 1;
    return where(x < 1e8, log1p(beyond + sqrt(beyond) * sqrt(beyond + 2)), log(x) + 0.69314718055994530942);
}
OnnxValue atanh(const OnnxValue& x) { return x.dtype() == DType::float64 ? log1p(2 * x / (1 - x)) * 0.5 : unary("Atanh", x); }
OnnxValue erf(const OnnxValue& x) { return unary("Erf", x); }
OnnxValue erfc(const OnnxValue& x) { return 1 - erf(x); }
OnnxValue sigmoid(const OnnxValue& x) { return unary("Sigmoid", x); }
OnnxValue softplus(const OnnxValue& x) { return where(x > 20, x, log1p(exp(x))); }

// S. Winitzki's approximation, refined by Newton's method.
OnnxValue erfinv(const OnnxValue& x) {
    constexpr double a = 0.147, pi = 3.14159265358979323846;
    const OnnxValue l = log(1 - x * x), h = l * 0.5 + 2 / (pi * a);
    OnnxValue y = sign(x) * sqrt(sqrt(h * h - l / a) - h);
    for (int i = 0; i < 3; ++i) y = y - (erf(y) - x) * exp(y * y) * (std::sqrt(pi) / 2);
    return where(abs(x) == 1, x * INFINITY, y);
}

namespace {

// Return log(gamma(z)) and its derivative for z >= 8, by their asymptotic series.
OnnxValue stirling(const OnnxValue& z) {
    const OnnxValue r = 1 / z, r2 = r * r;
    const OnnxValue series = r * (r2 * (r2 * (r2 * (-1.0 / 1680) + 1.0 / 1260) - 1.0 / 360) + 1.0 / 12);
    return (z - 0.5) * (log(z) - 1) + (0.91893853320467274178 - 0.5) + series;
}
OnnxValue stirling_slope(const OnnxValue& z) {
    const OnnxValue r = 1 / z, r2 = r * r;
    return log(z) - r * 0.5 - r2 * (r2 * (r2 * (r2 * (-1.0 / 240) + 1.0 / 252) - 1.0 / 120) + 1.0 / 12);
}
constexpr double kPi = 3.14159265358979323846;

}  // namespace

OnnxValue lgamma(const OnnxValue& x) {
    const OnnxValue is_left = x < 0, z = where(is_left, 1 - x, x);  // reflected
    const OnnxValue is_small = z < 8, small = where(is_small, z, 1);
    OnnxValue product = small;
    for (int k = 1; k < 8; ++k) product = product * (small + k);
    const OnnxValue y = stirling(where(is_small, z + 8, z)) - where(is_small, log(product), 0);
    const OnnxValue is_pole = is_infinite(x) | ((x <= 0) & (x == floor(x)));
    return where(is_pole, INFINITY, where(is_left, std::log(kPi) - log(abs(sin((x - floor(x)) * kPi))) - y, y));
}

OnnxValue digamma(const OnnxValue& x) {
    const OnnxValue is_left = x <= 0, z = where(is_left, 1 - x, x);
    const OnnxValue is_small = z < 8, small = where(is_small, z, 1);
    OnnxValue sum = 1 / small;
    for (int k = 1; k < 8; ++k) sum = sum + 1 / (small + k);
    const OnnxValue y = stirling_slope(where(is_small, z + 8, z)) - where(is_small, sum, 0);
    const OnnxValue reflected = y - kPi / tan((x - floor(x)) * kPi);
    const OnnxValue at_whole = where(x == 0, -1 / x, NAN);
    return where(is_left, where(x == floor(x), at_whole, reflected), y);
}

// Returns (-1)^(n+1) n! times the sum of (x + k)^-(n+1), by the first terms and Euler-Maclaurin's formula for the others. x > 0.
OnnxValue polygamma(const OnnxValue& x, double n) {
    if (n == 0) return digamma(x);
    if (n < 0 || n != std::floor(n)) return x * NAN;
    const double s = n + 1;
    constexpr int terms = 8;
    OnnxValue sum = pow(x, -s);
    for (int k = 1; k < terms; ++k) sum = sum + pow(x + k, -s);
    const OnnxValue z = x + terms;
    sum = sum + pow(z, 1 - s) / (s - 1) + pow(z, -s) * 0.5;
    const double bernoulli[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66};
    double factor = s, factorial = 2;
    for (int k = 0; k < 5; ++k) {  // B(2k) / (2k)! * s (s+1) ... (s + 2k - 2) * z^-(s + 2k - 1)
        sum = sum + pow(z, -(s + 2 * k + 1)) * (bernoulli[k] / factorial * factor);
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2);
        factorial *= (2 * k + 3) * (2 * k + 4);
    }
    const OnnxValue y = sum * (std::fmod(n, 2) == 1 ? std::tgamma(s) : -std::tgamma(s));
    return where((x <= 0) & (x == floor(x)), std::fmod(n, 2) == 1 ? INFINITY : NAN, y);
}

OnnxValue is_nan(const OnnxValue& x) {
    if (is_integer(x)) return x != x;
    return builder_of(x).add("IsNaN", {lowered(builder_of(x), x, x.dtype())}, {}, {bool_})[0];
}
OnnxValue is_infinite(const OnnxValue& x) {
    if (is_integer(x)) return x != x;
    return builder_of(x).add("IsInf", {lowered(builder_of(x), x, x.dtype())}, {}, {bool_})[0];
}
OnnxValue is_finite(const OnnxValue& x) { return is_integer(x) ? x == x : abs(x) < INFINITY; }

OnnxValue pow(const OnnxValue& a, const OnnxValue& b) { return binary("Pow", a, b); }

namespace {
OnnxValue is_negative(const OnnxValue& x) { return where(x == 0, 1 / x, x) < 0; }  // -0 too
}  // namespace

OnnxValue atan2(const OnnxValue& a, const OnnxValue& b) {
    const OnnxValue up = abs(a), across = abs(b);
    const OnnxValue angle = where(up == across, where(up == 0, 0, kPi / 4), atan(up / across));
    const OnnxValue turned = where(is_negative(b), kPi - angle, angle);
    return where(is_negative(a), -turned, turned);
}
OnnxValue hypot(const OnnxValue& a, const OnnxValue& b) {
    const OnnxValue p = abs(a), q = abs(b), is_q = (p < q) | (q != q), larger = where(is_q, q, p), smaller = where(is_q, p, q);
    const OnnxValue ratio = where(larger == 0, 0, smaller / larger);
    return where(is_infinite(p) | is_infinite(q), INFINITY, larger * sqrt(ratio * ratio + 1));
}
OnnxValue copysign(const OnnxValue& a, const OnnxValue& b) { return where(is_negative(b), -abs(a), abs(a)); }
OnnxValue fmod(const OnnxValue& a, const OnnxValue& b) {
    OnnxBuilder& builder = builder_of(a, b);
    const DType dtype = common(a, b);
    return builder.add("Mod", {lowered(builder, a, dtype), lowered(builder, b, dtype)}, {{"fmod", 1}}, {dtype})[0];
}
OnnxValue remainder(const OnnxValue& a, const OnnxValue& b) {
    const DType dtype = common(a, b);
    if (!is_floating(dtype)) return binary("Mod", a, b);
    const OnnxValue r = fmod(a, b);
    return where((r != 0) & ((r < 0) ^ (b < 0)), r + b, r);
}
OnnxValue floor_divide(const OnnxValue& a, const OnnxValue& b) {
    if (!is_floating(common(a, b))) {  // where the two remainders differ, Div, which rounds towards 0, is 1 above the floor
        const OnnxValue whole = a / b;
        return where(fmod(a, b) == remainder(a, b), whole, whole - 1);
    }
    const OnnxValue rest = fmod(a, b), whole = (a - rest) / b;
    return where(b == 0, a / b, round(where((rest != 0) & ((rest < 0) ^ (b < 0)), whole - 1, whole)));
}

}  // namespace tapir
