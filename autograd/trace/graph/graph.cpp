// The parts of a graph, and editing.
#include "tapir/autograd/trace/graph/graph.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/graph/check_node_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/module_name.h"

namespace tapir {

Graph::Graph() = default;
Graph::Graph(Graph&& other) noexcept
    : values_(std::move(other.values_)), nodes_(std::move(other.nodes_)), inputs_(std::move(other.inputs_)),
      parameters_(std::move(other.parameters_)), constants_(std::move(other.constants_)), outputs_(std::move(other.outputs_)),
      updates_(std::move(other.updates_)), guards_(std::move(other.guards_)), next_(other.next_) {
    other.changed();
}
Graph::~Graph() { changed(); }

Graph& Graph::operator=(Graph other) noexcept {
    values_.swap(other.values_);
    nodes_.swap(other.nodes_);
    inputs_.swap(other.inputs_);
    parameters_.swap(other.parameters_);
    constants_.swap(other.constants_);
    outputs_.swap(other.outputs_);
    updates_.swap(other.updates_);
    guards_.swap(other.guards_);
    next_ = other.next_;
    changed();
    return *this;
}

Graph::Graph(const Graph& other) : next_(other.next_) {
    std::unordered_map<const Value*, Value*> of;
    for (const auto& value : other.values_) {
        values_.push_back(std::make_unique<Value>(*value));
        values_.back()->uses.clear();
        of[value.get()] = values_.back().get();
    }
    const auto here = [&of](const std::vector<Value*>& values) {
        std::vector<Value*> list;
        for (const Value* value : values) list.push_back(of.at(value));
        return list;
    };
    inputs_ = here(other.inputs_);
    parameters_ = here(other.parameters_);
    constants_ = here(other.constants_);
    for (const auto& node : other.nodes_) {
        nodes_.push_back(std::make_unique<Node>(*node));
        Node* mine = nodes_.back().get();
        mine->inputs = here(node->inputs);
        mine->results = here(node->results);
        for (std::size_t i = 0; i < mine->inputs.size(); ++i) mine->inputs[i]->uses.push_back({mine, static_cast<int>(i)});
        for (Value* result : mine->results) result->maker = mine;
    }
    for (const Output& output : other.outputs_) outputs_.push_back({output.name, of.at(output.value)});
    for (const Guard& guard : other.guards_) {
        guards_.push_back(guard);
        guards_.back().value = of.at(guard.value);
    }
    for (const Update& update : other.updates_) updates_.push_back({of.at(update.target), of.at(update.value)});
}

// The name that listings use, mostly.
static std::string called(const Graph::Value* value) { return value->name.empty() ? fmt::format("%{}", value->number) : value->name; }

// --- Looking -------------------------------------------------------------------------------------------------------------------

std::vector<Graph::Value*> Graph::values() const {
    std::vector<Value*> list = inputs_;
    list.insert(list.end(), parameters_.begin(), parameters_.end());
    list.insert(list.end(), constants_.begin(), constants_.end());
    for (const auto& node : nodes_) list.insert(list.end(), node->results.begin(), node->results.end());
    return list;
}

std::vector<std::string> Graph::dims() const {
    std::set<std::string> names;
    for (const Value* input : inputs_) {
        for (const SymInt& size : input->shape) {
            for (std::string& name : size.dims()) names.insert(std::move(name));
        }
    }
    return {names.begin(), names.end()};
}

bool Graph::is_symbolic() const {
    const auto depends = [](const SymInt& size) { return !size.is_number(); };
    return std::any_of(values_.begin(), values_.end(), [&](const auto& v) { return std::any_of(v->shape.begin(), v->shape.end(), depends); }) ||
        std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node->attributes().is_symbolic(); });
}

Graph Graph::with(const DimSizes& sizes, Loc loc) const {
    std::set<std::string> known;
    for (const auto& value : values_) {
        for (const SymInt& size : value->shape) {
            for (std::string& name : size.dims()) known.insert(std::move(name));
        }
    }
    for (const auto& [name, size] : sizes) {
        if (!known.count(name)) {
            fail<ValueError>(loc, "Graph::with: there is no dimension {}; {}", name,
                             known.empty() ? "all sizes are numbers" : fmt::format("there are {}", fmt::join(known, ", ")));
        }
        if (size < 0) fail<ValueError>(loc, "Graph::with: the size of {} is {}", name, size);
    }
    return with_outer(sizes, loc);
}

Graph Graph::with_outer(const DimSizes& sizes, const Loc& loc) const {
    Graph graph = *this;
    for (const auto& value : graph.values_) {
        for (SymInt& size : value->shape) size = size.with(sizes, loc);
    }
    for (const auto& node : graph.nodes_) {
        if (node->attributes().is_symbolic()) node->attributes_ = node->attributes_.with(sizes, loc, /*partly=*/true);
    }
    return graph;
}

Graph::Value* Graph::value(TextViewArg name, Loc loc) const {
    std::vector<std::string> names;
    const auto is_it = [&](const std::string& own) {
        names.push_back(own);
        return own == name;
    };
    for (const Output& output : outputs_) {
        if (is_it(output.name)) return output.value;
    }
    for (Value* input : inputs_) {
        if (is_it(input->name)) return input;
    }
    for (Value* parameter : parameters_) {
        if (is_it(parameter->name)) return parameter;
    }
    fail<ValueError>(loc, "Graph::value: there is no input, parameter or output {}; there are {}", name, fmt::join(names, ", "));
}

// --- Editing -------------------------------------------------------------------------------------------------------------------

Graph::Value* Graph::add_value(Kind kind, std::string name, DType dtype, Device device, std::vector<SymInt> shape) {
    changed();
    values_.push_back(std::make_unique<Value>(Value{next_++, std::move(name), kind, dtype, device, std::move(shape), Tensor(), nullptr, 0, {}}));
    return values_.back().get();
}

Graph::Value* Graph::add_input(TextArg name, DType dtype, std::vector<SymInt> shape, Device device, Loc loc) {
    for (const Value* input : inputs_) {
        if (input->name == name) fail<ValueError>(loc, "Graph::add_input: there is an input {} already", name);
    }
    inputs_.push_back(add_value(Kind::input, std::move(name), dtype, device, std::move(shape)));
    return inputs_.back();
}

namespace {

std::vector<SymInt> sizes_of(const Tensor& x) {
    const Shape shape = x.shape();
    return {shape.begin(), shape.end()};
}

}  // namespace

Graph::Value* Graph::add_parameter(TextArg name, const Tensor& data, Loc loc) {
    if (!data.defined()) fail<ValueError>(loc, "Graph::add_parameter: {} is undefined", name);
    for (const Value* parameter : parameters_) {
        if (parameter->name == name) fail<ValueError>(loc, "Graph::add_parameter: there is a parameter {} already", name);
    }
    Value* value = add_value(Kind::parameter, std::move(name), data.dtype(), data.device(), sizes_of(data));
    value->data = data;
    parameters_.push_back(value);
    return value;
}

Graph::Value* Graph::add_constant(const Tensor& data, TextArg name, Loc loc) {
    if (!data.defined()) fail<ValueError>(loc, "Graph::add_constant: the tensor is undefined");
    Value* value = add_value(Kind::constant, std::move(name), data.dtype(), data.device(), sizes_of(data));
    value->data = data;
    constants_.push_back(value);
    return value;
}

void Graph::make_parameter(Value* constant, TextArg name, Loc loc) {
    check_is_here(constant, "Graph::make_parameter", loc);
    if (constant->kind != Kind::constant) fail<ValueError>(loc, "Graph::make_parameter: {} is no constant", called(constant));
    for (const Value* parameter : parameters_) {
        if (parameter->name == name) fail<ValueError>(loc, "Graph::make_parameter: there is a parameter {} already", name);
    }
    changed();
    std::erase(constants_, constant);
    constant->kind = Kind::parameter;
    constant->name = std::move(name);
    parameters_.push_back(constant);
}

void Graph::make_constant(Value* parameter, Loc loc) {
    check_is_here(parameter, "Graph::make_constant", loc);
    if (parameter->kind != Kind::parameter) fail<ValueError>(loc, "Graph::make_constant: {} is no parameter", called(parameter));
    for (const Update& update : updates_) {
        if (update.target == parameter) fail<ValueError>(loc, "Graph::make_constant: the graph writes to {}", parameter->name);
    }
    changed();
    std::erase(parameters_, parameter);
    parameter->kind = Kind::constant;
    constants_.push_back(parameter);
}

void Graph::add_output(TextArg name, Value* value, Loc loc) {
    check_is_here(value, "Graph::add_output", loc);
    for (const Output& output : outputs_) {
        if (output.name == name) fail<ValueError>(loc, "Graph::add_output: there is an output {} already", name);
    }
    changed();
    outputs_.push_back({std::move(name), value});
}

void Graph::add_update(Value* target, Value* value, Loc loc) {
    check_is_here(target, "Graph::add_update", loc);
    check_is_here(value, "Graph::add_update", loc);
    if (target->kind != Kind::parameter && target->kind != Kind::input) {
        fail<ValueError>(loc, "Graph::add_update: only parameters and inputs are written to");
    }
    if (target->dtype != value->dtype) {
        fail<DTypeError>(loc, "Graph::add_update: {} is {}, what is to be written there {}", target->name, target->dtype, value->dtype);
    }
    if (!may_equal(target->shape, value->shape)) {
        fail<ShapeError>(loc, "Graph::add_update: {} has shape {}, what is to be written there {}", target->name, to_string(Attribute(target->shape)),
                         to_string(Attribute(value->shape)));
    }
    changed();
    std::erase_if(updates_, [target](const Update& update) { return update.target == target; });
    updates_.push_back({target, value});
}

void Graph::add_guard(Guard guard, Loc loc) {
    check_is_here(guard.value, "Graph::add_guard", loc);
    if (!guard.expected.defined()) fail<ValueError>(loc, "Graph::add_guard: the value that is expected is undefined");
    changed();
    guards_.push_back(std::move(guard));
}

void Graph::remove_output(TextViewArg name, Loc loc) {
    const auto output = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return o.name == name; });
    if (output == outputs_.end()) fail<ValueError>(loc, "Graph::remove_output: there is no output {}", name);
    changed();
    outputs_.erase(output);
}

void Graph::remove_updates() {
    updates_.clear();
    changed();
}

std::vector<Graph::Guard> Graph::take_guards() {
    changed();
    return std::exchange(guards_, {});
}

namespace {
constexpr std::uint64_t kOrderStep = std::uint64_t{1} << 20;  // between neighbours, so that others fit in between
}

// Moves the last node to another place.
void Graph::move_last_to(std::size_t at) {
    std::rotate(nodes_.begin() + static_cast<std::ptrdiff_t>(at), nodes_.end() - 1, nodes_.end());
    if (at + 1 == nodes_.size()) return;
    const std::uint64_t before = at > 0 ? nodes_[at - 1]->order : 0, after = nodes_[at + 1]->order;
    nodes_[at]->order = before + (after - before) / 2;
    if (nodes_[at]->order != before) return;
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->order = (i + 1) * kOrderStep;
}

Graph::Node::Node(Attributes attributes, std::vector<Value*> of, std::uint64_t place)
    : inputs(std::move(of)), order(place), attributes_(std::move(attributes)) {}

std::string_view Graph::Node::op() const noexcept { return form().op; }

Attributes& Graph::edit_attributes(Node* node) noexcept {
    changed();
    return node->attributes_;
}

Graph::Node* Graph::append(Attributes attributes, const std::vector<Value*>& inputs) {
    changed();
    const std::uint64_t order = (nodes_.empty() ? 0 : nodes_.back()->order) + kOrderStep;
    nodes_.push_back(std::make_unique<Node>(std::move(attributes), inputs, order));
    Node* node = nodes_.back().get();
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i]->uses.push_back({node, static_cast<int>(i)});
    return node;
}

Graph::Value* Graph::add_result(Node* node, DType dtype, Device device, std::vector<SymInt> shape) {
    Value* value = add_value(Kind::result, {}, dtype, device, std::move(shape));
    value->maker = node;
    value->place = static_cast<int>(node->results.size());
    node->results.push_back(value);
    return value;
}

Graph::Node* Graph::append_before(Node* other, Attributes attributes, const std::vector<Value*>& inputs) {
    const std::size_t at = position(other, "Graph::append_before", Loc{});
    Node* node = append(std::move(attributes), inputs);
    node->set_origin(*other);
    move_last_to(at);
    return node;
}

void Graph::prepend(Attributes attributes, Value* constant) {
    Node* node = append(std::move(attributes), {});
    move_last_to(0);
    std::erase(constants_, constant);
    constant->kind = Kind::result;
    constant->data = Tensor();
    constant->maker = node;
    node->results.push_back(constant);
}

std::size_t Graph::position(const Node* node, const char* what, const Loc& loc) const {
    const auto is_before = [](const std::unique_ptr<Node>& one, std::uint64_t order) { return one->order < order; };
    const auto place = node ? std::lower_bound(nodes_.begin(), nodes_.end(), node->order, is_before) : nodes_.end();
    if (place == nodes_.end() || place->get() != node) fail<ValueError>(loc, "{}: the node is not of this graph", what);
    return static_cast<std::size_t>(place - nodes_.begin());
}

void Graph::check_is_here(const Value* value, const char* what, const Loc& loc) const {
    const auto is_in = [value](const std::vector<Value*>& list) { return std::find(list.begin(), list.end(), value) != list.end(); };
    if (!value) fail<ValueError>(loc, "{}: the value is null", what);
    if (value->maker) {
        position(value->maker, what, loc);
    } else if (!is_in(inputs_) && !is_in(parameters_) && !is_in(constants_)) {
        fail<ValueError>(loc, "{}: {} is not of this graph", what, called(value));
    }
}

// Both must belong to this graph.
void Graph::check_comes_before(const Value* value, const Node* node, const char* what, const Loc& loc) const {
    if (!value->maker || value->maker->order < node->order) return;
    fail<ValueError>(loc, "{}: {} is made after the {} that would use it", what, called(value), node->op());
}

void Graph::drop_use(Value* value, const Node* node, int input) {
    std::erase_if(value->uses, [&](const Use& use) { return use.node == node && use.input == input; });
}

void Graph::replace(Value* old, Value* other, Loc loc) {
    check_is_here(old, "Graph::replace", loc);
    check_is_here(other, "Graph::replace", loc);
    if (old == other) return;
    if (old->dtype != other->dtype) fail<DTypeError>(loc, "Graph::replace: {} is {}, {} is {}", called(old), old->dtype, called(other), other->dtype);
    if (old->device != other->device) {
        fail<DeviceError>(loc, "Graph::replace: {} is on {}, {} on {}", called(old), old->device, called(other), other->device);
    }
    if (old->shape != other->shape) {
        fail<ShapeError>(loc, "Graph::replace: {} has shape {}, {} {}", called(old), to_string(Attribute(old->shape)), called(other),
                         to_string(Attribute(other->shape)));
    }
    for (const Use& use : old->uses) {
        if (use.node != other->maker) check_comes_before(other, use.node, "Graph::replace", loc);
    }
    changed();
    std::vector<Use> kept;
    for (const Use& use : old->uses) {
        if (use.node == other->maker) {  // a function of the old value that replaces it
            kept.push_back(use);
            continue;
        }
        use.node->inputs[static_cast<std::size_t>(use.input)] = other;
        other->uses.push_back(use);
    }
    old->uses = std::move(kept);
    for (Output& output : outputs_) {
        if (output.value == old) output.value = other;
    }
    for (Update& update : updates_) {
        if (update.value == old) update.value = other;
    }
    for (Guard& guard : guards_) {
        if (guard.value == old) guard.value = other;
    }
}

// Sorts depth first, so that nodes keep their order where they can. Random ops always do: each waits for the one before.
void Graph::sort_nodes() {
    std::unordered_map<const Node*, const Node*> draws_before;
    const Node* last = nullptr;
    for (const auto& node : nodes_) {
        if (!node->attributes().is_random()) continue;
        draws_before[node.get()] = last;
        last = node.get();
    }
    std::unordered_map<const Node*, std::size_t> number;
    for (std::size_t i = 0; i < nodes_.size(); ++i) number[nodes_[i].get()] = i;
    std::vector<std::unique_ptr<Node>> sorted;
    std::vector<bool> is_begun(nodes_.size(), false);
    std::vector<std::pair<std::size_t, std::size_t>> path;  // a node, and the number of its inputs that were visited
    for (std::size_t first = 0; first < nodes_.size(); ++first) {
        if (is_begun[first]) continue;
        path.emplace_back(first, 0);
        is_begun[first] = true;
        while (!path.empty()) {
            auto& [at, looked_at] = path.back();
            const std::size_t inputs = nodes_[at]->inputs.size();
            if (looked_at > inputs) {
                sorted.push_back(std::move(nodes_[at]));
                path.pop_back();
                continue;
            }
            const Node* maker = nullptr;
            if (looked_at < inputs) {
                maker = nodes_[at]->inputs[looked_at]->maker;
            } else if (const auto draws = draws_before.find(nodes_[at].get()); draws != draws_before.end()) {
                maker = draws->second;
            }
            ++looked_at;
            if (!maker) continue;
            const std::size_t before = number.at(maker);
            if (is_begun[before]) continue;
            is_begun[before] = true;
            path.emplace_back(before, 0);
        }
    }
    nodes_ = std::move(sorted);
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->order = (i + 1) * kOrderStep;
}

void Graph::join(std::vector<Joined> parts) {
    std::unordered_set<const Node*> old;
    std::unordered_set<const Value*> gone;
    for (Joined& part : parts) {
        const Node& last = *part.nodes.back();
        Node* node = append(std::move(part.attributes), part.inputs);
        node->set_origin(last);
        for (const Node* other : part.nodes) {
            for (std::size_t i = 0; i < other->inputs.size(); ++i) drop_use(other->inputs[i], other, static_cast<int>(i));
            gone.insert(other->results.begin(), other->results.end());
            old.insert(other);
        }
        for (Value* result : part.results) {
            gone.erase(result);
            result->maker = node;
            result->place = static_cast<int>(node->results.size());
            node->results.push_back(result);
        }
    }
    std::erase_if(nodes_, [&](const auto& other) { return old.count(other.get()) > 0; });
    std::erase_if(values_, [&](const auto& value) { return gone.count(value.get()) > 0; });
    sort_nodes();
}

int Graph::sweep(const std::vector<const Value*>& kept) {
    changed();
    std::unordered_set<const Value*> needed(kept.begin(), kept.end());
    const auto is_needed = [&](const Value* value) { return needed.count(value) > 0; };
    for (std::size_t i = nodes_.size(); i-- > 0;) {
        const Node& node = *nodes_[i];
        if (std::any_of(node.results.begin(), node.results.end(), is_needed)) needed.insert(node.inputs.begin(), node.inputs.end());
    }
    const auto is_dead = [&](const std::unique_ptr<Node>& node) { return std::none_of(node->results.begin(), node->results.end(), is_needed); };
    for (const auto& node : nodes_) {
        if (!is_dead(node)) continue;
        for (std::size_t i = 0; i < node->inputs.size(); ++i) drop_use(node->inputs[i], node.get(), static_cast<int>(i));
    }
    std::unordered_set<const Value*> gone;
    for (const auto& node : nodes_) {
        if (is_dead(node)) gone.insert(node->results.begin(), node->results.end());
    }
    for (const Value* constant : constants_) {
        if (!is_needed(constant)) gone.insert(constant);
    }
    const auto removed = static_cast<int>(std::erase_if(nodes_, is_dead));
    std::erase_if(constants_, [&](const Value* value) { return gone.count(value) > 0; });
    std::erase_if(values_, [&](const auto& value) { return gone.count(value.get()) > 0; });
    return removed;
}

void Graph::remove(Node* node, Loc loc) {
    const std::size_t at = position(node, "Graph::remove", loc);
    for (const Value* result : node->results) {
        bool is_used = !result->uses.empty();
        for (const Output& output : outputs_) is_used |= output.value == result;
        for (const Update& update : updates_) is_used |= update.value == result;
        for (const Guard& guard : guards_) is_used |= guard.value == result;
        if (is_used) fail<ValueError>(loc, "Graph::remove: {}, a result of {}, is used", called(result), node->op());
    }
    changed();
    for (std::size_t i = 0; i < node->inputs.size(); ++i) drop_use(node->inputs[i], node, static_cast<int>(i));
    const std::vector<Value*> results = node->results;
    nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(at));
    std::erase_if(values_, [&](const auto& value) { return std::find(results.begin(), results.end(), value.get()) != results.end(); });
}

}  // namespace tapir
