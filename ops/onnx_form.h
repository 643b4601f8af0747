// OnnxForm: how an op is written as ONNX. Each op states it beside its row and its form, in one line or by a function:
//
//     TAPIR_ONNX(softmax, x.node("Softmax", {x[0]}, {{"axis", x.integer("dim")}}));
//
// x is the call that is being written (OnnxCall): its operands, its attributes by their names, and functions that make nodes. Values can
// be used as numbers are: `x[0] * 0.5 + 1.0` makes Mul and Add. Element-wise ops need no line: they are written as the operator
// that their row names, or from the expression of their row (ops/elementwise_onnx.cpp).
//
// This file does not use protobuf; autograd/trace/onnx implements OnnxBuilder.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapir/autograd/sym_int.h"
#include "tapir/core/tensor.h"

namespace tapir {

class Attributes;
class Graph;
class OnnxBuilder;

/// "cannot": thrown by a form, and gathered by save_onnx(): its words go behind the op and its line.
struct OnnxRefusal {
    std::string why;
};

namespace detail {
/// Throws OnnxRefusal: "it has 1 of the dimensions, operands or numbers of which it needs number 2".
[[noreturn]] void refuse_element(std::int64_t i, std::size_t size);
/// Throws OnnxRefusal if no list can have so many elements.
std::size_t onnx_count(std::int64_t count);
}  // namespace detail

/// A list that refuses to return an element that it does not have: graphs may come from anywhere, and say that a matrix is a vector. All lists
/// of forms have this type, so that no form has to check itself.
template <class T>
class OnnxList {
 public:
    OnnxList() = default;
    OnnxList(std::initializer_list<T> list) : list_(list) {}
    OnnxList(std::vector<T> list) : list_(std::move(list)) {}  // NOLINT: implicit by design
    /// Makes a list of `count` times this value.
    static OnnxList of(std::int64_t count, const T& value) { return OnnxList(std::vector<T>(detail::onnx_count(count), value)); }

    std::size_t size() const noexcept { return list_.size(); }
    int count() const noexcept { return static_cast<int>(list_.size()); }
    bool empty() const noexcept { return list_.empty(); }
    const T& operator[](std::int64_t i) const { return list_[checked(i)]; }
    T& operator[](std::int64_t i) { return list_[checked(i)]; }
    /// Returns element -n: the n-th from the end.
    const T& last(std::int64_t n = 1) const { return (*this)[count() - n]; }
    T& last(std::int64_t n = 1) { return (*this)[count() - n]; }
    /// Return the first n elements, all but the last n, and those after the first n.
    OnnxList first(std::int64_t n) const {
        if (n < 0 || n > count()) detail::refuse_element(n, list_.size());
        return std::vector<T>(list_.begin(), list_.begin() + n);
    }
    OnnxList without_last(std::int64_t n) const { return first(count() - n); }
    OnnxList after(std::int64_t n) const {
        if (n < 0 || n > count()) detail::refuse_element(n, list_.size());
        return std::vector<T>(list_.begin() + n, list_.end());
    }

    void push_back(T value) { list_.push_back(std::move(value)); }
    template <class... Args>
    void emplace_back(Args&&... args) {
        list_.emplace_back(std::forward<Args>(args)...);
    }
    void append(const OnnxList& more) { list_.insert(list_.end(), more.begin(), more.end()); }
    void clear() noexcept { list_.clear(); }

    auto begin() noexcept { return list_.begin(); }
    auto end() noexcept { return list_.end(); }
    auto begin() const noexcept { return list_.begin(); }
    auto end() const noexcept { return list_.end(); }
    operator const std::vector<T>&() const noexcept { return list_; }  // NOLINT: implicit by design
    friend bool operator==(const OnnxList& a, const OnnxList& b) { return a.list_ == b.list_; }

 private:
    std::size_t checked(std::int64_t i) const {
        if (i < 0 || i >= count()) detail::refuse_element(i, list_.size());
        return static_cast<std::size_t>(i);
    }

    std::vector<T> list_;
};
using OnnxInts = OnnxList<std::int64_t>;
using OnnxSizes = OnnxList<SymInt>;
using OnnxDTypes = OnnxList<DType>;

/// A value of the ONNX graph that is being written: its name and dtype; or a number, which takes the dtype of its other operand.
class OnnxValue {
 public:
    /// An optional operand that is left out.
    OnnxValue() = default;
    OnnxValue(double number) : number_(number), is_number_(true) {}        // NOLINT: implicit by design
    OnnxValue(int number) : number_(number), is_number_(true) {}           // NOLINT
    OnnxValue(std::int64_t number) : number_(number), is_number_(true) {}  // NOLINT
    OnnxValue(OnnxBuilder& builder, std::string name, DType dtype) : builder_(&builder), name_(std::move(name)), dtype_(dtype) {}
    /// A 0-d constant of the graph.
    OnnxValue(OnnxBuilder& builder, Scalar number, DType dtype) : builder_(&builder), dtype_(dtype), number_(number), is_number_(true) {}

    bool is_left_out() const noexcept { return !is_number_ && name_.empty(); }
    bool is_number() const noexcept { return is_number_; }
    Scalar number() const noexcept { return number_; }
    const std::string& name() const noexcept { return name_; }
    DType dtype() const noexcept { return dtype_; }
    /// Null for a plain number.
    OnnxBuilder* builder() const noexcept { return builder_; }

 private:
    OnnxBuilder* builder_ = nullptr;
    std::string name_;
    DType dtype_ = DType::float32;
    Scalar number_ = 0.0;
    bool is_number_ = false;
};

using OnnxValues = OnnxList<OnnxValue>;

/// An attribute of an ONNX operator.
struct OnnxAttribute {
    enum class Kind : std::uint8_t { integer, real, text, integers, reals, graph };

    OnnxAttribute(const char* key, int value) : name(key), kind(Kind::integer), integer(value) {}
    OnnxAttribute(const char* key, bool value) : name(key), kind(Kind::integer), integer(value) {}
    OnnxAttribute(const char* key, std::int64_t value) : name(key), kind(Kind::integer), integer(value) {}
    OnnxAttribute(const char* key, double value) : name(key), kind(Kind::real), real(value) {}
    OnnxAttribute(const char* key, const char* value) : name(key), kind(Kind::text), text(value) {}
    OnnxAttribute(const char* key, OnnxInts value) : name(key), kind(Kind::integers), integers(std::move(value)) {}
    OnnxAttribute(const char* key, std::vector<double> value) : name(key), kind(Kind::reals), reals(std::move(value)) {}
    /// A subgraph: a number that OnnxBuilder::end_graph() gave.
    static OnnxAttribute graph(const char* key, int number) {
        OnnxAttribute attribute(key, number);
        attribute.kind = Kind::graph;
        return attribute;
    }

    const char* name;
    Kind kind;
    std::int64_t integer = 0;
    double real = 0;
    std::string text;
    OnnxInts integers;
    std::vector<double> reals;
};
using OnnxAttributes = std::vector<OnnxAttribute>;

/// Returns the number of elements of a tensor of this shape.
SymInt numel(const OnnxSizes& shape);

/// Makes the nodes of an ONNX graph.
class OnnxBuilder {
 public:
    virtual ~OnnxBuilder() = default;

    virtual int opset() const noexcept = 0;
    /// The dtype of a choice between numbers.
    DType number_dtype = DType::float32;
    /// The beginning of the next node's name; null: the operator's name.
    const char* next_name = nullptr;
    /// Adds a node; the dtypes are those of its results. Operands that are numbers must have been given a dtype.
    virtual OnnxValues add(const char* op, const OnnxValues& inputs, const OnnxAttributes& attributes, const OnnxDTypes& dtypes) = 0;
    /// Adds a constant.
    virtual OnnxValue constant(const Tensor& data) = 0;
    /// Says that shapes in the part being written depend on data: the model does not state them.
    virtual void note_data_dependent() = 0;
    /// Returns a size as an int64 tensor of shape (1,), computed from the shapes of the graph's inputs if it depends on named dimensions.
    virtual OnnxValue size(const SymInt& size) = 0;

    // Subgraphs: nodes made between begin_graph() and end_graph() are in them; they can use values from outside by their names.
    virtual void begin_graph() = 0;
    /// Adds an input of the subgraph. shape: null if it is not known. given: its first value, or a value that it is a slice of: if the shape
    /// of that depends on data, so does this one's.
    virtual OnnxValue graph_input(DType dtype, const std::vector<SymInt>* shape, const OnnxValue& given) = 0;
    OnnxValue graph_input(DType dtype, const std::vector<SymInt>* shape) { return graph_input(dtype, shape, {}); }
    /// Returns its number for OnnxAttribute::graph.
    virtual int end_graph(const OnnxValues& outputs) = 0;
    /// Writes the nodes of a graph whose inputs are these; returns its outputs.
    virtual OnnxValues write(const Graph& graph, const OnnxValues& inputs) = 0;
};

/// One call of an op, being written.
class OnnxCall {
 public:
    struct Info {
        DType dtype;
        OnnxSizes shape;
    };

    OnnxCall(OnnxBuilder& builder, const Attributes& attributes, OnnxValues inputs, OnnxList<Info> input_infos, OnnxList<Info> results);

    // --- Operands and results ---------------------------------------------------------------------------------------------------

    int count() const noexcept { return inputs_.count(); }
    /// Refuses if there is none.
    const OnnxValue& operator[](std::int64_t i) const;
    DType dtype(std::int64_t i = 0) const { return input(i).dtype; }
    const OnnxSizes& shape(std::int64_t i = 0) const { return input(i).shape; }
    int rank(std::int64_t i = 0) const { return shape(i).count(); }
    int result_count() const noexcept { return results_.count(); }
    DType result_dtype(std::int64_t i = 0) const { return results_[i].dtype; }
    const OnnxSizes& result_shape(std::int64_t i = 0) const { return results_[i].shape; }
    /// Returns operands i and later.
    OnnxValues from(std::int64_t i) const { return inputs_.after(i); }
    /// Returns an operand in the dtype of the result; a number too.
    OnnxValue as_result(std::int64_t i) const { return cast((*this)[i], result_dtype()); }

    // --- Attributes: as the op's form names them --------------------------------------------------------------------------------

    /// Refuses one that depends on named dimensions.
    std::int64_t integer(const char* name) const;
    /// Returns one about as small as a number of dimensions or operands; refuses others.
    int small(const char* name) const;
    /// Returns one of 32 bits, so that products fit into 64; refuses others.
    std::int64_t moderate(const char* name) const;
    /// Returns such numbers.
    OnnxInts integers(const char* name) const;
    double real(const char* name) const;
    bool flag(const char* name) const;
    DType dtype_named(const char* name) const;
    std::string choice(const char* name) const;
    /// Returns a number of any kind.
    Scalar number(const char* name) const;
    /// Returns it as a 0-d tensor of this dtype; it may depend on named dimensions.
    OnnxValue number_as(const char* name, DType dtype) const;
    SymInt size(const char* name) const;
    OnnxSizes sizes(const char* name) const;
    std::shared_ptr<const Graph> graph(const char* name) const;

    // --- Making values ----------------------------------------------------------------------------------------------------------

    OnnxBuilder& builder() const noexcept { return builder_; }
    int opset() const noexcept { return builder_.opset(); }
    /// Makes one result, of the dtype of the first operand, or of this one.
    OnnxValue node(const char* op, const OnnxValues& inputs, const OnnxAttributes& attributes = {}) const;
    OnnxValue node(const char* op, DType dtype, const OnnxValues& inputs, const OnnxAttributes& attributes = {}) const;
    OnnxValues nodes(const char* op, const OnnxDTypes& dtypes, const OnnxValues& inputs, const OnnxAttributes& attributes = {}) const;
    /// Makes a number a 0-d tensor.
    OnnxValue scalar(Scalar number, DType dtype) const;
    OnnxValue constant(const Tensor& data) const { return builder_.constant(data); }
    /// Makes an int64 tensor, 1-d.
    OnnxValue ints(const OnnxInts& numbers) const;
    OnnxValue sizes(const OnnxSizes& sizes) const;
    /// Returns a size as an int64 tensor of shape (1,), or 0-d, or as a 0-d tensor of a dtype.
    OnnxValue size_1d(const SymInt& size) const { return builder_.size(size); }
    OnnxValue size_0d(const SymInt& size) const;
    OnnxValue size_as(const SymInt& size, DType dtype) const;

    OnnxValue cast(const OnnxValue& x, DType dtype) const;
    OnnxValue reshape(const OnnxValue& x, const OnnxSizes& shape) const;
    OnnxValue reshape_to(const OnnxValue& x, const OnnxValue& shape) const;
    OnnxValue expand(const OnnxValue& x, const OnnxSizes& shape) const;
    OnnxValue permute(const OnnxValue& x, const OnnxInts& dims) const;
    /// Transposes the last two dimensions of a value of this rank.
    OnnxValue matrix_transpose(const OnnxValue& x, int rank) const;
    OnnxValue unsqueeze(const OnnxValue& x, const OnnxInts& dims) const;
    OnnxValue squeeze(const OnnxValue& x, const OnnxInts& dims) const;
    /// Takes start, end and step as Python's; kEnd: to the end.
    static constexpr std::int64_t kEnd = INT64_MAX;
    OnnxValue slice(const OnnxValue& x, int dim, const SymInt& start, const SymInt& end, std::int64_t step = 1) const;
    OnnxValue gather(const OnnxValue& x, const OnnxValue& indices, int dim) const;
    OnnxValue concat(const OnnxValues& x, int dim) const;
    /// Applies "ReduceSum", ... over these dimensions.
    OnnxValue reduce(const char* op, const OnnxValue& x, const OnnxInts& dims, bool keepdim) const;
    /// Returns the largest or smallest over these dimensions; nan if an element is nan, which runtimes may leave out.
    OnnxValue extreme(bool largest, const OnnxValue& x, const OnnxInts& dims, bool keepdim) const;
    /// Returns the highest or lowest number of a dtype, as a 0-d tensor: infinity for floats.
    OnnxValue end_of(DType dtype, bool highest) const;
    OnnxValue shape_of(const OnnxValue& x) const;
    /// Reduces over all dimensions.
    OnnxValue reduce_all(const char* op, const OnnxValue& x, int rank) const;
    /// Returns 0, 1, ... : int64.
    OnnxValue range(const SymInt& count) const;
    /// Returns a tensor of this shape, filled with one number.
    OnnxValue filled(const OnnxSizes& shape, Scalar number, DType dtype) const;
    OnnxValue where(const OnnxValue& condition, const OnnxValue& a, const OnnxValue& b) const;

    /// Checks the room for a table of so many elements in the model: refuses negative numbers, and more than 2^26 elements.
    static void need_room(std::initializer_list<std::int64_t> sizes);

    /// "cannot": why ONNX has no form for the op in this case; the graph is refused with the op's line and these words.
    [[noreturn]] void refuse(const std::string& why) const;

 private:
    const Info& input(std::int64_t i) const;
    template <class T>
    T attribute(const char* name) const;

    OnnxBuilder& builder_;
    const Attributes& attributes_;
    OnnxValues inputs_;
    OnnxList<Info> infos_, results_;
};

struct OnnxForm {
    const char* op;
    OnnxValues (*write)(const OnnxCall& x);
};

/// Returns how this op is written, or null.
const OnnxForm* find_onnx(const char* op);

// --- Values as numbers ------------------------------------------------------------------------------------------------------------

OnnxValue operator+(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator-(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator*(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator/(const OnnxValue& a, const OnnxValue& b);  // of integers: as ONNX's Div
OnnxValue operator-(const OnnxValue& a);
OnnxValue operator<(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator<=(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator>(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator>=(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator==(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator!=(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator&(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator|(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator^(const OnnxValue& a, const OnnxValue& b);
OnnxValue operator!(const OnnxValue& a);
OnnxValue where(const OnnxValue& condition, const OnnxValue& a, const OnnxValue& b);
OnnxValue cast(const OnnxValue& a, DType dtype);

OnnxValue abs(const OnnxValue& x);
OnnxValue sign(const OnnxValue& x);
OnnxValue square(const OnnxValue& x);
OnnxValue sqrt(const OnnxValue& x);
OnnxValue rsqrt(const OnnxValue& x);
OnnxValue floor(const OnnxValue& x);
OnnxValue ceil(const OnnxValue& x);
OnnxValue round(const OnnxValue& x);
OnnxValue trunc(const OnnxValue& x);
OnnxValue exp(const OnnxValue& x);
OnnxValue exp2(const OnnxValue& x);
OnnxValue expm1(const OnnxValue& x);
OnnxValue log(const OnnxValue& x);
OnnxValue log2(const OnnxValue& x);
OnnxValue log10(const OnnxValue& x);
OnnxValue log1p(const OnnxValue& x);
OnnxValue sin(const OnnxValue& x);
OnnxValue cos(const OnnxValue& x);
OnnxValue tan(const OnnxValue& x);
OnnxValue asin(const OnnxValue& x);
OnnxValue acos(const OnnxValue& x);
OnnxValue atan(const OnnxValue& x);
OnnxValue sinh(const OnnxValue& x);
OnnxValue cosh(const OnnxValue& x);
OnnxValue tanh(const OnnxValue& x);
OnnxValue asinh(const OnnxValue& x);
OnnxValue acosh(const OnnxValue& x);
OnnxValue atanh(const OnnxValue& x);
OnnxValue erf(const OnnxValue& x);
OnnxValue erfc(const OnnxValue& x);
OnnxValue erfinv(const OnnxValue& x);
OnnxValue lgamma(const OnnxValue& x);
OnnxValue digamma(const OnnxValue& x);
OnnxValue polygamma(const OnnxValue& x, double n);
OnnxValue sigmoid(const OnnxValue& x);
OnnxValue softplus(const OnnxValue& x);
OnnxValue is_nan(const OnnxValue& x);
OnnxValue is_infinite(const OnnxValue& x);
OnnxValue is_finite(const OnnxValue& x);
OnnxValue pow(const OnnxValue& a, const OnnxValue& b);
OnnxValue atan2(const OnnxValue& a, const OnnxValue& b);
OnnxValue hypot(const OnnxValue& a, const OnnxValue& b);
OnnxValue copysign(const OnnxValue& a, const OnnxValue& b);
OnnxValue fmod(const OnnxValue& a, const OnnxValue& b);
OnnxValue remainder(const OnnxValue& a, const OnnxValue& b);
OnnxValue floor_divide(const OnnxValue& a, const OnnxValue& b);

namespace detail {
inline OnnxValues onnx_values(OnnxValue value) { return {std::move(value)}; }
inline OnnxValues onnx_values(OnnxValues values) { return values; }
}  // namespace detail

}  // namespace tapir

/// States how an op is written: a function of x, a call, that returns its result or the list of its results.
#ifdef TAPIR_RUNTIME
#define TAPIR_ONNX(op, ...) static_assert(true)
#else
#define TAPIR_ONNX(op, ...)                   \
    extern const ::tapir::OnnxForm op##_onnx; \
    constexpr ::tapir::OnnxForm op##_onnx = {#op, [](const ::tapir::OnnxCall& x) { return ::tapir::detail::onnx_values(__VA_ARGS__); }}
#endif
