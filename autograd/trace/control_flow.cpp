// cond, while_loop and scan. Eagerly they call the functions, and what these do is recorded. Traced, the functions become graphs, and the
// call is one op, whose rule is made of the others: the gradient of a cond is a cond, that of a loop is a scan over its steps, the last
// first.
#include "tapir/autograd/trace/control_flow.h"

#include <algorithm>
#include <optional>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/detach_impl.h"
#include "tapir/autograd/trace/tracer_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/view.h"

namespace tapir {

void detail::check_arity(const char* what, const TracedFunction& fn, std::size_t inputs, const Loc& loc) {
    if (fn.takes_list || (inputs <= kMostArguments && fn.counts >> inputs & 1)) return;
    std::string counts;
    for (std::size_t n = 0; n <= kMostArguments; ++n) {
        if (fn.counts >> n & 1) counts += fmt::format("{}{}", counts.empty() ? "" : " or ", n);
    }
    fail<ValueError>(loc, "{}: a function of {} tensor{} is given {}", what, counts, counts == "1" ? "" : "s", inputs);
}

namespace {

void check_defined_all(const char* op, const std::vector<Tensor>& list, const Loc& loc) {
    for (const Tensor& t : list) {
        if (!t.defined()) fail<ValueError>(loc, "{}: an undefined tensor was given, or made", op);
    }
}

}  // namespace

bool detail::is_true(const char* op, const Tensor& x, const Loc& loc) {
    if (!x.defined() || x.numel() != 1) {
        fail<ValueError>(loc, "{}: the condition needs one element, got {}", op, x.defined() ? x.shape().str() : "an undefined tensor");
    }
    return x.reshape({}, loc).item<bool>(loc);
}

// What is carried stays what it is, but for its numbers.
void detail::check_carried(const char* op, const std::vector<Tensor>& now, const std::vector<Tensor>& next, const Loc& loc) {
    if (next.size() < now.size()) fail<ValueError>(loc, "{}: {} tensors are carried, the function gave {}", op, now.size(), next.size());
    check_defined_all(op, next, loc);
    for (std::size_t i = 0; i < now.size(); ++i) {
        if (next[i].dtype() != now[i].dtype()) {
            fail<DTypeError>(loc, "{}: what is carried as number {} is {}, and {} after a step", op, i, now[i].dtype(), next[i].dtype());
        }
        if (next[i].shape() != now[i].shape()) {
            fail<ShapeError>(loc, "{}: what is carried as number {} has shape {}, and {} after a step", op, i, now[i].shape(), next[i].shape());
        }
    }
}

namespace {

using detail::check_carried;
using detail::is_true;
using detail::traced;
using detail::TracedFunction;
using Tensors = std::vector<Tensor>;
using Part = detail::Tracer::Part;

void cond_rule(Backward& b);
void while_rule(Backward& b);
void scan_rule(Backward& b);
constexpr OpInfo cond_info{"cond", "If", cond_rule, "One of two branches."};
constexpr OpInfo while_info{"while_loop", "Loop", while_rule, "A loop for as long as a condition holds."};
constexpr OpInfo scan_info{"scan", "Scan", scan_rule, "A loop over slices."};

Tensors slice_of(const Tensors& list, std::size_t from, std::size_t count) {
    return {list.begin() + static_cast<std::ptrdiff_t>(from), list.begin() + static_cast<std::ptrdiff_t>(from + count)};
}
void append(Tensors& list, const Tensors& more) { list.insert(list.end(), more.begin(), more.end()); }

// What somebody else holds, as a tensor that was given or captured, is copied: the results of a traced call are values of their own, too.
Tensors owned(Tensors results, const Loc& loc) {
    for (Tensor& t : results) {
        if (t.defined() && !only_owner(t)) t = t.clone(loc);
    }
    return results;
}

Tensor stacked(const Tensors& steps, const Tensor& like, const Loc& loc) {
    if (!steps.empty()) return stack(TensorList(steps, loc), 0);
    Shape shape{0};
    for (const std::int64_t size : like.shape()) shape.push_back(size, loc);
    return gradient_ops::zeros(shape, like.dtype(), like.device());
}

// --- The loops themselves ------------------------------------------------------------------------------------------------------------

template <class Condition, class Body>
Tensors run_while(const Condition& condition, const Body& body, Tensors carried, bool keep_steps, const Loc& loc) {
    std::vector<Tensors> steps(keep_steps ? carried.size() : 0);
    while (is_true("while_loop", condition(carried), loc)) {
        detail::TurnBound::count_turn(loc);
        for (std::size_t i = 0; i < steps.size(); ++i) steps[i].push_back(carried[i]);
        Tensors next = body(carried);
        if (next.size() > carried.size()) {
            fail<ValueError>(loc, "while_loop: {} tensors are carried, the function gave {}", carried.size(), next.size());
        }
        check_carried("while_loop", carried, next, loc);
        carried = std::move(next);
    }
    const Tensors last = carried;
    for (std::size_t i = 0; i < steps.size(); ++i) carried.push_back(stacked(steps[i], last[i], loc));
    return carried;
}

// xs go along dimension 0. Gives the carry, the outputs, and, where they are kept, the carries of all steps.
template <class Combine>
Tensors run_scan(const Combine& combine, Tensors carry, const Tensors& xs, bool reverse, bool keep_steps, const Loc& loc) {
    const std::size_t carries = carry.size();
    const std::int64_t length = xs[0].size(0);
    const auto step = [&](Tensors inputs, const auto& slice) {
        for (const Tensor& x : xs) inputs.push_back(slice(x));
        return combine(inputs);
    };
    std::vector<Tensors> outputs, steps(keep_steps ? carries : 0);
    Tensors like;
    if (length == 0) {  // what would it give?
        const detail::PauseRecording pause;
        like = step(carry, [](const Tensor& x) { return x.sum(0); });
        check_carried("scan", carry, like, loc);
        like.erase(like.begin(), like.begin() + static_cast<std::ptrdiff_t>(carries));
        outputs.resize(like.size());
    }
    for (std::int64_t t = 0; t < length; ++t) {
        Tensors made = step(carry, [&loc, at = reverse ? length - 1 - t : t](const Tensor& x) { return select(In(x, loc), 0, at); });
        check_carried("scan", carry, made, loc);
        for (std::size_t i = 0; i < steps.size(); ++i) steps[i].push_back(carry[i]);
        if (t == 0) outputs.resize(made.size() - carries);
        if (made.size() != carries + outputs.size()) {
            fail<ValueError>(loc, "scan: the function gave {} tensors, and {} before", made.size(), carries + outputs.size());
        }
        for (std::size_t k = 0; k < outputs.size(); ++k) {
            outputs[k].push_back(made[carries + k]);
            if (outputs[k][0].shape() != outputs[k].back().shape()) {
                fail<ShapeError>(loc, "scan: output {} has shape {}, and {} before", k, outputs[k].back().shape(), outputs[k][0].shape());
            }
        }
        carry.assign(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(carries));
    }
    Tensors all = carry;
    for (auto* lists : {&outputs, &steps}) {
        for (std::size_t k = 0; k < lists->size(); ++k) {
            Tensors& list = (*lists)[k];
            if (reverse) std::reverse(list.begin(), list.end());
            all.push_back(stacked(list, list.empty() ? (lists == &outputs ? like[k] : carry[k]) : list[0], loc));
        }
    }
    return all;
}

// --- Traced --------------------------------------------------------------------------------------------------------------------------

// Null: nothing is traced, or not what is called now.
detail::Tracer* active_tracer() { return detail::is_watched() ? detail::Tracer::current() : nullptr; }

template <class Attrs>
struct PartsRecord : RecordObject {
    explicit PartsRecord(Attrs own) : attrs(std::move(own)) {}
    Attrs attrs;
};
template <class Attrs>
const Attrs& attrs_of(const Backward& b) {
    return static_cast<const PartsRecord<Attrs>*>(b.object())->attrs;
}

// The op is told to the tracer and, where an input is tracked, recorded: with the floating results alone, in their order. Saved are the inputs, then
// all results.
template <class Attrs>
void record_parts(const OpInfo& op, const Loc& loc, const Tensors& inputs, const Tensors& results, const Attrs& attrs) {
    if (results.size() > detail::kMostResults) {
        fail<TapeError>(loc, "{}: an op of a graph gives at most {} tensors, and this one would give {}, with the steps that its gradient may need: "
                        "stack or cat some of them", op.name, detail::kMostResults, results.size());
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
    append_record(*detail::thread.log, {op, loc, ins.data(), count(ins), floating.data(), count(floating), saved.data(), count(saved), &raw,
                                        sizeof(raw), /*is_object=*/true});
    static_cast<void>(object.release());
}

Tensors saved_of(const Backward& b, std::size_t count, std::size_t from = 0) {
    Tensors list;
    for (std::size_t i = from; i < from + count; ++i) list.push_back(b.saved(static_cast<int>(i)));
    return list;
}

// Of its own memory, so that nothing is taken for a view of it, or for the same tensor.
Tensors fresh(const Tensors& list) {
    const detail::PauseRecording pause;
    Tensors copies;
    for (const Tensor& t : list) copies.push_back(t.clone());
    return copies;
}

// d(sum of outputs times cotangents) / d(inputs[i]) for each i of `wanted`. Undefined cotangents are zeros.
Tensors vjp(const Graph& graph, const Tensors& inputs, const Tensors& cotangents, const std::vector<std::size_t>& wanted, const Loc& loc) {
    for (const auto& node : graph.nodes()) {
        if (!node->attributes().is_random()) continue;
        fail<TapeError>(loc, "{} at {} draws random numbers in a branch or loop that is traced, whose gradient runs it again and would draw others: draw them "
                        "before, and use them in it", node->op, detail::file_and_line(node->loc));
    }
    const CallerScope caller(loc);
    Tape tape(TapeOptions{}, loc);
    Tensors x = inputs, leaves;
    for (const std::size_t i : wanted) leaves.push_back(x[i] = detail::traced_leaf(x[i], loc));
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

// Which of the op's inputs [from, from + count) a gradient goes to.
std::vector<std::size_t> wanted_inputs(const Backward& b, std::size_t from, std::size_t count) {
    std::vector<std::size_t> list;
    for (std::size_t i = from; i < from + count; ++i) {
        if (b.needs(static_cast<int>(i))) list.push_back(i);
    }
    return list;
}

Tensor zeros_like_input(const Tensor& x) { return gradient_ops::zeros(x.shape(), x.dtype(), x.device()); }

// --- cond ----------------------------------------------------------------------------------------------------------------------------

Tensors trace_cond(detail::Tracer& tracer, const Tensor& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const Tensors& operands,
                   const Loc& loc) {
    Generator& generator = default_generator();
    const Generator::State before = generator.state();
    Part parts[2];
    Generator::State after[2];
    for (const int k : {0, 1}) {
        generator.set_state(before);
        const TracedFunction& branch = k == 0 ? then_fn : else_fn;
        const auto call = [&](const Tensors&) { return branch(operands); };  // they are among what it uses
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
        const detail::PauseRecording pause;
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
    const auto gradient_of = [&](int branch) {  // of what the branches use, of both: where it is not taken, zeros
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
    const Tensors grads = detail::cond(In(inputs[0], loc), traced(then_gradient), traced(else_gradient), {});
    std::size_t n = 0;
    for (const auto& list : wanted) {
        for (const std::size_t i : list) b.give(static_cast<int>(i), grads[n++]);
    }
}

// --- while_loop ----------------------------------------------------------------------------------------------------------------------

Tensors trace_while(detail::Tracer& tracer, const TracedFunction& condition, const TracedFunction& body, const Tensors& carried, bool keep_steps,
                    const Loc& loc) {
    std::optional<detail::KeptGenerator> generator(std::in_place);
    const Part test = tracer.trace_part("while_loop", condition, fresh(carried), loc);
    const Part step = tracer.trace_part("while_loop", body, fresh(carried), loc);
    if (step.results.size() > carried.size()) {
        fail<ValueError>(loc, "while_loop: {} tensors are carried, the function gave {}", carried.size(), step.results.size());
    }
    check_carried("while_loop", carried, step.results, loc);
    generator.reset();
    Tensors inputs = carried;
    append(inputs, test.captures);
    append(inputs, step.captures);
    const bool keeps = keep_steps || recording(loc, inputs);
    Tensors results;
    {
        const detail::PauseRecording pause;
        const auto with = [&](const Graph& graph, const Tensors& captures) {
            return [&graph, &captures, &loc](const Tensors& now) {
                Tensors all = now;
                append(all, captures);
                return graph(all, loc);
            };
        };
        const auto run_condition = with(*test.graph, test.captures);
        results = run_while([&](const Tensors& now) { return run_condition(now)[0]; }, with(*step.graph, step.captures), carried, keeps, loc);
        for (Tensor& result : results) result = result.clone();  // where no step ran it is what was given
    }
    record_parts(while_info, loc, inputs, results, WhileAttrs{test.graph, step.graph, keeps});
    if (!keep_steps) results.resize(carried.size());
    return results;
}

// Each step's gradient from what was carried into it, the last step first.
void while_rule(Backward& b) {
    const auto& attrs = attrs_of<WhileAttrs>(b);
    const Loc& loc = b.record().loc;
    const CallerScope caller(loc);
    const std::size_t carries = attrs.body->outputs().size(), begin = attrs.condition->inputs().size();  // of what the body uses beside
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
    std::vector<std::size_t> step_grads;  // of which floating ones the steps themselves were used, in xs behind the steps
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
    const ScanResult result = detail::scan(traced(back), carry, xs, {.reverse = true}, loc);
    for (std::size_t k = 0; k < floating.size(); ++k) b.give(static_cast<int>(floating[k]), result.carry[k]);
    for (std::size_t k = 0; k < wanted.size(); ++k) b.give(static_cast<int>(wanted[k]), result.carry[floating.size() + k]);
}

// --- scan ----------------------------------------------------------------------------------------------------------------------------

Tensors scan_steps(const TracedFunction& combine, Tensors carry, const Tensors& xs, bool reverse, bool keep_steps, const Loc& loc) {
    detail::Tracer* tracer = active_tracer();
    if (!tracer) return owned(run_scan(combine, std::move(carry), xs, reverse, keep_steps, loc), loc);
    std::optional<detail::KeptGenerator> generator(std::in_place);
    Tensors operands = carry;
    {
        const detail::PauseRecording pause;
        for (const Tensor& x : xs) operands.push_back(x.size(0) > 0 ? select(x, 0, 0) : x.sum(0));
    }
    const Part step = tracer->trace_part("scan", combine, fresh(operands), loc);
    check_carried("scan", carry, step.results, loc);
    generator.reset();
    Tensors inputs = carry;
    append(inputs, xs);
    append(inputs, step.captures);
    const bool keeps = keep_steps || recording(loc, inputs);
    Tensors results;
    {
        const detail::PauseRecording pause;
        const auto run = [&](const Tensors& now) {
            Tensors all = now;
            append(all, step.captures);
            return (*step.graph)(all, loc);
        };
        results = run_scan(run, carry, xs, reverse, keeps, loc);
        for (Tensor& result : results) result = result.clone();
    }
    const auto count = [](const Tensors& list) { return static_cast<std::int64_t>(list.size()); };
    record_parts(scan_info, loc, inputs, results, ScanAttrs{step.graph, count(carry), count(xs), reverse, keeps});
    if (!keep_steps) results.resize(step.results.size());
    return results;
}

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
    std::vector<std::size_t> floating;  // of the carry
    Tensors carry, xs = steps;
    for (std::size_t i = 0; i < carries; ++i) {
        const int k = gradient(is_floating(inputs[i].dtype()));
        if (k < 0) continue;
        floating.push_back(i);
        carry.push_back(b.grad_or_zeros(k));
    }
    append(xs, slice_of(inputs, carries, xs_count));
    std::vector<std::pair<std::size_t, std::size_t>> output_grads, step_grads;  // which, and where among xs
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

// --- The public functions ------------------------------------------------------------------------------------------------------------

Tensors detail::cond(const In& pred, const TracedFunction& then_fn, const TracedFunction& else_fn, const Tensors& operands) {
    const Loc& loc = pred.loc;
    check_arity("cond", then_fn, operands.size(), loc);
    check_arity("cond", else_fn, operands.size(), loc);
    check_defined_all("cond", operands, loc);
    if (Tracer* tracer = active_tracer()) return trace_cond(*tracer, pred.tensor, then_fn, else_fn, operands, loc);
    return owned(is_true("cond", pred.tensor, loc) ? then_fn(operands) : else_fn(operands), loc);
}

Tensors detail::while_loop(const TracedFunction& condition, const TracedFunction& body, Tensors carried, bool keep_steps, const Loc& loc) {
    if (carried.empty()) fail<ValueError>(loc, "while_loop: nothing is carried, so that the condition would never change");
    check_arity("while_loop", condition, carried.size(), loc);
    check_arity("while_loop", body, carried.size(), loc);
    check_defined_all("while_loop", carried, loc);
    if (Tracer* tracer = active_tracer()) return trace_while(*tracer, condition, body, carried, keep_steps, loc);
    return owned(run_while([&](const Tensors& now) {
        const Tensors given = condition(now);
        return given.empty() ? Tensor() : given[0];
    }, body, std::move(carried), keep_steps, loc), loc);
}

ScanResult detail::scan(const TracedFunction& combine, Tensors init, const Tensors& xs, const ScanOptions& options, const Loc& loc) {
    if (xs.empty()) fail<ValueError>(loc, "scan: there are no xs, whose slices are the steps");
    check_arity("scan", combine, init.size() + xs.size(), loc);
    check_defined_all("scan", init, loc);
    check_defined_all("scan", xs, loc);
    Tensors moved;
    for (const Tensor& x : xs) {
        const int dim = options.dim < 0 ? options.dim + x.dim() : options.dim;
        if (dim < 0 || dim >= x.dim()) fail<IndexError>(loc, "scan: dim {} is not there in xs of shape {}", options.dim, x.shape());
        moved.push_back(dim == 0 ? x : movedim(In(x, loc), {dim}, {0}));
        if (moved[0].size(0) != moved.back().size(0)) {
            fail<ShapeError>(loc, "scan: xs have {} and {} slices along dim {}", moved[0].size(0), moved.back().size(0), options.dim);
        }
    }
    const std::size_t carries = init.size();
    Tensors all = scan_steps(combine, std::move(init), moved, options.reverse, /*keep_steps=*/false, loc);
    ScanResult result;
    result.carry = slice_of(all, 0, carries);
    for (std::size_t k = carries; k < all.size(); ++k) {
        Tensor& y = all[k];
        result.outputs.push_back(options.dim == 0 ? y : movedim(In(y, loc), {0}, {options.dim}));
    }
    return result;
}

// --- Forms ---------------------------------------------------------------------------------------------------------------------------

namespace {

const Graph& part_of(const std::shared_ptr<const Graph>& graph, const char* op) {
    if (!graph) fail<ValueError>(Loc{}, "{}: a graph of it is missing", op);
    return *graph;
}

// A part of a node as a function of the operands that it is called with, and of those that it uses beside them.
struct CallPart {
    const Graph& graph;
    Tensors uses;
    Tensors operator()(const Tensors& operands) const {
        Tensors all = operands;
        append(all, uses);
        return graph(all);
    }
};

CallPart part_with_uses(const std::shared_ptr<const Graph>& graph, const char* op, std::size_t operands, const FormCall& x, std::size_t from) {
    const Graph& part = part_of(graph, op);
    CallPart call{part, {}};
    for (std::size_t i = operands; i < part.inputs().size(); ++i) call.uses.push_back(x[static_cast<int>(from + i - operands)]);
    return call;
}

// The results are where they belong.
struct Written {};

Written call_cond(const FormCall& x, const CondAttrs& a, Tensor* results) {
    if (detail::run_planned(x, a, results)) return {};
    CallPart then_part = part_with_uses(a.then_branch, "cond", 0, x, 1);
    CallPart else_part = part_with_uses(a.else_branch, "cond", 0, x, 1 + then_part.uses.size());
    detail::put_results(results, detail::cond(In(x[0]), traced(then_part), traced(else_part), {}));
    return {};
}

Tensors operands_of(const FormCall& x, std::size_t from, std::size_t count) {
    Tensors list;
    for (std::size_t i = from; i < from + count; ++i) list.push_back(x[static_cast<int>(i)]);
    return list;
}

Written call_while(const FormCall& x, const WhileAttrs& a, Tensor* results) {
    if (detail::run_planned(x, a, results)) return {};
    const std::size_t carries = part_of(a.body, "while_loop").outputs().size();
    if (part_of(a.condition, "while_loop").outputs().empty()) fail<ValueError>(Loc{}, "while_loop: the graph of the condition has no output");
    CallPart condition = part_with_uses(a.condition, "while_loop", carries, x, carries);
    CallPart body = part_with_uses(a.body, "while_loop", carries, x, carries + condition.uses.size());
    detail::put_results(results, detail::while_loop(traced(condition), traced(body), operands_of(x, 0, carries), a.keep_steps, Loc{}));
    return {};
}

Written call_scan(const FormCall& x, const ScanAttrs& a, Tensor* results) {
    if (detail::run_planned(x, a, results)) return {};
    const Graph& part = part_of(a.body, "scan");
    if (a.carries < 0 || a.xs < 1 || a.carries > x.count || a.xs > x.count || static_cast<std::size_t>(a.carries) > part.outputs().size()) {
        fail<ValueError>(Loc{}, "scan: {} tensors are carried along {} others, by a graph with {} outputs", a.carries, a.xs, part.outputs().size());
    }
    const auto carries = static_cast<std::size_t>(a.carries), xs = static_cast<std::size_t>(a.xs);
    CallPart body = part_with_uses(a.body, "scan", carries + xs, x, carries + xs);
    Tensors slices = operands_of(x, carries, xs);
    for (const Tensor& slice : slices) {
        if (slice.dim() == 0 || slice.size(0) != slices[0].size(0)) fail<ShapeError>(Loc{}, "scan: xs have shapes {} and {}", slices[0].shape(), slice.shape());
    }
    detail::put_results(results, scan_steps(traced(body), operands_of(x, 0, carries), slices, a.reverse, a.keep_steps, Loc{}));
    return {};
}

}  // namespace

namespace detail {
static void put_results(Tensor*, Written) {}

std::vector<PartCall> first_parts(const OpForm& form, const FormCall& x) {
    const auto call = [&](const std::shared_ptr<const Graph>& graph, Tensors operands, std::size_t uses_from) {
        append(operands, part_with_uses(graph, form.op, operands.size(), x, uses_from).uses);
        return PartCall{graph, std::move(operands)};
    };
    const std::string_view op = form.op;
    if (op == "cond") {
        const auto& a = *static_cast<const CondAttrs*>(x.attrs);
        if (is_true("cond", x[0], Loc{})) return {call(a.then_branch, {}, 1)};
        return {call(a.else_branch, {}, 1 + a.then_branch->inputs().size())};
    }
    if (op == "while_loop") {
        const auto& a = *static_cast<const WhileAttrs*>(x.attrs);
        const std::size_t carries = a.body->outputs().size();
        const Tensors carried = operands_of(x, 0, carries);
        return {call(a.condition, carried, carries), call(a.body, carried, a.condition->inputs().size())};
    }
    if (op == "scan") {
        const auto& a = *static_cast<const ScanAttrs*>(x.attrs);
        const auto carries = static_cast<std::size_t>(a.carries), xs = static_cast<std::size_t>(a.xs);
        Tensors operands = operands_of(x, 0, carries);
        for (const Tensor& t : operands_of(x, carries, xs)) {
            if (t.size(0) == 0) return {};
            operands.push_back(select(t, 0, a.reverse ? -1 : 0));
        }
        return {call(a.body, operands, carries + xs)};
    }
    return {};
}
}  // namespace detail

TAPIR_FORM(cond, CondAttrs, call_cond(x, a, results), f("then_branch", a.then_branch)("else_branch", a.else_branch));
// The steps that are kept: as many as there were.
static std::uint64_t data_sized(const WhileAttrs& a) {
    const std::size_t carries = a.body ? a.body->outputs().size() : 0;
    return a.keep_steps && carries < 32 ? ((std::uint64_t{1} << carries) - 1) << carries : 0;
}

TAPIR_DATA_SIZED_FORM(while_loop, WhileAttrs, data_sized(a), call_while(x, a, results),
                      f("condition", a.condition)("body", a.body)("keep_steps", a.keep_steps));
TAPIR_FORM(scan, ScanAttrs, call_scan(x, a, results),
           f("body", a.body)("carries", a.carries)("xs", a.xs)("reverse", a.reverse)("keep_steps", a.keep_steps));

}  // namespace tapir
