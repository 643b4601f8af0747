// Tree-LSTM cells. A node of the N-ary cell is three records: the children's h joined, one product, and the gates.
#include "tapir/nn/tree_lstm.h"

#include <algorithm>
#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/input_impl.h"
#include "tapir/nn/parameter_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/recurrent/lstm_gates.h"
#include "tapir/ops/recurrent/recurrent_impl.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir::nn {
namespace {

double bound_of(std::int64_t hidden) { return hidden > 0 ? 1 / std::sqrt(static_cast<double>(hidden)) : 0; }

void add_to_blocks(const Tensor& bias, std::int64_t block, std::int64_t count, std::int64_t hidden, double value) {
    if (value == 0) return;
    const tapir::detail::PauseRecording pause;
    bias.detach().narrow(0, block * hidden, count * hidden).add_(value);
}

Tensor zeros_like_state(const LSTMState& state, const Loc& loc) {
    if (tapir::detail::is_tracing()) return zeros_like(In(state.h, loc));
    const tapir::detail::PauseRecording pause;
    tapir::detail::begin_op("zeros_like", state.h.device(), loc);
    Tensor zeros = tapir::detail::make_empty_like(state.h.impl(), state.h.dtype(), loc);
    return zeros.zero_(loc);
}

}  // namespace

// --- N-ary -------------------------------------------------------------------------------------------------------------------

NaryTreeLSTMCell::NaryTreeLSTMCell(std::int64_t input_size, std::int64_t hidden_size, int arity, TreeLSTMOptions options, Loc loc)
    : arity_(arity), inner_input_(options.inner_input) {
    const CallerScope caller(loc);
    if (arity < 1 || arity > kMaxFusedChildren) {
        fail<ValueError>(loc, "NaryTreeLSTMCell: the arity {} is outside [1, {}]", arity, kMaxFusedChildren);
    }
    check_hidden(hidden_size, loc);
    const double bound = bound_of(hidden_size);
    const std::int64_t input_blocks = inner_input_ ? 4 : 3;
    weight_ih = uniform_parameter({input_blocks * hidden_size, input_size}, bound, loc);
    bias_ih = uniform_parameter({input_blocks * hidden_size}, bound, loc);
    weight_hh = uniform_parameter({(3 + arity) * hidden_size, arity * hidden_size}, bound, loc);
    bias_hh = uniform_parameter({(3 + arity) * hidden_size}, bound, loc);
    add_to_blocks(bias_hh, 1, arity, hidden_size, options.forget_bias);
}

void NaryTreeLSTMCell::members(Members& m) { m("weight_ih", weight_ih)("bias_ih", bias_ih)("weight_hh", weight_hh)("bias_hh", bias_hh); }

std::string NaryTreeLSTMCell::describe() const {
    return fmt::format("{}, {}, arity {}{}", weight_ih.shape()[1], hidden_size(), arity_, inner_input_ ? ", inner input" : "");
}

LSTMState NaryTreeLSTMCell::forward(In x) const {
    const ModuleScope scope(*this);
    const Tensor gates = linear(x, In(weight_ih, x.loc), bias_ih);
    const GateSource source{&gates, inner_input_ ? kSharedForgetLayout : kNoForgetLayout};
    return lstm_step("NaryTreeLSTMCell", &source, 1, nullptr, 0, x.loc);
}

LSTMState NaryTreeLSTMCell::node(const Tensor* x, const Tensor* h, const Tensor* const* c, const Loc& loc) const {
    const Tensor joined = arity_ == 1 ? h[0] : cat(TensorList(h, static_cast<std::size_t>(arity_), loc), -1);
    const Tensor from_children = linear(In(joined, loc), In(weight_hh, loc), bias_hh);
    if (!x) {
        const GateSource source{&from_children, tree_layout(arity_)};
        return lstm_step("NaryTreeLSTMCell", &source, 1, c, arity_, loc);
    }
    const Tensor from_input = linear(In(*x, loc), In(weight_ih, loc), bias_ih);
    const GateSource sources[] = {{&from_input, kSharedForgetLayout}, {&from_children, tree_layout(arity_)}};
    return lstm_step("NaryTreeLSTMCell", sources, 2, c, arity_, loc);
}

LSTMState NaryTreeLSTMCell::some_children(const Tensor* x, const std::vector<LSTMState>& children, const Loc& loc) const {
    const auto arity = static_cast<std::size_t>(arity_);
    if (children.size() > arity) {
        fail<ValueError>(loc, "NaryTreeLSTMCell: {} children, but the arity is {}", children.size(), arity_);
    }
    const auto is_there = [](const LSTMState& s) { return s.h.defined() && s.c.defined(); };
    const auto first = std::find_if(children.begin(), children.end(), is_there);
    if (first == children.end()) fail<ValueError>(loc, "NaryTreeLSTMCell: none of the children's states is defined");
    LSTMState none;
    std::vector<Tensor> h;
    std::vector<const Tensor*> c;
    for (std::size_t k = 0; k < arity; ++k) {
        const bool there = k < children.size() && is_there(children[k]);
        if (!there && !none.h.defined()) none.h = none.c = zeros_like_state(*first, loc);
        h.push_back(there ? children[k].h : none.h);
        c.push_back(there ? &children[k].c : &none.c);
    }
    return node(x, h.data(), c.data(), loc);
}

LSTMState NaryTreeLSTMCell::forward(const LSTMState& left, const LSTMState& right, Loc loc) const {
    const CallerScope caller(loc);
    const ModuleScope scope(*this);
    if (arity_ == 2 && left.h.defined() && right.h.defined()) [[likely]] {
        const Tensor h[] = {left.h, right.h};
        const Tensor* const c[] = {&left.c, &right.c};
        return node(nullptr, h, c, loc);
    }
    return some_children(nullptr, {left, right}, loc);
}

LSTMState NaryTreeLSTMCell::forward(const std::vector<LSTMState>& children, Loc loc) const {
    const CallerScope caller(loc);
    const ModuleScope scope(*this);
    return some_children(nullptr, children, loc);
}

LSTMState NaryTreeLSTMCell::forward(In x, const std::vector<LSTMState>& children) const {
    const ModuleScope scope(*this);
    if (!inner_input_) {
        fail<ValueError>(x.loc, "NaryTreeLSTMCell: an inner node was given an input; make the cell with {{.inner_input = true}}");
    }
    return children.empty() ? forward(x) : some_children(&x.tensor, children, x.loc);
}

// --- Child-sum ---------------------------------------------------------------------------------------------------------------

ChildSumTreeLSTMCell::ChildSumTreeLSTMCell(std::int64_t input_size, std::int64_t hidden_size, TreeLSTMOptions options, Loc loc) {
    const CallerScope caller(loc);
    const double bound = bound_of(hidden_size);
    check_hidden(hidden_size, loc);
    weight_ih = uniform_parameter({4 * hidden_size, input_size}, bound, loc);
    weight_hh = uniform_parameter({3 * hidden_size, hidden_size}, bound, loc);
    weight_fh = uniform_parameter({hidden_size, hidden_size}, bound, loc);
    bias = uniform_parameter({4 * hidden_size}, bound, loc);
    add_to_blocks(bias, 1, 1, hidden_size, options.forget_bias);
}

void ChildSumTreeLSTMCell::members(Members& m) { m("weight_ih", weight_ih)("weight_hh", weight_hh)("weight_fh", weight_fh)("bias", bias); }

std::string ChildSumTreeLSTMCell::describe() const { return fmt::format("{}, {}", weight_ih.shape()[1], hidden_size()); }

LSTMState ChildSumTreeLSTMCell::forward(In x, const std::vector<LSTMState>& children) const {
    const ModuleScope scope(*this);
    const Loc& loc = x.loc;
    const CallerScope caller(loc);
    const Tensor from_input = linear(x, weight_ih, bias);
    const int n = static_cast<int>(children.size());
    if (n == 0) {
        const GateSource source{&from_input, kSharedForgetLayout};
        return lstm_step("ChildSumTreeLSTMCell", &source, 1, nullptr, 0, loc);
    }
    std::vector<const Tensor*> c;
    std::vector<Tensor> h;
    for (const LSTMState& child : children) {
        if (!child.h.defined() || !child.c.defined()) {
            fail<ValueError>(loc, "ChildSumTreeLSTMCell: the state of child {} is undefined", h.size());
        }
        c.push_back(&child.c);
        h.push_back(child.h);
    }
    const Tensor together = stack(h, -2);  // (..., n, hidden)
    const Tensor from_sum = linear(n == 1 ? h[0] : sum(together, {-2}), weight_hh);
    const Tensor forget = linear(together, weight_fh);
    GateLayout forget_layout = kOnlyForgetLayout;
    forget_layout.blocks = n;
    const GateSource sources[] = {{&from_input, kSharedForgetLayout}, {&from_sum, kNoForgetLayout}, {&forget, forget_layout}};
    return lstm_step("ChildSumTreeLSTMCell", sources, 3, c.data(), n, loc);
}

}  // namespace tapir::nn
