// What the files of control flow share.
#pragma once

#include <memory>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/traced_function.h"

namespace tapir {

struct CondAttrs {
    std::shared_ptr<const Graph> then_branch, else_branch;  // operands: pred, then what they use, in order
};
struct WhileAttrs {
    std::shared_ptr<const Graph> condition, body;  // operands: what is carried, then what condition and body use beside it
    bool keep_steps = false;                       // further results: what was carried into each step, stacked
};
struct ScanAttrs {
    std::shared_ptr<const Graph> body;  // its inputs are the op's: what is carried, xs, and what it uses beside them
    std::int64_t carries = 0, xs = 0;
    bool reverse = false;
    bool keep_steps = false;
};

namespace detail {

class Tracer;

inline void append(std::vector<Tensor>& list, const std::vector<Tensor>& more) { list.insert(list.end(), more.begin(), more.end()); }
inline std::vector<Tensor> slice_of(const std::vector<Tensor>& list, std::size_t from, std::size_t count) {
    return {list.begin() + static_cast<std::ptrdiff_t>(from), list.begin() + static_cast<std::ptrdiff_t>(from + count)};
}

/// A part as a function of the operands that it is called with, and of those that it uses beside them.
struct PartFunction {
    const Graph& graph;
    std::vector<Tensor> uses;
    Loc loc;
    std::vector<Tensor> operator()(const std::vector<Tensor>& operands) const {
        std::vector<Tensor> all = operands;
        append(all, uses);
        return graph(all, loc);
    }
};

// --- control_flow_form.cpp ---

/// Throws ValueError.
void check_all_defined(const char* op, const std::vector<Tensor>& list, const Loc& loc);
/// Whether a condition holds. Throws ValueError where it is not one element.
bool is_true(const char* op, const Tensor& x, const Loc& loc);
/// Throws where a step gave what cannot be carried on: ValueError, DTypeError, ShapeError.
void check_carried(const char* op, const std::vector<Tensor>& now, const std::vector<Tensor>& next, const Loc& loc, bool and_no_more = false);

/// What a step along no slices is tried with, to know what it would give: zeros.
Tensor slice_of_none(const Tensor& x);

// --- control_flow_run.cpp ---

/// Runs the node with its parts as plans, whose memory is used again from step to step. The operands are those that the parts take.
void run_planned(const FormCall& x, const CondAttrs& a, Tensor* results);
void run_planned(const FormCall& x, const WhileAttrs& a, Tensor* results);
void run_planned(const FormCall& x, const ScanAttrs& a, Tensor* results);

// --- control_flow.cpp ---

/// Gives what is carried, and, where they are kept, what was carried into all steps.
std::vector<Tensor> run_while(const TracedFunction& condition, const TracedFunction& body, std::vector<Tensor> carried, bool keep_steps,
                              const Loc& loc);
/// xs go along dimension 0. Gives the carry, the outputs, and, where they are kept, the carries of all steps.
std::vector<Tensor> run_scan(const TracedFunction& combine, std::vector<Tensor> carry, const std::vector<Tensor>& xs, bool reverse, bool keep_steps,
                             const Loc& loc);
/// The same, or, traced, one op.
std::vector<Tensor> scan_steps(const TracedFunction& combine, std::vector<Tensor> carry, const std::vector<Tensor>& xs, bool reverse, bool keep_steps,
                               const Loc& loc);

// --- control_flow_trace.cpp ---

std::vector<Tensor> trace_cond(Tracer& tracer, const Tensor& pred, const TracedFunction& then_fn, const TracedFunction& else_fn,
                               const std::vector<Tensor>& operands, const Loc& loc);
std::vector<Tensor> trace_while(Tracer& tracer, const TracedFunction& condition, const TracedFunction& body, const std::vector<Tensor>& carried,
                                bool keep_steps, const Loc& loc);
std::vector<Tensor> trace_scan(Tracer& tracer, const TracedFunction& combine, const std::vector<Tensor>& carry, const std::vector<Tensor>& xs,
                               bool reverse, bool keep_steps, const Loc& loc);

/// A graph in a node.
struct NodePart {
    const char* name;  // of the attribute
    std::shared_ptr<const Graph> graph;
    std::vector<int> operands;   // of the node: what each input of the graph is given
    int slices_from, slices_to;  // inputs that are given slices of these, along dimension 0
    bool is_slice(int input) const noexcept { return slices_from <= input && input < slices_to; }
};
/// None: of other ops than cond, while_loop and scan. Throws ValueError where a graph is missing.
std::vector<NodePart> parts_of(const Attributes& attributes);

/// A graph in a node, and what it is given.
struct PartCall {
    std::shared_ptr<const Graph> graph;
    std::vector<Tensor> inputs;
};
/// What a call of a node runs first of its parts: the branch that is taken; condition and body for the first step; a scan's body for the first
/// slice. Empty: of other ops, and of a scan without slices.
std::vector<PartCall> first_parts(const Attributes& attributes, const std::vector<const Tensor*>& operands);

}  // namespace detail
}  // namespace tapir
