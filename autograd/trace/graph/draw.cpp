// Draws a graph: a box for each run of a module's nodes, with the parameters and constants that they use. Inputs, outputs,
// updates and guards have boxes of their own, and each graph that is an attribute has a panel.
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/watch/drawing_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/format.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"

namespace tapir {
namespace {

using namespace drawing;

constexpr std::size_t kRowsShown = 16;  // per box
constexpr const char *kInput = "#d8f0d8", *kOutput = "#fff0b8", *kUpdate = "#ffdcc4", *kGuard = "#f3d4e8";

std::string shape_of(const Graph::Value& value) { return to_string(Attribute(value.shape)); }
std::string name_of(const Graph::Value& value) { return value.name.empty() ? fmt::format("%{}", value.number) : value.name; }

// The digits of a constant that is a number; "" for any other value.
std::string number_in(const Graph::Value& value) {
    if (value.kind != Graph::Kind::constant || !value.shape.empty() || value.device != cpu) return "";
    return fmt::format("{:g}", detail::load_double(value.dtype, value.data.raw_data()));
}

class Drawer {
 public:
    explicit Drawer(std::vector<Panel>& panels) : panels_(panels) {}

    Drawing of(const Graph& graph) {
        for (const Graph::Value* input : graph.inputs()) {
            box_of_[input] = drawing_.boxes.size();
            add_box("input", kInput)
                .rows.push_back(
                    {fmt::format("{} {}", input->name, shape_of(*input)), fmt::format("{} {}", input->name, detail::type_text(*input)), ""});
        }
        std::size_t drawn = 0;
        for (const auto& node : graph.nodes()) {
            if (drawing_.boxes.size() >= kBoxesShown) {
                add_box("", "").rows.push_back({fmt::format("and {} more nodes", graph.nodes().size() - drawn), "", ""});
                break;
            }
            add_node(*node);
            ++drawn;
        }
        for (const Graph::Guard& guard : graph.guards()) {
            add_end("guard", kGuard, *guard.value, fmt::format("{}() at {}", guard.what, detail::file_and_line(guard.loc)));
        }
        for (const Graph::Update& update : graph.updates())
            add_end("update", kUpdate, *update.value, fmt::format("{} {}", update.target->name, shape_of(*update.target)));
        for (const Graph::Output& output : graph.outputs())
            add_end("output", kOutput, *output.value, fmt::format("{} {}", output.name, shape_of(*output.value)));
        shorten(drawing_, kRowsShown);
        return std::move(drawing_);
    }

 private:
    Box& add_box(std::string title, const char* fill) {
        Box box{};
        box.title = std::move(title);
        box.fill = fill;
        drawing_.boxes.push_back(std::move(box));
        return drawing_.boxes.back();
    }

    // Adds a node, with its parameters and constants, to the box of its module's call if that is the last box, else to a new one.
    void add_node(const Graph::Node& node) {
        const bool is_same = node.module && node.module == module_ && node.module_call == call_;
        if (!is_same) {
            Box& box = add_box(node.module ? node.module->shown() : "", "");
            if (node.module) {
                box.type = node.module->type;
                box.hue = hues_.of(box.title);
            }
        }
        module_ = node.module;
        call_ = node.module_call;
        const std::size_t number = drawing_.boxes.size() - 1;
        std::string text(node.op()), tooltip, call;
        std::vector<Row> held;
        for (const Graph::Value* input : node.inputs) {
            const std::string digits = number_in(*input);
            call += (call.empty() ? "" : ", ") + (digits.empty() ? name_of(*input) : digits);
            if (!digits.empty()) {
                text += " " + digits;
            } else if (input->kind == Graph::Kind::parameter || input->kind == Graph::Kind::constant) {
                const bool is_parameter = input->kind == Graph::Kind::parameter;
                held.push_back({fmt::format("{} {} {}", is_parameter ? "parameter" : "constant", name_of(*input), shape_of(*input)),
                                detail::type_text(*input), is_parameter ? "p" : "c"});
            } else if (const auto from = box_of_.find(input); from != box_of_.end() && from->second != number) {
                drawing_.edges.push_back({from->second, number, shape_of(*input), {}});
            }
        }
        for (const auto& [name, attribute] : node.attributes().all()) {
            const auto* nested = std::get_if<std::shared_ptr<const Graph>>(&attribute);
            call += fmt::format("{}{}={}", call.empty() ? "" : ", ", name, nested ? "..." : to_string(attribute));
            if (!nested || !*nested) continue;
            const std::string title = fmt::format("{} of {} %{}", name, node.op(), node.results.empty() ? 0 : node.results[0]->number);
            held.push_back({fmt::format("{}: {} nodes", name, (*nested)->nodes().size()), title, ""});
            const std::size_t panel = panels_.size();
            panels_.emplace_back(title, Drawing());
            Drawing inner = Drawer(panels_).of(**nested);
            panels_[panel].second = std::move(inner);
        }
        for (const Graph::Value* result : node.results) {
            text += " " + shape_of(*result);
            tooltip += fmt::format("{}%{} {}", tooltip.empty() ? "" : ", ", result->number, detail::type_text(*result));
            box_of_[result] = number;
        }
        tooltip += fmt::format(" = {}({})", node.op(), call);
        if (node.loc.line() > 0) tooltip += "\n" + detail::file_and_line(node.loc);
        std::vector<Row>& rows = drawing_.boxes[number].rows;
        rows.push_back({std::move(text), std::move(tooltip), ""});
        rows.insert(rows.end(), held.begin(), held.end());
    }

    // Adds a final use of a value. Several of one kind and from one box are rows of one box.
    void add_end(const char* title, const char* fill, const Graph::Value& value, const std::string& text) {
        const auto from = box_of_.find(&value);
        const std::size_t source = from == box_of_.end() ? drawing_.boxes.size() : from->second;
        const auto [place, is_new] = ends_.try_emplace(fmt::format("{} {}", title, source), drawing_.boxes.size());
        if (is_new) {
            add_box(title, fill);
            if (from != box_of_.end()) drawing_.edges.push_back({source, place->second, shape_of(value), {}});
        }
        const bool is_held = value.kind == Graph::Kind::parameter || value.kind == Graph::Kind::constant;
        drawing_.boxes[place->second].rows.push_back({text, fmt::format("{} = {} {}", text, name_of(value), detail::type_text(value)),
                                                      is_held || title == std::string_view("update") ? "p" : ""});
    }

    std::vector<Panel>& panels_;
    Drawing drawing_;
    Hues hues_;
    std::unordered_map<const Graph::Value*, std::size_t> box_of_;
    std::unordered_map<std::string, std::size_t> ends_;
    const ModuleName* module_ = nullptr;
    std::uint32_t call_ = 0;
};

std::vector<Panel> panels_of(const Graph& graph) {
    std::vector<Panel> panels;
    panels.emplace_back(fmt::format("a graph of {} nodes", graph.nodes().size()), Drawing());
    Drawing whole = Drawer(panels).of(graph);
    panels[0].second = std::move(whole);
    return panels;
}

}  // namespace

std::string Graph::to_svg() const { return svg_of(panels_of(*this)); }
std::string Graph::to_dot() const { return dot_of("graph_", panels_of(*this)); }

}  // namespace tapir
