// Tools for passes.
#include "tapir/autograd/trace/passes/rewrite_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir::rewrite {
namespace {

// The owner of a value's memory, if the value is a view; certainly: only through views that are never copies. Null: not known.
const Value* memory_of(const Value* value, bool certainly) {
    while (value->maker) {
        const Sharing sharing = sharing_of(*value->maker, 0);
        if (sharing == Sharing::never) return value;
        if (certainly && sharing == Sharing::maybe) return nullptr;
        if (value->maker->attributes().has_graph()) return nullptr;  // a branch may return any tensor
        value = value->maker->inputs[0];
    }
    return value;
}

// True if several elements of a value share one place in memory.
bool is_expanded(const Value* value) {
    for (; value->maker && sharing_of(*value->maker, 0) != Sharing::never; value = value->maker->inputs[0]) {
        if (value->maker->is(expand_form) || value->maker->is(windows_form)) return true;
    }
    return false;
}

// nullopt for a whole number that a double may not hold exactly.
std::optional<double> exact(double number, DType dtype) {
    constexpr double kExact = 9007199254740992;  // 2^53
    return is_floating(dtype) || std::abs(number) < kExact ? std::optional(number) : std::nullopt;
}

std::optional<double> number_in(const Attribute& attribute) {
    if (const auto* size = std::get_if<SymInt>(&attribute)) {
        return size->is_number() ? exact(static_cast<double>(size->number()), int64) : std::nullopt;
    }
    if (const auto* real = std::get_if<double>(&attribute)) return *real;
    if (const auto* flag = std::get_if<bool>(&attribute)) return *flag ? 1 : 0;
    return std::nullopt;
}

std::optional<double> rounded(std::optional<double> number, DType dtype) { return number ? exact(rewrite::rounded(*number, dtype), dtype) : number; }

std::optional<double> number_in_constant(const Tensor& x) {
    constexpr std::int64_t kLookedAt = 64;  // limit on elements
    if (x.numel() == 0 || x.numel() > kLookedAt || x.device() != cpu) return std::nullopt;
    const detail::PauseRecording pause;
    const Tensor flat = x.contiguous();
    const auto* first = static_cast<const std::byte*>(flat.raw_data());
    const std::size_t bytes = itemsize(x.dtype());
    for (std::int64_t i = 1; i < x.numel(); ++i) {
        if (std::memcmp(first, first + static_cast<std::size_t>(i) * bytes, bytes) != 0) return std::nullopt;
    }
    return exact(detail::load_double(x.dtype(), first), x.dtype());
}

}  // namespace

double rounded(double number, DType dtype) {
    alignas(8) std::byte place[8];
    detail::store(dtype, place, Scalar(number));
    return detail::load_double(dtype, place);
}

std::optional<double> number_of(const Value* value) {
    constexpr int kLongest = 16;  // limit on a chain of views
    for (int i = 0; i < kLongest; ++i) {
        if (value->kind == Graph::Kind::constant) return number_in_constant(value->data);
        const Node* node = value->maker;
        if (!node) return std::nullopt;
        if (node->is(zeros_form) || node->is(zeros_like_form)) return 0;
        if (node->is(ones_form)) return 1;
        if (node->is(full_form) || node->is(full_like_form)) return rounded(number_in(node->attributes().get("value")), value->dtype);
        if (node->is(number_form)) {
            const std::optional<double> number = number_in(node->attributes().get("value"));
            const double factor = std::get<double>(node->attributes().get("factor"));
            if (!number) return std::nullopt;
            return rounded(std::optional(detail::number_for(factor, *number, flag_of(*node, "is_reciprocal"))), value->dtype);
        }
        if (!node->form().moves_elements() || node->inputs[0]->dtype != value->dtype) return std::nullopt;
        value = node->inputs[0];
    }
    return std::nullopt;
}

std::optional<Magnitudes> magnitudes_of(const Value* value) {
    constexpr std::int64_t kLookedAt = 1 << 16;  // limit on elements
    if (const std::optional<double> number = number_of(value))
        return std::isfinite(*number) ? std::optional(Magnitudes{std::abs(*number), std::abs(*number)}) : std::nullopt;
    if (value->kind != Graph::Kind::constant || value->device != cpu || value->data.numel() > kLookedAt) return std::nullopt;
    const detail::PauseRecording pause;
    const Tensor flat = value->data.contiguous();
    const auto* first = static_cast<const std::byte*>(flat.raw_data());
    Magnitudes found{1, 1};
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
        const double size = std::abs(detail::load_double(flat.dtype(), first + static_cast<std::size_t>(i) * itemsize(flat.dtype())));
        if (!std::isfinite(size)) return std::nullopt;
        found = i == 0 ? Magnitudes{size, size} : Magnitudes{std::min(found.least, size), std::max(found.most, size)};
    }
    return found;
}

bool is_finite_constant(const Value* value) {
    const std::optional<Magnitudes> magnitudes = magnitudes_of(value);
    return magnitudes && magnitudes->least > 0;
}

bool is_of_constant(const Value* value) {
    const Value* memory = memory_of(value, /*certainly=*/false);
    return memory && memory->kind == Graph::Kind::constant;
}

bool is_known(const Sizes& shape) {
    for (const SymInt& size : shape) {
        for (const std::string& name : size.dims()) {
            if (name.starts_with("unknown")) return false;
        }
    }
    return true;
}

bool is_given(const Graph& graph, const Sizes& shape) {
    const auto is_dim_of_input = [&](const std::string& name) {
        const auto tells_it = [&](const SymInt& size) {
            const std::optional<SymInt::OfOneDim> one = size.of_one_dim();
            return one && one->dim == name;
        };
        return std::any_of(graph.inputs().begin(), graph.inputs().end(),
                           [&](const Value* input) { return std::any_of(input->shape.begin(), input->shape.end(), tells_it); });
    };
    return std::all_of(shape.begin(), shape.end(), [&](const SymInt& size) {
        const std::vector<std::string> names = size.dims();
        return std::all_of(names.begin(), names.end(), is_dim_of_input);
    });
}

bool same_shape(const Value* a, const Value* b) { return a == b || (a->shape == b->shape && is_known(a->shape)); }
bool same_type(const Value* a, const Value* b) { return a->dtype == b->dtype && a->device == b->device && same_shape(a, b); }

std::optional<Sizes> broadcast(const Sizes& a, const Sizes& b) {
    if (!is_known(a) || !is_known(b)) return std::nullopt;
    const Sizes &longer = a.size() >= b.size() ? a : b, &shorter = a.size() >= b.size() ? b : a;
    Sizes result = longer;
    for (std::size_t d = 0; d < shorter.size(); ++d) {
        SymInt& size = result[longer.size() - shorter.size() + d];
        if (size == shorter[d] || shorter[d] == SymInt(1)) continue;
        if (size != SymInt(1)) return std::nullopt;
        size = shorter[d];
    }
    return result;
}

Node* made_by(const Value* value, const OpForm& op) {
    return value->maker && value->maker->is(op) && value->maker->results.size() == 1 ? value->maker : nullptr;
}

bool is_output(const Graph& graph, const Value* value) {
    const auto is_it = [value](const auto& of_graph) { return of_graph.value == value; };
    return std::any_of(graph.outputs().begin(), graph.outputs().end(), is_it) || std::any_of(graph.updates().begin(), graph.updates().end(), is_it);
}

Sharing sharing_of(const Node& node, std::size_t input) {
    if (node.is(cond_form)) return Sharing::maybe;
    if (input != 0 || node.inputs.empty() || !node.form().is_view) return Sharing::never;
    const Value *x = node.inputs[0], *y = node.results[0];
    if (x->dtype != y->dtype || x->device != y->device) return Sharing::never;
    // If the memory has another order, a reshape copies.
    return node.is(reshape_form) && !same_shape(x, y) ? Sharing::maybe : Sharing::always;
}

bool is_seen(const Graph& graph, const Value* value, const Value* except) {
    std::vector<const Value*> open = {value};
    std::unordered_set<const Value*> known = {value, except};
    while (!open.empty()) {
        const Value* next = open.back();
        open.pop_back();
        if (is_output(graph, next)) return true;
        for (const Graph::Use& use : next->uses) {
            if (sharing_of(*use.node, static_cast<std::size_t>(use.input)) == Sharing::never) continue;
            for (const Value* result : use.node->results) {
                if (known.insert(result).second) open.push_back(result);
            }
        }
    }
    return false;
}

bool has_one_use(const Graph& graph, const Value* value) {
    const auto is_guarded = [value](const Graph::Guard& guard) { return guard.value == value; };
    return value->uses.size() == 1 && !is_output(graph, value) && std::none_of(graph.guards().begin(), graph.guards().end(), is_guarded);
}

Node* only_user(const Graph& graph, const Value* value) { return has_one_use(graph, value) ? value->uses[0].node : nullptr; }

int join(Graph& graph, std::vector<Graph::Joined> joined) {
    const int changes = static_cast<int>(joined.size());
    if (changes > 0) graph.join(std::move(joined));
    return changes;
}

bool is_elementwise(const Node& node) {
    const OpForm* form = &node.form();
    return !std::less<>()(form, elementwise_forms) && std::less<>()(form, elementwise_forms + kElementwiseOps) && node.results.size() == 1;
}

bool is_pointwise(const Node& node) {
    return is_elementwise(node) || node.is(where_form) || node.is(masked_fill_form) || node.is(to_dtype_form) || node.is(clone_form);
}

Sizes sizes_of(const Node& node, const char* attribute) { return std::get<Sizes>(node.attributes().get(attribute)); }
bool flag_of(const Node& node, const char* attribute) { return std::get<bool>(node.attributes().get(attribute)); }

std::vector<int> dims_of(const Node& node, const char* attribute) {
    std::vector<int> dims;
    const auto rank = static_cast<std::int64_t>(node.inputs[0]->shape.size());
    if (rank == 0) return dims;  // sum(x, 0) of a number, as of one element
    for (const SymInt& dim : sizes_of(node, attribute)) dims.push_back(static_cast<int>(dim.number() < 0 ? dim.number() + rank : dim.number()));
    return dims;
}

std::vector<int> reduced_dims(const Node& node) {
    std::vector<int> dims = dims_of(node, "dims");
    if (dims.empty()) {
        for (std::size_t d = 0; d < node.inputs[0]->shape.size(); ++d) dims.push_back(static_cast<int>(d));
    }
    return dims;
}

// --- Making -------------------------------------------------------------------------------------------------------------------

Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, DType dtype,
           Device device, Sizes shape) {
    Attributes all(op);
    for (const auto& [name, value] : attributes) all.set(name, value);
    return graph.add_result(graph.append_before(&before, std::move(all), inputs), dtype, device, std::move(shape));
}

Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, const Value* like) {
    return put(graph, before, op, inputs, attributes, like->dtype, like->device, like->shape);
}

Value* put_number(Graph& graph, double number, DType dtype) {
    const detail::PauseRecording pause;
    const Tensor data = detail::make_empty({}, dtype, cpu, Loc{});
    detail::store(dtype, data.raw_data(), Scalar(number));
    return graph.add_constant(data);
}

bool take_place(Graph& graph, Node& node, Value* result, Value* other) {
    if (is_seen(graph, result)) {
        // A view of what the result was already a view of changes nothing.
        const Value* memory = memory_of(other, /*certainly=*/false);
        const bool is_own = memory && memory->kind == Graph::Kind::result && !is_seen(graph, memory, result);
        const bool is_shared = !is_own && !(memory && memory_of(result, /*certainly=*/true) == memory);
        if (is_shared || (is_expanded(other) && !is_expanded(result))) {
            if (node.is(clone_form)) return false;
            other = put(graph, node, clone_form, {other}, {}, result);
        }
    }
    graph.replace(result, other);
    return true;
}

// --- Rules --------------------------------------------------------------------------------------------------------------------

int apply_rules(Graph& graph, std::span<const Rule> rules) {
    std::unordered_map<const OpForm*, std::vector<const Rule*>> by_op;
    for (const Rule& rule : rules) by_op[&rule.op].push_back(&rule);
    std::vector<Node*> nodes;
    for (const auto& node : graph.nodes()) nodes.push_back(node.get());
    int changes = 0;
    for (Node* node : nodes) {
        const auto known = by_op.find(&node->form());
        if (known == by_op.end() || node->results.size() != 1) continue;
        for (const Rule* rule : known->second) {
            Value* other = rule->apply(graph, *node);
            if (!other || !take_place(graph, *node, node->results[0], other)) continue;
            ++changes;
            break;
        }
    }
    if (changes > 0) eliminate_dead_code(graph);
    return changes;
}

int in_nested(Graph& graph, const std::function<int(Graph&)>& pass) {
    int changes = 0;
    for (const auto& node : graph.nodes()) {
        for (const auto& [name, attribute] : node->attributes().all()) {
            const auto* nested = std::get_if<std::shared_ptr<const Graph>>(&attribute);
            if (!nested || !*nested) continue;
            auto copy = std::make_shared<Graph>(**nested);
            const int count = pass(*copy);
            if (count == 0) continue;
            graph.edit_attributes(node.get()).set(name, std::shared_ptr<const Graph>(std::move(copy)));
            changes += count;
        }
    }
    return changes;
}

}  // namespace tapir::rewrite
