// Tree-LSTM cells (Tai, Socher and Manning 2015, "Improved semantic representations from tree-structured long short-term
// memory networks"). A recursive function over your own tree calls them, children first:
//
//     LSTMState encode(const Tree& t) {
//         if (t.is_leaf()) return cell(embedding(t.word));
//         return cell(encode(*t.left), encode(*t.right));
//     }
//
// x: (input,) or (batch, input); states (hidden,) or (batch, hidden).
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/recurrent/lstm_gates.h"

namespace tapir::nn {

struct TreeLSTMOptions {
    bool inner_input = false;  ///< N-ary: inner nodes may have an input, too
    double forget_bias = 0;    ///< added to the forget gates' initial bias; 1 lets long paths learn sooner
};

/// Cell for trees whose nodes have at most `arity` ordered children, constituency trees above all (eqs. 9-14):
///     i, o = sigmoid(W x + sum_l U_l h_l + b), f_k = sigmoid(W_f x + sum_l U_f,kl h_l + b_f), u = tanh(...),
///     c = i u + sum_k f_k c_k, h = o tanh(c)
/// A leaf has an input and no children: one product, weight_ih ((3 or 4) hidden, input) in the order i, o, u (with inner_input
/// i, f, o, u, the forget block shared by the children). An inner node has children: one product, weight_hh
/// ((3 + arity) hidden, arity * hidden) in the order i, f_1 ... f_arity, o, u. All are uniform on +-1 / sqrt(hidden).
class NaryTreeLSTMCell : public Module {
 public:
    Parameter weight_ih, bias_ih, weight_hh, bias_hh;

    NaryTreeLSTMCell(std::int64_t input_size, std::int64_t hidden_size, int arity = 2, TreeLSTMOptions options = {}, Loc loc = Loc::current());

    /// Encodes a leaf.
    LSTMState forward(In x) const;
    /// Encodes a node of two children.
    LSTMState forward(const LSTMState& left, const LSTMState& right, Loc loc = Loc::current()) const;
    /// Encodes a node of any number of children up to the arity; missing or undefined ones count as zero.
    LSTMState forward(const std::vector<LSTMState>& children, Loc loc = Loc::current()) const;
    /// Overload with an input, for cells with inner_input (ValueError for others).
    LSTMState forward(In x, const std::vector<LSTMState>& children) const;

    LSTMState operator()(In x) const { return forward(x); }
    LSTMState operator()(const LSTMState& left, const LSTMState& right, Loc loc = Loc::current()) const { return forward(left, right, loc); }
    LSTMState operator()(const std::vector<LSTMState>& children, Loc loc = Loc::current()) const { return forward(children, loc); }
    LSTMState operator()(In x, const std::vector<LSTMState>& children) const { return forward(x, children); }

    int arity() const noexcept { return arity_; }
    std::int64_t hidden_size() const noexcept { return weight_hh.shape()[1] / arity_; }
    void members(Members& m) override;
    std::string describe() const override;

 private:
    LSTMState node(const Tensor* x, const Tensor* h, const Tensor* const* c, const Loc& loc) const;
    LSTMState some_children(const Tensor* x, const std::vector<LSTMState>& children, const Loc& loc) const;

    int arity_;
    bool inner_input_;
};

/// Cell for trees with any number of unordered children, dependency trees above all (eqs. 2-8):
///     i, o = sigmoid(W x + U (sum_k h_k) + b), f_k = sigmoid(W_f x + U_f h_k + b_f), u = tanh(W x + U (sum_k h_k) + b),
///     c = i u + sum_k f_k c_k, h = o tanh(c)
/// Every node has an input. weight_ih (4 hidden, input) and bias (4 hidden,) in the order i, f, o, u; weight_hh
/// (3 hidden, hidden) in the order i, o, u; weight_fh (hidden, hidden).
class ChildSumTreeLSTMCell : public Module {
 public:
    Parameter weight_ih, weight_hh, weight_fh, bias;

    ChildSumTreeLSTMCell(std::int64_t input_size, std::int64_t hidden_size, TreeLSTMOptions options = {}, Loc loc = Loc::current());

    LSTMState forward(In x, const std::vector<LSTMState>& children = {}) const;
    LSTMState operator()(In x, const std::vector<LSTMState>& children = {}) const { return forward(x, children); }

    std::int64_t hidden_size() const noexcept { return weight_fh.shape()[0]; }
    void members(Members& m) override;
    std::string describe() const override;
};

}  // namespace tapir::nn
