// Note [Names in the graph]
// TensorBoard makes boxes, which can be opened, of the parts before the slashes in nodes' names. The boxes are the modules: "encoder.cell" is
// the box encoder/cell. A module that ran several times and has parameters is one box all the same, as the program has one, and each of
// its runs is a box inside: cell/call_1, cell/call_2, with the parameters cell/weight beside them. So a recursive model is drawn as
// its source has it, and opening "cell" shows the tree. Runs of a module without parameters (a dropout) share nothing:
// they are the boxes dropout, dropout_1, ..., each in its own place.
//
// A record, and a node of a traced graph, knows only the innermost module and the number of that module's run. Numbers grow in the order in
// which runs begin, so the run of an enclosing module is its last one that began before.
#include "tapir/nn/summary/graph_impl.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/module_name.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/ops/arrange/unique.h"

namespace tapir::summary {
namespace {

struct Scope;

// A module within a run of the one around it.
struct Box {
    std::string label;  // includes the type for an element of a list: "0_Conv2d"
    bool has_parameters = false;
    std::map<std::uint32_t, std::unique_ptr<Scope>> runs;  // by their numbers; 0: of a module that has no ops of its own
};

// A run of a module, or the whole graph.
struct Scope {
    std::string name;  // with a slash at its end, or ""; set when all scopes exist
    std::map<std::string, Box, std::less<>> boxes;
};

// Replaces characters that a node's name may not have.
std::string node_name(std::string_view text) {
    std::string result;
    for (const char c : text) result += std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_.-", c) ? c : '_';
    return result.empty() ? "_" : result;
}

std::vector<std::string_view> parts_of(std::string_view path) {
    std::vector<std::string_view> parts;
    while (!path.empty()) {
        const std::size_t dot = std::min(path.find('.'), path.size());
        parts.push_back(path.substr(0, dot));
        path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return parts;
}

int data_type(DType dtype) {  // numbers of types.proto
    switch (dtype) {
        case float32: return 1;
        case float64: return 2;
        case int32: return 3;
        case uint8: return 4;
        case int64: return 9;
        case bool_: return 10;
        case bfloat16: return 14;
        case float16: return 19;
    }
    return 0;
}

// A node from any source.
struct Entry {
    std::string op;    // "Parameter", "Input", or an op's name
    std::string leaf;  // the name, if no op made it; "" for others
    bool is_leaf = false;
    const ModuleName* module = nullptr;
    std::uint32_t module_call = 0;
    std::vector<std::pair<std::size_t, int>> inputs = {};                   // entries, and the number of their output
    std::vector<std::pair<std::vector<std::int64_t>, DType>> outputs = {};  // shapes, -1 for sizes that differ from run to run
    Device device = {};
    std::vector<std::pair<const char*, std::string>> texts = {};
};

class Drawn {
 public:
    explicit Drawn(const std::vector<Entry>& entries) : entries_(entries) {
        note_modules();
        scopes_.assign(entries.size(), &root_);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (!entries[i].is_leaf && entries[i].module) scopes_[i] = scope_of(*entries[i].module, entries[i].module_call);
        }
        name_scopes(root_);
        names_.resize(entries.size());
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (entries[i].is_leaf) names_[i] = leaf_name(entries[i]);
        }
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (!entries[i].is_leaf) names_[i] = unique(scopes_[i]->name + node_name(entries[i].leaf.empty() ? entries[i].op : entries[i].leaf));
        }
    }

    Message message() const {
        Message graph;
        for (std::size_t i = 0; i < entries_.size(); ++i) graph.message(1, node(i));
        Message versions;
        versions.number(1, 22);  // the version of TensorFlow that made graphs of this form
        return graph.message(4, versions);
    }

 private:
    void note_modules() {
        for (const Entry& entry : entries_) {
            if (entry.is_leaf) {
                if (entry.op != "Parameter") continue;
                std::string_view name = entry.leaf;
                knows_places_ = knows_places_ || !name.empty();
                for (std::size_t dot = name.rfind('.'); dot != name.npos; dot = name.rfind('.')) {
                    name = name.substr(0, dot);
                    with_parameters_.emplace(name);
                }
            } else if (entry.module) {
                knows_places_ = knows_places_ || *entry.module->path;
                runs_[entry.module->path].insert(entry.module_call);
            }
        }
    }

    Scope* scope_of(const ModuleName& module, std::uint32_t run) {
        const std::string_view path = module.path;
        if (path.empty()) {  // the model itself; or the model was never asked for its modules' paths
            return knows_places_ ? &root_ : enter(root_, module.type, {}, run)->runs[run].get();
        }
        Scope* scope = &root_;
        for (const std::string_view part : parts_of(path)) {
            const std::string_view prefix = path.substr(0, static_cast<std::size_t>(part.end() - path.begin()));
            std::uint32_t of_prefix = 0;
            if (const auto found = runs_.find(prefix); found != runs_.end()) {
                const auto after = found->second.upper_bound(run);
                if (after != found->second.begin()) of_prefix = *std::prev(after);
            }
            Box* const box = enter(*scope, part, prefix, of_prefix);
            if (prefix == path && part.find_first_not_of("0123456789") == part.npos) {
                box->label = node_name(fmt::format("{}_{}", part, module.type));
            }
            scope = box->runs[of_prefix].get();
        }
        return scope;
    }

    Box* enter(Scope& scope, std::string_view name, std::string_view path, std::uint32_t run) {
        Box& box = scope.boxes[node_name(name)];
        if (box.label.empty()) box.label = node_name(name);
        box.has_parameters = with_parameters_.contains(path);
        std::unique_ptr<Scope>& inner = box.runs[run];
        if (!inner) inner = std::make_unique<Scope>();
        return &box;
    }

    void name_scopes(Scope& scope) {
        for (auto& [part, box] : scope.boxes) {
            int number = 0;
            for (auto& [run, inner] : box.runs) {
                inner->name = scope.name + box.label;
                if (box.runs.size() > 1 && box.has_parameters) {
                    inner->name += fmt::format("/call_{}", number + 1);
                } else if (number > 0) {
                    inner->name += fmt::format("_{}", number);
                }
                inner->name += '/';
                ++number;
                name_scopes(*inner);
            }
        }
    }

    // A parameter's box is its module's; if the module has several runs, the parameter stands beside them.
    std::string leaf_name(const Entry& entry) {
        const std::string_view path = entry.leaf;
        if (entry.op != "Parameter") return unique(path.empty() ? "input" : node_name(path));
        const std::vector<std::string_view> parts = parts_of(path);
        const Scope* scope = &root_;
        std::string name;
        for (std::size_t k = 0; k < parts.size(); ++k) {
            if (k > 0) name += scope ? '/' : '.';
            const std::string part = node_name(parts[k]);
            const auto found = scope ? scope->boxes.find(part) : root_.boxes.end();
            const bool is_box = scope && found != scope->boxes.end();
            name += is_box ? found->second.label : part;
            if (!scope) continue;
            if (!is_box) {
                static const Scope nothing;
                scope = &nothing;
            } else if (found->second.runs.size() == 1) {
                scope = found->second.runs.begin()->second.get();
            } else {
                scope = nullptr;
                if (k + 1 < parts.size()) name += '/' + node_name(parts[++k]);
            }
        }
        return unique(name);
    }

    std::string unique(const std::string& name) {
        std::string result = name;
        for (int& number = used_[name]; !taken_.insert(result).second;) result = fmt::format("{}_{}", name, ++number);
        return result;
    }

    Message node(std::size_t i) const {
        const Entry& entry = entries_[i];
        Message node;
        node.text(1, names_[i]);
        node.text(2, entry.op);
        for (const auto& [input, output] : entry.inputs) {
            node.text(3, output == 0 ? names_[input] : fmt::format("{}:{}", names_[input], output));
        }
        node.text(4, entry.device.type == DeviceType::cuda ? fmt::format("/device:GPU:{}", entry.device.index) : "/device:CPU:0");
        Message shapes, types;
        for (const auto& [sizes, dtype] : entry.outputs) {
            Message shape;
            for (const std::int64_t size : sizes) {
                Message dimension;
                dimension.number(1, size);
                shape.message(2, dimension);
            }
            shapes.message(7, shape);
            types.number(6, data_type(dtype));
        }
        Message all_shapes, all_types;
        add_attribute(node, "_output_shapes", all_shapes.message(1, shapes));
        add_attribute(node, "dtype", all_types.message(1, types));
        for (const auto& [key, text] : entry.texts) {
            Message value;
            if (!text.empty()) add_attribute(node, key, value.text(2, text));
        }
        return node;
    }

    static void add_attribute(Message& node, const char* key, const Message& value) {
        Message entry;
        entry.text(1, key).message(2, value);
        node.message(5, entry);
    }

    const std::vector<Entry>& entries_;
    bool knows_places_ = false;                                         // paths that are empty are the model's
    std::set<std::string, std::less<>> with_parameters_;                // paths of modules
    std::map<std::string, std::set<std::uint32_t>, std::less<>> runs_;  // by the module's path
    Scope root_;
    std::vector<const Scope*> scopes_;  // by entry
    std::vector<std::string> names_;    // by entry
    std::map<std::string, int> used_;
    std::set<std::string> taken_;
};

std::vector<Entry> entries_of(const Tape& tape) {
    const Log& log = tape.log();
    const std::size_t begin = log.records.size() - tape.size();
    std::vector<Entry> entries;
    std::vector<std::pair<std::size_t, int>> place(log.records.size());  // the entry, and which of its outputs
    for (std::size_t i = begin; i < log.records.size(); ++i) {
        const Record& record = *log.records[i];
        const Shape shape = record.shape();
        const std::pair<std::vector<std::int64_t>, DType> output{{shape.begin(), shape.end()}, record.dtype};
        if (record.flags & Record::kExtra) {
            place[i] = {entries.size() - 1, place[i - 1].second + 1};
            entries.back().outputs.push_back(output);
            continue;
        }
        const bool is_leaf = record.flags & Record::kLeaf;
        const char* name = is_leaf ? listing::parameter_name(record) : "";
        Entry entry{is_leaf ? (*name ? "Parameter" : "Input") : record.op->name, name, is_leaf, record.module, record.module_call};
        for (int k = 0; k < record.input_count; ++k) {
            const std::size_t input = record.inputs()[k];
            if (input != kNoValue && input >= begin) entry.inputs.push_back(place[input]);
        }
        entry.outputs.push_back(output);
        entry.device = record.device;
        entry.texts = {{"line", listing::place(tapir::detail::users_line(record.loc))}, {"module", is_leaf ? "" : listing::module(record)}};
        place[i] = {entries.size(), 0};
        entries.push_back(std::move(entry));
    }
    return entries;
}

class EntriesOfGraph {
 public:
    std::vector<Entry> of(const Graph& graph) {
        for (const Graph::Value* value : graph.inputs()) add_leaf("Input", *value);
        for (const Graph::Value* value : graph.parameters()) add_leaf("Parameter", *value);
        for (const Graph::Value* value : graph.constants()) {
            if (!value->shape.empty()) add_leaf("Constant", *value);  // numbers are in the nodes that use them
        }
        for (const auto& node : graph.nodes()) add_node(*node);
        for (const Graph::Update& update : graph.updates()) add_end("Update", "update_" + update.target->name, *update.value);
        for (const Graph::Output& output : graph.outputs()) add_end("Output", output.name, *output.value);
        return std::move(entries_);
    }

 private:
    static std::pair<std::vector<std::int64_t>, DType> type_of(const Graph::Value& value) {
        std::vector<std::int64_t> sizes;
        for (const SymInt& size : value.shape) sizes.push_back(size.is_number() ? size.number() : -1);
        return {sizes, value.dtype};
    }
    static std::string shape_of(const Graph::Value& value) { return to_string(Attribute(value.shape)); }

    void add_leaf(const char* op, const Graph::Value& value) {
        place_[&value] = {entries_.size(), 0};
        const std::string name = value.name.empty() ? fmt::format("constant_{}", value.number) : value.name;
        entries_.push_back({op, name, true, nullptr, 0, {}, {type_of(value)}, value.device, {{"shape", shape_of(value)}}});
    }
    void add_inputs(Entry& entry, const Graph::Value& value) {
        if (const auto place = place_.find(&value); place != place_.end()) entry.inputs.push_back(place->second);
    }
    void add_node(const Graph::Node& node) {
        Entry entry{std::string(node.op()), "", false, node.module, node.module_call};
        std::string shape, attributes, numbers;
        for (const Graph::Value* input : node.inputs) {
            add_inputs(entry, *input);
            const bool is_number = input->kind == Graph::Kind::constant && input->shape.empty();
            if (is_number) numbers += (numbers.empty() ? "" : ", ") + input->data.str();
        }
        for (std::size_t k = 0; k < node.results.size(); ++k) {
            place_[node.results[k]] = {entries_.size(), static_cast<int>(k)};
            entry.outputs.push_back(type_of(*node.results[k]));
            shape += (shape.empty() ? "" : ", ") + shape_of(*node.results[k]);
            entry.device = node.results[k]->device;
        }
        for (const auto& [name, value] : node.attributes().all())
            attributes += fmt::format("{}{}={}", attributes.empty() ? "" : ", ", name, to_string(value));
        entry.texts = {{"line", node.loc.line() > 0 ? tapir::detail::file_and_line(node.loc) : ""},
                       {"module", node.module ? node.module->shown() : ""},
                       {"shape", shape},
                       {"numbers", numbers},
                       {"attributes", attributes}};
        entries_.push_back(std::move(entry));
    }
    void add_end(const char* op, const std::string& name, const Graph::Value& value) {
        Entry entry{op, name, false};
        add_inputs(entry, value);
        entry.outputs.push_back(type_of(value));
        entry.texts = {{"shape", shape_of(value)}};
        entries_.push_back(std::move(entry));
    }

    std::vector<Entry> entries_;
    std::map<const Graph::Value*, std::pair<std::size_t, int>> place_;
};

}  // namespace

Message graph_of(const Tape& tape) {
    const std::vector<Entry> entries = entries_of(tape);
    return Drawn(entries).message();
}
Message graph_of(const Graph& graph) {
    const std::vector<Entry> entries = EntriesOfGraph().of(graph);
    return Drawn(entries).message();
}

}  // namespace tapir::summary
