// cond, while_loop and scan in a trace: the functions become graphs, and the call is one op. Its rule consists of these ops: the gradient of
// a cond is a cond, that of a loop is a scan over its steps, the last first.
#include <algorithm>
#include <optional>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/hint_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/unique.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

using Tensors = std::vector<Tensor>;
using Part = Tracer::Part;

void cond_rule(Backward& b);
void while_rule(Backward& b);
void scan_rule(Backward& b);
constexpr OpInfo cond_info{"cond", cond_rule, "One of two branches."};
constexpr OpInfo while_info{"while_loop", while_rule, "A loop for as long as a condition holds."};
constexpr OpInfo scan_info{"scan", scan_rule, "A loop over slices."};

template <class Attrs>
struct PartsRecord : RecordObject {
    explicit PartsRecord(Attrs own) : attrs(std::move(own)) {}
    Attrs attrs;
};
template <class Attrs>
const Attrs& attrs_of(const Backward& b) {
    return static_cast<const PartsRecord<Attrs>*>(b.object())->attrs;
}

// Reports the op to the tracer and records it if an input is tracked, with the floating results alone, in order. Saves the inputs, then
// all results.
template <class Attrs>
void record_parts(const OpInfo& op, const Loc& loc, const Tensors& inputs, const Tensors& results, const Attrs& attrs) {
    if (results.size() > kMostResults) {
        fail<TapeError>(loc,
                        "{}: an op of a graph gives at most {} tensors, and this one would give {}, with the steps that its gradient may need: "
                        "stack or cat some of them",
                        op.name, kMostResults, results.size());
    }
    std::vector<const Tensor*> ins;
    std::vector<TensorImpl*> outs, floating;
    for (const Tensor& t : inputs) ins.push_back(&t);
    for (const Tensor& t : results) {
        outs.push_back(t.impl());
        if (is_floating(t.dtype())) floating.push_back(t.impl());
    }
    const auto count = [](const auto& list) { return static_cast<int>(list.size()); };
    tell_watchers({op, loc, ins.data(), count(ins), outs.data(), count(outs), nullptr, 0, &attrs, sizeof(attrs)});
    if (floating.empty() || !recording(loc, inputs)) return;
    auto object = std::make_unique<PartsRecord<Attrs>>(attrs);
    RecordObject* raw = object.get();
    std::vector<const Tensor*> saved = ins;
    for (const Tensor& t : results) saved.push_back(&t);
    append_record(
        *thread.log,
        {op, loc, ins.data(), count(ins), floating.data(), count(floating), saved.data(), count(saved), &raw, sizeof(raw), /*is_object=*/true});
    static_cast<void>(object.release());
}

Tensors saved_of(const Backward& b, std::size_t count, std::size_t from = 0) {
    Tensors list;
    for (std::size_t i = from; i < from + count; ++i) list.push_back(b.saved(static_cast<int>(i)));
    return list;
}

// Copies, so that nothing is taken for a view of an original, or for the original itself.
Tensors fresh(const Tensors& list) {
    const PauseRecording pause;
    Tensors copies;
    for (const Tensor& t : list) copies.push_back(t.clone());
    return copies;
}

// d(sum of outputs times cotangents) / d(inputs[i]) for each i of `wanted`. Undefined cotangents are zeros.
Tensors vjp(const Graph& graph, const Tensors& inputs, const Tensors& cotangents, const std::vector<std::size_t>& wanted, const Loc& loc) {
    for (const auto& node : graph.nodes()) {
        if (!node->attributes().is_random()) continue;
        fail<TapeError>(
            loc,
            "{} at {} draws random numbers in a branch or loop that is traced, whose gradient runs it again and would draw others: draw them "
            "before, and use them in it",
            node->op(), file_and_line(node->loc));
    }
    const CallerScope caller(loc);
    Tape tape(TapeOptions{}, loc);
    Tensors x = inputs, leaves;
    for (const std::size_t i : wanted) leaves.push_back(x[i] = traced_leaf(x[i], loc));
    const Tensors y = graph(x, loc);
    Tensors tracked_outputs, their_cotangents;
    for (std::size_t k = 0; k < y.size(); ++k) {
        if (!cotangents[k].defined() || !tracked(y[k].impl(), tape.log(), loc)) continue;
        tracked_outputs.push_back(y[k]);
        their_cotangents.push_back(cotangents[k]);
    }
    if (tracked_outputs.empty()) {
        Tensors zeros;
        for (const Tensor& leaf : leaves) zeros.push_back(gradient_ops::zeros(leaf.shape(), leaf.dtype(), leaf.device()));
        return zeros;
    }
    if (tracked_outputs.size() == 1) return tape.gradient(tracked_outputs[0], leaves, {.gradient = their_cotangents[0]}, loc);
    Tensor total;
    for (std::size_t k = 0; k < tracked_outputs.size(); ++k) {
        const Tensor part = sum(tracked_outputs[k] * their_cotangents[k]);
        total = total.defined() ? total + part : part;
    }
    return tape.gradient(total, leaves, {}, loc);
}

// Returns the op's inputs in [from, from + count) that need a gradient.
std::vector<std::size_t> wanted_inputs(const Backward& b, std::size_t from, std::size_t count) {
    std::vector<std::size_t> list;
    for (std::size_t i = from; i < from + count; ++i) {
        if (b.needs(static_cast<int>(i))) list.push_back(i);
    }
    return list;
}

Tensor zeros_like_input(const Tensor& x) { return gradient_ops::zeros(x.shape(), x.dtype(), x.device()); }

// Runs a loop whose step was traced on its first turn.
template <class Loop>
Tensors first_step_and_others(const Graph& step, const Loop& loop) {
    if (!has_data_sizes(step)) return loop();
    try {
        return loop();
    } catch (const std::exception&) {
        rethrow_with_hint<ShapeError, IndexError, ValueError>(
            std::current_exception(),
            "; each step of this loop has as many elements as data says (x[mask], nonzero, unique), and what is computed from their number, as "
            "gradients are, was that of the first: choose with where() and sums instead");
    }
}

}  // namespace

// --- cond ----------------------------------------------------------------------------------------------------------------------------

Tensors trace_cond(Tracer& tracer, const Tensor& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const Tensors& operands,
                   const Loc& loc) {
    for (const Tensor& operand : operands) tracer.value_of(operand, loc);  // numbers count as operands, too
    Generator& generator = default_generator();
    const Generator::State before = generator.state();
    Part parts[2];
    Generator::State after[2];
    for (const int k : {0, 1}) {
        generator.set_state(before);
        const TracedFunction& branch = k == 0 ? then_fn : else_fn;
        const auto call = [&](const Tensors&) { return branch(operands); };  // the operands are among its captures
        parts[k] = tracer.trace_part("cond", traced(call), {}, loc);
        after[k] = generator.state();
    }
    const auto &a = parts[0].results, &b = parts[1].results;
    if (a.size() != b.size()) fail<ValueError>(loc, "cond: one branch gives {} tensors, the other {}", a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].dtype() != b[i].dtype()) fail<DTypeError>(loc, "cond: one branch gives {}, the other {}", a[i].dtype(), b[i].dtype());
        if (a[i].shape() != b[i].shape()) fail<ShapeError>(loc, "cond: one branch gives shape {}, the other {}", a[i].shape(), b[i].shape());
    }
    const int taken = [&] {
        const PauseRecording pause;
        return is_true("cond", pred, loc) ? 0 : 1;
    }();
    generator.set_state(after[taken]);
    const Tensors results = fresh(parts[taken].results);
    Tensors inputs{pred};
    append(inputs, parts[0].captures);
    append(inputs, parts[1].captures);
    record_parts(cond_info, loc, inputs, results, CondAttrs{parts[0].graph, parts[1].graph});
    return results;
}

namespace {

void cond_rule(Backward& b) {
    const auto& attrs = attrs_of<CondAttrs>(b);
    const Loc& loc = b.record().loc;
    const CallerScope caller(loc);
    const Graph* branches[2] = {attrs.then_branch.get(), attrs.else_branch.get()};
    const std::size_t counts[2] = {branches[0]->inputs().size(), branches[1]->inputs().size()}, begins[2] = {1, 1 + counts[0]};
    const Tensors inputs = saved_of(b, begins[1] + counts[1]);
    Tensors cotangents;
    int k = 0;
    for (const Graph::Output& output : branches[0]->outputs()) cotangents.push_back(is_floating(output.value->dtype) ? b.grad(k++) : Tensor());
    const std::vector<std::size_t> wanted[2] = {wanted_inputs(b, begins[0], counts[0]), wanted_inputs(b, begins[1], counts[1])};
    const auto gradient_of = [&](int branch) {  // with respect to all captures of both branches: zeros for the branch that is not taken
        Tensors grads;
        for (const int other : {0, 1}) {
            if (other != branch) {
                for (const std::size_t i : wanted[other]) grads.push_back(zeros_like_input(inputs[i]));
                continue;
            }
            std::vector<std::size_t> own;
            for (const std::size_t i : wanted[branch]) own.push_back(i - begins[branch]);
            append(grads, vjp(*branches[branch], slice_of(inputs, begins[branch], counts[branch]), cotangents, own, loc));
        }
        return grads;
    };
    const auto then_gradient = [&] { return gradient_of(0); };
    const auto else_gradient = [&] { return gradient_of(1); };
    const Tensors grads = cond(In(inputs[0], loc), traced(then_gradient), traced(else_gradient), {});
    std::size_t n = 0;
    for (const auto& list : wanted) {
        for (const std::size_t i : list) b.give(static_cast<int>(i), grads[n++]);
    }
}

}  // namespace

// --- while_loop ----------------------------------------------------------------------------------------------------------------------

Tensors trace_while(Tracer& tracer, const TracedFunction& condition, const TracedFunction& body, const Tensors& carried, bool keep_steps,
                    const Loc& loc) {
    std::optional<KeptGenerator> generator(std::in_place);
    const Part test = tracer.trace_part("while_loop", condition, fresh(carried), loc);
    const Part step = tracer.trace_part("while_loop", body, fresh(carried), loc);
    check_carried("while_loop", carried, step.results, loc, /*and_no_more=*/true);
    generator.reset();
    Tensors inputs = carried;
    append(inputs, test.captures);
    append(inputs, step.captures);
    const bool keeps = keep_steps || recording(loc, inputs);
    Tensors results;
    {
        const PauseRecording pause;
        const PartFunction run_condition{*test.graph, test.captures, loc}, run_body{*step.graph, step.captures, loc};
        results = first_step_and_others(*step.graph, [&] { return run_while(traced(run_condition), traced(run_body), carried, keeps, loc); });
        for (Tensor& result : results) result = result.clone();  // if no step ran, it is an operand
    }
    record_parts(while_info, loc, inputs, results, WhileAttrs{test.graph, step.graph, keeps});
    if (!keep_steps) results.resize(carried.size());
    return results;
}

namespace {

// Each step's gradient, from the tensors carried into it, the last step first.
void while_rule(Backward& b) {
    const auto& attrs = attrs_of<WhileAttrs>(b);
    const Loc& loc = b.record().loc;
    const CallerScope caller(loc);
    const std::size_t carries = attrs.body->outputs().size(), begin = attrs.condition->inputs().size();  // where the body's captures begin
    const std::size_t uses = attrs.body->inputs().size() - carries;
    const Tensors inputs = saved_of(b, begin + uses), steps = saved_of(b, carries, inputs.size() + carries);
    std::vector<std::size_t> floating;
    for (std::size_t i = 0; i < carries; ++i) {
        if (is_floating(inputs[i].dtype())) floating.push_back(i);
    }
    const std::vector<std::size_t> wanted = wanted_inputs(b, begin, uses);
    std::vector<std::size_t> of_body = floating;
    for (const std::size_t i : wanted) of_body.push_back(i - begin + carries);
    Tensors carry, xs = steps;
    for (std::size_t k = 0; k < floating.size(); ++k) carry.push_back(b.grad_or_zeros(static_cast<int>(k)));
    for (const std::size_t i : wanted) carry.push_back(zeros_like_input(inputs[i]));
    std::vector<std::size_t> step_grads;  // the floating ones of which the kept steps were used, in xs behind the steps
    for (std::size_t k = 0; k < floating.size(); ++k) {
        const Tensor& g = b.grad(static_cast<int>(floating.size() + k));
        if (!g.defined()) continue;
        step_grads.push_back(k);
        xs.push_back(g);
    }
    const auto back = [&](const Tensors& now) {
        Tensors given = slice_of(now, carry.size(), carries);
        append(given, slice_of(inputs, begin, uses));
        Tensors cotangents(carries);
        for (std::size_t k = 0; k < floating.size(); ++k) cotangents[floating[k]] = now[k];
        Tensors grads = vjp(*attrs.body, given, cotangents, of_body, loc);
        for (std::size_t k = 0; k < step_grads.size(); ++k) {
            grads[step_grads[k]] = grads[step_grads[k]] + now[carry.size() + carries + k];
        }
        for (std::size_t k = floating.size(); k < carry.size(); ++k) grads[k] = grads[k] + now[k];
        return grads;
    };
    const ScanResult result = scan(traced(back), carry, xs, {.reverse = true}, loc);
    for (std::size_t k = 0; k < floating.size(); ++k) b.give(static_cast<int>(floating[k]), result.carry[k]);
    for (std::size_t k = 0; k < wanted.size(); ++k) b.give(static_cast<int>(wanted[k]), result.carry[floating.size() + k]);
}

}  // namespace

// --- scan ----------------------------------------------------------------------------------------------------------------------------

Tensors trace_scan(Tracer& tracer, const TracedFunction& combine, const Tensors& carry, const Tensors& xs, bool reverse, bool keep_steps,
                   const Loc& loc) {
    std::optional<KeptGenerator> generator(std::in_place);
    Tensors operands = carry;
    {
        const PauseRecording pause;
        for (const Tensor& x : xs) operands.push_back(x.size(0) > 0 ? select(x, 0, 0) : slice_of_none(x));
    }
    const Part step = tracer.trace_part("scan", combine, fresh(operands), loc);
    check_carried("scan", carry, step.results, loc);
    generator.reset();
    Tensors inputs = carry;
    append(inputs, xs);
    append(inputs, step.captures);
    const bool keeps = keep_steps || recording(loc, inputs);
    Tensors results;
    {
        const PauseRecording pause;
        const PartFunction run{*step.graph, step.captures, loc};
        results = first_step_and_others(*step.graph, [&] { return run_scan(traced(run), carry, xs, reverse, keeps, loc); });
        for (Tensor& result : results) result = result.clone();
    }
    const auto count = [](const Tensors& list) { return static_cast<std::int64_t>(list.size()); };
    record_parts(scan_info, loc, inputs, results, ScanAttrs{step.graph, count(carry), count(xs), reverse, keeps});
    if (!keep_steps) results.resize(step.results.size());
    return results;
}

namespace {

void scan_rule(Backward& b) {
    const auto& attrs = attrs_of<ScanAttrs>(b);
    const Loc& loc = b.record().loc;
    const CallerScope caller(loc);
    const auto carries = static_cast<std::size_t>(attrs.carries), xs_count = static_cast<std::size_t>(attrs.xs);
    const std::size_t outputs = attrs.body->outputs().size() - carries, begin = carries + xs_count, uses = attrs.body->inputs().size() - begin;
    const Tensors inputs = saved_of(b, begin + uses), steps = saved_of(b, carries, inputs.size() + carries + outputs);
    // The gradients of the floating results, in the order of the record: carry, outputs, steps.
    int next = 0;
    const auto gradient = [&](bool is_floating_result) { return is_floating_result ? next++ : -1; };
    std::vector<std::size_t> floating;  // indices in the carry
    Tensors carry, xs = steps;
    for (std::size_t i = 0; i < carries; ++i) {
        const int k = gradient(is_floating(inputs[i].dtype()));
        if (k < 0) continue;
        floating.push_back(i);
        carry.push_back(b.grad_or_zeros(k));
    }
    append(xs, slice_of(inputs, carries, xs_count));
    std::vector<std::pair<std::size_t, std::size_t>> output_grads, step_grads;  // index, and place among xs
    for (std::size_t k = 0; k < outputs; ++k) {
        const int g = gradient(is_floating(attrs.body->outputs()[carries + k].value->dtype));
        if (g < 0 || !b.grad(g).defined()) continue;
        output_grads.emplace_back(carries + k, xs.size());
        xs.push_back(b.grad(g));
    }
    for (std::size_t k = 0; k < floating.size(); ++k) {
        const int g = gradient(true);
        if (!b.grad(g).defined()) continue;
        step_grads.emplace_back(k, xs.size());
        xs.push_back(b.grad(g));
    }
    const std::vector<std::size_t> wanted_xs = wanted_inputs(b, carries, xs_count), wanted = wanted_inputs(b, begin, uses);
    for (const std::size_t i : wanted) carry.push_back(zeros_like_input(inputs[i]));
    std::vector<std::size_t> of_body = floating;
    of_body.insert(of_body.end(), wanted.begin(), wanted.end());
    of_body.insert(of_body.end(), wanted_xs.begin(), wanted_xs.end());
    const auto back = [&](const Tensors& now) {
        const auto slice = [&](std::size_t i) { return now[carry.size() + i]; };
        Tensors given = slice_of(now, carry.size(), begin);
        append(given, slice_of(inputs, begin, uses));
        Tensors cotangents(carries + outputs);
        for (std::size_t k = 0; k < floating.size(); ++k) cotangents[floating[k]] = now[k];
        for (const auto& [output, at] : output_grads) cotangents[output] = slice(at);
        Tensors grads = vjp(*attrs.body, given, cotangents, of_body, loc);
        for (const auto& [k, at] : step_grads) grads[k] = grads[k] + slice(at);
        for (std::size_t k = floating.size(); k < carry.size(); ++k) grads[k] = grads[k] + now[k];
        return grads;
    };
    const Tensors result = scan_steps(traced(back), carry, xs, !attrs.reverse, /*keep_steps=*/false, loc);
    std::size_t n = 0;
    for (const auto* list : {static_cast<const std::vector<std::size_t>*>(&floating), &wanted, &wanted_xs}) {
        for (const std::size_t i : *list) b.give(static_cast<int>(i), result[n++]);
    }
}

}  // namespace
}  // namespace tapir::detail
