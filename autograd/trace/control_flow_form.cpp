// cond, while_loop and scan as nodes of graphs. Their parts run as plans (control_flow_run.cpp), or, while recorded or watched, as
// functions.
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/control_flow_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/forms_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace detail {

void check_all_defined(const char* op, const std::vector<Tensor>& list, const Loc& loc) {
    for (const Tensor& t : list) {
        if (!t.defined()) fail<ValueError>(loc, "{}: an undefined tensor was given, or made", op);
    }
}

bool is_true(const char* op, const Tensor& x, const Loc& loc) {
    if (!x.defined() || x.numel() != 1) {
        fail<ValueError>(loc, "{}: the condition needs one element, got {}", op, x.defined() ? x.shape().str() : "an undefined tensor");
    }
    return x.reshape({}, loc).item<bool>(loc);
}

// Carried tensors may change only their elements.
void check_carried(const char* op, const std::vector<Tensor>& now, const std::vector<Tensor>& next, const Loc& loc, bool and_no_more) {
    if (next.size() < now.size() || (and_no_more && next.size() > now.size())) {
        fail<ValueError>(loc, "{}: {} tensors are carried, the function gave {}", op, now.size(), next.size());
    }
    check_all_defined(op, next, loc);
    for (std::size_t i = 0; i < now.size(); ++i) {
        if (next[i].dtype() != now[i].dtype()) {
            fail<DTypeError>(loc, "{}: what is carried as number {} is {}, and {} after a step", op, i, now[i].dtype(), next[i].dtype());
        }
        if (next[i].shape() != now[i].shape()) {
            fail<ShapeError>(loc, "{}: what is carried as number {} has shape {}, and {} after a step", op, i, now[i].shape(), next[i].shape());
        }
    }
}

Tensor slice_of_none(const Tensor& x) {
    Shape shape;
    for (int d = 1; d < x.dim(); ++d) shape.push_back(x.size(d));
    return zeros(shape, {x.dtype(), x.device()});
}

}  // namespace detail

namespace {

using Tensors = std::vector<Tensor>;

Tensors operands_of(const FormCall& x, std::size_t from, std::size_t count) {
    Tensors list;
    for (std::size_t i = from; i < from + count; ++i) list.push_back(x[static_cast<int>(i)]);
    return list;
}

// The node's operands from `from` on are the captures.
detail::PartFunction function_of(const Graph& part, std::size_t operands, const FormCall& x, std::size_t from) {
    return {part, operands_of(x, from, part.inputs().size() - operands), Loc::current()};
}

// --- Operands: those of the first part, then the captures of each part -----------------------------------------------------------------

void check_operands(const char* op, const FormCall& x, std::size_t used_to) {
    if (static_cast<std::size_t>(x.count) != used_to) fail<ValueError>(Loc{}, "{}: {} operands are given, its graphs need {}", op, x.count, used_to);
}

void check_results(std::size_t count) {
    if (count > detail::kMostResults) detail::fail_results(count);
}

const Graph& part_of(const std::shared_ptr<const Graph>& graph, const char* op, std::size_t operands) {
    if (!graph) fail<ValueError>(Loc{}, "{}: a graph of it is missing", op);
    if (graph->inputs().size() < operands)
        fail<ValueError>(Loc{}, "{}: a graph of it takes {} tensors, not {}", op, graph->inputs().size(), operands);
    check_results(graph->outputs().size());
    return *graph;
}

void check(const FormCall& x, const CondAttrs& a) {
    check_operands("cond", x, 1 + part_of(a.then_branch, "cond", 0).inputs().size() + part_of(a.else_branch, "cond", 0).inputs().size());
}

void check(const FormCall& x, const WhileAttrs& a) {
    const std::size_t carries = part_of(a.body, "while_loop", 0).outputs().size(), tests = part_of(a.condition, "while_loop", 0).outputs().size();
    if (carries == 0) fail<ValueError>(Loc{}, "while_loop: nothing is carried, so that the condition would never change");
    if (tests != 1) fail<ValueError>(Loc{}, "while_loop: the graph of the condition has {} outputs, not one", tests);
    const Graph &condition = part_of(a.condition, "while_loop", carries), &body = part_of(a.body, "while_loop", carries);
    check_results(a.keep_steps ? 2 * carries : carries);
    check_operands("while_loop", x, condition.inputs().size() + body.inputs().size() - carries);
}

void check(const FormCall& x, const ScanAttrs& a) {
    const Graph& body = part_of(a.body, "scan", 0);
    if (a.carries < 0 || a.xs < 1 || a.carries > x.count || a.xs > x.count || static_cast<std::size_t>(a.carries) > body.outputs().size()) {
        fail<ValueError>(Loc{}, "scan: {} tensors are carried along {} others, by a graph with {} outputs", a.carries, a.xs, body.outputs().size());
    }
    const auto carries = static_cast<std::size_t>(a.carries), xs = static_cast<std::size_t>(a.xs);
    part_of(a.body, "scan", carries + xs);
    check_results(body.outputs().size() + (a.keep_steps ? carries : 0));
    check_operands("scan", x, body.inputs().size());
    for (std::size_t k = carries; k < carries + xs; ++k) {
        const Tensor &slices = x[static_cast<int>(k)], &first = x[static_cast<int>(carries)];
        if (slices.dim() == 0 || slices.size(0) != first.size(0))
            fail<ShapeError>(Loc{}, "scan: xs have shapes {} and {}", first.shape(), slices.shape());
    }
}

// --- Calls of functions ----------------------------------------------------------------------------------------------------------------

Tensors call(const FormCall& x, const CondAttrs& a) {
    const auto then_part = function_of(*a.then_branch, 0, x, 1), else_part = function_of(*a.else_branch, 0, x, 1 + then_part.uses.size());
    return detail::cond(In(x[0]), detail::traced(then_part), detail::traced(else_part), {});
}

Tensors call(const FormCall& x, const WhileAttrs& a) {
    const std::size_t carries = a.body->outputs().size();
    const auto condition = function_of(*a.condition, carries, x, carries), body = function_of(*a.body, carries, x, carries + condition.uses.size());
    return detail::while_loop(detail::traced(condition), detail::traced(body), operands_of(x, 0, carries), a.keep_steps, Loc{});
}

Tensors call(const FormCall& x, const ScanAttrs& a) {
    const auto carries = static_cast<std::size_t>(a.carries), xs = static_cast<std::size_t>(a.xs);
    const auto body = function_of(*a.body, carries + xs, x, carries + xs);
    return detail::scan_steps(detail::traced(body), operands_of(x, 0, carries), operands_of(x, carries, xs), a.reverse, a.keep_steps, Loc{});
}

template <class Attrs>
detail::Written run(const FormCall& x, const Attrs& a, Tensor* results) {
    check(x, a);
    if (detail::nobody_looks()) {
        detail::run_planned(x, a, results);
    } else if constexpr (!detail::is_runtime) {
        detail::put_results(results, call(x, a));
    }
    return {};
}

}  // namespace

std::vector<detail::NodePart> detail::parts_of(const Attributes& attributes) {
    const OpForm* op = &attributes.form();
    // The inputs of a part: the first operands, then its captures, from `used` on.
    const auto part = [&](const char* name, const std::shared_ptr<const Graph>& graph, std::size_t first, std::size_t used) {
        NodePart made{name, graph, {}, 0, 0};
        for (std::size_t i = 0; i < part_of(graph, op->op, first).inputs().size(); ++i) {
            made.operands.push_back(static_cast<int>(i < first ? i : used + i - first));
        }
        return made;
    };
    if (op == &cond_form) {
        const auto& a = *static_cast<const CondAttrs*>(attributes.data());
        NodePart taken = part("then_branch", a.then_branch, 0, 1), other = part("else_branch", a.else_branch, 0, 1 + taken.operands.size());
        return {std::move(taken), std::move(other)};
    }
    if (op == &while_loop_form) {
        const auto& a = *static_cast<const WhileAttrs*>(attributes.data());
        const std::size_t carries = part_of(a.body, "while_loop", 0).outputs().size();
        NodePart condition = part("condition", a.condition, carries, carries), body = part("body", a.body, carries, condition.operands.size());
        return {std::move(condition), std::move(body)};
    }
    if (op == &scan_form) {
        const auto& a = *static_cast<const ScanAttrs*>(attributes.data());
        NodePart body = part("body", a.body, 0, 0);
        body.slices_from = static_cast<int>(a.carries);
        body.slices_to = static_cast<int>(a.carries + a.xs);
        return {std::move(body)};
    }
    return {};
}

std::vector<detail::PartCall> detail::first_parts(const Attributes& attributes, const std::vector<const Tensor*>& operands) {
    std::vector<NodePart> parts = parts_of(attributes);
    if (parts.size() == 2 && parts[1].name == std::string_view("else_branch"))
        parts.erase(parts.begin() + (is_true("cond", *operands[0], Loc{}) ? 1 : 0));
    std::vector<PartCall> calls;
    for (const NodePart& part : parts) {
        PartCall call{part.graph, {}};
        for (int i = 0; i < static_cast<int>(part.operands.size()); ++i) {
            const Tensor& x = *operands[static_cast<std::size_t>(part.operands[static_cast<std::size_t>(i)])];
            const bool is_slice = part.is_slice(i);
            if (is_slice && x.size(0) == 0) return {};
            call.inputs.push_back(is_slice ? select(x, 0, static_cast<const ScanAttrs*>(attributes.data())->reverse ? -1 : 0) : x);
        }
        calls.push_back(std::move(call));
    }
    return calls;
}

namespace {

// The results of a part for the node's operands; slices are without dimension 0.
std::optional<std::vector<ValueType>> results_of(const TypeCall& t, const detail::NodePart& part) {
    std::vector<ValueType> given;
    for (int i = 0; i < static_cast<int>(part.operands.size()); ++i) {
        const ValueType& x = t[part.operands[static_cast<std::size_t>(i)]];
        given.push_back(part.is_slice(i) ? types::dropped(types::ranked(x, 1), 0) : x);
    }
    return detail::stated_results(*part.graph, given, t.loc);
}

// The common results of both branches; a size that differs is unknown.
ResultTypes types_of_cond(const TypeCall& t) {
    types::need<ValueError>(may_equal(types::product(t[0].shape), 1), "the condition needs one element");
    const std::vector<detail::NodePart> parts = detail::parts_of(t.attributes);
    const auto taken = results_of(t, parts[0]), other = results_of(t, parts[1]);
    if (!taken || !other || taken->size() != other->size()) return types::unstated();
    ResultTypes results;
    for (std::size_t k = 0; k < taken->size(); ++k) {
        ValueType a = (*taken)[k];
        const ValueType& b = (*other)[k];
        if (a.dtype != b.dtype || !(a.device == b.device) || a.rank() != b.rank()) return types::unstated();
        for (std::size_t d = 0; d < a.shape.size(); ++d) {
            if (!(a.shape[d] == b.shape[d])) a.shape[d] = types::unknown();
        }
        results.push_back(std::move(a));
    }
    return results;
}

// Shapes and dtypes must stay from step to step.
void check_carried(const TypeCall& t, const std::optional<std::vector<ValueType>>& next, std::size_t carries) {
    for (std::size_t k = 0; next && k < carries && k < next->size(); ++k) {
        types::need(may_equal((*next)[k].shape, t[static_cast<int>(k)].shape), "what is carried changes its shape");
    }
}

ResultTypes types_of(const TypeCall& t, const WhileAttrs& a) {
    const std::vector<detail::NodePart> parts = detail::parts_of(t.attributes);
    const std::size_t carries = a.body->outputs().size();
    check_carried(t, results_of(t, parts[1]), carries);
    ResultTypes results;
    results.resize(carries);
    for (std::size_t k = 0; k < carries; ++k) results[k] = t[static_cast<int>(k)];
    for (std::size_t k = 0; a.keep_steps && k < carries; ++k) results.push_back(types::inserted(results[k], 0, types::unknown()));
    return results;
}

// The carry, the outputs of all steps, the carries of all steps.
ResultTypes types_of(const TypeCall& t, const ScanAttrs& a) {
    const std::vector<detail::NodePart> parts = detail::parts_of(t.attributes);
    const auto carries = static_cast<std::size_t>(a.carries);
    types::need<ValueError>(a.xs > 0, "there are no slices");
    SymInt steps = types::size_of(t[static_cast<int>(carries)], 0);
    for (int i = parts[0].slices_from; i < parts[0].slices_to; ++i) steps = types::agreed(steps, types::size_of(t[i], 0));
    const auto given = results_of(t, parts[0]);
    check_carried(t, given, carries);
    if (!given) return types::unstated();
    ResultTypes results;
    for (std::size_t k = 0; k < given->size(); ++k) {
        results.push_back(k < carries ? t[static_cast<int>(k)] : types::inserted((*given)[k], 0, steps));
    }
    for (std::size_t k = 0; a.keep_steps && k < carries; ++k) results.push_back(types::inserted(results[k], 0, steps));
    return results;
}

}  // namespace

TAPIR_FORM(cond, Operands::from(1), CondAttrs, types_of_cond(t), run(x, a, results), f("then_branch", a.then_branch)("else_branch", a.else_branch));
// The sizes of kept steps: as many as there were.
static std::uint64_t data_sized(const WhileAttrs& a) {
    const std::size_t carries = a.body ? a.body->outputs().size() : 0;
    return a.keep_steps && carries < 32 ? ((std::uint64_t{1} << carries) - 1) << carries : 0;
}

TAPIR_DATA_SIZED_FORM(while_loop, Operands::from(0), WhileAttrs, types_of(t, a), data_sized(a), run(x, a, results),
                      f("condition", a.condition)("body", a.body)("keep_steps", a.keep_steps));
TAPIR_FORM(scan, Operands::from(0), ScanAttrs, types_of(t, a), run(x, a, results),
           f("body", a.body)("carries", a.carries)("xs", a.xs)("reverse", a.reverse)("keep_steps", a.keep_steps));

}  // namespace tapir
