// What the files of control flow share.
#pragma once

#include <memory>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph.h"

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

/// Whether a condition holds. Throws ValueError where it is not one element.
bool is_true(const char* op, const Tensor& x, const Loc& loc);
/// Throws where a step gave what cannot be carried on: ValueError, DTypeError, ShapeError.
void check_carried(const char* op, const std::vector<Tensor>& now, const std::vector<Tensor>& next, const Loc& loc);

/// Runs the node with its parts as plans (control_flow_run.cpp), whose memory is used again from step to step. False: it cannot, as where somebody
/// records or watches what runs, and nothing was done.
bool run_planned(const FormCall& x, const CondAttrs& a, Tensor* results);
bool run_planned(const FormCall& x, const WhileAttrs& a, Tensor* results);
bool run_planned(const FormCall& x, const ScanAttrs& a, Tensor* results);

/// A graph in a node, and what it is given.
struct PartCall {
    std::shared_ptr<const Graph> graph;
    std::vector<Tensor> inputs;
};
/// What a call of a node runs first of its parts: the branch that is taken; condition and body for the first step; a scan's body for the first
/// slice. Empty: of other ops, and of a scan without slices.
std::vector<PartCall> first_parts(const OpForm& form, const FormCall& x);

}  // namespace detail
}  // namespace tapir
