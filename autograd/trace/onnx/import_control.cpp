// ONNX's control flow. Decisions by known values are made while the model is read: branches are chosen, short loops are
// unrolled. The rest becomes cond, while_loop and scan.
#include <algorithm>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

constexpr int64_t kMostTurns = 32;        // limit for unrolling a loop
constexpr int64_t kMostCounted = 10'000;  // turns of a loop whose condition is computed to find their number

OnnxInterpreter::Scope inside(Call& c) {
    OnnxInterpreter::Scope inner;
    inner.outer = &c.scope();
    inner.function = c.scope().function;
    inner.attributes = c.scope().attributes;
    return inner;
}

// The results of a body, as tensors of this trace. types: their ONNX element types.
std::vector<Tensor> tensors_of(Call& c, const std::vector<OnnxValuePtr>& values, std::vector<int>& types) {
    std::vector<Tensor> tensors;
    types.clear();
    for (const OnnxValuePtr& value : values) {
        const Tensor x = c.tensor(value);
        // If a result is an operand itself, the branch returns a copy.
        tensors.push_back(value->known.defined() && !value->by_size ? x : x.clone());
        types.push_back(value->type);
    }
    return tensors;
}

void if_op(Call& c) {
    if (c.is_known(0)) {
        const bool condition = c.integer(0, "condition") != 0;
        OnnxInterpreter::Scope inner = inside(c);
        for (OnnxValuePtr& value : c.interpreter().run(c.graph(condition ? "then_branch" : "else_branch"), inner)) c.give(std::move(value));
        return;
    }
    for (const onnx::ValueInfoProto& output : c.graph("then_branch").output()) {
        if (!output.type().has_tensor_type()) c.known(0, "condition, between sequences or optionals,");
    }
    std::vector<int> types;
    const auto branch = [&](const char* name) {
        return [&c, &types, name] {
            const OnnxInterpreter::Body body(c.interpreter());
            OnnxInterpreter::Scope inner = inside(c);
            return tensors_of(c, c.interpreter().run(c.graph(name), inner), types);
        };
    };
    const Tensor condition = c.x(0);
    const std::vector<Tensor> results = cond(condition.dim() == 0 ? condition : reshape(condition, {}), branch("then_branch"), branch("else_branch"));
    for (std::size_t k = 0; k < results.size(); ++k) c.give(results[k], types[k]);
}

// Stacks parts along a new first dimension, or concatenates them.
OnnxValuePtr joined(Call& c, const std::vector<OnnxValuePtr>& parts, const onnx::ValueInfoProto& info, int axis) {
    if (parts.empty()) {
        const std::optional<DType> dtype = dtype_for_onnx(info.type().tensor_type().elem_type());
        if (!dtype) c.reject("the type of its result {} is not known", info.name());
        Shape shape{0};
        for (const auto& dim : info.type().tensor_type().shape().dim()) shape.push_back(dim.dim_value());
        const OutsideTrace outside;
        return onnx_constant(zeros(shape, *dtype), info.type().tensor_type().elem_type());
    }
    bool is_constant = true, by_size = false;
    for (const OnnxValuePtr& part : parts) {
        is_constant &= part->is_constant();
        by_size |= part->by_size;
    }
    std::vector<Tensor> tensors;
    if (is_constant) {
        const OutsideTrace outside;
        for (const OnnxValuePtr& part : parts) tensors.push_back(part->known);
        OnnxValuePtr result = onnx_constant(stack(tensors, axis), parts[0]->type);
        result->by_size = by_size;
        return result;
    }
    for (const OnnxValuePtr& part : parts) tensors.push_back(c.tensor(part));
    return onnx_value(stack(tensors, axis), parts[0]->type);
}

// True if a body passes its condition on, or returns one that always holds, and the first condition holds.
bool always_goes_on(Call& c, const onnx::GraphProto& body) {
    if (!c.is_known(1) || c.integer(1, "condition") == 0) return false;
    std::string name = body.output(0).name();
    for (int n = body.node_size(); n-- > 0;) {
        const onnx::NodeProto& node = body.node(n);
        if (node.output_size() != 1 || node.output(0) != name) continue;
        if (node.op_type() == "Constant" && node.attribute_size() == 1 && node.attribute(0).has_t()) {
            const OutsideTrace outside;
            const Tensor value = c.interpreter().load(node.attribute(0).t());
            return value.numel() == 1 && value.reshape({}).item<bool>();
        }
        if (node.op_type() != "Identity" || node.input_size() != 1) return false;
        name = node.input(0);
    }
    if (body.input_size() > 1 && name == body.input(1).name()) return true;
    const OnnxValuePtr outer = c.scope().find(name);
    if (!outer || !outer->is_constant() || outer->known.numel() != 1) return false;
    const OutsideTrace outside;
    return outer->known.reshape({}).item<bool>();
}

struct LoopParts {
    const onnx::GraphProto& body;
    int carried, scanned;
};

// Runs a body's next turn. Its operands are the turn, a condition that holds, and the state.
std::vector<OnnxValuePtr> turn_of(Call& c, const LoopParts& loop, OnnxValuePtr turn, const std::vector<OnnxValuePtr>& state,
                                  const std::vector<bool>* only = nullptr) {
    OnnxInterpreter::Scope inner = inside(c);
    inner.values[loop.body.input(0).name()] = std::move(turn);
    {
        const OutsideTrace outside;
        inner.values[loop.body.input(1).name()] = onnx_constant(full({}, true, bool_));
    }
    for (int i = 0; i < loop.carried; ++i) inner.values[loop.body.input(i + 2).name()] = state[static_cast<std::size_t>(i)];
    return c.interpreter().run(loop.body, inner, only);
}

OnnxValuePtr number_of(int64_t turn) {
    const OutsideTrace outside;
    return onnx_constant(full({}, turn, int64));
}

// True if a body's first result, which is known, is a condition that holds.
bool goes_on_after(Call& c, const OnnxValuePtr& result) {
    const std::vector<OnnxValuePtr> condition{result};
    return OnnxCall(c.interpreter(), c.node(), condition, c.scope(), false).integer(0, "condition to go on") != 0;
}

// Unrolls a known number of turns, while the condition, if it counts, is known to hold. Returns false, without results, if it is not known
// or differs with sizes.
bool write_out(Call& c, const LoopParts& loop, int64_t times, bool has_condition) {
    if (has_condition && c.value(1)->by_size) return false;
    bool goes_on = !has_condition || c.integer(1, "condition") != 0;
    std::vector<OnnxValuePtr> state;
    for (int i = 0; i < loop.carried; ++i) state.push_back(c.value(i + 2));
    std::vector<std::vector<OnnxValuePtr>> collected(static_cast<std::size_t>(loop.scanned));
    for (int64_t turn = 0; turn < times && goes_on; ++turn) {
        if (turn == kMostTurns) return false;
        std::vector<OnnxValuePtr> results = turn_of(c, loop, number_of(turn), state);
        if (has_condition) {  // else the body's condition does not count
            if (!results[0]->known.defined() || results[0]->by_size) return false;
            goes_on = goes_on_after(c, results[0]);
        }
        for (int i = 0; i < loop.carried; ++i) state[static_cast<std::size_t>(i)] = std::move(results[static_cast<std::size_t>(i) + 1]);
        for (std::size_t k = 0; k < collected.size(); ++k) collected[k].push_back(std::move(results[k + static_cast<std::size_t>(loop.carried) + 1]));
    }
    for (OnnxValuePtr& value : state) c.give(std::move(value));
    for (std::size_t k = 0; k < collected.size(); ++k) {
        const int place = loop.carried + static_cast<int>(k);
        c.give(c.wants(place) ? joined(c, collected[k], loop.body.output(place + 1), 0) : OnnxValuePtr());
    }
    return true;
}

std::vector<OnnxValuePtr> values_of(const std::vector<Tensor>& tensors, std::size_t first, const std::vector<int>& types) {
    std::vector<OnnxValuePtr> values;
    for (std::size_t i = 0; i < types.size(); ++i) values.push_back(onnx_value(tensors[first + i], types[i]));
    return values;
}

// Throws if the number of turns depends on values of unknown inputs.
void require_known(Call& c, const char* why) {
    if (c.has(0)) c.known(0, fmt::format("trip count, {}", why).c_str());
    if (c.has(1)) c.known(1, fmt::format("condition, {}", why).c_str());
}

// The nodes that compute a body's condition, also through carried values, and those values. nullopt if one has a graph of its own.
struct ConditionPart {
    std::vector<bool> nodes, carried;
};
std::optional<ConditionPart> condition_part(const LoopParts& loop) {
    ConditionPart part{std::vector<bool>(static_cast<std::size_t>(loop.body.node_size())), std::vector<bool>(static_cast<std::size_t>(loop.carried))};
    std::set<std::string> names{loop.body.output(0).name()};
    const auto is_needed = [&](const std::string& name) { return names.count(name) > 0; };
    for (std::size_t before = 0; before != names.size();) {
        before = names.size();
        for (int n = loop.body.node_size(); n-- > 0;) {
            const onnx::NodeProto& node = loop.body.node(n);
            if (std::none_of(node.output().begin(), node.output().end(), is_needed)) continue;
            const auto has_graph = [](const onnx::AttributeProto& attribute) { return attribute.has_g(); };
            if (std::any_of(node.attribute().begin(), node.attribute().end(), has_graph)) return std::nullopt;
            part.nodes[static_cast<std::size_t>(n)] = true;
            names.insert(node.input().begin(), node.input().end());
        }
        for (int i = 0; i < loop.carried; ++i) {
            if (!is_needed(loop.body.input(i + 2).name())) continue;
            part.carried[static_cast<std::size_t>(i)] = true;
            names.insert(loop.body.output(i + 1).name());
        }
    }
    return part;
}

// The number of turns, up to `most`, of a loop whose condition, known at first, depends on counters and sizes alone, like
// TensorFlow's loops. nullopt if it depends on more.
std::optional<int64_t> counted_turns(Call& c, const LoopParts& loop, int64_t most) {
    const std::optional<ConditionPart> part = condition_part(loop);
    if (!part) return std::nullopt;
    std::vector<OnnxValuePtr> state(part->carried.size());
    const auto carry_on = [&](const auto& value_of) {
        for (std::size_t i = 0; i < state.size(); ++i) {
            if (!part->carried[i]) continue;
            state[i] = value_of(static_cast<int>(i));
            if (!state[i] || !state[i]->is_constant()) return false;
        }
        return true;
    };
    if (!carry_on([&](int i) { return c.value(i + 2); })) return std::nullopt;
    const OutsideTrace outside;
    const OnnxInterpreter::Body inside_body(c.interpreter());
    bool goes_on = c.integer(1, "condition") != 0;
    int64_t turn = 0;
    for (; turn < most && goes_on; ++turn) {
        if (turn == kMostCounted) return std::nullopt;
        const std::vector<OnnxValuePtr> results = turn_of(c, loop, number_of(turn), state, &part->nodes);
        if (!results[0] || !results[0]->is_constant() || !carry_on([&](int i) { return results[static_cast<std::size_t>(i) + 1]; }))
            return std::nullopt;
        goes_on = goes_on_after(c, results[0]);
    }
    return turn;
}

// The number of turns of a loop, if it is known.
std::optional<int64_t> known_turns(Call& c, const LoopParts& loop, bool has_times, bool has_condition) {
    if ((has_times && !c.is_known(0)) || (has_condition && !c.is_known(1))) return std::nullopt;
    const int64_t most = has_times ? std::max<int64_t>(c.integer(0, "trip count"), 0) : INT64_MAX;
    if (has_times && (!has_condition || always_goes_on(c, loop.body))) return most;
    return counted_turns(c, loop, most);
}

bool mentions(const onnx::NodeProto& node, const std::string& name) {
    if (std::find(node.input().begin(), node.input().end(), name) != node.input().end()) return true;
    return std::any_of(node.attribute().begin(), node.attribute().end(), [&](const onnx::AttributeProto& attribute) {
        const auto& graph = attribute.g();
        return std::any_of(graph.node().begin(), graph.node().end(), [&](const onnx::NodeProto& inner) { return mentions(inner, name); }) ||
            std::any_of(graph.output().begin(), graph.output().end(), [&](const auto& output) { return output.name() == name; });
    });
}

// True if a body only appends to a sequence that it carries.
bool only_appends(const onnx::GraphProto& body, int carried) {
    const std::string &before = body.input(carried + 2).name(), &after = body.output(carried + 1).name();
    bool appends = false;
    for (const onnx::NodeProto& node : body.node()) {
        const bool is_at_end = node.input_size() == 2 || (node.input_size() == 3 && node.input(2).empty());
        if (node.op_type() == "SequenceInsert" && is_at_end && node.input(0) == before && node.output_size() == 1 && node.output(0) == after) {
            appends = true;
        } else if (mentions(node, before) || mentions(node, after)) {
            return false;
        }
    }
    for (int k = 0; k < body.output_size(); ++k) {
        if (k != carried + 1 && (body.output(k).name() == before || body.output(k).name() == after)) return false;
    }
    return appends;
}

OnnxValuePtr sequence_of(const Tensor& stacked, int type) {
    auto value = std::make_shared<OnnxValue>();
    value->kind = OnnxValue::Kind::sequence;
    value->stacked = stacked;
    value->type = type;
    return value;
}

// Scans a known number of turns. is_sequence: the carried sequences, which begin empty; the scan collects the elements that turns append.
void scan_turns(Call& c, const LoopParts& loop, int64_t times, const std::vector<bool>& is_sequence, const std::vector<Tensor>& state,
                const std::vector<int>& types) {
    std::vector<int> result_types;
    const auto step = [&](const std::vector<Tensor>& x) {
        const OnnxInterpreter::Body inside_body(c.interpreter());
        const std::vector<OnnxValuePtr> tensors = values_of(x, 0, types);
        std::vector<OnnxValuePtr> given, next, appended;
        std::size_t place = 0;
        for (const bool is_empty : is_sequence) given.push_back(is_empty ? sequence_of({}, 0) : tensors[place++]);
        const std::vector<OnnxValuePtr> results = turn_of(c, loop, onnx_value(x.back()), given);
        for (std::size_t i = 0; i < is_sequence.size(); ++i) {
            if (is_sequence[i])
                appended.push_back(results[i + 1]->elements.at(0));
            else
                next.push_back(results[i + 1]);
        }
        next.insert(next.end(), results.begin() + loop.carried + 1, results.end());
        next.insert(next.end(), appended.begin(), appended.end());
        return tensors_of(c, next, result_types);
    };
    const OnnxInterpreter::Turns inside_turns(c.interpreter(), times);
    TurnBound::count_turn(c.interpreter().loc(), c.interpreter().turns_around());
    const Tensor turns = arange(times, int64);
    const ScanResult result = scan(step, state, {turns});
    const auto scanned = static_cast<std::size_t>(loop.scanned);
    std::size_t carry = 0, appended = scanned;
    for (const bool is_own : is_sequence) {
        if (is_own) {
            c.give(sequence_of(result.outputs[appended], result_types[state.size() + appended]));
            ++appended;
        } else {
            c.give(result.carry[carry], types[carry]);
            ++carry;
        }
    }
    for (std::size_t k = 0; k < scanned; ++k) c.give(result.outputs[k], result_types[state.size() + k]);
}

bool draws(const onnx::GraphProto& graph) {
    return std::any_of(graph.node().begin(), graph.node().end(), [](const onnx::NodeProto& node) {
        constexpr std::string_view drawing[] = {"Bernoulli",     "Multinomial",      "Dropout",          "RandomNormal",
                                                "RandomUniform", "RandomNormalLike", "RandomUniformLike"};
        const auto is_drawn_in = [](const onnx::AttributeProto& attribute) { return attribute.has_g() && draws(attribute.g()); };
        return std::find(std::begin(drawing), std::end(drawing), node.op_type()) != std::end(drawing) ||
            std::any_of(node.attribute().begin(), node.attribute().end(), is_drawn_in);
    });
}

// Loops while a condition on data holds. Results to collect are computed after the loop, from the values at the beginning of each turn.
void loop_while(Call& c, const LoopParts& loop, std::vector<Tensor> state, const std::vector<int>& types, bool has_times, bool has_condition) {
    const bool collects = loop.scanned > 0;
    if (collects && draws(loop.body)) {
        require_known(c, "of a loop that collects what its turns give, and draws random numbers,");
        c.reject("a loop that collects what its turns give, and draws random numbers, whose condition depends on data, is not supported");
    }
    const auto flat = [](const Tensor& x) { return x.dim() == 0 ? x : reshape(x, {}); };
    const Tensor times = has_times ? flat(c.x(0)) : Tensor();
    state.insert(state.begin(), has_condition ? flat(c.x(1)) : full({}, true, bool_));
    state.insert(state.begin(), zeros({}, int64));
    const auto goes_on = [&](const std::vector<Tensor>& x) -> Tensor { return has_times ? logical_and(x[1], x[0] < times) : x[1].clone(); };
    const auto body = [&](const std::vector<Tensor>& x) {
        const OnnxInterpreter::Body inside_body(c.interpreter());
        std::vector<int> unused;
        std::vector<OnnxValuePtr> results = turn_of(c, loop, onnx_value(x[0]), values_of(x, 2, types));
        results.resize(static_cast<std::size_t>(loop.carried) + 1);
        std::vector<Tensor> next = tensors_of(c, results, unused);
        next[0] = has_condition ? flat(next[0]) : x[1].clone();
        next.insert(next.begin(), x[0] + 1);
        return next;
    };
    const Loc loc = Loc::current();
    const std::size_t carries = state.size();
    const std::vector<Tensor> end = detail::while_loop(traced(goes_on, loc), traced(body, loc), std::move(state), /*keep_steps=*/collects, loc);
    for (std::size_t i = 2; i < carries; ++i) c.give(end[i], types[i - 2]);
    if (!collects) return;
    std::vector<int> result_types;
    const auto collected = [&](const std::vector<Tensor>& x) {
        const OnnxInterpreter::Body inside_body(c.interpreter());
        std::vector<OnnxValuePtr> results = turn_of(c, loop, onnx_value(x[0]), values_of(x, 2, types));
        results.erase(results.begin(), results.begin() + loop.carried + 1);
        return tensors_of(c, results, result_types);
    };
    const ScanResult turns = tapir::scan(collected, {}, std::vector<Tensor>{end.begin() + static_cast<std::ptrdiff_t>(carries), end.end()});
    for (std::size_t k = 0; k < turns.outputs.size(); ++k) c.give(turns.outputs[k], result_types[k]);
}

void loop_op(Call& c) {
    const onnx::GraphProto& body = c.graph("body");
    const int carried = c.node().input_size() - 2, outputs = body.output_size();
    if (carried < 0 || body.input_size() != carried + 2 || outputs < carried + 1)
        c.reject("its body has {} inputs and {} outputs", body.input_size(), outputs);
    const LoopParts loop{body, carried, outputs - carried - 1};
    const bool has_times = c.has(0), has_condition = c.has(1);
    if (!has_times && !has_condition) c.reject("it has no end");
    const bool knows_times = !has_times || (c.is_known(0) && !c.value(0)->by_size), knows_condition = !has_condition || c.is_known(1);
    const int64_t times = !has_times ? INT64_MAX : knows_times ? c.integer(0, "trip count") : 0;
    if (knows_times && knows_condition && (!has_times || has_condition || times <= kMostTurns) && write_out(c, loop, times, has_condition)) return;
    const std::optional<int64_t> turns = known_turns(c, loop, has_times, has_condition);
    std::vector<bool> is_sequence(static_cast<std::size_t>(carried));
    std::vector<Tensor> state;
    std::vector<int> types;
    for (int i = 0; i < carried; ++i) {
        const OnnxValue& value = *c.value(i + 2);
        const bool is_empty = value.kind == OnnxValue::Kind::sequence && value.elements.empty() && !value.stacked.defined();
        if (turns && is_empty && only_appends(body, i)) {
            is_sequence[static_cast<std::size_t>(i)] = true;
            continue;
        }
        if (value.kind != OnnxValue::Kind::tensor) {
            require_known(c, "of a loop that carries a sequence or an optional,");
            c.reject("it carries a sequence or an optional, and runs too long to be written out");
        }
        state.push_back(c.x(i + 2));
        types.push_back(c.type(i + 2));
    }
    if (turns) return scan_turns(c, loop, *turns, is_sequence, state, types);
    try {
        loop_while(c, loop, std::move(state), types, has_times, has_condition);
    } catch (const ValueError&) {  // perhaps because the number of turns decides on shapes
        if (loop.scanned > 0) require_known(c, "of a loop that collects what its turns give,");
        throw;
    }
}

// For scan(): sequences along dimension 0, from their beginnings. Moves the results to where ONNX has them.
void scan_along(Call& c, const onnx::GraphProto& body, int carried, const std::vector<int64_t>& in_axes, const std::vector<int64_t>& out_axes,
                const std::vector<int64_t>& in_back, const std::vector<int64_t>& out_back) {
    const auto at = [](const std::vector<int64_t>& list, std::size_t i) { return i < list.size() ? list[i] : 0; };
    std::vector<Tensor> state, xs;
    std::vector<int> types, result_types;
    for (int i = 0; i < c.count(); ++i) {
        const auto k = static_cast<std::size_t>(i - carried);
        Tensor x = c.x(i);
        types.push_back(c.type(i));
        if (i < carried) {
            state.push_back(x);
            continue;
        }
        const int axis = c.axis(at(in_axes, k), x.dim());
        if (axis != 0) x = movedim(x, axis, 0);
        xs.push_back(at(in_back, k) ? flip(x, {0}) : x);
    }
    const auto step = [&](const std::vector<Tensor>& x) {
        const OnnxInterpreter::Body inside_body(c.interpreter());
        OnnxInterpreter::Scope inner = inside(c);
        for (std::size_t i = 0; i < x.size(); ++i) inner.values[body.input(static_cast<int>(i)).name()] = onnx_value(x[i], types[i]);
        return tensors_of(c, c.interpreter().run(body, inner), result_types);
    };
    const ScanResult result = scan(step, state, xs);
    for (std::size_t i = 0; i < result.carry.size(); ++i) c.give(result.carry[i], result_types[i]);
    for (std::size_t k = 0; k < result.outputs.size(); ++k) {
        Tensor y = result.outputs[k];
        if (at(out_back, k)) y = flip(y, {0});
        const int axis = c.axis(at(out_axes, k), y.dim());
        c.give(axis == 0 ? y : movedim(y, 0, axis), result_types[state.size() + k]);
    }
}

// In opset 8 there is a batch dimension in front, and an operand of lengths.
void scan_op(Call& c) {
    const onnx::GraphProto& body = c.graph("body");
    const bool is_old = c.opset() < 9;
    const int first = is_old ? 1 : 0;
    const auto scanned = static_cast<int>(c.integer("num_scan_inputs", 0));
    const int carried = c.node().input_size() - first - scanned, outputs = body.output_size();
    if (scanned < 1 || carried < 0 || outputs < carried || body.input_size() != carried + scanned)
        c.reject("its body has {} inputs and {} outputs", body.input_size(), outputs);
    if (is_old && c.has(0)) c.reject("lengths of sequences are not supported");
    const std::vector<int64_t> in_axes = c.integers("scan_input_axes"), out_axes = c.integers("scan_output_axes");
    const std::vector<int64_t> in_back = is_old ? c.integers("directions") : c.integers("scan_input_directions");
    const std::vector<int64_t> out_back = is_old ? std::vector<int64_t>() : c.integers("scan_output_directions");
    const auto turns = [&] { return c.size(carried, c.axis(in_axes.empty() ? 0 : in_axes[0], c.rank(carried))); };
    if (!is_old && (c.interpreter().has_named_dims() || turns() > kMostTurns))
        return scan_along(c, body, carried, in_axes, out_axes, in_back, out_back);
    const auto at = [](const std::vector<int64_t>& list, int i) {
        return static_cast<std::size_t>(i) < list.size() ? list[static_cast<std::size_t>(i)] : 0;
    };
    const int64_t batch = is_old ? c.size(first, 0) : 1;
    std::vector<std::vector<Tensor>> all_results(static_cast<std::size_t>(outputs));  // for each entry of the batch
    std::vector<int> types(static_cast<std::size_t>(outputs), 0);
    for (int64_t b = 0; b < batch; ++b) {
        const auto entry = [&](const Tensor& x) { return is_old ? select(x, 0, b) : x; };
        std::vector<OnnxValuePtr> state;
        for (int i = 0; i < carried; ++i) state.push_back(is_old ? onnx_value(entry(c.x(first + i))) : c.value(first + i));
        std::vector<Tensor> sources;
        int64_t steps = -1;
        for (int i = 0; i < scanned; ++i) {
            sources.push_back(entry(c.x(first + carried + i)));
            const int64_t length = sources.back().size(c.axis(at(in_axes, i), sources.back().dim()));
            if (steps >= 0 && length != steps) c.reject("its sequences have lengths {} and {}", steps, length);
            steps = length;
        }
        if (steps > kMostTurns) c.reject("it runs more than {} times, which is too often to be written out", kMostTurns);
        std::vector<std::vector<OnnxValuePtr>> collected(static_cast<std::size_t>(outputs - carried));
        for (int64_t turn = 0; turn < steps; ++turn) {
            OnnxInterpreter::Scope inner = inside(c);
            for (int i = 0; i < carried; ++i) inner.values[body.input(i).name()] = state[static_cast<std::size_t>(i)];
            for (int i = 0; i < scanned; ++i) {
                const Tensor& source = sources[static_cast<std::size_t>(i)];
                const OnnxValuePtr part = onnx_value(select(source, c.axis(at(in_axes, i), source.dim()), at(in_back, i) ? steps - 1 - turn : turn),
                                                     c.type(first + carried + i));
                part->inputs = c.value(first + carried + i)->inputs;
                inner.values[body.input(carried + i).name()] = part;
            }
            std::vector<OnnxValuePtr> results = c.interpreter().run(body, inner);
            for (int i = 0; i < carried; ++i) state[static_cast<std::size_t>(i)] = std::move(results[static_cast<std::size_t>(i)]);
            for (std::size_t k = 0; k < collected.size(); ++k) collected[k].push_back(std::move(results[k + static_cast<std::size_t>(carried)]));
        }
        for (int i = 0; i < outputs; ++i) {
            OnnxValuePtr result;
            if (i < carried) {
                result = state[static_cast<std::size_t>(i)];
            } else {
                std::vector<OnnxValuePtr>& parts = collected[static_cast<std::size_t>(i - carried)];
                if (at(out_back, i - carried)) std::reverse(parts.begin(), parts.end());
                int64_t axis = at(out_axes, i - carried);
                if (axis < 0 && !parts.empty()) axis += c.tensor(parts[0]).dim() + 1;
                result = joined(c, parts, body.output(i), static_cast<int>(axis));
            }
            types[static_cast<std::size_t>(i)] = result->type;
            all_results[static_cast<std::size_t>(i)].push_back(c.tensor(result));
        }
    }
    for (int i = 0; i < outputs; ++i) {
        const auto k = static_cast<std::size_t>(i);
        c.give(is_old ? stack(all_results[k]) : all_results[k][0], types[k]);
    }
}

constexpr OnnxOp kControlOps[] = {
    {"If", 1, if_op, OnnxOp::kOwn},
    {"Loop", 1, loop_op, OnnxOp::kOwn},
    {"Scan", 8, scan_op, OnnxOp::kOwn},
};

}  // namespace

std::span<const OnnxOp> onnx_control_ops() { return kControlOps; }

}  // namespace tapir::detail
