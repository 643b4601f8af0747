// Goes through a model's nodes. Results that depend only on constants and shapes are computed at once, outside of the trace, so that
// Reshape and the like get numbers. If such a number is used as an operand, the trace gets the ops that make it.
#include <algorithm>
#include <charconv>
#include <functional>
#include <new>
#include <stdexcept>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"

#include "tapir/core/io/shown_impl.h"
#include "tapir/core/made_loc_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/text_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

constexpr std::int64_t kMostNodes = 1 << 20;  // limit per run: functions that call others twice make any number of nodes from a short file
constexpr int kDeepest = 64;                  // functions and branches inside each other

// Numbers that depend on dimensions: each is a constant of its own, for which the trace finds a formula.
Tensor of_numbers(const Tensor& known) {
    if (known.dim() == 0)
        return tensor(known.dtype() == bool_           ? Literal(known.item<bool>())
                          : is_floating(known.dtype()) ? Literal(known.item())
                                                       : Literal(known.item<std::int64_t>()),
                      known.dtype());
    std::vector<Tensor> numbers;
    std::vector<Tensor> elements;
    {
        const OutsideTrace outside;
        const Tensor flat = reshape(known, {-1});
        for (std::int64_t i = 0; i < flat.numel(); ++i) elements.push_back(select(flat, 0, i));
    }
    if (elements.empty()) return known;
    for (const Tensor& element : elements) numbers.push_back(of_numbers(element));
    const Tensor row = stack(numbers);
    return known.dim() == 1 ? row : reshape(row, known.shape());
}

// True if a result that depends on sizes has the same number of elements for each, so that they can be numbers; else the op is traced.
bool is_of_numbers(const OnnxOp& op, const std::vector<OnnxValuePtr>& inputs, const Tensor& result) {
    for (const OnnxValuePtr& input : inputs) {
        if (input && input->make) return false;
    }
    if (result.dim() > 1 || result.numel() > 8) return false;
    const std::string_view name = op.name;
    if (is_floating(result.dtype())) return name == "Cast";  // whole numbers: others may have no formula
    for (const std::string_view keeps : {"Gather", "Concat", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Cast", "Add", "Sub", "Mul", "Div", "Mod",
                                         "Min", "Max", "Neg", "ReduceProd", "ReduceSum", "Where", "Equal"}) {
        if (name == keeps) return true;
    }
    return false;
}

// An op's message, prefixed by the node's name unless it has one.
std::string told(const Error& error, const onnx::NodeProto& node) {
    const std::string what = io::text_of(error), own = "load_onnx: ";
    return what.rfind(own, 0) == 0 ? what.substr(own.size()) : fmt::format("{}: {}", name_of_node(node), what);
}

// Runs fn; adds the node's name to errors of ops.
template <class Fn>
void named(const onnx::NodeProto& node, const Loc& loc, const Fn& fn) {
    const auto too_large = [&] { fail<OutOfMemory>(loc, "load_onnx: {}: what it makes is larger than any memory", name_of_node(node)); };
    try {
        fn();
    } catch (const OnnxNeedsValue&) {
        throw;
    } catch (const ShapeError& error) {
        fail<ShapeError>(loc, "load_onnx: {}", told(error, node));
    } catch (const DTypeError& error) {
        fail<DTypeError>(loc, "load_onnx: {}", told(error, node));
    } catch (const IndexError& error) {
        fail<IndexError>(loc, "load_onnx: {}", told(error, node));
    } catch (const ValueError& error) {
        fail<ValueError>(loc, "load_onnx: {}", told(error, node));
    } catch (const TapeError& error) {
        fail<TapeError>(loc, "load_onnx: {}", told(error, node));
    } catch (const OutOfMemory& error) {
        fail<OutOfMemory>(loc, "load_onnx: {}", told(error, node));
    } catch (const std::bad_alloc&) {
        too_large();
    } catch (const std::length_error&) {
        too_large();
    }
}

}  // namespace

std::string name_of_node(const onnx::NodeProto& node) {
    std::string op = node.domain().empty() ? node.op_type() : node.domain() + "." + node.op_type();
    if (!node.name().empty()) return fmt::format("the node {} ({})", node.name(), op);
    if (node.output_size() > 0) return fmt::format("the {} that makes {}", op, node.output(0));
    return "a " + op;
}

OnnxValuePtr onnx_value(const Tensor& x, int type) {
    auto value = std::make_shared<OnnxValue>();
    value->tensor = x;
    value->type = type ? type : onnx_type(x.dtype());
    return value;
}

OnnxValuePtr onnx_constant(const Tensor& known, int type) {
    auto value = std::make_shared<OnnxValue>();
    value->known = known;
    value->type = type ? type : onnx_type(known.dtype());
    return value;
}

// --- Calls --------------------------------------------------------------------------------------------------------------------------

OnnxCall::OnnxCall(OnnxInterpreter& interpreter, const onnx::NodeProto& node, const std::vector<OnnxValuePtr>& inputs, OnnxInterpreter::Scope& scope,
                   bool is_fold)
    : interpreter_(interpreter), node_(node), inputs_(inputs), scope_(scope), is_fold_(is_fold), opset_(interpreter.opset(node.domain(), scope)) {}

std::string OnnxCall::name() const { return name_of_node(node_); }

const OnnxValuePtr& OnnxCall::value(int i) const {
    if (!has(i)) reject("its operand {} is missing", i);
    return inputs_[static_cast<std::size_t>(i)];
}

Tensor OnnxCall::tensor(const OnnxValuePtr& value) const {
    if (value->kind != OnnxValue::Kind::tensor) reject("a sequence, or an optional that is empty, stands where it takes a tensor");
    if (is_fold_) return value->known;
    if (value->tensor.defined()) return value->tensor;
    const Tensor made = value->make ? value->make() : value->by_size ? of_numbers(value->known) : value->known;
    // Tensors that were made in a branch or a body do not exist outside of it.
    if (interpreter_.bodies_ == 0 || !value->by_size) value->tensor = made;
    return made;
}

std::vector<Tensor> OnnxCall::all() const {
    std::vector<Tensor> tensors;
    for (int i = 0; i < count(); ++i) tensors.push_back(x(i));
    return tensors;
}

Shape OnnxCall::shape(int i) const {
    const OnnxValuePtr& operand = value(i);
    return operand->known.defined() ? operand->known.shape() : x(i).shape();
}

DType OnnxCall::dtype(int i) const {
    const OnnxValuePtr& operand = value(i);
    return operand->known.defined() ? operand->known.dtype() : x(i).dtype();
}

Tensor OnnxCall::known(int i, const char* what) const {
    const OnnxValuePtr& operand = value(i);
    if (operand->known.defined()) return operand->known;
    std::string names;
    for (const std::string& input : operand->inputs) names += (names.empty() ? "" : ", ") + input;
    if (names.empty()) reject("its {} is computed from weights or drawn at random, but the graph needs to know it", what);
    throw OnnxNeedsValue(fmt::format("load_onnx: {}: its {} depends on the value of the input {}: a graph needs to know it. Give it in "
                                     "LoadOnnxOptions::known; the graph holds for this value then",
                                     name(), what, names),
                         operand->inputs, interpreter_.loc());
}

std::vector<std::int64_t> OnnxCall::integers(int i, const char* what) const {
    const Tensor values = known(i, what);
    const OutsideTrace outside;
    return values.to_vector<std::int64_t>();
}

std::int64_t OnnxCall::integer(int i, const char* what) const {
    const std::vector<std::int64_t> values = integers(i, what);
    if (values.size() != 1) reject("its {} has {} elements, not 1", what, values.size());
    return values[0];
}

std::vector<double> OnnxCall::reals(int i, const char* what) const {
    const Tensor values = known(i, what);
    const OutsideTrace outside;
    return values.to_vector<double>();
}

double OnnxCall::real(int i, const char* what) const {
    const std::vector<double> values = reals(i, what);
    if (values.size() != 1) reject("its {} has {} elements, not 1", what, values.size());
    return values[0];
}

const onnx::AttributeProto* OnnxCall::attribute(const char* name) const {
    for (const onnx::AttributeProto& attribute : node_.attribute()) {
        if (attribute.name() != name) continue;
        if (attribute.ref_attr_name().empty()) return &attribute;
        const auto found = scope_.attributes.find(attribute.ref_attr_name());  // the function's own
        return found == scope_.attributes.end() ? nullptr : found->second;
    }
    return nullptr;
}

const onnx::AttributeProto* OnnxCall::attribute(const char* name, onnx::AttributeProto::AttributeType type) const {
    const onnx::AttributeProto* found = attribute(name);
    if (found && found->type() != type && found->type() != onnx::AttributeProto::UNDEFINED) {  // models of IR version 1 state no type
        reject("its attribute {} is of type {}, not {}", name, onnx::AttributeProto::AttributeType_Name(found->type()),
               onnx::AttributeProto::AttributeType_Name(type));
    }
    return found;
}

std::int64_t OnnxCall::integer(const char* name, std::int64_t otherwise) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::INT);
    return found ? found->i() : otherwise;
}
double OnnxCall::real(const char* name, double otherwise) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::FLOAT);
    return found ? static_cast<double>(found->f()) : otherwise;
}
std::string OnnxCall::text(const char* name, const char* otherwise) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::STRING);
    return found ? found->s() : otherwise;
}
std::vector<std::int64_t> OnnxCall::integers(const char* name) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::INTS);
    if (!found) return {};
    return {found->ints().begin(), found->ints().end()};
}
std::vector<double> OnnxCall::reals(const char* name) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::FLOATS);
    if (!found) return {};
    return {found->floats().begin(), found->floats().end()};
}
std::vector<std::string> OnnxCall::texts(const char* name) const {
    const onnx::AttributeProto* found = attribute(name, onnx::AttributeProto::STRINGS);
    if (!found) return {};
    return {found->strings().begin(), found->strings().end()};
}
Tensor OnnxCall::constant(const char* name) const {
    const onnx::AttributeProto* found = attribute(name);
    if (!found || !found->has_t()) reject("its attribute {} is missing", name);
    auto [place, is_new] = interpreter_.constants_.try_emplace(&found->t());
    if (is_new) {
        const OutsideTrace outside;
        place->second = interpreter_.load(found->t());
    }
    return place->second;
}
const onnx::GraphProto& OnnxCall::graph(const char* name) const {
    const onnx::AttributeProto* found = attribute(name);
    if (!found || !found->has_g()) reject("its attribute {} is missing", name);
    return found->g();
}

int OnnxCall::axis(std::int64_t axis, int rank) const {
    const std::int64_t from_front = axis < 0 ? axis + rank : axis;
    if (from_front < 0 || from_front >= std::max(rank, 1)) reject("the dimension {} is none of {}", axis, rank);
    return static_cast<int>(from_front);
}

void OnnxCall::give(const Tensor& result, int type) {
    if (!result.defined()) return give(OnnxValuePtr());
    auto value = is_fold_ ? onnx_constant(result, type) : onnx_value(result, type);
    if (type == 0) {
        for (const OnnxValuePtr& input : inputs_) {  // int8 + int8 is int8, though Tapir computes int32
            if (input && is_widened(input->type) && dtype_for_onnx(input->type) == result.dtype()) {
                value->type = input->type;
                break;
            }
        }
    }
    give(std::move(value));
}

void OnnxCall::give_known(const Tensor& result, bool by_size) {
    auto value = onnx_constant(result);
    value->by_size = by_size;
    give(std::move(value));
}

// --- The interpreter ----------------------------------------------------------------------------------------------------------------

OnnxValuePtr OnnxInterpreter::Scope::find(const std::string& name) const {
    for (const Scope* scope = this; scope; scope = scope->outer) {
        const auto found = scope->values.find(name);
        if (found != scope->values.end()) return found->second;
    }
    return nullptr;
}

// Reads fields that came after the ONNX schema this was compiled with: their texts, or messages that are yet to be parsed.
static std::vector<std::string> later_texts(const google::protobuf::Message& message, int number) {
    std::vector<std::string> texts;
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    if (const auto* known = message.GetDescriptor()->FindFieldByNumber(number)) {
        for (int i = 0; known->is_repeated() && i < reflection.FieldSize(message, known); ++i) {
            texts.push_back(known->message_type() ? reflection.GetRepeatedMessage(message, known, i).SerializeAsString()
                                                  : reflection.GetRepeatedString(message, known, i));
        }
        if (!known->is_repeated()) texts.push_back(reflection.GetString(message, known));
        return texts;
    }
    const google::protobuf::UnknownFieldSet& fields = reflection.GetUnknownFields(message);
    for (int i = 0; i < fields.field_count(); ++i) {
        const google::protobuf::UnknownField& field = fields.field(i);
        if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED)
            texts.push_back(field.length_delimited());
    }
    return texts;
}
static std::string later_text(const google::protobuf::Message& message, int number) {
    const std::vector<std::string> texts = later_texts(message, number);
    return texts.empty() ? std::string() : texts.back();
}

// The attributes of a function, with defaults and without.
constexpr int kDefaultsOfFunction = 11;
static std::set<std::string> attributes_of(const onnx::FunctionProto& function) {
    std::set<std::string> names(function.attribute().begin(), function.attribute().end());
    for (const std::string& text : later_texts(function, kDefaultsOfFunction)) {
        onnx::AttributeProto attribute;
        if (attribute.ParseFromString(text)) names.insert(attribute.name());  // else the call reports that it cannot be read
    }
    return names;
}

OnnxInterpreter::OnnxInterpreter(const onnx::ModelProto& model, std::string folder, std::string file, const Loc& loc)
    : model_(model), folder_(std::move(folder)), file_(std::move(file)), loc_(loc) {}

std::int64_t OnnxInterpreter::opset(const std::string& domain, const Scope& scope) const {
    const auto find = [&](const auto& imports) -> std::int64_t {
        for (const auto& import : imports) {
            if (import.domain() == domain || (import.domain() == "ai.onnx" && domain.empty())) return import.version();
        }
        return 0;
    };
    if (scope.function) {
        if (const std::int64_t version = find(scope.function->opset_import())) return version;
    }
    if (const std::int64_t version = find(model_.opset_import())) return version;
    return 1;
}

const onnx::FunctionProto* OnnxInterpreter::find_function(const onnx::NodeProto& node) const {
    for (const onnx::FunctionProto& function : model_.functions()) {
        if (function.name() != node.op_type() || function.domain() != node.domain()) continue;
        constexpr int of_node = 8, of_function = 13;  // the fields `overload`
        if (later_text(node, of_node) == later_text(function, of_function)) return &function;
    }
    return nullptr;
}

void OnnxInterpreter::count_unsupported(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const onnx::FunctionProto* function,
                                        std::map<std::string, int>& counts) const {
    Scope scope;
    scope.function = function;
    std::set<std::string> made;
    for (const onnx::NodeProto& node : nodes) {
        for (const std::string& output : node.output()) {
            if (!output.empty() && !made.insert(output).second) fail<FileError>(loc_, "load_onnx: {}: two nodes make {}", file_, output);
        }
        if (!find_function(node) && !find_onnx_op(node.domain(), node.op_type(), opset(node.domain(), scope))) {
            ++counts[node.domain().empty() ? node.op_type() : node.domain() + "." + node.op_type()];
        }
        for (const onnx::AttributeProto& attribute : node.attribute()) {
            if (attribute.has_g()) count_unsupported(attribute.g().node(), function, counts);
        }
    }
}

std::vector<std::string> OnnxInterpreter::unsupported() const {
    std::map<std::string, int> counts;
    count_unsupported(model_.graph().node(), nullptr, counts);
    for (const onnx::FunctionProto& function : model_.functions()) count_unsupported(function.node(), &function, counts);
    std::vector<std::string> names;
    for (const auto& [name, count] : counts) names.push_back(count == 1 ? name : fmt::format("{} ({} nodes)", name, count));
    return names;
}

// Counts only nodes that calls must run: branches and bodies are counted as they run.
void OnnxInterpreter::check_node_count() const {
    std::unordered_map<const onnx::FunctionProto*, std::int64_t> counts;  // for functions that call themselves: nodes outside of the recursion
    const std::function<std::int64_t(const google::protobuf::RepeatedPtrField<onnx::NodeProto>&, int)> count_of = [&](const auto& nodes, int depth) {
        std::int64_t count = nodes.size();
        for (const onnx::NodeProto& node : nodes) {
            const onnx::FunctionProto* function = find_function(node);
            if (!function || depth > kDeepest) continue;  // the run reports too deep calls
            if (counts.try_emplace(function, 0).second) {
                const std::int64_t own = count_of(function->node(), depth + 1);
                counts[function] = own;
            }
            count = std::min(count + counts[function], kMostNodes + 1);
        }
        return count;
    };
    if (count_of(model_.graph().node(), 0) > kMostNodes) fail_node_count();
}

void OnnxInterpreter::fail_node_count() const {
    fail<FileError>(loc_, "load_onnx: {}: functions that call each other make more than {} nodes", file_, kMostNodes);
}

void OnnxInterpreter::check_attributes() const {
    check_attributes(model_.graph().node(), nullptr);
    for (const onnx::FunctionProto& function : model_.functions()) check_attributes(function.node(), &function);
}

void OnnxInterpreter::check_attributes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, const onnx::FunctionProto* function) const {
    Scope scope;
    scope.function = function;
    for (const onnx::NodeProto& node : nodes) {
        if (const onnx::FunctionProto* called = find_function(node)) {
            const std::set<std::string> names = attributes_of(*called);
            for (const onnx::AttributeProto& attribute : node.attribute()) {
                if (names.count(attribute.name())) continue;
                fail<ValueError>(loc_, "load_onnx: {}: it has an attribute {}, which the function has not", name_of_node(node), attribute.name());
            }
        } else {
            check_onnx_attributes(node, opset(node.domain(), scope), loc_);
        }
        for (const onnx::AttributeProto& attribute : node.attribute()) {
            if (attribute.has_g()) check_attributes(attribute.g().node(), function);
        }
    }
}

std::vector<OnnxValuePtr> OnnxInterpreter::run(const onnx::GraphProto& graph, Scope& scope, const std::vector<bool>* only) {
    for (const onnx::TensorProto& proto : graph.initializer()) {
        if (scope.values.count(proto.name())) continue;
        auto [place, is_new] = constants_.try_emplace(&proto);
        if (is_new) {
            const OutsideTrace outside;
            place->second = load(proto);
        }
        scope.values[proto.name()] = onnx_constant(place->second, proto.data_type());
    }
    if (graph.sparse_initializer_size() > 0) fail<ValueError>(loc_, "load_onnx: {}: sparse tensors are not supported", file_);
    for (int n = 0; n < graph.node_size(); ++n) {
        if (!only || (*only)[static_cast<std::size_t>(n)]) run_node(graph.node(n), scope);
        if (&graph != &model_.graph()) continue;
        // Frees values that are not used again, while the rest is tried.
        for (const std::string& name : last_uses()[static_cast<std::size_t>(n)]) scope.values.erase(name);
        if (Tracer* tracer = Tracer::current()) tracer->forget_unused();
    }
    std::vector<OnnxValuePtr> outputs;
    for (const onnx::ValueInfoProto& output : graph.output()) {
        OnnxValuePtr value = scope.find(output.name());
        if (!value && !only) fail<FileError>(loc_, "load_onnx: {}: nothing makes the output {}", file_, output.name());
        outputs.push_back(std::move(value));
    }
    return outputs;
}

// All names that a node takes, also in its branches and bodies.
static void each_use(const onnx::NodeProto& node, const std::function<void(const std::string&)>& visit) {
    for (const std::string& name : node.input()) visit(name);
    for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (!attribute.has_g()) continue;
        for (const onnx::NodeProto& inner : attribute.g().node()) each_use(inner, visit);
        for (const onnx::ValueInfoProto& output : attribute.g().output()) visit(output.name());
    }
}

const std::vector<std::vector<std::string>>& OnnxInterpreter::last_uses() {
    const onnx::GraphProto& graph = model_.graph();
    if (!last_uses_.empty()) return last_uses_;
    last_uses_.resize(static_cast<std::size_t>(graph.node_size()));
    std::set<std::string> later;
    for (const onnx::ValueInfoProto& output : graph.output()) later.insert(output.name());
    for (const onnx::TensorProto& weight : graph.initializer()) later.insert(weight.name());
    for (int n = graph.node_size(); n-- > 0;) {
        const auto note = [&](const std::string& name) {
            if (!name.empty() && later.insert(name).second) last_uses_[static_cast<std::size_t>(n)].push_back(name);
        };
        each_use(graph.node(n), note);
        for (const std::string& name : graph.node(n).output()) note(name);
    }
    return last_uses_;
}

void OnnxInterpreter::run_node(const onnx::NodeProto& node, Scope& scope) {
    std::vector<OnnxValuePtr> inputs;
    for (const std::string& name : node.input()) {
        if (name.empty()) {
            inputs.push_back(nullptr);
            continue;
        }
        OnnxValuePtr value = scope.find(name);
        if (!value) fail<FileError>(loc_, "load_onnx: {}: {} takes {}, which nothing before it makes", file_, name_of_node(node), name);
        inputs.push_back(std::move(value));
    }
    struct Depth {
        explicit Depth(int& depth) noexcept : depth_(depth) { ++depth_; }
        ~Depth() { --depth_; }
        int& depth_;
    };
    const Depth deeper(depth_);
    if (++nodes_run_ > kMostNodes) fail_node_count();
    if (depth_ > kDeepest) fail<FileError>(loc_, "load_onnx: {}: functions or branches are more than {} deep", file_, kDeepest);
    if (const onnx::FunctionProto* function = find_function(node)) {
        run_function(*function, node, inputs, scope);
    } else {
        const OnnxOp* op = find_onnx_op(node.domain(), node.op_type(), opset(node.domain(), scope));
        if (!op) fail<ValueError>(loc_, "load_onnx: {} is not supported", name_of_node(node));
        Tracer* tracer = Tracer::current();
        const std::size_t first = tracer ? tracer->node_count() : 0;
        run_op(*op, node, std::move(inputs), scope);
        if (!tracer || tracer->node_count() == first) return;
        const Origin& origin = origin_of(node);
        tracer->set_module(first, origin.module, origin.line);
    }
}

// save_onnx() writes "net.cpp:12 encoder.cell".
const OnnxInterpreter::Origin& OnnxInterpreter::origin_of(const onnx::NodeProto& node) {
    const auto [place, is_new] = origins_.try_emplace(&node);
    Origin& origin = place->second;
    if (!is_new) return origin;
    std::string_view name = node.name();
    if (name.empty() && node.output_size() > 0) name = node.output(0);
    if (is_own()) {
        const std::string_view doc = node.doc_string(), line = doc.substr(0, doc.find(' '));
        const std::size_t colon = line.rfind(':');
        unsigned number = 0;
        const char* end = line.data() + line.size();
        if (colon != line.npos && colon > 0 && std::from_chars(line.data() + colon + 1, end, number).ptr == end && number > 0) {
            origin.line = made_loc(utf8_text(line.substr(0, colon)), "", number);
            if (line.size() + 1 < doc.size()) origin.module = module_name(utf8_text(doc.substr(line.size() + 1)), "");
            return origin;
        }
    }
    origin.module = module_name(utf8_text(name), node.op_type());
    return origin;
}

void OnnxInterpreter::run_function(const onnx::FunctionProto& function, const onnx::NodeProto& node, const std::vector<OnnxValuePtr>& inputs,
                                   Scope& outer) {
    Scope scope;
    scope.function = &function;
    for (const std::string& text : later_texts(function, kDefaultsOfFunction)) {
        onnx::AttributeProto& attribute = defaults_.emplace_back();
        if (!attribute.ParseFromString(text))
            fail<FileError>(loc_, "load_onnx: {}: a default of the function {} cannot be read", file_, function.name());
        scope.attributes[attribute.name()] = &attribute;
    }
    for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.ref_attr_name().empty()) {
            scope.attributes[attribute.name()] = &attribute;
        } else if (const auto found = outer.attributes.find(attribute.ref_attr_name()); found != outer.attributes.end()) {
            scope.attributes[attribute.name()] = found->second;
        }
    }
    for (int i = 0; i < function.input_size() && i < static_cast<int>(inputs.size()); ++i) {
        if (inputs[static_cast<std::size_t>(i)]) scope.values[function.input(i)] = inputs[static_cast<std::size_t>(i)];
    }
    for (const onnx::NodeProto& inner : function.node()) {
        onnx::NodeProto* passed = nullptr;  // operands that the call omits are omitted inside
        for (int i = 0; i < inner.input_size(); ++i) {
            const std::string& name = inner.input(i);
            if (name.empty() || scope.find(name)) continue;
            for (const std::string& parameter : function.input()) {
                if (parameter != name) continue;
                if (!passed) passed = &changed_.emplace_back(inner);
                passed->set_input(i, "");
            }
        }
        run_node(passed ? *passed : inner, scope);
    }
    for (int i = 0; i < function.output_size() && i < node.output_size(); ++i) {
        if (node.output(i).empty()) continue;
        OnnxValuePtr value = scope.find(function.output(i));
        if (!value)
            fail<FileError>(loc_, "load_onnx: {}: nothing makes the output {} of the function {}", file_, function.output(i), function.name());
        outer.values[node.output(i)] = std::move(value);
    }
}

void OnnxInterpreter::run_op(const OnnxOp& op, const onnx::NodeProto& node, std::vector<OnnxValuePtr> inputs, Scope& scope) {
    while (!inputs.empty() && !inputs.back()) inputs.pop_back();
    bool is_constant = !(op.flags & (OnnxOp::kImpure | OnnxOp::kOwn)), by_size = false, sized_by_data = false;
    std::set<std::string> from;
    for (const OnnxValuePtr& input : inputs) {
        if (!input) continue;
        is_constant &= input->kind == OnnxValue::Kind::tensor && input->is_constant();
        by_size |= input->by_size;
        sized_by_data |= input->sized_by_data;
        from.insert(input->inputs.begin(), input->inputs.end());
    }
    std::vector<OnnxValuePtr> results;
    named(node, loc_, [&] {
        if (!is_constant) {
            OnnxCall call(*this, node, inputs, scope, /*is_fold=*/false);
            op.run(call);
            results = std::move(call.results());
            sized_by_data |= call.is_sized_by_data();
            return;
        }
        {
            const OutsideTrace outside;
            OnnxCall call(*this, node, inputs, scope, /*is_fold=*/true);
            op.run(call);
            results = std::move(call.results());
        }
        for (std::size_t k = 0; by_size && k < results.size(); ++k) {
            if (!results[k]) continue;
            results[k]->by_size = true;
            if (is_of_numbers(op, inputs, results[k]->known)) continue;
            Scope frame;  // the scope itself may be gone by then
            frame.function = scope.function;
            frame.attributes = scope.attributes;
            results[k]->make = [this, &op, &node, inputs, frame, k]() mutable {
                OnnxCall call(*this, node, inputs, frame, /*is_fold=*/false);
                Tracer* tracer = Tracer::current();
                const std::size_t first = tracer ? tracer->node_count() : 0;
                op.run(call);
                const Origin& origin = origin_of(node);
                if (tracer) tracer->set_module(first, origin.module, origin.line);
                return call.tensor(call.results()[k]);
            };
        }
    });
    for (std::size_t k = 0; k < results.size() && static_cast<int>(k) < node.output_size(); ++k) {
        OnnxValuePtr& result = results[k];
        const std::string& name = node.output(static_cast<int>(k));
        if (name.empty() || !result) continue;
        const bool is_made = std::find(inputs.begin(), inputs.end(), result) == inputs.end();
        if (is_made && !result->known.defined()) {
            if (!(op.flags & OnnxOp::kOwn)) {
                if ((op.flags & OnnxOp::kWraps) && is_widened(result->type)) result->tensor = wrapped(result->tensor, result->type);
                result->inputs = from;
            } else {
                result->inputs.insert(from.begin(), from.end());
            }
            result->sized_by_data |= sized_by_data;
        } else if (is_made && (op.flags & OnnxOp::kWraps) && is_widened(result->type)) {
            const OutsideTrace outside;
            result->known = wrapped(result->known, result->type);
        }
        scope.values[name] = std::move(result);
    }
    for (const std::string& name : node.output()) {
        if (!name.empty() && !scope.values.count(name)) {
            fail<ValueError>(loc_, "load_onnx: {}: its result {} is not supported", name_of_node(node), name);
        }
    }
}

}  // namespace tapir::detail
