// Sizes that depend on data: runs on other data find out what a program takes from them.
#include "tapir/autograd/trace/data_sizes_impl.h"

#include <algorithm>
#include <set>

#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/join_graphs_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir::detail {

bool has_data_sizes(const Graph& graph) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
        if (data_sized(node->attributes()) != 0) return true;
        const std::vector<NodePart> parts = parts_of(node->attributes());
        return std::any_of(parts.begin(), parts.end(), [](const NodePart& part) { return has_data_sizes(*part.graph); });
    });
}

Tensor with_other_data(const Tensor& x, OtherData how) {
    const PauseRecording pause;
    Tensor other = x.detach().clone();
    const std::int64_t count = other.numel();
    if (count == 0) return other;
    if (how == OtherData::negated) return is_floating(x.dtype()) ? other.neg_().requires_grad_(x.requires_grad()) : other;
    const bool by_smallest = how == OtherData::half_smallest || how == OtherData::all_smallest;
    const bool is_half = how == OtherData::half_smallest || how == OtherData::half_largest;
    Tensor flat = other.reshape({count});
    const Tensor values = flat.to(float64);
    const std::int64_t smallest = argmin(values).item<std::int64_t>(), largest = argmax(values).item<std::int64_t>();
    const std::int64_t changed = is_half ? count - count / 2 : count;
    Tensor chosen = flat[by_smallest ? smallest : largest].clone().expand({changed});
    if (flat[smallest].equal(flat[largest])) {
        if (is_floating(x.dtype())) {
            const Tensor away = exp2(remainder(arange(changed, float32), 8) * 2).to(x.dtype());  // 1, 4, ..., 16384
            chosen = by_smallest ? chosen - away : chosen + away;
        } else if (x.dtype() == bool_) {
            chosen = logical_not(chosen);
        } else {
            chosen = chosen + (values[smallest].item() > 0 ? -1 : 1);  // so that an index stays an index
        }
    }
    flat.narrow(0, count - changed, changed).copy_(chosen);
    return other.requires_grad_(x.requires_grad());
}

namespace {

// True if the op finds these sizes of its result itself: one that remains, -1 for reshape, or those of its operand for expand.
bool finds_sizes(const Graph::Node& node, const std::vector<std::size_t>& places) {
    if (!node.is(reshape_form) && !node.is(expand_form)) return false;
    const std::vector<SymInt>&from = node.inputs[0]->shape, &to = node.results[0]->shape;
    if (node.is(reshape_form)) {  // for no elements the remaining size could be any number
        const auto is_empty = [](const SymInt& size) { return size == SymInt(0); };
        const auto empty = static_cast<std::size_t>(std::count_if(to.begin(), to.end(), is_empty));
        return places.empty() || (places.size() == 1 && (empty == 0 || (empty == 1 && is_empty(to[places[0]]))));
    }
    const std::size_t extra = to.size() - from.size();
    return std::all_of(places.begin(), places.end(), [&](std::size_t d) { return d >= extra && from[d - extra] == to[d]; });
}

// Leaves only these sizes to the op, in all graphs.
void leave_to_op(std::vector<Graph>& graphs, std::size_t n, const std::vector<std::size_t>& places) {
    if (places.empty()) return;
    const Graph::Node& first = *graphs[0].nodes()[n];
    const std::string_view op = first.op();
    const std::size_t rank = first.results[0]->shape.size();
    for (Graph& graph : graphs) {
        if (n >= graph.nodes().size()) continue;  // the program depends on sizes: Union reports that
        Graph::Node& node = *graph.nodes()[n];
        if (node.op() != op || node.results[0]->shape.size() != rank) continue;
        std::vector<SymInt> shape = node.results[0]->shape;
        for (const std::size_t d : places) shape[d] = -1;
        graph.edit_attributes(&node).set("shape", shape);
    }
}

// Compares a node's arguments with another run on inputs of the same sizes. If only sizes that the op finds itself differ, leaves these to it.
bool leave_differing_to_op(std::vector<Graph>& graphs, const Graph& other, std::size_t n) {
    const Graph::Node &x = *graphs[0].nodes()[n], &y = *other.nodes()[n];
    if (!finds_sizes(x, {})) return false;
    const std::vector<SymInt>&mine = x.results[0]->shape, &others = y.results[0]->shape;
    if (mine.size() != others.size()) return false;
    std::vector<std::size_t> differing;
    for (std::size_t d = 0; d < mine.size(); ++d) {
        if (mine[d] != others[d]) differing.push_back(d);
    }
    if (!finds_sizes(x, differing) || !finds_sizes(y, differing)) return false;
    leave_to_op(graphs, n, differing);
    return true;
}

using ValueSet = std::set<const Graph::Value*>;

// Values made from results with sizes that no formula gives, and from `given`.
ValueSet made_of_data_sized(const Graph& graph, ValueSet given) {
    for (const auto& node : graph.nodes()) {
        const auto is_made = [&](const Graph::Value* value) { return given.count(value) > 0; };
        const bool has_formulas = data_sized(node->attributes()) == 0 && clipped_dim(node->attributes(), node->inputs) < 0;
        if (has_formulas && std::none_of(node->inputs.begin(), node->inputs.end(), is_made)) continue;
        given.insert(node->results.begin(), node->results.end());
    }
    return given;
}

// The inputs of a part that get such values.
ValueSet given_to(const Graph& part, const NodePart& of, const Graph::Node& node, const ValueSet& made) {
    ValueSet inputs;
    for (std::size_t i = 0; i < of.operands.size(); ++i) {
        if (made.count(node.inputs[static_cast<std::size_t>(of.operands[i])])) inputs.insert(part.inputs()[i]);
    }
    return inputs;
}

// Calls fn with the same part of a node in all graphs, as copies that it may change. Graphs with another op there are left out.
template <class Fn>
void each_part(std::vector<Graph>& graphs, std::size_t n, const Fn& fn) {
    const std::string_view op = graphs[0].nodes()[n]->op();
    for (const NodePart& part : parts_of(graphs[0].nodes()[n]->attributes())) {
        std::vector<Graph*> owners;
        std::vector<Graph> copies;
        for (Graph& graph : graphs) {
            if (n >= graph.nodes().size() || graph.nodes()[n]->op() != op) continue;
            owners.push_back(&graph);
            copies.push_back(*std::get<std::shared_ptr<const Graph>>(graph.nodes()[n]->attributes().get(part.name)));
        }
        if (!fn(part, copies)) continue;
        for (std::size_t g = 0; g < owners.size(); ++g) {
            owners[g]->edit_attributes(owners[g]->nodes()[n].get()).set(part.name, std::make_shared<const Graph>(std::move(copies[g])));
        }
    }
}

void leave_none_given(std::vector<Graph>& graphs, const ValueSet& given) {
    const ValueSet made = made_of_data_sized(graphs[0], given);
    for (std::size_t n = 0; n < graphs[0].nodes().size(); ++n) {
        const Graph::Node& node = *graphs[0].nodes()[n];
        each_part(graphs, n, [&](const NodePart& part, std::vector<Graph>& copies) {
            const ValueSet inputs = given_to(copies[0], part, node, made);
            if (inputs.empty() && !has_data_sizes(copies[0])) return false;
            leave_none_given(copies, inputs);
            return true;
        });
        if (node.results.empty() || !made.count(node.results[0])) continue;
        std::vector<std::size_t> empty;
        for (std::size_t d = 0; d < node.results[0]->shape.size(); ++d) {
            if (node.results[0]->shape[d] == SymInt(0)) empty.push_back(d);
        }
        if (finds_sizes(node, empty)) leave_to_op(graphs, n, empty);
    }
}

// Infers the shapes of the results from those of the operands. `next` numbers the names of unknown sizes, which begin with `prefix`.
void infer_again(Graph::Node& node, std::string_view prefix, int& next, const Loc& loc) {
    const auto unknown = [&] { return SymInt::dim(fmt::format("{}_{}", prefix, next++)); };
    ResultTypes stated;
    try {
        stated = result_types_of(node.attributes(), node.inputs, loc);
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error&) {  // the op refuses such sizes
    }
    for (std::size_t k = 0; k < node.results.size(); ++k) {
        if (k < stated.size()) node.results[k]->shape = stated[k].shape;
        for (SymInt& size : node.results[k]->shape) {
            if (k >= stated.size() || size == types::unknown()) size = unknown();
        }
    }
}

// `next` numbers the names of unknown sizes, across a graph and the graphs in it.
void follow_data_sizes(Graph& graph, const ValueSet& given, int& next, const Loc& loc) {
    const ValueSet made = made_of_data_sized(graph, given);
    for (const auto& node : graph.nodes()) {
        for (const NodePart& part : parts_of(node->attributes())) {
            Graph copy = *part.graph;
            const ValueSet inputs = given_to(copy, part, *node, made);
            if (inputs.empty() && !has_data_sizes(copy) && largest_bound(copy) == 0) continue;
            for (int i = 0; i < static_cast<int>(part.operands.size()); ++i) {
                Graph::Value* input = copy.inputs()[static_cast<std::size_t>(i)];
                if (!inputs.count(input)) continue;
                input->shape = node->inputs[static_cast<std::size_t>(part.operands[static_cast<std::size_t>(i)])]->shape;
                if (part.is_slice(i)) input->shape.erase(input->shape.begin());
            }
            follow_data_sizes(copy, inputs, next, loc);
            graph.edit_attributes(node.get()).set(part.name, std::make_shared<const Graph>(std::move(copy)));
        }
        if (node->results.empty() || !made.count(node->results[0])) continue;
        const std::uint64_t own = data_sized(node->attributes());
        for (std::size_t k = 0; k < node->results.size() && k < 64; ++k) {
            if (own >> k & 1) node->results[k]->shape[0] = SymInt::dim(fmt::format("{}_{}", node->op(), next++));
        }
        const bool is_clipped = clipped_dim(node->attributes(), node->inputs) >= 0;
        if (own == 0) infer_again(*node, is_clipped ? node->op() : "unknown_of_data", next, loc);
    }
}

}  // namespace

int clipped_dim(const Attributes& attributes, const std::vector<Graph::Value*>& inputs) {
    if (&attributes.form() != &slice_form) return -1;
    const auto number = [&](const char* name) { return std::get<SymInt>(attributes.get(name)); };
    const SymInt dim = number("dim"), start = number("start"), end = number("end");
    const auto d = static_cast<std::size_t>(dim.is_number() ? dim.number() : 0);
    if (d >= inputs[0]->shape.size() || inputs[0]->shape[d].is_number()) return -1;
    const auto is_sure = [](const SymInt& bound) { return !bound.is_number() || (bound.number() >= -1 && bound.number() <= 1); };
    return is_sure(start) && is_sure(end) ? -1 : static_cast<int>(d);
}

std::int64_t largest_bound(const Graph& graph) {
    std::int64_t largest = 0;
    for (const auto& node : graph.nodes()) {
        for (const NodePart& part : parts_of(node->attributes())) largest = std::max(largest, largest_bound(*part.graph));
        if (clipped_dim(node->attributes(), node->inputs) < 0) continue;
        for (const char* name : {"start", "end"}) {
            const SymInt bound = std::get<SymInt>(node->attributes().get(name));
            if (bound.is_number() && bound.number() != INT64_MIN) largest = std::max(largest, std::abs(bound.number()));
        }
    }
    return largest;
}

void leave_none_to_ops(std::vector<Graph>& graphs) { leave_none_given(graphs, {}); }
void follow_data_sizes(Graph& graph, const Loc& loc) {
    int next = 0;
    follow_data_sizes(graph, {}, next, loc);
}

namespace {

// True if two runs did the same, up to copies: x.contiguous() copies nothing if all but one of the sizes are 1.
bool same_but_copies(const Graph& a, const Graph& b) {
    const auto ops_of = [](const Graph& graph) {
        std::vector<const Graph::Node*> ops;
        for (const auto& node : graph.nodes()) {
            if (!node->is(clone_form)) ops.push_back(node.get());
        }
        return ops;
    };
    const auto same_parts = [](const Graph::Node& x, const Graph::Node& y) {
        if (!x.attributes().has_graph()) return true;
        const auto mine = x.attributes().all(), others = y.attributes().all();
        return std::equal(mine.begin(), mine.end(), others.begin(), others.end(), [](const auto& one, const auto& other) {
            const auto* part = std::get_if<std::shared_ptr<const Graph>>(&one.second);
            return !part || !*part || same_but_copies(**part, *std::get<std::shared_ptr<const Graph>>(other.second));
        });
    };
    const std::vector<const Graph::Node*> mine = ops_of(a), others = ops_of(b);
    return std::equal(mine.begin(), mine.end(), others.begin(), others.end(),
                      [&](const Graph::Node* x, const Graph::Node* y) { return x->op() == y->op() && same_parts(*x, *y); });
}

std::string first_difference(const Graph& a, const Graph& b) {
    const auto at = [](const Graph& graph, std::size_t n) { return n < graph.nodes().size() ? at_line(*graph.nodes()[n]) : std::string("nothing"); };
    std::size_t n = 0;
    while (n < a.nodes().size() && n < b.nodes().size() && a.nodes()[n]->op() == b.nodes()[n]->op()) ++n;
    return fmt::format("the program runs {}, and with other data {}", at(a, n), at(b, n));
}

}  // namespace

std::string taken_from_data(std::vector<Graph>& graphs, const Graph& b) {
    const Graph& a = graphs[0];
    const auto reads_alike = [](const Graph::Guard& x, const Graph::Guard& y) { return same_elements(x.expected, y.expected); };
    if (!std::equal(a.guards().begin(), a.guards().end(), b.guards().begin(), b.guards().end(), reads_alike)) return {};
    if (!same_but_copies(a, b)) return first_difference(a, b);
    if (a.nodes().size() != b.nodes().size() || a.constants().size() != b.constants().size()) return {};
    const auto said = [&](const Graph::Node& node, const std::string& what, const std::string& one, const std::string& other) {
        return fmt::format("{}: {} is {}, and {} with other data", at_line(node), what, one, other);
    };
    for (std::size_t n = 0; n < a.nodes().size(); ++n) {
        const Graph::Node &x = *a.nodes()[n], &y = *b.nodes()[n];
        if (x.op() != y.op()) return {};
        for (std::size_t i = 0; i < x.inputs.size(); ++i) {
            if (!is_same_in_runs(*x.inputs[i], *y.inputs[i])) return at_line(x) + ": it works on other values with other data";
        }
        std::string in_parts;
        each_part(graphs, n, [&](const NodePart& part, std::vector<Graph>& copies) {
            if (!in_parts.empty()) return false;
            in_parts = taken_from_data(copies, *std::get<std::shared_ptr<const Graph>>(y.attributes().get(part.name)));
            return in_parts.empty();
        });
        if (!in_parts.empty()) return in_parts;
        const auto mine = x.attributes().all(), others = y.attributes().all();
        for (std::size_t i = 0; i < mine.size(); ++i) {
            if (std::holds_alternative<std::shared_ptr<const Graph>>(mine[i].second)) continue;
            const std::string one = to_string(mine[i].second), other = to_string(others[i].second);
            if (one != other && !leave_differing_to_op(graphs, b, n)) return said(x, mine[i].first, one, other);
        }
    }
    for (std::size_t c = 0; c < a.constants().size(); ++c) {
        const Graph::Value &x = *a.constants()[c], &y = *b.constants()[c];
        if (x.uses.empty() || same_elements(x.data, y.data)) continue;
        return said(*x.uses[0].node, "an operand", x.data.str(), y.data.str());
    }
    return {};
}

}  // namespace tapir::detail
