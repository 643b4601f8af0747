// Note [Names in the graph]
// TensorBoard makes boxes, which open, of what stands before the slashes of nodes' names. The boxes are the modules: "encoder.cell" is
// the box encoder/cell. A module that ran several times and has parameters is one box all the same, as the program has one, and each of
// its runs is a box inside: cell/call_1, cell/call_2, with the parameters cell/weight beside them. So a recursive model is drawn as
// its source has it, and the tree is seen where "cell" is opened. A module without parameters (a dropout) is nothing
// that its runs share: they are the boxes dropout, dropout_1, ..., each in its own place.
//
// A record knows the innermost module only, and the number of that module's run. Numbers grow with each run's begin, so that
// the run of an enclosing module is its last one that began before.
#include "tapir/nn/summary/graph_impl.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/autograd/listing_impl.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/module_name.h"
#include "tapir/core/own_lines_impl.h"

namespace tapir::summary {
namespace {

struct Scope;

// A module within a run of the one around it.
struct Box {
    std::string label;  // of an element of a list with its type: "0_Conv2d"
    bool has_parameters = false;
    std::map<std::uint32_t, std::unique_ptr<Scope>> runs;  // by their numbers; 0: of a module that has no ops of its own
};

// A run of a module, or the whole graph.
struct Scope {
    std::string name;  // with a slash at its end, or ""; set when all scopes are there
    std::map<std::string, Box, std::less<>> boxes;
};

// What a name of a node may be made of.
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

int data_type(DType dtype) {  // as types.proto numbers them
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

class Graph {
 public:
    explicit Graph(const Tape& tape) : log_(tape.log()), begin_(log_.records.size() - tape.size()) {
        note_modules();
        scopes_.assign(log_.records.size(), &root_);
        for (std::size_t i = begin_; i < log_.records.size(); ++i) {
            const Record& record = *log_.records[i];
            if (!is_leaf(i) && record.module) scopes_[i] = scope_of(*record.module, record.module_call);
        }
        name_scopes(root_);
        names_.resize(log_.records.size());
        for (std::size_t i = begin_; i < log_.records.size(); ++i) {
            if (is_leaf(i)) names_[i] = leaf_name(*log_.records[i]);
        }
        for (std::size_t i = begin_; i < log_.records.size(); ++i) {
            if (!is_leaf(i) && !is_extra(i)) names_[i] = unique(scopes_[i]->name + node_name(log_.records[i]->op->name));
        }
    }

    Message message() const {
        Message graph;
        for (std::size_t i = begin_; i < log_.records.size(); ++i) {
            if (!is_extra(i)) graph.message(1, node(i));
        }
        Message versions;
        versions.number(1, 22);  // of TensorFlow, which made graphs so
        return graph.message(4, versions);
    }

 private:
    bool is_leaf(std::size_t i) const { return log_.records[i]->flags & Record::kLeaf; }
    bool is_extra(std::size_t i) const { return log_.records[i]->flags & Record::kExtra; }

    void note_modules() {
        for (std::size_t i = begin_; i < log_.records.size(); ++i) {
            const Record& record = *log_.records[i];
            if (is_leaf(i)) {
                std::string_view name = listing::parameter_name(record);
                knows_places_ = knows_places_ || !name.empty();
                for (std::size_t dot = name.rfind('.'); dot != name.npos; dot = name.rfind('.')) {
                    name = name.substr(0, dot);
                    with_parameters_.emplace(name);
                }
            } else if (record.module) {
                knows_places_ = knows_places_ || *record.module->path;
                runs_[record.module->path].insert(record.module_call);
            }
        }
    }

    Scope* scope_of(const ModuleName& module, std::uint32_t run) {
        const std::string_view path = module.path;
        if (path.empty()) {  // the model itself; or nobody has asked the model where its modules are
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

    // A parameter's box is its module's; below one with several runs it stands beside them.
    std::string leaf_name(const Record& record) {
        const std::string_view path = listing::parameter_name(record);
        if (path.empty()) return unique("input");
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
        const Record& record = *log_.records[i];
        Message node;
        node.text(1, names_[i]);
        node.text(2, is_leaf(i) ? (*listing::parameter_name(record) ? "Parameter" : "Input") : record.op->name);
        for (int k = 0; k < record.input_count; ++k) {
            std::size_t input = record.inputs()[k];
            if (input == kNoValue || input < begin_) continue;
            int output = 0;
            for (; is_extra(input); --input) ++output;
            node.text(3, output == 0 ? names_[input] : fmt::format("{}:{}", names_[input], output));
        }
        node.text(4, record.device.type == DeviceType::cuda ? fmt::format("/device:GPU:{}", record.device.index) : "/device:CPU:0");
        Message shapes, types;
        std::size_t output = i;
        do {
            Message shape;
            for (const std::int64_t size : log_.records[output]->shape()) {
                Message dimension;
                dimension.number(1, size);
                shape.message(2, dimension);
            }
            shapes.message(7, shape);
            types.number(6, data_type(log_.records[output]->dtype));
        } while (++output < log_.records.size() && is_extra(output));
        Message all_shapes, all_types;
        add_attribute(node, "_output_shapes", all_shapes.message(1, shapes));
        add_attribute(node, "dtype", all_types.message(1, types));
        const auto add_text = [&](const char* key, const std::string& text) {
            Message value;
            if (!text.empty()) add_attribute(node, key, value.text(2, text));
        };
        add_text("line", listing::place(tapir::detail::users_line(record.loc)));
        add_text("module", is_leaf(i) ? "" : listing::module(record));
        return node;
    }

    static void add_attribute(Message& node, const char* key, const Message& value) {
        Message entry;
        entry.text(1, key).message(2, value);
        node.message(5, entry);
    }

    const Log& log_;
    std::size_t begin_;
    bool knows_places_ = false;  // paths that are empty are the model's
    std::set<std::string, std::less<>> with_parameters_;  // paths of modules
    std::map<std::string, std::set<std::uint32_t>, std::less<>> runs_;  // by the module's path
    Scope root_;
    std::vector<const Scope*> scopes_;  // by record
    std::vector<std::string> names_;    // by record
    std::map<std::string, int> used_;
    std::set<std::string> taken_;
};

}  // namespace

Message graph_of(const Tape& tape) { return Graph(tape).message(); }

}  // namespace tapir::summary
