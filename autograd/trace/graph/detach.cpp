// Nodes for detach(), stop_gradient() and NoGradScope, and for custom functions, whose backward is the program's. They return
// their operand, and mark the places where grad(graph) and recorded calls of the graph stop.
#include <unordered_set>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {
namespace {

void custom_function_rule(Backward& b) {
    fail<TapeError>(b.record().loc,
                    "grad: the backward of this custom function is the program's, and the graph does not hold it: take the gradient "
                    "in the function that is traced, or give the custom function a `static Tensor symbolic(const std::vector<Tensor>& x)`, by "
                    "whose ops graphs compute and differentiate it");
}

void no_grad_write_rule(Backward& b) {
    fail<TapeError>(b.record().loc,
                    "grad: this tensor was written to within a NoGradScope, and the gradient of what it was goes on as if nothing had "
                    "happened, which a graph does not hold: write outside of the scope, or to a copy");
}

constexpr OpInfo no_grad_write_info{"no_grad_write", no_grad_write_rule, "What was written to within a NoGradScope."};
constexpr OpInfo custom_function_info{"custom_function", custom_function_rule, "What a custom function gave."};

Tensor handed_through(const OpInfo& op, const Tensor& x) {
    const Tensor y = detail::alias(x.impl());
    record(op, detail::caller(Loc::current()), {&x}, y, {});
    return y;
}

}  // namespace

TAPIR_VIEW_FORM(detach, 1, detail::NoAttrs, same(t[0]), x[0].detach(), static_cast<void>(f));
TAPIR_VIEW_FORM(custom_function, 1, detail::NoAttrs, same(t[0]), handed_through(custom_function_info, x[0]), static_cast<void>(f));
TAPIR_VIEW_FORM(no_grad_write, 1, detail::NoAttrs, same(t[0]), handed_through(no_grad_write_info, x[0]), static_cast<void>(f));

const OpForm& detail::form_of(GradientStop stop) noexcept {
    if (stop == GradientStop::written) return no_grad_write_form;
    return stop == GradientStop::custom_function ? custom_function_form : detach_form;
}

bool detail::is_gradient_stop(const OpForm& form) noexcept {
    return &form == &detach_form || &form == &custom_function_form || &form == &no_grad_write_form;
}

void detail::remove_gradient_stops(Graph& graph, bool only_idle) {
    std::unordered_set<const Graph::Value*> needed;
    for (const Graph::Output& output : graph.outputs()) needed.insert(output.value);
    for (std::size_t i = graph.nodes().size(); i-- > 0;) {
        const Graph::Node* node = graph.nodes()[i].get();
        for (const Graph::Value* result : node->results) {
            if (needed.count(result)) needed.insert(node->inputs.begin(), node->inputs.end());
        }
    }
    for (std::size_t i = graph.nodes().size(); i-- > 0;) {
        Graph::Node* node = graph.nodes()[i].get();
        if (!is_gradient_stop(node->form()) || node->inputs.size() != 1 || node->results.size() != 1) continue;
        const Graph::Value &from = *node->inputs[0], &to = *node->results[0];
        if (only_idle && needed.count(&to)) continue;
        if (from.dtype != to.dtype || from.device != to.device || from.shape != to.shape) continue;  // a hand-made graph
        graph.replace(node->results[0], node->inputs[0]);
        graph.remove(node);
    }
}

}  // namespace tapir
