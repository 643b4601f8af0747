// Editing graphs.
#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/graph/check_node_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {
Graph::Node* Graph::insert(Node* before, TextViewArg op, const std::vector<Value*>& inputs,
                           const std::vector<std::pair<std::string, Attribute>>& attributes, Loc loc) {
    const OpForm* form = find_form(std::string(op).c_str());
    if (!form) fail<ValueError>(loc, "Graph::insert: {}", detail::no_op(op));
    Attributes all(*form);
    for (const auto& [name, value] : attributes) all.set(name, value, loc);
    if (before) position(before, "Graph::insert", loc);
    const int most = form->operands.most;
    if (most >= 0 && std::ssize(inputs) > most) fail<ValueError>(loc, "Graph::insert: {} has {} operands, and takes {}", op, inputs.size(), most);
    for (const Value* input : inputs) {
        check_is_here(input, "Graph::insert", loc);
        if (before) check_comes_before(input, before, "Graph::insert", loc);
    }
    std::vector<ValueType> made = detail::infer_results(all, inputs, loc);
    // Sizes without a formula get names of their own.
    const auto is_taken = [&](const std::string& name) {
        const auto has_it = [&](const SymInt& size) {
            const std::vector<std::string> names = size.dims();
            return std::find(names.begin(), names.end(), name) != names.end();
        };
        return std::any_of(values_.begin(), values_.end(), [&](const auto& v) { return std::any_of(v->shape.begin(), v->shape.end(), has_it); });
    };
    const auto new_size = [&](std::size_t n) {
        while (is_taken(fmt::format("{}_{}", op, n))) ++n;
        return SymInt::dim(fmt::format("{}_{}", op, n));
    };
    std::size_t open = 0;
    for (ValueType& result : made) {
        for (SymInt& size : result.shape) size = size == types::unknown() ? new_size(open++) : size;
    }
    Node* node = before ? append_before(before, std::move(all), inputs) : append(std::move(all), inputs);
    if (!before) node->loc = loc;
    for (const ValueType& result : made) add_result(node, result.dtype, result.device, result.shape);
    return node;
}

void Graph::set_input(Node* node, int input, Value* value, Loc loc) {
    position(node, "Graph::set_input", loc);
    check_is_here(value, "Graph::set_input", loc);
    if (input < 0 || input >= static_cast<int>(node->inputs.size())) {
        fail<IndexError>(loc, "Graph::set_input: {} has {} inputs, there is no {}", node->op(), node->inputs.size(), input);
    }
    check_comes_before(value, node, "Graph::set_input", loc);
    Value*& place = node->inputs[static_cast<std::size_t>(input)];
    if (place == value) return;
    if (place->dtype != value->dtype || place->device != value->device || place->shape != value->shape) {
        std::vector<Value*> inputs = node->inputs;
        inputs[static_cast<std::size_t>(input)] = value;
        check_keeps_results(node, node->attributes_, inputs, "Graph::set_input", loc);
    }
    changed();
    value->uses.push_back({node, input});
    drop_use(place, node, input);
    place = value;
}

void Graph::set_attribute(Node* node, TextViewArg name, const Attribute& value, Loc loc) {
    position(node, "Graph::set_attribute", loc);
    Attributes attributes = node->attributes_;
    attributes.set(name, value, loc);
    check_keeps_results(node, attributes, node->inputs, "Graph::set_attribute", loc);
    edit_attributes(node) = std::move(attributes);
}

// Checks that the results would keep their shapes and dtypes. A node's dtype may differ from the op's: under autocast it does.
void Graph::check_keeps_results(const Node* node, const Attributes& attributes, const std::vector<Value*>& inputs, const char* what, const Loc& loc) {
    const std::vector<ValueType> was = detail::infer_results(node->attributes_, node->inputs, loc);
    std::vector<ValueType> made = detail::infer_results(attributes, inputs, loc);
    for (std::size_t k = 0; k < node->results.size(); ++k) {
        const Value& now = *node->results[k];
        const bool is_made = k < made.size() && made[k].shape.size() == now.shape.size();
        for (std::size_t d = 0; is_made && d < now.shape.size(); ++d) {
            // An unknown size may be the size that it is; the tracer's formula may be written in another way than the rule's.
            const bool is_as_before = k < was.size() && d < was[k].shape.size() && made[k].shape[d] == was[k].shape[d];
            if (is_as_before || made[k].shape[d] == types::unknown()) made[k].shape[d] = now.shape[d];
        }
        if (!is_made || made[k].shape != now.shape) {
            fail<ShapeError>(loc, "{}: the result of {} would have shape {}, not {}", what, node->op(),
                             k < made.size() ? to_string(Attribute(made[k].shape)) : "none", to_string(Attribute(now.shape)));
        }
        if (k < was.size() && made[k].dtype != was[k].dtype) {
            fail<DTypeError>(loc, "{}: the result of {} would be {}, not {}", what, node->op(), made[k].dtype, now.dtype);
        }
    }
}

Graph Graph::extract(const std::vector<Value*>& from, const std::vector<Value*>& to, Loc loc) const {
    Graph part;
    part.next_ = next_;
    for (const auto* list : {&from, &to}) {
        for (const Value* value : *list) check_is_here(value, "Graph::extract", loc);
    }
    std::unordered_map<const Value*, Value*> of;
    const auto name_of = [](const Value* value) { return value->name.empty() ? fmt::format("value_{}", value->number) : value->name; };
    for (const Value* value : from) {
        Value* mine = part.add_input(name_of(value), value->dtype, value->shape, value->device, loc);
        mine->number = value->number;
        of[value] = mine;
    }
    // The part keeps guards on values that it has; it knows nothing of others.
    std::unordered_set<const Value*> made(from.begin(), from.end());
    for (const auto* list : {&parameters_, &constants_}) made.insert(list->begin(), list->end());
    for (const auto& node : nodes_) {
        const auto is_made = [&](const Value* value) { return made.count(value) > 0; };
        if (std::all_of(node->inputs.begin(), node->inputs.end(), is_made)) made.insert(node->results.begin(), node->results.end());
    }
    std::vector<const Guard*> guards;
    for (const Guard& guard : guards_) {
        if (made.count(guard.value)) guards.push_back(&guard);
    }
    std::unordered_set<const Node*> needed;
    std::vector<const Value*> wanted(to.begin(), to.end());
    for (const Guard* guard : guards) wanted.push_back(guard->value);
    while (!wanted.empty()) {
        const Value* value = wanted.back();
        wanted.pop_back();
        if (of.count(value)) continue;
        if (value->kind == Kind::input) fail<ValueError>(loc, "Graph::extract: the input {} is needed too", value->name);
        if (value->maker) {
            if (!needed.insert(value->maker).second) continue;
            wanted.insert(wanted.end(), value->maker->inputs.begin(), value->maker->inputs.end());
            continue;
        }
        Value* mine =
            value->kind == Kind::parameter ? part.add_parameter(value->name, value->data, loc) : part.add_constant(value->data, value->name, loc);
        mine->number = value->number;
        of[value] = mine;
    }
    for (const auto& node : nodes_) {
        if (!needed.count(node.get())) continue;
        std::vector<Value*> inputs;
        for (const Value* input : node->inputs) inputs.push_back(of.at(input));
        Node* mine = part.append(node->attributes(), inputs);
        mine->set_origin(*node);
        for (const Value* result : node->results) {
            Value* value = part.add_result(mine, result->dtype, result->device, result->shape);
            const bool is_new = of.emplace(result, value).second;  // else it is an input of the part, of that number
            value->number = is_new ? result->number : part.next_++;
        }
    }
    for (const Guard* guard : guards) part.add_guard({of.at(guard->value), guard->expected, guard->what, guard->loc}, loc);
    for (const Value* value : to) {
        const auto output = std::find_if(outputs_.begin(), outputs_.end(), [value](const Output& o) { return o.value == value; });
        part.add_output(output != outputs_.end() ? output->name : name_of(value), of.at(value), loc);
    }
    return part;
}

void Graph::check(Loc loc) const {
    check_links(loc);
    for (const auto& node : nodes_) {
        const std::string wrong = detail::what_is_wrong_with(*node, loc);
        if (!wrong.empty()) fail<ValueError>(loc, "Graph::check: {}", wrong);
    }
}

void Graph::check_links(Loc loc) const {
    std::unordered_set<const Value*> made;
    std::set<int> numbers;
    std::size_t uses = 0, recorded = 0;
    const auto begin = [&](const Value* value, const Node* maker) {
        if (!made.insert(value).second) fail<ValueError>(loc, "Graph::check: %{} is made twice", value->number);
        if (!numbers.insert(value->number).second || value->number >= next_) fail<ValueError>(loc, "Graph::check: two values are %{}", value->number);
        if (value->maker != maker) fail<ValueError>(loc, "Graph::check: %{} does not know its maker", value->number);
        recorded += value->uses.size();
    };
    for (const auto* list : {&inputs_, &parameters_, &constants_}) {
        for (const Value* value : *list) begin(value, nullptr);
    }
    std::set<std::tuple<const Value*, const Node*, int>> noted;
    for (const auto& value : values_) {
        for (const Use& use : value->uses) noted.emplace(value.get(), use.node, use.input);
    }
    std::uint64_t order = 0;
    for (const auto& node : nodes_) {
        if (node->order <= order) fail<ValueError>(loc, "Graph::check: {} has another place than its order says", node->op());
        order = node->order;
        for (std::size_t i = 0; i < node->inputs.size(); ++i) {
            const Value* input = node->inputs[i];
            if (!made.count(input)) fail<ValueError>(loc, "Graph::check: {} uses %{} before it is made", node->op(), input->number);
            const bool is_known = noted.count({input, node.get(), static_cast<int>(i)}) > 0;
            if (!is_known) fail<ValueError>(loc, "Graph::check: %{} does not know that {} uses it", input->number, node->op());
            ++uses;
        }
        for (const Value* result : node->results) begin(result, node.get());
    }
    if (uses != recorded) fail<ValueError>(loc, "Graph::check: {} uses are noted, there are {}", recorded, uses);
    if (made.size() != values_.size()) fail<ValueError>(loc, "Graph::check: {} values are held, {} are there", values_.size(), made.size());
    for (const Output& output : outputs_) {
        if (!made.count(output.value)) fail<ValueError>(loc, "Graph::check: the output {} is no value of the graph", output.name);
    }
    for (const Guard& guard : guards_) {
        if (!made.count(guard.value)) fail<ValueError>(loc, "Graph::check: a guard looks at no value of the graph");
    }
    for (const Update& update : updates_) {
        if (!made.count(update.target) || !made.count(update.value)) fail<ValueError>(loc, "Graph::check: an update is no value of the graph");
    }
}

}  // namespace tapir
