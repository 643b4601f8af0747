// ONNX's control flow. What is decided by values that are known is decided while the model is read.
#include <algorithm>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/onnx/outside_trace_impl.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/view.h"

namespace tapir::detail {
namespace {

using Call = OnnxCall;
using std::int64_t;

constexpr int64_t kMostTurns = 10'000;  // of a loop that is written out

OnnxInterpreter::Scope inside(Call& c) {
    OnnxInterpreter::Scope inner;
    inner.outer = &c.scope();
    inner.function = c.scope().function;
    inner.attributes = c.scope().attributes;
    return inner;
}

void if_op(Call& c) {
    const bool condition = c.integer(0, "condition") != 0;
    OnnxInterpreter::Scope inner = inside(c);
    for (OnnxValuePtr& value : c.interpreter().run(c.graph(condition ? "then_branch" : "else_branch"), inner)) c.give(std::move(value));
}

// Stacked along a new first dimension, or joined.
OnnxValuePtr joined(Call& c, const std::vector<OnnxValuePtr>& parts, const onnx::ValueInfoProto& info, int axis) {
    if (parts.empty()) {
        const std::optional<DType> dtype = dtype_for_onnx(info.type().tensor_type().elem_type());
        if (!dtype) c.stop("the type of its result {} is not known", info.name());
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

void loop_op(Call& c) {
    const onnx::GraphProto& body = c.graph("body");
    const int carried = c.node().input_size() - 2, outputs = body.output_size();
    if (carried < 0 || body.input_size() != carried + 2 || outputs < carried + 1) c.stop("its body has {} inputs and {} outputs", body.input_size(), outputs);
    const bool has_times = c.has(0), has_condition = c.has(1);
    const int64_t times = has_times ? c.integer(0, "trip count") : INT64_MAX;
    bool goes_on = !has_condition || c.integer(1, "condition") != 0;
    std::vector<OnnxValuePtr> state;
    for (int i = 0; i < carried; ++i) state.push_back(c.value(i + 2));
    std::vector<std::vector<OnnxValuePtr>> collected(static_cast<std::size_t>(outputs - carried - 1));
    for (int64_t turn = 0; turn < times && goes_on; ++turn) {
        if (turn == kMostTurns) c.stop("it runs more than {} times, which is too often to be written out", kMostTurns);
        OnnxInterpreter::Scope inner = inside(c);
        {
            const OutsideTrace outside;
            inner.values[body.input(0).name()] = onnx_constant(full({}, turn, int64));
            inner.values[body.input(1).name()] = onnx_constant(full({}, true, bool_));
        }
        for (int i = 0; i < carried; ++i) inner.values[body.input(i + 2).name()] = state[static_cast<std::size_t>(i)];
        std::vector<OnnxValuePtr> results = c.interpreter().run(body, inner);
        const std::vector<OnnxValuePtr> condition{results[0]};
        if (has_condition) {  // else the body's counts for nothing
            const OnnxCall next(c.interpreter(), c.node(), condition, c.scope(), false);
            goes_on = next.integer(0, "condition to go on") != 0;
        }
        for (int i = 0; i < carried; ++i) state[static_cast<std::size_t>(i)] = std::move(results[static_cast<std::size_t>(i) + 1]);
        for (std::size_t k = 0; k < collected.size(); ++k) collected[k].push_back(std::move(results[k + static_cast<std::size_t>(carried) + 1]));
    }
    for (OnnxValuePtr& value : state) c.give(std::move(value));
    for (std::size_t k = 0; k < collected.size(); ++k) {
        if (!c.wants(carried + static_cast<int>(k))) {
            c.give(OnnxValuePtr());
            continue;
        }
        c.give(joined(c, collected[k], body.output(carried + 1 + static_cast<int>(k)), 0));
    }
}

// In opset 8 there is a dimension of batches in front of all, and an operand of lengths.
void scan_op(Call& c) {
    const onnx::GraphProto& body = c.graph("body");
    const bool is_old = c.opset() < 9;
    const int first = is_old ? 1 : 0;
    const auto scanned = static_cast<int>(c.integer("num_scan_inputs", 0));
    const int carried = c.node().input_size() - first - scanned, outputs = body.output_size();
    if (scanned < 1 || carried < 0 || outputs < carried || body.input_size() != carried + scanned) c.stop("its body has {} inputs and {} outputs", body.input_size(), outputs);
    if (is_old && c.has(0)) c.stop("lengths of sequences are not supported");
    const std::vector<int64_t> in_axes = c.integers("scan_input_axes"), out_axes = c.integers("scan_output_axes");
    const std::vector<int64_t> in_back = is_old ? c.integers("directions") : c.integers("scan_input_directions");
    const std::vector<int64_t> out_back = is_old ? std::vector<int64_t>() : c.integers("scan_output_directions");
    const auto at = [](const std::vector<int64_t>& list, int i) { return static_cast<std::size_t>(i) < list.size() ? list[static_cast<std::size_t>(i)] : 0; };
    const int64_t batch = is_old ? c.size(first, 0) : 1;
    std::vector<std::vector<Tensor>> all_results(static_cast<std::size_t>(outputs));  // of each entry of the batch
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
            if (steps >= 0 && length != steps) c.stop("its sequences have lengths {} and {}", steps, length);
            steps = length;
        }
        if (steps > kMostTurns) c.stop("it runs more than {} times, which is too often to be written out", kMostTurns);
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

constexpr OnnxOp kOps[] = {
    {"If", 1, if_op, OnnxOp::kOwn},
    {"Loop", 1, loop_op, OnnxOp::kOwn},
    {"Scan", 8, scan_op, OnnxOp::kOwn},
};

}  // namespace

std::span<const OnnxOp> onnx_control_ops() { return kOps; }

}  // namespace tapir::detail
