// Reads ONNX: an interpreter that calls Tapir's ops, node by node, while they are traced. An operator is a function of its Call
// and a row of a table, in the file of its subject: import_math.cpp, import_nn.cpp, ...
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/onnx/proto_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/make/make.h"

namespace tapir::detail {

struct OnnxValue;
using OnnxValuePtr = std::shared_ptr<OnnxValue>;

/// The value of a name while a model is read.
struct OnnxValue {
    enum class Kind : std::uint8_t { tensor, sequence, none };  // none: an empty optional

    Kind kind = Kind::tensor;
    int type = 0;                        // ONNX's element type; Tapir's dtype may be wider
    Tensor tensor;                       // the traced tensor; undefined: nobody has asked for it yet, see OnnxCall::x()
    Tensor known;                        // its elements, if they do not depend on inputs
    bool is_parameter = false;           // known, but trainable
    bool by_size = false;                // known, but different for other sizes of named dimensions
    bool sized_by_data = false;          // its shape depends on elements
    std::function<Tensor()> make;        // makes `tensor`, if known and by_size
    std::vector<OnnxValuePtr> elements;  // for a sequence
    Tensor stacked;                      // for a sequence that a scan made: its elements, stacked along dimension 0
    std::set<std::string> inputs;        // the model's inputs that it depends on

    bool is_constant() const noexcept {
        if (kind == Kind::tensor) return known.defined() && !is_parameter;
        for (const OnnxValuePtr& element : elements) {
            if (!element->is_constant()) return false;
        }
        return !stacked.defined();
    }
};

/// Reads a tensor of the model. folder: where files of weights may be. Throws FileError.
Tensor tensor_of_onnx(const onnx::TensorProto& proto, const std::string& folder, const std::string& file, const Loc& loc);
/// Tapir's dtype for an element type of ONNX; wider if Tapir has none as narrow: int8, int16, uint16 and the
/// integers of 4 and 2 bits are int32, uint32 and uint64 int64, floating types of 8 and 4 bits float32. nullopt for strings and complex numbers.
std::optional<DType> dtype_for_onnx(int type) noexcept;
/// True if the dtype is wider than the type.
bool is_widened(int type) noexcept;
/// The range of an integer type of up to 16 bits, or of one that a dtype is wider than.
std::optional<std::pair<std::int64_t, std::int64_t>> range_for_onnx(int type) noexcept;
/// Element types that the installed schema may not name yet.
namespace onnx_types {
inline constexpr int kE4m3fn = 17, kE4m3fnuz = 18, kE5m2 = 19, kE5m2fnuz = 20, kUint4 = 21, kInt4 = 22, kE2m1 = 23, kE8m0 = 24, kUint2 = 25,
                     kInt2 = 26;
}
/// The bits of a floating type of 8 bits or fewer, which float32 stands for; 0 for others.
int small_float_bits(int type) noexcept;
/// The value of each code of such a type.
std::vector<float> small_float_values(int type);
/// Rounds x, of any dtype, to such a type, ties to even. saturate: values that are too large become the largest, else
/// infinite or nan. round_mode, for FLOAT8E8M0: up, down or nearest.
Tensor small_float(const Tensor& x, int type, bool saturate, const std::string& round_mode = "up");
/// Wraps integers of a wider dtype to the type's range: modulo 2^8, ...
Tensor wrapped(const Tensor& x, int type);
std::string onnx_type_name(int type);

class OnnxCall;

struct OnnxOp {
    const char* name;
    int since;  // the first opset in which it has the function's meaning
    void (*run)(OnnxCall& call);
    enum Flags : std::uint8_t {
        kPlain = 0,
        kImpure = 1,  // never computed while the model is read: it is random
        kOwn = 2,     // handles values itself: control flow, sequences
        kWraps = 4,   // results that do not fit narrow integers are wrapped
    };
    int flags = kPlain;
    const char* domain = "";
};

std::span<const OnnxOp> onnx_math_ops();
std::span<const OnnxOp> onnx_logic_ops();
std::span<const OnnxOp> onnx_shape_ops();
std::span<const OnnxOp> onnx_index_ops();
std::span<const OnnxOp> onnx_reduce_ops();
std::span<const OnnxOp> onnx_nn_ops();
std::span<const OnnxOp> onnx_attention_ops();
std::span<const OnnxOp> onnx_pool_ops();
std::span<const OnnxOp> onnx_region_ops();
std::span<const OnnxOp> onnx_recurrent_ops();
std::span<const OnnxOp> onnx_loss_ops();
std::span<const OnnxOp> onnx_make_ops();
std::span<const OnnxOp> onnx_image_ops();
std::span<const OnnxOp> onnx_quantize_ops();
std::span<const OnnxOp> onnx_signal_ops();
std::span<const OnnxOp> onnx_sequence_ops();
std::span<const OnnxOp> onnx_control_ops();
std::span<const OnnxOp> onnx_training_ops();
/// The op for this opset; null if there is none.
const OnnxOp* find_onnx_op(std::string_view domain, std::string_view name, std::int64_t opset);
/// Throws ValueError if the node has an attribute that its operator does not have in this opset, or one of another type.
void check_onnx_attributes(const onnx::NodeProto& node, std::int64_t opset, const Loc& loc);

class OnnxInterpreter {
 public:
    struct Scope {
        std::unordered_map<std::string, OnnxValuePtr> values;
        const Scope* outer = nullptr;
        const onnx::FunctionProto* function = nullptr;                            // the function whose body it is
        std::unordered_map<std::string, const onnx::AttributeProto*> attributes;  // of the function's call
        OnnxValuePtr find(const std::string& name) const;
    };

    /// While it lives, the nodes of a branch or a loop run, whose tensors do not belong to the graph around it.
    class Body {
     public:
        explicit Body(OnnxInterpreter& interpreter) noexcept : interpreter_(interpreter) { ++interpreter_.bodies_; }
        ~Body() { --interpreter_.bodies_; }
        Body(const Body&) = delete;
        Body& operator=(const Body&) = delete;

     private:
        OnnxInterpreter& interpreter_;
    };

    OnnxInterpreter(const onnx::ModelProto& model, std::string folder, std::string file, const Loc& loc);

    /// "Foo (2 nodes)" for each op that Tapir does not have, in all graphs and functions.
    std::vector<std::string> unsupported() const;
    /// Throws ValueError for an attribute that its operator does not have, or of another type, in all graphs and functions.
    void check_attributes() const;
    /// Throws FileError if functions that call each other make too many nodes, without running them.
    void check_node_count() const;
    void set_named_dims(bool has) noexcept { has_named_dims_ = has; }
    bool has_named_dims() const noexcept { return has_named_dims_; }

    /// Runs the graph: initializers must be in the scope, or are added as constants. only: the nodes to run; an output
    /// that is not made is null then.
    std::vector<OnnxValuePtr> run(const onnx::GraphProto& graph, Scope& scope, const std::vector<bool>* only = nullptr);
    Tensor load(const onnx::TensorProto& proto) const { return tensor_of_onnx(proto, folder_, file_, loc_); }
    const Loc& loc() const noexcept { return loc_; }
    const onnx::ModelProto& model() const noexcept { return model_; }
    std::int64_t opset(const std::string& domain, const Scope& scope) const;
    const std::string& file() const noexcept { return file_; }
    /// True if save_onnx() wrote it.
    bool is_own() const { return model_.producer_name() == kOnnxProducer; }
    /// The number of nodes since the last run of the model began.
    std::int64_t nodes_run() const noexcept { return nodes_run_; }
    void count_from_here() noexcept { nodes_run_ = 0; }
    /// The number of times that loops around the current node, as scans, run it.
    std::int64_t turns_around() const noexcept { return turns_around_; }
    class Turns {
     public:
        Turns(OnnxInterpreter& interpreter, std::int64_t turns) noexcept : interpreter_(interpreter), before_(interpreter.turns_around_) {
            if (__builtin_mul_overflow(before_, turns, &interpreter.turns_around_)) interpreter.turns_around_ = INT64_MAX;
        }
        ~Turns() { interpreter_.turns_around_ = before_; }
        Turns(const Turns&) = delete;
        Turns& operator=(const Turns&) = delete;

     private:
        OnnxInterpreter& interpreter_;
        std::int64_t before_;
    };

 private:
    friend class OnnxCall;
    void run_node(const onnx::NodeProto& node, Scope& scope);
    [[noreturn]] void fail_node_count() const;
    /// For each node of the model's graph, the names that no later node takes.
    const std::vector<std::vector<std::string>>& last_uses();
    /// The origin that the node states.
    struct Origin {
        const ModuleName* module = nullptr;
        Loc line;
    };
    const Origin& origin_of(const onnx::NodeProto& node);
    void run_op(const OnnxOp& op, const onnx::NodeProto& node, std::vector<OnnxValuePtr> inputs, Scope& scope);
    void run_function(const onnx::FunctionProto& function, const onnx::NodeProto& node, const std::vector<OnnxValuePtr>& inputs, Scope& scope);
    const onnx::FunctionProto* find_function(const onnx::NodeProto& node) const;
    void count_unsupported(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const onnx::FunctionProto* function,
                           std::map<std::string, int>& counts) const;
    void check_attributes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const onnx::FunctionProto* function) const;

    const onnx::ModelProto& model_;
    std::string folder_, file_;
    const Loc& loc_;
    bool has_named_dims_ = false;
    int depth_ = 0, bodies_ = 0;
    std::int64_t nodes_run_ = 0, turns_around_ = 1;
    std::vector<std::vector<std::string>> last_uses_;
    std::unordered_map<const onnx::NodeProto*, Origin> origins_;
    std::deque<onnx::NodeProto> changed_;                             // nodes of functions' bodies, for one call
    std::deque<onnx::AttributeProto> defaults_;                       // of functions' attributes
    std::unordered_map<const onnx::TensorProto*, Tensor> constants_;  // read once, so that each run sees the same
};

/// The value of an input is needed while the model is read.
class OnnxNeedsValue : public ValueError {
 public:
    OnnxNeedsValue(const std::string& message, std::set<std::string> names, const Loc& loc) : ValueError(message, loc), inputs(std::move(names)) {}
    std::set<std::string> inputs;
};

/// One node's call.
class OnnxCall {
 public:
    /// is_fold: its operands are known, and its results must become known.
    OnnxCall(OnnxInterpreter& interpreter, const onnx::NodeProto& node, const std::vector<OnnxValuePtr>& inputs, OnnxInterpreter::Scope& scope,
             bool is_fold);

    // --- Operands ---------------------------------------------------------------------------------------------------------------

    int count() const noexcept { return static_cast<int>(inputs_.size()); }
    bool has(int i) const noexcept { return i < count() && inputs_[static_cast<std::size_t>(i)] != nullptr; }
    const OnnxValuePtr& value(int i) const;
    /// The operand; throws if there is none.
    Tensor x(int i) const { return tensor(value(i)); }
    /// Undefined if there is no operand.
    Tensor maybe(int i) const { return has(i) ? x(i) : Tensor(); }
    std::vector<Tensor> all() const;
    /// The traced tensor, or, in a fold, its elements.
    Tensor tensor(const OnnxValuePtr& value) const;
    Shape shape(int i) const;
    std::int64_t size(int i, int dim) const { return shape(i)[dim]; }
    int rank(int i) const { return shape(i).rank(); }
    DType dtype(int i) const;
    int type(int i) const { return value(i)->type; }
    /// Its elements, which must be known: `what` names it in the error.
    Tensor known(int i, const char* what) const;
    bool is_known(int i) const { return has(i) && value(i)->known.defined(); }
    std::vector<std::int64_t> integers(int i, const char* what) const;
    std::int64_t integer(int i, const char* what) const;
    std::vector<double> reals(int i, const char* what) const;
    double real(int i, const char* what) const;

    // --- Attributes -------------------------------------------------------------------------------------------------------------

    const onnx::AttributeProto* attribute(const char* name) const;
    /// Null if there is none; throws if it has another type.
    const onnx::AttributeProto* attribute(const char* name, onnx::AttributeProto::AttributeType type) const;
    bool given(const char* name) const { return attribute(name) != nullptr; }
    std::int64_t integer(const char* name, std::int64_t otherwise) const;
    bool flag(const char* name, bool otherwise) const { return integer(name, otherwise ? 1 : 0) != 0; }
    double real(const char* name, double otherwise) const;
    std::string text(const char* name, const char* otherwise) const;
    std::vector<std::int64_t> integers(const char* name) const;
    std::vector<double> reals(const char* name) const;
    std::vector<std::string> texts(const char* name) const;
    Tensor constant(const char* name) const;
    const onnx::GraphProto& graph(const char* name) const;
    /// A dimension, counted from the front.
    int axis(std::int64_t axis, int rank) const;
    int axis(const char* name, std::int64_t otherwise, int rank) const { return axis(integer(name, otherwise), rank); }

    std::int64_t opset() const noexcept { return opset_; }
    const onnx::NodeProto& node() const noexcept { return node_; }
    OnnxInterpreter& interpreter() const noexcept { return interpreter_; }
    OnnxInterpreter::Scope& scope() const noexcept { return scope_; }
    bool is_fold() const noexcept { return is_fold_; }
    /// True if this result is used.
    bool wants(int i) const { return i < node_.output_size() && !node_.output(i).empty(); }

    // --- Results, in order ------------------------------------------------------------------------------------------------------

    /// type: ONNX's, if it is not that of the dtype, or of the first operand with that dtype.
    void give(const Tensor& result, int type = 0);
    /// A result that is known though operands are not: for shapes.
    void give_known(const Tensor& result, bool by_size);
    void give(OnnxValuePtr value) { results_.push_back(std::move(value)); }
    void mark_sized_by_data() noexcept { sized_by_data_ = true; }
    std::vector<OnnxValuePtr>& results() noexcept { return results_; }
    bool is_sized_by_data() const noexcept { return sized_by_data_; }

    /// Throws ValueError, with the node.
    template <class... Args>
    [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
        fail<ValueError>(interpreter_.loc(), "load_onnx: {}: {}", name(), fmt::format(format, std::forward<Args>(args)...));
    }
    /// "the node conv1 (Conv)"
    std::string name() const;

 private:
    OnnxInterpreter& interpreter_;
    const onnx::NodeProto& node_;
    const std::vector<OnnxValuePtr>& inputs_;
    OnnxInterpreter::Scope& scope_;
    bool is_fold_;
    bool sized_by_data_ = false;
    std::int64_t opset_;
    std::vector<OnnxValuePtr> results_;
};

std::string name_of_node(const onnx::NodeProto& node);
OnnxValuePtr onnx_value(const Tensor& x, int type = 0);
OnnxValuePtr onnx_constant(const Tensor& known, int type = 0);

}  // namespace tapir::detail
