// Shared by the files of control flow.
#pragma once

#include <memory>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/traced_function.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

struct CondAttrs {
    std::shared_ptr<const Graph> then_branch, else_branch;  // operands: pred, then those of both branches, in order
};
struct WhileAttrs {
    std::shared_ptr<const Graph> condition, body;  // operands: the carried tensors, then the captures of condition and body
    bool keep_steps = false;                       // further results: the tensors carried into each step, stacked
};
struct ScanAttrs {
    std::shared_ptr<const Graph> body;  // its inputs are the op's: the carried tensors, xs, and the captures
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

/// True if ops of this thread need not be seen: then the graphs in a node run as plans.
inline bool nobody_looks() noexcept { return is_runtime || (!thread.observed.here && !thread.log && !thread.autocast && watching_ops == 0); }
/// What a form's call returns if the results are in their place already.
struct Written {};
inline void put_results(Tensor*, Written) {}

/// A part as a function of its operands; `uses` are its captures.
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
/// True if a condition holds. Throws ValueError if it does not have one element.
bool is_true(const char* op, const Tensor& x, const Loc& loc);
/// Throws ValueError, DTypeError or ShapeError if the results of a step cannot be carried on.
void check_carried(const char* op, const std::vector<Tensor>& now, const std::vector<Tensor>& next, const Loc& loc, bool and_no_more = false);

/// Zeros in place of a slice, to find out the results of a step when there are no slices.
Tensor slice_of_none(const Tensor& x);

// --- control_flow_run.cpp ---

/// Runs the node with its parts as plans, which reuse their memory from step to step. The operands are those that the parts take.
void run_planned(const FormCall& x, const CondAttrs& a, Tensor* results);
void run_planned(const FormCall& x, const WhileAttrs& a, Tensor* results);
void run_planned(const FormCall& x, const ScanAttrs& a, Tensor* results);

// --- control_flow.cpp ---

/// Returns the carried tensors, and, with keep_steps, the tensors carried into all steps.
std::vector<Tensor> run_while(const TracedFunction& condition, const TracedFunction& body, std::vector<Tensor> carried, bool keep_steps,
                              const Loc& loc);
/// xs go along dimension 0. Returns the carry, the outputs, and, with keep_steps, the carries of all steps.
std::vector<Tensor> run_scan(const TracedFunction& combine, std::vector<Tensor> carry, const std::vector<Tensor>& xs, bool reverse, bool keep_steps,
                             const Loc& loc);
/// As run_scan(), or, while traced, one op.
std::vector<Tensor> scan_steps(const TracedFunction& combine, std::vector<Tensor> carry, const std::vector<Tensor>& xs, bool reverse, bool keep_steps,
                               const Loc& loc);

// --- control_flow_trace.cpp ---

std::vector<Tensor> trace_cond(Tracer& tracer, const Tensor& pred, const TracedFunction& then_fn, const TracedFunction& else_fn,
                               const std::vector<Tensor>& operands, const Loc& loc);
std::vector<Tensor> trace_while(Tracer& tracer, const TracedFunction& condition, const TracedFunction& body, const std::vector<Tensor>& carried,
                                bool keep_steps, const Loc& loc);
std::vector<Tensor> trace_scan(Tracer& tracer, const TracedFunction& combine, const std::vector<Tensor>& carry, const std::vector<Tensor>& xs,
                               bool reverse, bool keep_steps, const Loc& loc);

/// A graph that is an attribute of a node.
struct NodePart {
    const char* name;  // of the attribute
    std::shared_ptr<const Graph> graph;
    std::vector<int> operands;   // for each input of the graph, the node's operand that it gets
    int slices_from, slices_to;  // the inputs [from, to) get slices of these, along dimension 0
    bool is_slice(int input) const noexcept { return slices_from <= input && input < slices_to; }
};
/// Empty for ops other than cond, while_loop and scan. Throws ValueError if a graph is missing.
std::vector<NodePart> parts_of(const Attributes& attributes);

/// A graph in a node, with its inputs.
struct PartCall {
    std::shared_ptr<const Graph> graph;
    std::vector<Tensor> inputs;
};
/// The parts that a call of a node runs first: the branch that is taken; condition and body for the first step; a scan's body for the first
/// slice. Empty for other ops, and for a scan without slices.
std::vector<PartCall> first_parts(const Attributes& attributes, const std::vector<const Tensor*>& operands);

}  // namespace detail
}  // namespace tapir
