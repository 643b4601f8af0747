// Writes graphs as ONNX models.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/onnx/proto_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

constexpr int kLeastOpset = 17, kLastOpset = 28;
constexpr int64_t kLeastExternal = 1024;  // bytes: smaller tensors stay in the model
constexpr int64_t kMostNodes = 1 << 20;   // in the graph and those within it
constexpr int64_t kAlignment = 4096;      // alignment of tensors in the external file, so that it can be mapped

// The version of the format that introduced these operators.
int ir_version(int opset) {
    return opset <= 18 ? 8 : opset <= 20 ? 9 : opset <= 22 ? 10 : opset <= 23 ? 11 : opset <= 24 ? 12 : opset <= 27 ? 13 : 14;
}

/// A file beside the model that holds the bytes of large tensors.
class External {
 public:
    External(const std::string& path, const Loc& loc)
        : name_(std::filesystem::path(path).filename().string() + ".data"), path_(path + ".data"), file_("save_onnx", path_, loc) {}

    void add(const Tensor& data, onnx::TensorProto& proto) {
        const int64_t bytes = data.numel() * static_cast<int64_t>(itemsize(data.dtype()));
        const std::string padding(static_cast<std::size_t>((kAlignment - at_ % kAlignment) % kAlignment), '\0');
        file_.write(padding.data(), padding.size());
        at_ += static_cast<int64_t>(padding.size());
        file_.write(data.raw_data(), static_cast<std::size_t>(bytes));
        proto.set_data_location(onnx::TensorProto::EXTERNAL);
        const auto entry = [&](const char* key, const std::string& value) {
            auto* pair = proto.add_external_data();
            pair->set_key(key);
            pair->set_value(value);
        };
        entry("location", name_);
        entry("offset", fmt::format("{}", at_));
        entry("length", fmt::format("{}", bytes));
        at_ += bytes;
    }
    void commit() { file_.commit(); }

 private:
    std::string name_, path_;
    io::AtomicFile file_;
    int64_t at_ = 0;
};

void put_tensor(onnx::TensorProto& proto, const std::string& name, const Tensor& tensor, External* external) {
    const Tensor data = tensor.detach().to(Device()).contiguous();
    proto.set_name(name);
    proto.set_data_type(detail::onnx_type(data.dtype()));
    for (const int64_t size : data.shape()) proto.add_dims(size);
    const int64_t bytes = data.numel() * static_cast<int64_t>(itemsize(data.dtype()));
    if (external && bytes >= kLeastExternal) return external->add(data, proto);
    proto.set_raw_data(data.raw_data(), static_cast<std::size_t>(bytes));
}

void put_type(onnx::ValueInfoProto& info, const std::string& name, DType dtype, const std::vector<SymInt>* shape, bool rank_only = false) {
    info.set_name(name);
    auto* type = info.mutable_type()->mutable_tensor_type();
    type->set_elem_type(detail::onnx_type(dtype));
    if (!shape) return;
    auto* sizes = type->mutable_shape();
    for (const SymInt& size : *shape) {
        auto* dim = sizes->add_dim();
        if (rank_only) continue;
        if (size.is_number()) {
            dim->set_dim_value(size.number());
        } else {
            dim->set_dim_param(size.str());
        }
    }
}

Scalar number_of(const Tensor& x) {
    if (is_floating(x.dtype())) return x.item<double>();
    return x.dtype() == bool_ ? Scalar(x.item<bool>()) : Scalar(x.item<int64_t>());
}

struct TooLarge {};

class Writer final : public OnnxBuilder {
 public:
    Writer(const Graph& graph, const OnnxOptions& options, External* external) : graph_(graph), options_(options), external_(external) {}

    /// Returns messages about all that could not be written, a line each.
    std::vector<std::string> write_model(onnx::ModelProto& model) {
        model.set_ir_version(ir_version(options_.opset));
        model.set_producer_name(detail::kOnnxProducer);
        model.set_producer_version(TAPIR_VERSION);
        model.set_doc_string(options_.doc);
        model.add_opset_import()->set_version(options_.opset);
        for (const auto& [key, value] : options_.metadata) {
            auto* pair = model.add_metadata_props();
            pair->set_key(key);
            pair->set_value(value);
        }
        main_ = model.mutable_graph();
        current_ = main_;
        main_->set_name(options_.graph_name);
        for (const auto* list : {&graph_.inputs(), &graph_.parameters()}) {
            for (const Graph::Value* value : *list) {
                if (!value->name.empty()) given_.insert(value->name);
            }
        }
        for (const Graph::Output& output : graph_.outputs()) given_.insert(output.name);
        taken_ = given_;
        for (const Graph::Value* value : graph_.constants()) {
            if (!value->name.empty()) taken_.insert(value->name);
        }
        for (const Graph::Value* value : graph_.inputs()) {
            put_type(*main_->add_input(), value->name, value->dtype, &value->shape);
            for (const SymInt& size : value->shape) {
                for (std::string& name : size.dims()) named_.insert(std::move(name));
            }
            bind(value, OnnxValue(*this, value->name, value->dtype));
        }
        write_values(graph_);
        std::unordered_set<std::string> produced;
        for (const auto& node : main_->node()) produced.insert(node.output().begin(), node.output().end());
        for (const Graph::Output& output : graph_.outputs()) put_output(output.name, output.value, produced);
        for (const Graph::Update& update : graph_.updates()) put_output(fresh(update.target->name + ".updated"), update.value, produced);
        remove_unused();
        rename(*main_);
        put_value_infos();
        return std::move(refused_);
    }

    // --- OnnxBuilder ------------------------------------------------------------------------------------------------------------

    int opset() const noexcept override { return options_.opset; }

    OnnxValues add(const char* op, const OnnxValues& inputs, const OnnxAttributes& attributes, const OnnxDTypes& dtypes) override {
        auto* node = current_->add_node();
        node->set_op_type(op);
        const char* own_name = std::exchange(next_name, nullptr);
        node->set_name(fmt::format("{}_{}", own_name ? own_name : op, node_count_++));
        node->set_doc_string(doc_);
        for (const OnnxValue& input : inputs) node->add_input(input.name());
        while (node->input_size() > 0 && node->input(node->input_size() - 1).empty()) node->mutable_input()->RemoveLast();
        OnnxValues results;
        for (const DType dtype : dtypes) {
            results.emplace_back(*this, fresh_number(), dtype);
            node->add_output(results.last().name());
        }
        const std::string_view name = op;
        if ((name == "Cast" || name == "Identity") && results.count() == 1 && node->input_size() == 1) {
            if (const auto known = shapes_.find(node->input(0)); known != shapes_.end()) shapes_.try_emplace(results[0].name(), Known(known->second));
        }
        for (const OnnxAttribute& attribute : attributes) put_attribute(*node, attribute);
        return results;
    }

    OnnxValue constant(const Tensor& data) override {
        const Tensor flat = data.contiguous();
        const int64_t bytes = flat.numel() * static_cast<int64_t>(itemsize(flat.dtype()));
        std::string key = fmt::format("{} {} ", name_of(flat.dtype()), flat.shape());
        key.append(static_cast<const char*>(flat.raw_data()), static_cast<std::size_t>(bytes));
        auto [place, is_new] = constants_.try_emplace(key);
        if (is_new) {
            place->second = fresh("constant");
            auto* initializer = main_->add_initializer();
            put_tensor(*initializer, place->second, flat, external_);
            initializer->set_doc_string(detail::kOnnxConstant);
            Known& known = shapes_[place->second] = {{}, true};
            for (const int64_t size : flat.shape()) known.shape.push_back(size);
        }
        return OnnxValue(*this, place->second, flat.dtype());
    }

    void note_data_dependent() override { is_data_dependent_ = true; }

    OnnxValue size(const SymInt& size) override {
        if (size.is_number()) return ints({size.number()});
        const std::string text = size.str();
        for (auto scope = sizes_.rbegin(); scope != sizes_.rend(); ++scope) {
            const auto known = scope->find(text);
            if (known != scope->end()) return known->second;
        }
        const auto parts = size.parts();
        OnnxValue sum;
        const auto add_term = [&](const OnnxValue& term) { sum = sum.is_left_out() ? term : sum + term; };
        for (const auto& [product, coefficient] : parts.terms) {
            OnnxValue term;
            for (const std::string& name : product) {
                const OnnxValue factor = name.starts_with("(") ? this->size(SymInt::parse(name)) : dim(name);  // a quotient
                term = term.is_left_out() ? factor : term * factor;
            }
            add_term(coefficient == 1 ? term : term * ints({coefficient}));
        }
        if (parts.constant != 0) add_term(ints({parts.constant}));
        if (parts.divisor != 1) {
            const OnnxValue by = ints({parts.divisor});
            sum = (sum - remainder(sum, by)) / by;
        }
        if (parts.after != 0) sum = sum + ints({parts.after});
        sizes_.back().emplace(text, sum);
        return sum;
    }

    void begin_graph() override {
        stack_.push_back(current_);
        open_.push_back(std::make_unique<onnx::GraphProto>());
        current_ = open_.back().get();
        sizes_.emplace_back();
    }

    OnnxValue graph_input(DType dtype, const std::vector<SymInt>* shape, const OnnxValue& given) override {
        const std::string name = fresh("input");
        if (shape) shapes_.try_emplace(name, Known{*shape, is_sure(given)});
        put_part_type(*current_->add_input(), name, dtype);
        return OnnxValue(*this, name, dtype);
    }

    int end_graph(const OnnxValues& outputs) override {
        std::unordered_set<std::string> own;
        for (const auto& node : current_->node()) own.insert(node.output().begin(), node.output().end());
        for (const OnnxValue& output : outputs) {
            OnnxValue value = output;
            if (!own.erase(value.name())) value = add("Identity", {value}, {}, {value.dtype()})[0];  // made elsewhere, or an output twice
            put_part_type(*current_->add_output(), value.name(), value.dtype());                     // onnxruntime needs them where a Scan is around
        }
        current_->set_name(fmt::format("graph_{}", graph_count_));
        graphs_.emplace(graph_count_, std::move(open_.back()));
        close_graph();
        return graph_count_++;
    }

    OnnxValues write(const Graph& graph, const OnnxValues& inputs) override {
        for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
            const Graph::Value* value = graph.inputs()[i];
            if (i >= inputs.size()) throw OnnxRefusal{fmt::format("a graph has {} inputs, and is given {}", graph.inputs().size(), inputs.size())};
            if (!is_sure(inputs[static_cast<int64_t>(i)])) unsure_.insert(value);
            bind(value, inputs[static_cast<int64_t>(i)]);
        }
        const bool outer = is_data_dependent_;
        write_values(graph);
        OnnxValues outputs;
        for (const Graph::Output& output : graph.outputs()) outputs.push_back(lowered(output.value));
        is_data_dependent_ =
            outer || std::any_of(graph.outputs().begin(), graph.outputs().end(), [&](const auto& o) { return unsure_.count(o.value) > 0; });
        return outputs;
    }

 private:
    // The shape of a value; is_sure: it is the same for all data.
    struct Known {
        std::vector<SymInt> shape;
        bool is_sure;
    };
    bool is_sure(const OnnxValue& value) const {
        const auto known = shapes_.find(value.name());
        return known == shapes_.end() || known->second.is_sure;
    }

    // The type of a subgraph's input or output. Sizes that the model does not have depend on data; they get no names.
    void put_part_type(onnx::ValueInfoProto& info, const std::string& name, DType dtype) const {
        const auto found = shapes_.find(name);
        if (found == shapes_.end()) return put_type(info, name, dtype, nullptr);
        const auto& [shape, has_this_always] = found->second;
        put_type(info, name, dtype, &shape, !has_this_always);
        for (std::size_t d = 0; d < shape.size(); ++d) {
            const std::vector<std::string> names = shape[d].dims();
            const bool is_named = std::all_of(names.begin(), names.end(), [&](const std::string& of) { return named_.count(of) > 0; });
            if (!is_named) info.mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(static_cast<int>(d))->clear_dim_param();
        }
    }

    void close_graph() {
        open_.pop_back();
        current_ = stack_.back();
        stack_.pop_back();
        sizes_.pop_back();
        std::erase_if(dims_, [&](const auto& known) { return known.second.depth > sizes_.size(); });  // those of the subgraph
    }

    OnnxValue ints(const std::vector<int64_t>& numbers) { return constant(tensor(numbers)); }

    // A name that is not taken.
    std::string fresh(const std::string& wish) {
        if (taken_.insert(wish).second) return wish;
        for (;;) {
            std::string name = fmt::format("{}_{}", wish, ++suffix_);
            if (taken_.insert(name).second) return name;
        }
    }
    std::string fresh_number() {
        for (;;) {
            std::string name = fmt::format("v{}", value_count_++);
            if (taken_.insert(name).second) return name;
        }
    }

    void bind(const Graph::Value* value, const OnnxValue& to) {
        values_[value] = to;
        if (!to.is_number()) shapes_.try_emplace(to.name(), Known{value->shape, unsure_.count(value) == 0});
        for (std::size_t d = 0; d < value->shape.size(); ++d) {  // finds a place where the size of a dimension can be read
            const std::optional<SymInt::OfOneDim> one = value->shape[d].of_one_dim();
            if (to.is_number() || !one) continue;
            dims_.try_emplace(one->dim, DimPlace{to, static_cast<int>(d), sizes_.size(), *one});
        }
    }

    // The size of a named dimension: shape (1,).
    OnnxValue dim(const std::string& name) {
        for (auto scope = sizes_.rbegin(); scope != sizes_.rend(); ++scope) {
            const auto known = scope->find(name);
            if (known != scope->end()) return known->second;
        }
        const auto found = dims_.find(name);
        if (found == dims_.end()) {
            const bool is_no_formula = name.starts_with("unknown") && !name.starts_with("unknown_of_data");
            throw OnnxRefusal{fmt::format("no input has the size {}{}", name,
                                          is_no_formula ? ", a product or quotient of sizes that is no formula: name "
                                                          "dimensions that are halved \"2*height\", or \"32*height\""
                                                        : "")};
        }
        const auto& [value, axis, depth, one] = found->second;
        const OnnxValue shape = add("Shape", {value}, {}, {DType::int64})[0];
        OnnxValue size = add("Gather", {shape, ints({axis})}, {{"axis", 0}}, {DType::int64})[0];
        if (one.offset) size = add("Sub", {size, ints({one.offset})}, {}, {DType::int64})[0];
        if (one.factor != 1) size = add("Div", {size, ints({one.factor})}, {}, {DType::int64})[0];
        sizes_.back().emplace(name, size);
        return size;
    }

    const OnnxValue& value_of(const Graph::Value* value) {
        const auto known = values_.find(value);
        if (known == values_.end()) throw OnnxRefusal{"it uses what is made elsewhere"};
        return known->second;
    }
    OnnxValue lowered(const Graph::Value* value) {
        const OnnxValue& known = value_of(value);
        return known.is_number() ? constant(value->data.detach().to(Device())) : known;
    }

    void put_attribute(onnx::NodeProto& node, const OnnxAttribute& from) {
        auto* attribute = node.add_attribute();
        attribute->set_name(from.name);
        switch (from.kind) {
            case OnnxAttribute::Kind::integer: {
                int64_t value = from.integer;
                if (std::strcmp(from.name, "to") == 0 || std::strcmp(from.name, "dtype") == 0) value = detail::onnx_type(static_cast<DType>(value));
                attribute->set_i(value);
                return attribute->set_type(onnx::AttributeProto::INT);
            }
            case OnnxAttribute::Kind::real: attribute->set_f(static_cast<float>(from.real)); return attribute->set_type(onnx::AttributeProto::FLOAT);
            case OnnxAttribute::Kind::text: attribute->set_s(from.text); return attribute->set_type(onnx::AttributeProto::STRING);
            case OnnxAttribute::Kind::integers:
                for (const int64_t value : from.integers) attribute->add_ints(value);
                return attribute->set_type(onnx::AttributeProto::INTS);
            case OnnxAttribute::Kind::reals:
                for (const double value : from.reals) attribute->add_floats(static_cast<float>(value));
                return attribute->set_type(onnx::AttributeProto::FLOATS);
            case OnnxAttribute::Kind::graph: {
                const auto made = graphs_.find(static_cast<int>(from.integer));
                *attribute->mutable_g() = std::move(*made->second);
                graphs_.erase(made);
                return attribute->set_type(onnx::AttributeProto::GRAPH);
            }
        }
    }

    // The parameters, constants and nodes of a graph.
    void write_values(const Graph& graph) {
        for (const auto* list : {&graph.parameters(), &graph.constants()}) {
            for (const Graph::Value* value : *list) {
                if (value->kind == Graph::Kind::constant && value->shape.empty() && value->device == Device()) {
                    bind(value, OnnxValue(*this, number_of(value->data), value->dtype));
                    continue;
                }
                const bool keeps_name =
                    &graph == &graph_ && !value->name.empty() && (value->kind == Graph::Kind::parameter || given_.insert(value->name).second);
                const std::string name = keeps_name ? value->name : fresh(value->name.empty() ? "constant" : value->name);
                auto* initializer = main_->add_initializer();
                put_tensor(*initializer, name, value->data, external_);
                if (value->kind == Graph::Kind::constant)
                    initializer->set_doc_string(detail::kOnnxConstant);
                else if (!value->data.requires_grad())
                    initializer->set_doc_string(detail::kOnnxBuffer);
                if (value->kind == Graph::Kind::parameter) parameters_.insert(name);
                bind(value, OnnxValue(*this, name, value->dtype));
            }
        }
        for (const auto& node : graph.nodes()) write_node(*node);
    }

    static std::string where(const Graph::Node& node) {
        std::string text = node.loc.line() ? detail::file_and_line(node.loc) : std::string();
        if (node.module && *node.module->shown()) text += fmt::format("{}{}", text.empty() ? "" : " ", node.module->shown());
        return text;
    }

    void write_node(const Graph::Node& node) {
        if (++written_ > kMostNodes) throw TooLarge();  // the condition of a loop is written twice, and may contain a loop itself
        const std::string outer = std::exchange(doc_, where(node));
        const std::size_t depth = stack_.size();
        is_data_dependent_ = std::any_of(node.inputs.begin(), node.inputs.end(), [&](const Graph::Value* v) { return unsure_.count(v) > 0; });
        number_dtype = node.results.empty() ? DType::float32 : node.results[0]->dtype;
        try {
            const OnnxForm* form = find_onnx(node.form().op);
            if (!form) throw OnnxRefusal{""};
            OnnxValues inputs;
            OnnxList<OnnxCall::Info> infos, results;
            for (const Graph::Value* input : node.inputs) {
                inputs.push_back(value_of(input));
                infos.push_back({input->dtype, input->shape});
            }
            for (const Graph::Value* result : node.results) results.push_back({result->dtype, result->shape});
            const OnnxCall call(*this, node.attributes(), std::move(inputs), std::move(infos), std::move(results));
            const OnnxValues values = form->write(call);
            if (is_data_dependent_) unsure_.insert(node.results.begin(), node.results.end());
            if (values.size() < node.results.size()) throw OnnxRefusal{fmt::format("{} of {} results", values.size(), node.results.size())};
            for (std::size_t i = 0; i < node.results.size(); ++i) {
                const Graph::Value* result = node.results[i];
                OnnxValue value = values[static_cast<int64_t>(i)];
                if (value.is_left_out()) {
                    if (!result->uses.empty()) throw OnnxRefusal{fmt::format("result {} has no form", i)};
                    value = call.scalar(0, result->dtype);
                }
                if (value.is_number()) value = call.scalar(value.number(), result->dtype);
                bind(result, cast(value, result->dtype));
            }
        } catch (const OnnxRefusal& refusal) {
            refuse(node, refusal.why, depth);
        } catch (const FileError&) {
            throw;
        } catch (const OutOfMemory&) {
            throw;
        } catch (const Error& error) {  // sizes that do not fit, for example: a text may state anything
            refuse(node, io::text_of(error), depth);
        }
        doc_ = outer;
    }

    // depth: the number of subgraphs that were open before.
    void refuse(const Graph::Node& node, const std::string& why, std::size_t depth) {
        while (stack_.size() > depth) close_graph();
        refused_.push_back(fmt::format("{} ({}){}{}", node.op(), where(node), why.empty() ? "" : ": ", why));
        for (const Graph::Value* result : node.results) bind(result, OnnxValue(*this, fresh_number(), result->dtype));
    }

    void put_output(const std::string& name, const Graph::Value* value, std::unordered_set<std::string>& produced) {
        OnnxValue made = lowered(value);
        if (produced.erase(made.name())) {
            renamed_.emplace(made.name(), name);
        } else {  // an input, a parameter, or a value that is an output already
            auto* node = main_->add_node();
            node->set_op_type("Identity");
            node->set_name(fmt::format("Identity_{}", node_count_++));
            node->add_input(made.name());
            node->add_output(name);
        }
        put_type(*main_->add_output(), name, value->dtype, &value->shape, unsure_.count(value) > 0);
    }

    static void note_used(const onnx::NodeProto& node, std::unordered_set<std::string>& used) {
        used.insert(node.input().begin(), node.input().end());
        for (const auto& attribute : node.attribute()) {
            if (!attribute.has_g()) continue;
            for (const auto& inner : attribute.g().node()) note_used(inner, used);
            for (const auto& output : attribute.g().output()) used.insert(output.name());
        }
    }

    // Removes nodes and constants that lead to no output: results of ops that nobody reads.
    void remove_unused() {
        std::unordered_set<std::string> used;
        for (const auto& output : main_->output()) used.insert(output.name());
        for (const auto& [name, output] : renamed_) used.insert(name);
        std::vector<bool> kept(static_cast<std::size_t>(main_->node_size()));
        for (int i = main_->node_size(); i-- > 0;) {
            const auto& node = main_->node(i);
            const bool is_used = std::any_of(node.output().begin(), node.output().end(), [&](const auto& name) { return used.count(name) > 0; });
            kept[static_cast<std::size_t>(i)] = is_used;
            if (is_used) note_used(node, used);
        }
        int count = 0;
        for (int i = 0; i < main_->node_size(); ++i) {
            if (kept[static_cast<std::size_t>(i)]) main_->mutable_node()->SwapElements(count++, i);
        }
        main_->mutable_node()->DeleteSubrange(count, main_->node_size() - count);
        count = 0;
        for (int i = 0; i < main_->initializer_size(); ++i) {
            const std::string& name = main_->initializer(i).name();
            if (used.count(name) || parameters_.count(name)) main_->mutable_initializer()->SwapElements(count++, i);
        }
        main_->mutable_initializer()->DeleteSubrange(count, main_->initializer_size() - count);
    }

    void rename(onnx::GraphProto& graph) const {
        if (renamed_.empty()) return;
        const auto change = [&](std::string* name) {
            const auto found = renamed_.find(*name);
            if (found != renamed_.end()) *name = found->second;
        };
        for (auto& node : *graph.mutable_node()) {
            for (auto& name : *node.mutable_input()) change(&name);
            for (auto& name : *node.mutable_output()) change(&name);
            for (auto& attribute : *node.mutable_attribute()) {
                if (attribute.has_g()) rename(*attribute.mutable_g());
            }
        }
    }

    // Adds the shapes of the main graph's values, for readers of the model.
    void put_value_infos() {
        std::unordered_set<std::string> known;
        for (const auto& input : main_->input()) known.insert(input.name());
        for (const auto& output : main_->output()) known.insert(output.name());
        for (const auto& node : graph_.nodes()) {
            for (const Graph::Value* result : node->results) {
                const auto made = values_.find(result);
                if (made == values_.end() || made->second.is_number() || unsure_.count(result)) continue;
                const auto renamed = renamed_.find(made->second.name());
                const std::string& name = renamed == renamed_.end() ? made->second.name() : renamed->second;
                if (made->second.dtype() != result->dtype || constant_names().count(name) || !known.insert(name).second) continue;
                put_type(*main_->add_value_info(), name, result->dtype, &result->shape);
            }
        }
    }
    const std::unordered_set<std::string>& constant_names() {
        if (initializer_names_.empty()) {
            for (const auto& initializer : main_->initializer()) initializer_names_.insert(initializer.name());
        }
        return initializer_names_;
    }

    static const char* name_of(DType dtype) { return tapir::name(dtype); }

    const Graph& graph_;
    const OnnxOptions& options_;
    External* external_;
    onnx::GraphProto* main_ = nullptr;
    onnx::GraphProto* current_ = nullptr;
    std::vector<onnx::GraphProto*> stack_;
    std::vector<std::unique_ptr<onnx::GraphProto>> open_;
    std::map<int, std::unique_ptr<onnx::GraphProto>> graphs_;
    std::unordered_map<const Graph::Value*, OnnxValue> values_;
    struct DimPlace {
        OnnxValue value;
        int axis;
        std::size_t depth;  // the number of open graphs
        SymInt::OfOneDim as;
    };
    std::unordered_map<std::string, DimPlace> dims_;
    std::vector<std::unordered_map<std::string, OnnxValue>> sizes_{1};  // for each open graph
    std::unordered_map<std::string, std::string> constants_;            // by their bytes
    std::unordered_set<std::string> taken_, initializer_names_, parameters_;
    std::unordered_set<std::string> given_;  // names of inputs, parameters, outputs, and constants that are written already
    std::unordered_map<std::string, std::string> renamed_;
    std::unordered_set<const Graph::Value*> unsure_;  // values whose shapes depend on data
    std::unordered_map<std::string, Known> shapes_;   // of values of the model
    std::unordered_set<std::string> named_;           // dimensions of the model's inputs
    bool is_data_dependent_ = false;
    std::vector<std::string> refused_;
    std::string doc_;
    std::int64_t written_ = 0;  // nodes of graphs
    int node_count_ = 0, value_count_ = 0, graph_count_ = 0, suffix_ = 0;
};

}  // namespace

// In a model each name stands for one value.
static void check_names(const Graph& graph, const Loc& loc) {
    std::unordered_map<std::string_view, const char*> known;
    const auto note = [&](const std::string& name, const char* what) {
        const auto [place, is_new] = known.emplace(name, what);
        if (is_new || name.empty()) return;
        fail<ValueError>(loc,
                         "save_onnx: {} and {} have the name {}, but in an ONNX model each value has one of its own (TraceOptions::outputs names "
                         "outputs)",
                         place->second, what, name);
    };
    for (const Graph::Value* value : graph.inputs()) note(value->name, "an input");
    for (const Graph::Value* value : graph.parameters()) note(value->name, "a parameter");
    for (const Graph::Output& output : graph.outputs()) note(output.name, "an output");
}

static void check_metadata(const OnnxOptions& options, const Loc& loc) {
    std::unordered_set<std::string_view> known;
    for (const auto& [key, value] : options.metadata) {
        if (!known.insert(key).second) fail<ValueError>(loc, "save_onnx: the metadata has the key \"{}\" twice", key);
    }
}

void save_onnx(const TextArg& path, const Graph& graph, const OnnxOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    if (options.opset < kLeastOpset || options.opset > kLastOpset) {
        fail<ValueError>(loc, "save_onnx: opset is to be {} to {}, got {}", kLeastOpset, kLastOpset, options.opset);
    }
    if (!graph.guards().empty()) {
        std::string lines;
        for (const Graph::Guard& guard : graph.guards()) lines += fmt::format("\n  {} ({})", guard.what, detail::file_and_line(guard.loc));
        fail<ValueError>(loc, "save_onnx: the graph holds for some values only, which ONNX cannot check:{}", lines);
    }
    detail::check_held(graph, loc);
    check_names(graph, loc);
    check_metadata(options, loc);
    onnx::ModelProto model;
    std::unique_ptr<External> external;
    if (options.external_data) external = std::make_unique<External>(path, loc);
    std::vector<std::string> refused;
    try {
        refused = Writer(graph, options, external.get()).write_model(model);
    } catch (const TooLarge&) {
        fail<ValueError>(loc, "save_onnx: the graph has more than {} nodes, with those of graphs within it", kMostNodes);
    } catch (const OnnxRefusal& refusal) {  // for sizes of the graph's own values
        fail<ValueError>(loc, "save_onnx: the graph cannot be written as ONNX: {}", refusal.why);
    }
    if (!refused.empty()) {
        std::string lines;
        std::unordered_set<std::string> seen;
        for (const std::string& line : refused) {
            if (seen.insert(line).second) lines += "\n  " + line;
        }
        fail<ValueError>(loc, "save_onnx: these ops cannot be written as ONNX:{}", lines);
    }
    if (model.ByteSizeLong() > INT32_MAX) {
        fail<ValueError>(loc, "save_onnx: {}: a model of {} bytes is too large for one file; see OnnxOptions::external_data", path,
                         model.ByteSizeLong());
    }
    const std::string bytes = model.SerializeAsString();
    io::AtomicFile file("save_onnx", path, loc);
    file.write(bytes.data(), bytes.size());
    if (external) external->commit();
    file.commit();
}

}  // namespace tapir
