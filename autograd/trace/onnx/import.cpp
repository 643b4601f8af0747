// load_onnx: traces the interpreter on examples of the model's inputs.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <unordered_set>

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/hint_impl.h"
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/shapes_only_impl.h"
#include "tapir/core/stream.h"
#include "tapir/ops/make/make.h"

namespace tapir {
namespace detail {
namespace {

constexpr std::int64_t kOldestIR = 3;
constexpr std::int64_t kNewestOpset = 28;
constexpr std::size_t kMostNamed = 4;  // the limit of trace()

// Sizes to try for named dimensions: small ones, which are quick, and larger ones that remain positive after many strides.
constexpr std::int64_t kTriedSizes[] = {2, 7, 32, 224};
constexpr std::int64_t kMostTriedFirst = 7;  // the limit for the first of several dimensions, which is a batch
// Divisors that image sizes may need, if a network halves and doubles images.
constexpr std::int64_t kSteps[] = {8, 32, 64};

std::string joined(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
    return text;
}

// Makes a name that may stand in formulas.
std::string dim_name(const std::string& name) {
    const bool is_word = !name.empty() && !(name[0] >= '0' && name[0] <= '9');
    std::string clean = is_word ? "" : "d";
    for (const char c : name) clean += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
    return clean;
}

// Parses "32*height", as save_onnx writes it.
std::optional<SymInt::OfOneDim> multiple(const std::string& name) {
    if (name.empty() || name[0] < '0' || name[0] > '9') return std::nullopt;
    try {
        const std::optional<SymInt::OfOneDim> one = SymInt::parse(name).of_one_dim();
        return one && one->offset == 0 ? one : std::nullopt;
    } catch (const ValueError&) {  // it is just a name
        return std::nullopt;
    }
}

const Tensor* find(const Graph::Inputs& tensors, const std::string& name) {
    for (const auto& [key, tensor] : tensors) {
        if (key == name) return &tensor;
    }
    return nullptr;
}

struct InputDim {
    std::string name;  // "": fixed to this size
    std::int64_t size;
    bool has_own_name = true;  // the model names it
    std::int64_t step = 1;     // a number that the size can be divided by
};

struct ModelInput {
    std::string name;
    int type = 0;
    DType dtype = DType::float32;
    std::vector<InputDim> dims;
    Tensor example;  // undefined: made from the dims
};

class Loader {
 public:
    Loader(onnx::ModelProto& model, const LoadOnnxOptions& options, const std::string& folder, const std::string& file, const Loc& loc)
        : model_(model), options_(options), file_(file), loc_(loc), interpreter_(model, folder, file, loc) {}

    Graph load() {
        if (!model_.has_graph()) fail<FileError>(loc_, "load_onnx: {}: it has no graph", file_);
        if (model_.ir_version() < kOldestIR)
            fail<FileError>(loc_, "load_onnx: {}: its IR version is {}; {} is the oldest", file_, model_.ir_version(), kOldestIR);
        for (const auto& import : model_.opset_import()) {
            const bool is_onnx = import.domain().empty() || import.domain() == "ai.onnx";
            if (is_onnx && import.version() > kNewestOpset)
                fail<FileError>(loc_, "load_onnx: {}: its opset is {}; {} is the newest that is known", file_, import.version(), kNewestOpset);
        }
        if (model_.opset_import_size() == 0) fail<FileError>(loc_, "load_onnx: {}: it names no opset", file_);
        if (const std::vector<std::string> ops = interpreter_.unsupported(); !ops.empty()) {
            fail<ValueError>(loc_, "load_onnx: {}: these ops are not supported: {}", file_, joined(ops));
        }
        interpreter_.check_attributes();
        interpreter_.check_node_count();
        for (const auto* list : {&options_.known, &options_.examples}) {
            for (const auto& [name, tensor] : *list) {
                if (!tensor.defined() && !(list == &options_.examples && is_sequence(name)))
                    fail<ValueError>(loc_, "load_onnx: {}: the tensor given for the input {} is undefined", file_, name);
            }
        }
        find_buffers();
        load_weights();
        find_inputs();
        check_options();
        return load_graph();
    }

 private:
    bool is_sequence(const std::string& name) const {
        const auto is_it = [&](const onnx::ValueInfoProto& info) {
            const onnx::TypeProto& type = info.type().has_optional_type() ? info.type().optional_type().elem_type() : info.type();
            return info.name() == name && type.has_sequence_type();
        };
        const auto& inputs = model_.graph().input();
        return std::any_of(inputs.begin(), inputs.end(), is_it);
    }

    // Running means and variances are not weights.
    void find_buffers() {
        std::unordered_set<std::string> others;
        for (const onnx::NodeProto& node : model_.graph().node()) {
            for (int i = 0; i < node.input_size(); ++i) {
                const bool is_statistic = node.op_type() == "BatchNormalization" && node.domain().empty() && i >= 3;
                (is_statistic ? buffers_ : others).insert(node.input(i));
            }
        }
        for (const std::string& name : others) buffers_.erase(name);
    }

    // True if a weight of one element at this place is no number of the program.
    static bool is_place_of_weights(const onnx::NodeProto& node, int operand) {
        struct Place {
            const char* op;
            int first, last;
        };
        constexpr Place places[] = {
            {"Conv", 1, 2},
            {"ConvTranspose", 1, 2},
            {"DeformConv", 1, 3},
            {"Gemm", 0, 2},
            {"MatMul", 0, 1},
            {"PRelu", 1, 1},
            {"BatchNormalization", 1, 2},
            {"InstanceNormalization", 1, 2},
            {"GroupNormalization", 1, 2},
            {"LayerNormalization", 1, 2},
            {"RMSNormalization", 1, 1},
            {"RNN", 1, 3},
            {"LSTM", 1, 3},
            {"GRU", 1, 3},
        };
        const auto is_it = [&](const Place& place) { return node.op_type() == place.op && operand >= place.first && operand <= place.last; };
        return node.domain().empty() && std::any_of(std::begin(places), std::end(places), is_it);
    }

    // Searches the graph, and its branches and bodies.
    void find_weights_of_one() {
        std::unordered_set<std::string> products;  // the results of MatMuls
        const std::function<void(const google::protobuf::RepeatedPtrField<onnx::NodeProto>&)> visit = [&](const auto& nodes) {
            for (const onnx::NodeProto& node : nodes) {
                if (node.op_type() == "MatMul" && node.output_size() > 0) products.insert(node.output(0));
                const bool is_bias = node.op_type() == "Add" && node.input_size() == 2;
                for (int i = 0; i < node.input_size(); ++i) {
                    if (is_place_of_weights(node, i) || (is_bias && products.count(node.input(1 - i)))) trained_.insert(node.input(i));
                }
                for (const onnx::AttributeProto& attribute : node.attribute()) {
                    if (attribute.has_g()) visit(attribute.g().node());
                }
            }
        };
        visit(model_.graph().node());
        for (const std::string& name : options_.parameters) {
            const auto is_it = [&](const onnx::TensorProto& weight) { return weight.name() == name; };
            const auto& weights = model_.graph().initializer();
            if (std::none_of(weights.begin(), weights.end(), is_it)) {
                fail<ValueError>(loc_, "load_onnx: {}: it has no weight {}, which LoadOnnxOptions::parameters names", file_, name);
            }
            trained_.insert(name);
        }
    }

    void load_weights() {
        find_weights_of_one();
        std::unordered_set<std::string> frozen(options_.constants.begin(), options_.constants.end());
        const bool is_own = model_.producer_name() == kOnnxProducer;  // its doc strings tell constants from parameters
        for (onnx::TensorProto& proto : *model_.mutable_graph()->mutable_initializer()) {
            const bool is_constant = is_own && proto.doc_string() == kOnnxConstant, is_buffer = is_own && proto.doc_string() == kOnnxBuffer;
            if (proto.name().empty()) fail<FileError>(loc_, "load_onnx: {}: an initializer has no name", file_);
            if (scope_.values.count(proto.name())) fail<FileError>(loc_, "load_onnx: {}: the initializer {} is there twice", file_, proto.name());
            Tensor x = interpreter_.load(proto);
            if (proto.has_raw_data()) delete proto.release_raw_data();
            OnnxValuePtr value = onnx_constant(x, proto.data_type());
            const bool is_number = !is_own && x.numel() == 1 && !trained_.count(proto.name()) && !buffers_.count(proto.name());
            if (is_floating(x.dtype()) && !is_constant && !is_number && !frozen.count(proto.name())) {
                if (!is_buffer && !buffers_.count(proto.name())) x.requires_grad_();
                value->is_parameter = true;
                value->tensor = x;
                traced_.parameters.emplace_back(proto.name(), x);
            }
            scope_.values[proto.name()] = std::move(value);
        }
        for (const std::string& name : options_.constants) {
            if (!scope_.values.count(name))
                fail<ValueError>(loc_, "load_onnx: {}: it has no weight {}, which LoadOnnxOptions::constants names", file_, name);
        }
    }

    void find_inputs() {
        for (const onnx::ValueInfoProto& info : model_.graph().input()) {
            if (scope_.values.count(info.name())) continue;  // an initializer is its value
            if (info.name().empty()) fail<FileError>(loc_, "load_onnx: {}: an input has no name", file_);
            if (const Tensor* known = find(options_.known, info.name())) {
                const int type = info.type().has_tensor_type() ? info.type().tensor_type().elem_type() : 0;
                if (type && dtype_for_onnx(type) != known->dtype()) {
                    fail<DTypeError>(loc_, "load_onnx: {}: the input {} is of type {}, the value given is {}", file_, info.name(),
                                     onnx_type_name(type), known->dtype());
                }
                scope_.values[info.name()] = onnx_constant(known->detach(), type);
                continue;
            }
            add_input(info.name(), info.type(), /*is_optional=*/false);
        }
        for (ModelInput& input : inputs_) {
            for (InputDim& dim : input.dims) {
                if (dim.size >= 0 && fixed_.count(dim.name)) dim.name.clear();
            }
        }
        for (const std::string& name : fixed_) dims_.erase(name);
    }

    void add_input(const std::string& name, const onnx::TypeProto& type, bool is_optional) {
        if (type.has_tensor_type()) {
            inputs_.push_back(tensor_input(name, type.tensor_type()));
            slots_.push_back({name, {}, false, false});
            slots_.back().inputs.push_back(inputs_.size() - 1);
        } else if (type.has_sequence_type() && type.sequence_type().elem_type().has_tensor_type()) {
            Slot slot{name, {}, true, false};
            while (const Tensor* example = find(options_.examples, fmt::format("{}_{}", name, slot.inputs.size()))) {
                ModelInput input = tensor_input(fmt::format("{}_{}", name, slot.inputs.size()), type.sequence_type().elem_type().tensor_type());
                input.example = *example;
                for (std::size_t d = 0; d < input.dims.size(); ++d) {  // elements may differ in size, also along a named dimension
                    fixed_.insert(input.dims[d].name);
                    input.dims[d] = {"", example->size(static_cast<int>(d))};
                }
                slot.inputs.push_back(inputs_.size());
                inputs_.push_back(std::move(input));
            }
            if (slot.inputs.empty() && !is_optional && !find(options_.examples, name)) {
                fail<ValueError>(
                    loc_,
                    "load_onnx: {}: the input {} is a sequence: give as many examples as it is long in LoadOnnxOptions::examples, {}_0, {}_1, ..., "
                    "or {} as an undefined Tensor for one that is empty",
                    file_, name, name, name, name);
            }
            slot.is_none = slot.inputs.empty() && is_optional && !find(options_.examples, name);
            slots_.push_back(std::move(slot));
        } else if (type.has_optional_type() && !is_optional) {
            const bool is_given = type.optional_type().elem_type().has_sequence_type() || find(options_.examples, name);
            if (is_given) {
                add_input(name, type.optional_type().elem_type(), true);
            } else {
                slots_.push_back({name, {}, false, true});
            }
        } else {
            fail<ValueError>(loc_, "load_onnx: {}: the input {} is of a type that Tapir has not", file_, name);
        }
    }

    ModelInput tensor_input(const std::string& name, const onnx::TypeProto::Tensor& type) {
        ModelInput input;
        input.name = name;
        input.type = type.elem_type();
        const std::optional<DType> dtype = dtype_for_onnx(type.elem_type());
        if (!dtype) {
            fail<ValueError>(loc_, "load_onnx: {}: the input {} has elements of type {}, which Tapir has not", file_, name,
                             onnx_type_name(type.elem_type()));
        }
        input.dtype = *dtype;
        const Tensor* example = find(options_.examples, name);
        if (example) {
            if (example->dtype() != *dtype) {
                fail<DTypeError>(loc_, "load_onnx: {}: the input {} is {}, its example {}", file_, name, *dtype, example->dtype());
            }
            input.example = example->detach();
        }
        if (!type.has_shape()) {
            if (!example) {
                fail<ValueError>(loc_,
                                 "load_onnx: {}: the model does not tell how many dimensions the input {} has: give an example in "
                                 "LoadOnnxOptions::examples",
                                 file_, name);
            }
            for (const std::int64_t size : example->shape()) input.dims.push_back({"", size});
            return input;
        }
        if (type.shape().dim_size() > kMaxRank)
            fail<FileError>(loc_, "load_onnx: {}: the input {} has {} dimensions", file_, name, type.shape().dim_size());
        if (example && example->dim() != type.shape().dim_size()) {
            fail<ShapeError>(loc_, "load_onnx: {}: the input {} has {} dimensions, its example {}", file_, name, type.shape().dim_size(),
                             example->dim());
        }
        for (int d = 0; d < type.shape().dim_size(); ++d) {
            const auto& dim = type.shape().dim(d);
            if (dim.has_dim_value() && dim.dim_value() >= 0) {
                if (dim.dim_value() > std::int64_t{1} << 40)
                    fail<FileError>(loc_, "load_onnx: {}: the input {} has {} elements in a dimension", file_, name, dim.dim_value());
                input.dims.push_back({"", dim.dim_value()});
                continue;
            }
            const auto says_something = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
            const bool has_own_name = std::any_of(dim.dim_param().begin(), dim.dim_param().end(), says_something);  // some exporters write "?"
            const std::optional<SymInt::OfOneDim> of = multiple(dim.dim_param());
            std::string named = dim_name(of ? of->dim : has_own_name ? dim.dim_param() : fmt::format("{}_{}", name, d));
            const std::vector<std::string> names = names_of_length({named, dim.dim_param()});
            if (names.size() > 2) named = dim_name(names[2]);  // the first name that LoadOnnxOptions::same has for it
            std::int64_t size = example ? example->size(d) : -1, step = of ? of->factor : 1;
            bool is_given = false;
            for (const std::string& key : names) {
                if (const auto found = options_.sizes.find(key); found != options_.sizes.end()) {
                    size = found->second;
                    is_given = true;
                }
                if (const auto found = options_.multiples.find(key); found != options_.multiples.end() && found->second > 0)
                    step = std::lcm(step, found->second);
            }
            if (is_given) named.clear();
            if (!named.empty()) dims_.insert(named);
            all_dims_.insert(dim.dim_param());
            all_dims_.insert(dim_name(dim.dim_param()));
            all_dims_.insert(fmt::format("{}_{}", name, d));
            input.dims.push_back({named, size, has_own_name, step});
        }
        return input;
    }

    // Adds all names of the same length to these.
    std::vector<std::string> names_of_length(std::vector<std::string> names) const {
        for (const std::vector<std::string>& group : options_.same) {
            const auto is_own = [&](const std::string& name) { return name == names[0] || name == names[1]; };
            if (std::any_of(group.begin(), group.end(), is_own)) names.insert(names.end(), group.begin(), group.end());
        }
        return names;
    }

    void check_options() {
        const auto is_input = [&](const std::string& name) {
            for (const onnx::ValueInfoProto& info : model_.graph().input()) {
                if (info.name() == name) return true;
            }
            return std::any_of(inputs_.begin(), inputs_.end(), [&](const ModelInput& input) { return input.name == name; });
        };
        for (const auto* list : {&options_.known, &options_.examples}) {
            for (const auto& [name, tensor] : *list) {
                if (!is_input(name)) fail<ValueError>(loc_, "load_onnx: {}: it has no input {}", file_, name);
            }
        }
        for (const auto& [name, size] : options_.sizes) {
            if (!all_dims_.count(name)) fail<ValueError>(loc_, "load_onnx: {}: none of its inputs has a dimension {}", file_, name);
            if (size < 0) fail<ValueError>(loc_, "load_onnx: {}: the size {} of the dimension {}", file_, size, name);
        }
        for (const auto& [name, step] : options_.multiples) {
            if (!all_dims_.count(name)) fail<ValueError>(loc_, "load_onnx: {}: none of its inputs has a dimension {}", file_, name);
            if (step < 1) fail<ValueError>(loc_, "load_onnx: {}: multiples of {} for the dimension {}", file_, step, name);
        }
        for (const std::vector<std::string>& group : options_.same) {
            for (const std::string& name : group) {
                if (!all_dims_.count(name)) fail<ValueError>(loc_, "load_onnx: {}: none of its inputs has a dimension {}", file_, name);
            }
        }
        if (dims_.size() > kMostNamed) {
            fail<ValueError>(loc_,
                             "load_onnx: {}: {} dimensions may differ in size, but a graph can have {}: {}: give sizes of others in "
                             "LoadOnnxOptions::sizes",
                             file_, dims_.size(), kMostNamed, joined({dims_.begin(), dims_.end()}));
        }
        interpreter_.set_named_dims(!dims_.empty());
    }

    // Goes through the model's nodes for the shapes of their results. Where that does not do, examples of the inputs may say what data
    // decides: then all is computed.
    Graph load_graph() {
        const std::vector<ModelInput> plain = inputs_;
        try {
            return try_sizes();
        } catch (const OnnxNeedsValue&) {
            throw;
        } catch (const Error&) {
            if (!has_examples()) throw;
        }
        inputs_ = plain;
        computes_shapes_only_ = false;
        furthest_ = -1;
        return try_sizes();
    }

    // If some sizes do not fit, others may: then dimensions without a name of their own that have the same size in all examples are taken
    // for one, and so are those that examples show to be equal; then dimensions after the first are made multiples of a number.
    Graph try_sizes() {
        if (std::optional<Graph> graph = try_each_size()) return std::move(*graph);
        const std::vector<ModelInput> plain = inputs_;
        const std::vector<std::exception_ptr> plain_errors = tape_errors_;
        if (tie_unnamed()) {
            if (std::optional<Graph> graph = try_each_size()) return std::move(*graph);
            inputs_ = plain;
        }
        // Not if it has run with two lengths: then no graph could be made of it, which tying dimensions does not change.
        const bool has_run = std::any_of(plain_errors.begin(), plain_errors.end(), [](const std::exception_ptr& error) { return error != nullptr; });
        for (const auto& [one, other] : equal_examples()) {
            if (has_run) break;
            tie(one, other);
            if (std::optional<Graph> graph = try_each_size()) return std::move(*graph);
            inputs_ = plain;
        }
        for (const std::int64_t step : kSteps) {
            if (!set_step(step)) continue;
            if (std::optional<Graph> graph = try_each_size()) {
                if (plain_errors[tried_]) explain_multiples(plain, plain_errors[tried_]);
                return std::move(*graph);
            }
            inputs_ = plain;
        }
        explain_failure();
    }

    // The model itself accepts sizes other than the multiples for which there is a graph.
    [[noreturn]] void explain_multiples(const std::vector<ModelInput>& plain, const std::exception_ptr& error) {
        std::map<std::string, std::int64_t> steps;
        for (std::size_t i = 0; i < plain.size(); ++i) {
            for (std::size_t d = 0; d < plain[i].dims.size(); ++d) {
                if (const InputDim& dim = inputs_[i].dims[d]; dim.step != plain[i].dims[d].step) steps[dim.name] = dim.step;
            }
        }
        std::string text;
        for (const auto& [name, step] : steps) text += fmt::format("{}{{\"{}\", {}}}", text.empty() ? "" : ", ", name, step);
        rethrow_with_hint<TapeError>(error,
                                     fmt::format("; there is a graph of multiples, with LoadOnnxOptions::multiples = {{{}}}, or of certain sizes, "
                                                 "with LoadOnnxOptions::sizes",
                                                 text));
    }

    // Pairs of dimension names that have the same size in all examples.
    std::vector<std::pair<std::string, std::string>> equal_examples() const {
        std::map<std::string, std::int64_t> sizes;
        for (const ModelInput& input : inputs_) {
            for (const InputDim& dim : input.dims) {
                if (!dim.name.empty() && dim.size >= 0) sizes.emplace(dim.name, dim.size);
            }
        }
        std::vector<std::pair<std::string, std::string>> pairs;
        for (auto one = sizes.begin(); one != sizes.end(); ++one) {
            for (auto other = std::next(one); other != sizes.end(); ++other) {
                if (one->second == other->second) pairs.emplace_back(one->first, other->first);
            }
        }
        return pairs;
    }

    void tie(const std::string& one, const std::string& other) {
        for (ModelInput& input : inputs_) {
            for (InputDim& dim : input.dims) {
                if (dim.name == other) dim.name = one;
            }
        }
    }

    bool tie_unnamed() {
        std::map<std::int64_t, std::string> by_size;
        bool any = false;
        for (ModelInput& input : inputs_) {
            for (InputDim& dim : input.dims) {
                if (dim.name.empty() || dim.has_own_name || dim.size < 0) continue;
                const auto [known, is_new] = by_size.emplace(dim.size, dim.name);
                any = any || !is_new;
                dim.name = known->second;
            }
        }
        return any;
    }

    bool set_step(std::int64_t step) {
        std::set<std::string> first;  // batches
        for (const ModelInput& input : inputs_) {
            if (!input.dims.empty()) first.insert(input.dims[0].name);
        }
        bool any = false;
        for (ModelInput& input : inputs_) {
            for (InputDim& dim : input.dims) {
                if (dim.name.empty() || dim.step > 1 || first.count(dim.name) || (dim.size >= 0 && dim.size % step != 0)) continue;
                dim.step = step;
                any = true;
            }
        }
        return any;
    }

    [[noreturn]] void explain_failure() {
        std::string hint;
        if (const std::string sizes = shown_sizes(furthest_sizes_); !sizes.empty()) {
            hint = fmt::format(
                "; this is with {} or a little more, and the other sizes tried do not fit either: a dimension that must have a "
                "certain size is told it in LoadOnnxOptions::sizes",
                sizes);
            if (dims_.size() > 1) hint += "; dimensions that are one length under two names are told in LoadOnnxOptions::same";
        }
        rethrow_with_hint<ShapeError, ValueError, IndexError, TapeError, OutOfMemory>(best_, hint);
    }

    // Other sizes would not help.
    [[noreturn]] void explain_no_end() {
        rethrow_with_hint<ShapeError, ValueError, IndexError, TapeError, OutOfMemory>(
            std::current_exception(), "; give inputs on which the loops of the model end in LoadOnnxOptions::examples");
    }

    // True if it is tried with made-up elements.
    bool is_made_up() const {
        return inputs_.empty() || std::any_of(inputs_.begin(), inputs_.end(), [](const ModelInput& input) { return !input.example.defined(); });
    }

    bool has_examples() const {
        return std::any_of(inputs_.begin(), inputs_.end(), [](const ModelInput& input) { return input.example.defined(); });
    }

    // True if examples have all sizes, so that no others need to be tried first.
    bool has_all_sizes() const {
        const auto is_open = [](const InputDim& dim) { return !dim.name.empty() && dim.size < 0; };
        const auto has_open = [&](const ModelInput& input) { return std::any_of(input.dims.begin(), input.dims.end(), is_open); };
        return std::none_of(inputs_.begin(), inputs_.end(), has_open);
    }

    std::optional<Graph> try_each_size() {
        const bool has_integers = std::any_of(inputs_.begin(), inputs_.end(),
                                              [](const ModelInput& input) { return !input.example.defined() && !is_floating(input.dtype); });
        const std::size_t size_count = has_all_sizes() ? 1 : std::size(kTriedSizes);
        tape_errors_.assign(std::size(kTriedSizes), nullptr);
        for (std::size_t s = 0; s < size_count; ++s) {
            tried_ = s;
            for (int integer = 0; integer < (has_integers ? 2 : 1); ++integer) {
                interpreter_.count_from_here();
                const TurnBound turns(is_made_up() || computes_shapes_only_ ? kMadeUpTurns : INT64_MAX);
                const auto failed = [&] {
                    if (turns.is_spent()) explain_no_end();
                    if (interpreter_.nodes_run() <= furthest_) return;
                    furthest_ = interpreter_.nodes_run();
                    best_ = std::current_exception();
                    furthest_sizes_ = sizes_;
                };
                try {
                    return trace_with(kTriedSizes[s], integer);
                } catch (const OnnxNeedsValue&) {
                    throw;
                } catch (const ShapeError&) {
                    failed();
                } catch (const ValueError&) {
                    failed();
                } catch (const IndexError&) {
                    failed();
                } catch (const TapeError&) {
                    failed();
                    tape_errors_[s] = std::current_exception();
                } catch (const OutOfMemory&) {
                    failed();
                }
            }
        }
        return std::nullopt;
    }

    Tensor made_up(const ModelInput& input, const Shape& shape, int integer) const {
        const bool is_number = !is_floating(input.dtype) && input.dtype != bool_;
        try {
            return is_number ? full(shape, integer, {input.dtype, cpu}, loc_) : zeros(shape, {input.dtype, cpu}, loc_);
        } catch (const OutOfMemory&) {
            fail<OutOfMemory>(loc_, "load_onnx: {}: no memory for the input {} of shape {}", file_, input.name, shape);
        }
    }

    Graph trace_with(std::int64_t tried, int integer) {
        const CallerScope caller(loc_);
        const ShapesOnly shapes(computes_shapes_only_);
        DimSizes& sizes = sizes_;
        sizes.clear();
        for (const ModelInput& input : inputs_) {  // takes the sizes of examples
            for (std::size_t d = 0; input.example.defined() && d < input.dims.size(); ++d) {
                if (!input.dims[d].name.empty()) sizes.emplace(input.dims[d].name, input.example.size(static_cast<int>(d)));
            }
        }
        std::vector<TraceInput> inputs;
        for (const ModelInput& input : inputs_) {
            TraceInput traced{input.name, input.example, {}};
            Shape shape;
            for (const InputDim& dim : input.dims) {
                traced.dims.push_back(dim.step == 1 ? dim.name : fmt::format("{}*{}", dim.step, dim.name));
                const bool is_batch = shape.rank() == 0 && input.dims.size() > 1;
                const std::int64_t wish = is_batch ? std::min(tried, kMostTriedFirst) : tried, multiple = (wish + dim.step - 1) / dim.step * dim.step;
                shape.push_back(dim.name.empty() ? dim.size : sizes.emplace(dim.name, multiple).first->second);
            }
            if (!traced.tensor.defined()) {
                traced.tensor = made_up(input, shape, integer);
            } else if (traced.tensor.shape() != shape) {
                fail<ShapeError>(loc_, "load_onnx: {}: the example of the input {} has shape {}, not {}", file_, input.name, traced.tensor.shape(),
                                 shape);
            }
            inputs.push_back(std::move(traced));
        }
        const auto run = [&](const std::vector<Tensor>& x) { return run_model(x); };
        Graph graph = detail::trace(traced(run), inputs, traced_, loc_, /*is_model=*/true);
        eliminate_dead_code(graph);
        return graph;
    }

    std::vector<Tensor> run_model(const std::vector<Tensor>& x) {
        OnnxInterpreter::Scope scope = scope_;
        for (auto& [name, value] : scope.values) {  // drops results of the last run
            if (!value->is_parameter) value = std::make_shared<OnnxValue>(*value);
        }
        for (const Slot& slot : slots_) {
            std::vector<OnnxValuePtr> values;
            for (const std::size_t i : slot.inputs) {
                values.push_back(onnx_value(x[i], inputs_[i].type));
                values.back()->inputs = {slot.name};
            }
            if (slot.is_sequence || slot.is_none) {
                auto value = std::make_shared<OnnxValue>();
                value->kind = slot.is_none ? OnnxValue::Kind::none : OnnxValue::Kind::sequence;
                value->elements = std::move(values);
                scope.values[slot.name] = std::move(value);
            } else {
                scope.values[slot.name] = values[0];
            }
        }
        const CallerScope caller(loc_);
        interpreter_.count_from_here();
        const std::vector<OnnxValuePtr> results = interpreter_.run(model_.graph(), scope);
        std::vector<Tensor> outputs;
        traced_.outputs.clear();
        const onnx::NodeProto none;
        const OnnxCall call(interpreter_, none, results, scope, /*is_fold=*/false);
        for (std::size_t k = 0; k < results.size(); ++k) {
            const std::string& name = model_.graph().output(static_cast<int>(k)).name();
            if (results[k]->kind == OnnxValue::Kind::tensor) {
                traced_.outputs.push_back(name);
                outputs.push_back(call.tensor(results[k]));
                continue;
            }
            if (results[k]->stacked.defined()) {
                fail<ValueError>(loc_, "load_onnx: {}: the output {} is a sequence that a loop of many turns made", file_, name);
            }
            for (std::size_t i = 0; i < results[k]->elements.size(); ++i) {
                if (results[k]->elements[i]->kind != OnnxValue::Kind::tensor)
                    fail<ValueError>(loc_, "load_onnx: {}: the output {} is a sequence of sequences", file_, name);
                traced_.outputs.push_back(fmt::format("{}_{}", name, i));
                outputs.push_back(call.tensor(results[k]->elements[i]));
            }
        }
        return outputs;
    }

    // The source of an input of the model.
    struct Slot {
        std::string name;
        std::vector<std::size_t> inputs;  // indices of the graph's inputs
        bool is_sequence, is_none;
    };

    onnx::ModelProto& model_;  // without the bytes of the weights that are loaded
    const LoadOnnxOptions& options_;
    const std::string& file_;
    const Loc& loc_;
    OnnxInterpreter interpreter_;
    OnnxInterpreter::Scope scope_;
    TraceOptions traced_;
    std::unordered_set<std::string> buffers_;
    std::unordered_set<std::string> trained_;  // names at places of weights
    std::vector<ModelInput> inputs_;
    std::vector<Slot> slots_;
    std::set<std::string> dims_, all_dims_, fixed_;
    DimSizes sizes_;  // tried last
    bool computes_shapes_only_ = true;
    std::size_t tried_ = 0;                        // index in kTriedSizes
    std::vector<std::exception_ptr> tape_errors_;  // errors for sizes with which the model ran, but no graph of it could be made
    std::exception_ptr best_;                      // the error of the attempt that came furthest
    DimSizes furthest_sizes_;                      // the sizes of that attempt
    std::int64_t furthest_ = -1;
};

// Parses an open file in blocks, so that its bytes are not in memory beside the model.
class FileBlocks : public google::protobuf::io::CopyingInputStream {
 public:
    explicit FileBlocks(const io::InputFile& file) : file_(file) {}
    int Read(void* to, int size) override {
        const auto count = static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(size), file_.size() - at_));
        if (count > 0) file_.read(at_, to, static_cast<std::size_t>(count));
        at_ += static_cast<std::uint64_t>(count);
        return count;
    }

 private:
    const io::InputFile& file_;
    std::uint64_t at_ = 0;
};

// parse: fills the model, or returns false.
template <class Parse>
Graph load_model(const Parse& parse, const LoadOnnxOptions& options, const std::string& folder, const std::string& file, const Loc& loc) {
    if (is_tracing()) fail<TapeError>(loc, "load_onnx: this thread traces; load the model before");
    onnx::ModelProto model;
    if (!parse(model)) fail<FileError>(loc, "load_onnx: {}: it is no ONNX model, or is damaged", file);
    const NoGradScope no_tape;
    const PauseAutocast no_autocast;
    const DeviceScope on_cpu(cpu);
    return Loader(model, options, folder, file, loc).load();
}

}  // namespace
}  // namespace detail

Graph load_onnx(const TextArg& path, const LoadOnnxOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    const auto parse = [&](onnx::ModelProto& model) {
        const io::InputFile file("load_onnx", path, loc);
        if (file.size() >= std::uint64_t{1} << 31) file.stop("is larger than a model can be, 2 GiB");
        detail::FileBlocks blocks(file);
        google::protobuf::io::CopyingInputStreamAdaptor stream(&blocks, 1 << 20);
        return model.ParseFromZeroCopyStream(&stream);
    };
    return detail::load_model(parse, options, std::filesystem::path(std::string_view(path)).parent_path().string(), path, loc);
}

Graph load_onnx_from_memory(TextViewArg bytes, const LoadOnnxOptions& options, const TextArg& folder, Loc loc) {
    const detail::CallLine call(loc);
    const auto parse = [&](onnx::ModelProto& model) {
        return bytes.size() <= std::size_t{INT32_MAX} && model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    };
    return detail::load_model(parse, options, folder, "the model in memory", loc);
}

}  // namespace tapir
