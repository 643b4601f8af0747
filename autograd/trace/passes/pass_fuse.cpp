// Fusion: element-wise ops of one shape and dtype (and truth values between them) that work on each other's results become one node,
// together with a sum or a mean at their end.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/fused_kernels.h"
#include "tapir/ops/forms_impl.h"

namespace tapir {
namespace {

using Value = Graph::Value;
using Node = Graph::Node;

bool is_number(const Value* value) { return value->kind == Graph::Kind::constant && value->data.numel() == 1 && value->device == cpu; }

// On a CUDA device one kernel is compiled for them.
bool can_fuse_on(Device device) {
#ifdef TAPIR_WITH_CUDA
    if (device.type == DeviceType::cuda) return gpu::can_compile();
#endif
    return device == cpu;
}

// The dtype that an op computes in: bool if it has only truth values, which fits any dtype.
DType computed_in(const Node& node) {
    if (node.results[0]->dtype != bool_) return node.results[0]->dtype;
    for (const Value* input : node.inputs) {
        if (!is_number(input) && input->dtype != bool_) return input->dtype;
    }
    return bool_;
}

// True if a kernel of this dtype can hold the number: truth values and int32 are computed in 32 bits.
bool fits(const Value& number, DType dtype) {
    if (is_floating(number.dtype) && !is_floating(dtype)) return false;
    if (number.dtype != int64 || dtype == int64 || is_floating(dtype)) return true;
    const std::int64_t value = *static_cast<const std::int64_t*>(number.data.raw_data());
    return value >= INT32_MIN && value <= INT32_MAX;
}

// True if the node can run as a loop over numbers of one dtype, and over truth values.
bool can_fuse(const Node& node) {
    const std::optional<FusedOp> op = fused_op(node.form());
    if (!op || node.results.size() != 1 || node.attributes().is_symbolic()) return false;
    const Value& result = *node.results[0];
    const DType dtype = computed_in(node);
    const bool is_on_cpu = result.device == cpu;
    if (!can_fuse_on(result.device) || dtype == uint8 || std::all_of(node.inputs.begin(), node.inputs.end(), is_number)) return false;
    // A device's kernel has no truth values and no 16-bit floats.
    if (!is_on_cpu && (op->elementwise < 0 || result.dtype == bool_ || dtype == float16 || dtype == bfloat16)) return false;
    if (op->elementwise >= 0) {
        const ElementwiseOp& row = elementwise_ops[op->elementwise];
        if (row.to_bool != (result.dtype == bool_) || !elementwise::loop_without_checks(row.index, kernels::compute_of(dtype))) return false;
    } else {
        const std::size_t condition = static_cast<std::size_t>(std::max(op->condition, 0));
        if (result.dtype == bool_ || node.inputs.size() <= condition || node.inputs[condition]->dtype != bool_ || is_number(node.inputs[condition]))
            return false;
    }
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](const Value* input) {
        if (is_number(input)) return fits(*input, dtype);
        return input->device == result.device && (input->dtype == dtype || (is_on_cpu && input->dtype == bool_));
    });
}

struct Group {
    std::vector<Node*> nodes;  // in order
    int place;
    DType dtype;  // see computed_in()
};

struct Edges {
    std::vector<Value*> inputs, outputs;
    std::size_t numbers = 0;
};

class Fusion {
 public:
    Fusion(Graph& graph, const std::function<bool(const Node&)>& takes) : graph_(graph) {
        for (const auto& node : graph.nodes()) {
            const int number = static_cast<int>(position_.size());
            position_[node.get()] = number;
            if (!can_fuse(*node) || (takes && !takes(*node))) continue;
            group_[node.get()] = groups_.size();
            groups_.push_back({{node.get()}, position_[node.get()], computed_in(*node)});
        }
        for (const Graph::Output& output : graph.outputs()) kept_.insert(output.value);
        for (const Graph::Update& update : graph.updates()) kept_.insert(update.value);
        for (const Graph::Guard& guard : graph.guards()) kept_.insert(guard.value);
    }

    int run() {
        std::vector<Node*> nodes;
        for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
        for (Node* node : nodes) {
            for (Value* input : node->inputs) {
                if (input->maker) try_merge(input->maker, node);
            }
        }
        int changes = 0;
        for (Group& group : groups_) {
            if (!group.nodes.empty()) changes += fuse(group);
        }
        if (changes > 0) graph_.join(std::move(joined_));
        return changes;
    }

 private:
    bool are_alike(const Group& a, const Group& b) const {
        const bool fit = a.dtype == b.dtype || a.dtype == bool_ || b.dtype == bool_;
        const Value &x = *a.nodes[0]->results[0], &y = *b.nodes[0]->results[0];
        return fit && x.device == y.device && x.shape == y.shape;
    }

    Edges edges_of(const std::vector<Node*>& nodes) const {
        const std::unordered_set<const Node*> within(nodes.begin(), nodes.end());
        Edges edges;
        std::unordered_set<const Value*> seen;
        for (const Node* node : nodes) {
            for (Value* input : node->inputs) {
                if ((input->maker && within.count(input->maker)) || !seen.insert(input).second) continue;
                if (is_number(input))
                    ++edges.numbers;
                else
                    edges.inputs.push_back(input);
            }
            Value* result = node->results[0];
            const auto is_outside = [&](const Graph::Use& use) { return !within.count(use.node); };
            if (kept_.count(result) || std::any_of(result->uses.begin(), result->uses.end(), is_outside)) edges.outputs.push_back(result);
        }
        return edges;
    }

    // Every node and every group has a place in a valid running order. Joins two groups at the first one's place, if all else that the second
    // needs comes before it, or at the second one's place, if all that needs the first comes after it; -1: neither.
    int place_of(const std::vector<Node*>& first, int first_place, const std::vector<Node*>& second, int second_place) const {
        const std::unordered_set<const Node*> both = [&] {
            std::unordered_set<const Node*> set(first.begin(), first.end());
            set.insert(second.begin(), second.end());
            return set;
        }();
        const auto comes_before = [&](const Node* node) {
            return std::all_of(node->inputs.begin(), node->inputs.end(),
                               [&](const Value* input) { return !input->maker || both.count(input->maker) || place(input->maker) < first_place; });
        };
        if (std::all_of(second.begin(), second.end(), comes_before)) return first_place;
        const auto comes_after = [&](const Node* node) {
            const auto& uses = node->results[0]->uses;
            return std::all_of(uses.begin(), uses.end(),
                               [&](const Graph::Use& use) { return both.count(use.node) || place(use.node) > second_place; });
        };
        return std::all_of(first.begin(), first.end(), comes_after) ? second_place : -1;
    }

    int place(const Node* node) const {
        const auto group = group_.find(node);
        return group == group_.end() ? position_.at(node) : groups_[group->second].place;
    }

    // True if running the group later costs significant memory: values that only it reads live until then, while its results do not exist yet.
    bool keeps_more(const Group& group) const {
        constexpr std::int64_t least = 16 * 1024;  // bytes: all fits into the first-level cache
        const std::unordered_set<const Node*> within(group.nodes.begin(), group.nodes.end());
        const Edges edges = edges_of(group.nodes);
        std::int64_t bytes = 0;
        const auto count = [&](const Value* value, int sign) {
            std::int64_t size = static_cast<std::int64_t>(itemsize(value->dtype));
            for (const SymInt& d : value->shape) size *= d.is_number() ? d.number() : 0;
            bytes += sign * size;
        };
        for (const Value* input : edges.inputs) {
            const bool is_read_elsewhere =
                std::any_of(input->uses.begin(), input->uses.end(), [&](const Graph::Use& use) { return !within.count(use.node); });
            if (input->maker && !kept_.count(input) && !is_read_elsewhere) count(input, 1);
        }
        for (const Value* output : edges.outputs) count(output, -1);
        return bytes >= least;
    }

    void try_merge(const Node* producer, const Node* consumer) {
        const auto a = group_.find(producer), b = group_.find(consumer);
        if (a == group_.end() || b == group_.end() || a->second == b->second || !are_alike(groups_[a->second], groups_[b->second])) return;
        std::vector<Node*> both = groups_[a->second].nodes;
        both.insert(both.end(), groups_[b->second].nodes.begin(), groups_[b->second].nodes.end());
        if (both.size() > kMostFusedOps) return;
        std::sort(both.begin(), both.end(), [&](const Node* x, const Node* y) { return position_.at(x) < position_.at(y); });
        const Edges edges = edges_of(both);
        if (edges.inputs.size() + edges.numbers > kMostFusedInputs || edges.outputs.size() > kMostFusedOutputs) return;
        const std::size_t from = a->second, to = b->second;
        const int at = place_of(groups_[from].nodes, groups_[from].place, groups_[to].nodes, groups_[to].place);
        if (at < 0 || (at != groups_[from].place && keeps_more(groups_[from]))) return;
        groups_[to].place = at;
        if (groups_[to].dtype == bool_) groups_[to].dtype = groups_[from].dtype;
        for (const Node* node : groups_[from].nodes) group_[node] = to;
        groups_[from].nodes.clear();
        groups_[to].nodes = std::move(both);
    }

    std::shared_ptr<const Graph> body_of(const Group& group, const Edges& edges) const {
        // Numbers beside 16-bit floats have all their digits in the ops, too.
        const DType dtype = group.dtype == bool_ ? DType::int32 : kernels::stored_as(kernels::compute_of(group.dtype));
        const detail::PauseRecording pause;
        auto body = std::make_shared<Graph>();
        std::unordered_map<const Value*, Value*> of;
        for (const Value* input : edges.inputs) {
            const std::string name = input->name.empty() ? "v" + std::to_string(input->number) : input->name;
            of[input] = body->add_input(name, input->dtype, input->shape, input->device);
        }
        for (const Node* node : group.nodes) {
            std::vector<Value*> inputs;
            for (const Value* input : node->inputs) {
                Value*& here = of[input];
                if (!here) here = body->add_constant(input->dtype == dtype ? input->data : input->data.to(dtype));
                inputs.push_back(here);
            }
            Node* inner = body->append(node->attributes(), inputs);
            inner->set_origin(*node);
            const Value& result = *node->results[0];
            of[node->results[0]] = body->add_result(inner, result.dtype, result.device, result.shape);
        }
        for (const Value* output : edges.outputs) body->add_output("v" + std::to_string(output->number), of.at(output));
        return body;
    }

    // A sum or a mean of the only result, if nothing else needs that.
    Node* reduction_of(const Edges& edges) const {
        if (edges.outputs.size() != 1) return nullptr;
        const Value* result = edges.outputs[0];
        if (kept_.count(result) || result->uses.size() != 1 || result->device != cpu || (result->dtype != float32 && result->dtype != float64))
            return nullptr;
        Node* user = result->uses[0].node;
        if ((!user->is(sum_form) && !user->is(mean_form)) || user->attributes().is_symbolic()) return nullptr;
        // Over the last dimensions, or all: other reductions need the whole tensor first.
        const auto dims = std::get<std::vector<SymInt>>(user->attributes().get("dims"));
        for (std::size_t i = 0; i < dims.size(); ++i) {
            if (dims[i].number() != static_cast<std::int64_t>(result->shape.size() - dims.size() + i)) return nullptr;
        }
        return user;
    }

    bool fuse(Group& group) {
        const Edges edges = edges_of(group.nodes);
        Node* reduction = reduction_of(edges);
        if (group.nodes.size() < 2 && !reduction) return false;
        Attributes attributes(reduction ? fused_reduce_form : fused_form);
        attributes.set("body", body_of(group, edges));
        std::vector<Node*> nodes = group.nodes;
        std::vector<Value*> results = edges.outputs;
        if (reduction) {
            for (const auto& [name, value] : reduction->attributes().all()) attributes.set(name, value);
            attributes.set("reduction", std::string(reduction->op()));
            nodes.push_back(reduction);
            results = {reduction->results[0]};
        }
        joined_.push_back({nodes, std::move(attributes), edges.inputs, results});
        return true;
    }

    Graph& graph_;
    std::unordered_map<const Node*, int> position_;
    std::unordered_map<const Node*, std::size_t> group_;
    std::vector<Group> groups_;
    std::vector<Graph::Joined> joined_;
    std::unordered_set<const Value*> kept_;  // seen by others
};

}  // namespace

int fuse_elementwise(Graph& graph, const std::function<bool(const Graph::Node&)>& takes) { return Fusion(graph, takes).run(); }

}  // namespace tapir
