// Tree-LSTM cells against the equations of Tai et al. 2015, written out as loops over doubles.
#include "check.h"

using namespace tapir;
using check::values;

namespace {

using Vec = std::vector<double>;

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Row `row` of a matrix times a vector.
double dot(const Tensor& matrix, std::int64_t row, const Vec& x) {
    double sum = 0;
    for (std::size_t j = 0; j < x.size(); ++j) sum += matrix.at<double>({row, static_cast<std::int64_t>(j)}) * x[j];
    return sum;
}

struct State {
    Vec h, c;
};

// Equations 9-14. The blocks of weight_ih are i, f, o, u (or i, o, u), those of weight_hh i, f_1 ... f_n, o, u.
State nary(const nn::NaryTreeLSTMCell& cell, const Vec* x, const std::vector<State>& children, bool inner_input) {
    const std::int64_t h = cell.hidden_size(), n = cell.arity();
    Vec joined;
    for (const State& child : children) joined.insert(joined.end(), child.h.begin(), child.h.end());
    const auto term = [&](std::int64_t input_block, std::int64_t child_block, std::int64_t j) {
        double sum = 0;
        if (x) sum += dot(cell.weight_ih, input_block * h + j, *x) + cell.bias_ih.at<double>({input_block * h + j});
        if (!children.empty()) sum += dot(cell.weight_hh, child_block * h + j, joined) + cell.bias_hh.at<double>({child_block * h + j});
        return sum;
    };
    State out;
    for (std::int64_t j = 0; j < h; ++j) {
        const double i = logistic(term(0, 0, j)), o = logistic(term(inner_input ? 2 : 1, 1 + n, j));
        const double u = std::tanh(term(inner_input ? 3 : 2, 2 + n, j));
        double c = i * u;
        for (std::size_t k = 0; k < children.size(); ++k) {
            c += logistic(term(1, 1 + static_cast<std::int64_t>(k), j)) * children[k].c[static_cast<std::size_t>(j)];
        }
        out.c.push_back(c);
        out.h.push_back(o * std::tanh(c));
    }
    return out;
}

// Equations 2-8. weight_ih: i, f, o, u; weight_hh: i, o, u; weight_fh.
State child_sum(const nn::ChildSumTreeLSTMCell& cell, const Vec& x, const std::vector<State>& children) {
    const std::int64_t h = cell.hidden_size();
    Vec sum(static_cast<std::size_t>(h));
    for (const State& child : children) {
        for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += child.h[j];
    }
    State out;
    for (std::int64_t j = 0; j < h; ++j) {
        const auto input = [&](std::int64_t block) { return dot(cell.weight_ih, block * h + j, x) + cell.bias.at<double>({block * h + j}); };
        const double i = logistic(input(0) + dot(cell.weight_hh, j, sum));
        const double o = logistic(input(2) + dot(cell.weight_hh, h + j, sum));
        const double u = std::tanh(input(3) + dot(cell.weight_hh, 2 * h + j, sum));
        double c = i * u;
        for (const State& child : children) c += logistic(input(1) + dot(cell.weight_fh, j, child.h)) * child.c[static_cast<std::size_t>(j)];
        out.c.push_back(c);
        out.h.push_back(o * std::tanh(c));
    }
    return out;
}

State state(std::int64_t h, double seed) { return {values({h}, seed).to_vector<double>(), values({h}, seed + 0.5).to_vector<double>()}; }
LSTMState tensors(const State& s) { return {tensor(s.h), tensor(s.c)}; }

void compare(const LSTMState& actual, const State& expected) {
    check::same("h", actual.h, expected.h, 1e-12);
    check::same("c", actual.c, expected.c, 1e-12);
}

template <class Cell>
Cell prepared(Cell cell) {
    cell.to(float64);
    double seed = 1;
    for (const Tensor& p : cell.parameters()) check::fill(p, seed++);
    return cell;
}

}  // namespace

TEST_CASE("the N-ary cell computes equations 9-14") {
    for (const int arity : {1, 2, 3}) {
        const auto cell = prepared(nn::NaryTreeLSTMCell(3, 5, arity));
        const Tensor x = values({3}, 10);
        const Vec input = x.to_vector<double>();
        compare(cell(x), nary(cell, &input, {}, false));
        std::vector<State> children;
        std::vector<LSTMState> states;
        for (int k = 0; k < arity; ++k) {
            children.push_back(state(5, 20 + k));
            states.push_back(tensors(children.back()));
        }
        compare(cell(states), nary(cell, nullptr, children, false));
        if (arity == 2) compare(cell(states[0], states[1]), nary(cell, nullptr, children, false));
    }
}

TEST_CASE("the N-ary cell with inputs at inner nodes") {
    const auto cell = prepared(nn::NaryTreeLSTMCell(3, 5, 2, {.inner_input = true}));
    const Tensor x = values({3}, 10);
    const Vec input = x.to_vector<double>();
    compare(cell(x), nary(cell, &input, {}, true));
    const std::vector<State> children{state(5, 20), state(5, 21)};
    compare(cell(x, {tensors(children[0]), tensors(children[1])}), nary(cell, &input, children, true));
    compare(cell({tensors(children[0]), tensors(children[1])}), nary(cell, nullptr, children, true));
}

TEST_CASE("a missing child of the N-ary cell counts as zero") {
    const auto cell = prepared(nn::NaryTreeLSTMCell(3, 5, 2));
    const State one = state(5, 20), none{Vec(5), Vec(5)};
    compare(cell({tensors(one)}), nary(cell, nullptr, {one, none}, false));
    compare(cell(LSTMState{}, tensors(one)), nary(cell, nullptr, {none, one}, false));
}

TEST_CASE("the child-sum cell computes equations 2-8, for any number of children") {
    const auto cell = prepared(nn::ChildSumTreeLSTMCell(3, 5));
    const Tensor x = values({3}, 10);
    for (const int n : {0, 1, 2, 5, 100, 130}) {
        std::vector<State> children;
        std::vector<LSTMState> states;
        for (int k = 0; k < n; ++k) {
            children.push_back(state(5, 20 + k));
            states.push_back(tensors(children.back()));
        }
        INFO(n);
        const LSTMState actual = cell(x, states);
        const State expected = child_sum(cell, x.to_vector<double>(), children);
        check::same("h", actual.h, expected.h, 1e-11);
        check::same("c", actual.c, expected.c, 1e-11);
    }
}

TEST_CASE("batches of nodes equal single ones") {
    const auto binary = prepared(nn::NaryTreeLSTMCell(3, 5));
    const auto sums = prepared(nn::ChildSumTreeLSTMCell(3, 5));
    const Tensor x = values({4, 3}, 10);
    const LSTMState a{values({4, 5}, 1), values({4, 5}, 2)}, b{values({4, 5}, 3), values({4, 5}, 4)};
    const LSTMState nodes = binary(a, b), leaves = binary(x), sum_nodes = sums(x, {a, b});
    for (std::int64_t r = 0; r < 4; ++r) {
        const LSTMState left{a.h[r], a.c[r]}, right{b.h[r], b.c[r]};
        check::same("node", binary(left, right).c, nodes.c[r].to_vector<double>(), 1e-12);
        check::same("leaf", binary(x[r]).h, leaves.h[r].to_vector<double>(), 1e-12);
        check::same("sum", sums(x[r], {left, right}).h, sum_nodes.h[r].to_vector<double>(), 1e-12);
    }
}

TEST_CASE("gradients of whole trees equal finite differences") {
    const auto binary = prepared(nn::NaryTreeLSTMCell(2, 3));
    const auto inner = prepared(nn::NaryTreeLSTMCell(2, 3, 2, {.inner_input = true}));
    const auto sums = prepared(nn::ChildSumTreeLSTMCell(2, 3));
    Tensor x = values({4, 2}, 9);
    x.requires_grad_();
    const auto with = [&](const nn::Module& cell) {
        std::vector<Tensor> leaves = cell.parameters();
        leaves.push_back(x);
        return leaves;
    };
    const auto total = [](const LSTMState& s) { return sum(s.h * values({3}, 30)) + sum(s.c * s.c); };
    CHECK(check::gradient_error(with(binary), [&] { return total(binary(binary(x[0]), binary(binary(x[1]), binary(binary(x[2]), binary(x[3]))))); }) <
          1e-7);
    CHECK(check::gradient_error(with(inner), [&] { return total(inner(x[0], {inner(x[1]), inner(x[2], {inner(x[3]), inner(x[1])})})); }) < 1e-7);
    CHECK(check::gradient_error(with(sums), [&] { return total(sums(x[0], {sums(x[1]), sums(x[2], {sums(x[3]), sums(x[0]), sums(x[1])})})); }) <
          1e-7);
}

TEST_CASE("second gradients of a tree equal finite differences") {
    const auto sums = prepared(nn::ChildSumTreeLSTMCell(2, 3));
    const auto binary = prepared(nn::NaryTreeLSTMCell(2, 3));
    Tensor x = values({3, 2}, 9);
    x.requires_grad_();
    const auto squared_gradient = [&](auto&& forward) {
        Tape inner;
        const Tensor g = inner.gradient(forward(), {x}, {.create_graph = true})[0];
        return sum(g * g);
    };
    CHECK(check::gradient_error({x, sums.weight_fh, sums.weight_ih},
                                [&] { return squared_gradient([&] { return sum(sums(x[0], {sums(x[1]), sums(x[2])}).h); }); }) < 1e-5);
    CHECK(check::gradient_error({x, binary.weight_ih, binary.weight_hh}, [&] {
              return squared_gradient([&] { return sum(binary(binary(x[0]), binary(binary(x[1]), binary(x[2]))).h); });
          }) < 1e-5);
}

TEST_CASE("a node is three records, a leaf two") {
    const nn::NaryTreeLSTMCell cell(4, 4);
    const Tensor x = randn({4});
    Tape tape;
    const LSTMState a = cell(x);
    const std::size_t leaf = tape.size();  // the two parameters, the product, h and c
    CHECK(leaf == 5);
    const LSTMState b = cell(x);
    CHECK(tape.size() == leaf + 3);
    cell(a, b);
    CHECK(tape.size() == leaf + 3 + 2 + 4);  // two more parameters; cat, product, h and c
}

TEST_CASE("a chain of 20,000 nodes") {
    const nn::NaryTreeLSTMCell cell(4, 4);
    const Tensor x = randn({4});
    Tape tape;
    const LSTMState leaf = cell(x);
    LSTMState s = leaf;
    for (int i = 0; i < 20000; ++i) s = cell(s, leaf);
    tape.backward(sum(s.h));
    CHECK(std::isfinite(cell.weight_hh.grad().sum().item()));
}

TEST_CASE("the forget bias is added, and mistakes name the user's line") {
    manual_seed(3);
    const nn::NaryTreeLSTMCell plain(2, 3);
    manual_seed(3);
    const nn::NaryTreeLSTMCell biased(2, 3, 2, {.forget_bias = 1});
    const Tensor difference = biased.bias_hh.detach() - plain.bias_hh.detach();
    check::same("bias", difference, {0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0}, 1e-6);
    const auto line = [](int n) { return "tree_lstm_test.cpp:" + std::to_string(n) + ": "; };
    const Tensor x = randn({2});
    const LSTMState s = plain(x);
    CHECK(check::begins(check::message<ValueError>([&] { plain(LSTMState{}, LSTMState{}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { plain({s, s, s}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { plain(x, {s}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { plain(randn({3})); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { plain(s, {randn({4}), randn({4})}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { plain(s, {s.h, randn({4})}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { nn::NaryTreeLSTMCell(2, 3, 0); }), line(__LINE__)));
    const nn::ChildSumTreeLSTMCell sums(2, 3);
    CHECK(check::begins(check::message<ValueError>([&] { sums(x, {LSTMState{}}); }), line(__LINE__)));
    CHECK(check::begins(check::message<ShapeError>([&] { tree_lstm_gates(randn({10}), {randn({2})}); }), line(__LINE__)));
}
