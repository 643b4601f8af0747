// Derivatives at the ends of the range: at zeros, infinities and the largest and smallest numbers, to the third order. What must hold
// there: no nan where there is a derivative, no gradient where none came, and at infinity the limit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "samples.h"
#include "tapir/ops/elementwise/elementwise_impl.h"

using namespace tapir;
using tapir::test::Call;
using V = std::vector<double>;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

// The derivatives by x of what is made of x, of order 1 and up, element by element. upstream: the gradient that flows back.
std::vector<V> derivatives(const std::function<Tensor(const Tensor&)>& make, const Tensor& at, int order, double upstream = 1) {
    const Tensor x = at.clone().requires_grad_();
    Tape tape;
    std::vector<V> result;
    Tensor y = make(x);
    for (int k = 1; k <= order; ++k) {
        if (!y.requires_grad()) {
            result.push_back(V(static_cast<std::size_t>(x.numel()), 0));
            continue;
        }
        y = tape.gradient(y, {x}, {.gradient = k == 1 ? ones_like(y) * upstream : ones_like(y), .create_graph = k < order, .retain_graph = true})[0];
        result.push_back(y.to_vector<double>());
    }
    return result;
}

// nan is nan.
void check_values(const V& have, const V& want) {
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO("element " << i << ": " << have[i] << ", right " << want[i]);
        CHECK((have[i] == want[i] || std::abs(have[i] - want[i]) <= 1e-6 * std::abs(want[i]) || (std::isnan(want[i]) && std::isnan(have[i]))));
    }
}

}  // namespace

TEST_CASE("the branch that was not taken says nothing, to any order", "[ops]") {
    for (const auto& [dtype, far] : {std::pair(float32, 89.0), std::pair(float64, 710.0)}) {
        const Tensor x = tensor({far, far * 1e3}, dtype);
        for (const auto& f : {std::function<Tensor(const Tensor&)>([](const Tensor& t) { return elu(t); }),
                              {[](const Tensor& t) { return celu(t); }},
                              {[](const Tensor& t) { return selu(t) / 1.0507009873554804934; }},
                              {[](const Tensor& t) { return softplus(t); }},
                              {[](const Tensor& t) { return where(t > 0, t, exp(t) / t); }},
                              {[](const Tensor& t) { return where(t < 1e-3, log(-t), t); }}}) {
            const std::vector<V> d = derivatives(f, x, 3);
            check_values(d[0], {1, 1});
            check_values(d[1], {0, 0});
            check_values(d[2], {0, 0});
        }
    }
}

TEST_CASE("derivatives of powers at 0 are the polynomial's", "[ops]") {
    const double factorial[] = {1, 1, 2, 6, 24};
    for (const DType dtype : {float32, float64}) {
        for (int n = 0; n <= 4; ++n) {
            const Tensor x = zeros({2}, dtype), exponent = full({2}, n, dtype);
            for (const bool as_number : {true, false}) {
                const std::vector<V> d = derivatives([&](const Tensor& t) { return as_number ? pow(t, n) : pow(t, exponent); }, x, 6);
                for (int k = 1; k <= 6; ++k) {
                    INFO("x^" << n << ", derivative " << k);
                    const double want = k == n ? factorial[n] : 0;
                    check_values(d[static_cast<std::size_t>(k - 1)], {want, want});
                }
            }
        }
        const std::vector<V> d = derivatives([](const Tensor& t) { return sum(vander(t, 4), {1}); }, zeros({2}, dtype), 5);
        check_values(d[0], {1, 1});
        check_values(d[1], {2, 2});
        check_values(d[2], {6, 6});
        check_values(d[4], {0, 0});
    }
    // d2/dx de of x^e at (0, 2), in both orders.
    for (const bool base_first : {true, false}) {
        const Tensor x = zeros({}, float64).requires_grad_(), e = full({}, 2, float64).requires_grad_();
        Tape tape;
        const Tensor first = tape.gradient(pow(x, e), {base_first ? x : e}, {.create_graph = true})[0];
        CHECK(first.item() == 0);
        CHECK(tape.gradient(first, {base_first ? e : x})[0].item() == 0);
    }
    // d2/dx de at an exponent of 0 is 1 / x.
    const Tensor x = full({}, 2, float64).requires_grad_(), e = zeros({}, float64).requires_grad_();
    Tape tape;
    const Tensor first = tape.gradient(pow(x, e), {x}, {.create_graph = true})[0];
    CHECK(tape.gradient(first, {e})[0].item() == Approx(0.5));
}

TEST_CASE("gradients are numbers where the value overflows and they do not", "[ops]") {
    const std::vector<V> d = derivatives([](const Tensor& t) { return exp2(t); }, tensor({1024.0, 3.0}, float64), 2);
    check_values(d[0], {std::ldexp(std::log(2.0), 1023) * 2, 8 * std::log(2.0)});
    check_values(d[1], {std::ldexp(std::log(2.0) * std::log(2.0), 1023) * 2, 8 * std::log(2.0) * std::log(2.0)});
    check_values(derivatives([](const Tensor& t) { return exp2(t); }, tensor({128.0}, float32), 1)[0], {std::ldexp(std::log(2.0), 128)});
    check_values(derivatives([](const Tensor& t) { return pow(full({1}, 2, float64), t); }, tensor({1024.0}, float64), 1)[0],
                 {std::ldexp(std::log(2.0), 1023) * 2});
}

TEST_CASE("slopes at the origin and at infinity", "[ops]") {
    const Tensor zero = zeros({1}, float64), far = full({1}, inf, float64);
    const auto both = [](Tensor (*f)(In, In), const Tensor& a, const Tensor& b) {
        const Tensor x = a.clone().requires_grad_(), y = b.clone().requires_grad_();
        Tape tape;
        const std::vector<Tensor> g = tape.gradient(f(x, y), {x, y});
        return V{g[0].to_vector<double>()[0], g[1].to_vector<double>()[0]};
    };
    check_values(both(atan2, zero, zero), {0, 0});
    check_values(both(atan2, far, far), {0, 0});
    check_values(both(atan2, full({1}, 1e-200, float64), full({1}, 1e-200, float64)), {5e199, -5e199});
    check_values(both(hypot, zero, zero), {0, 0});
    check_values(both(hypot, far, zero), {1, 0});
    check_values(both(xlogy, zero, zero), {0, 0});
    check_values(both(xlogy, zero, full({1}, 2, float64)), {std::log(2.0), 0});
    check_values(both(logaddexp, -far, -far), {0, 0});
    check_values(both(logaddexp, far, far), {0.5, 0.5});
    check_values(both(logaddexp, far, -far), {1, 0});
    for (const auto f :
         {+[](In x) { return gelu(x); }, +[](In x) { return gelu_tanh(x); }, +[](In x) { return silu(x); }, +[](In x) { return mish(x); }}) {
        const std::vector<V> d = derivatives([f](const Tensor& t) { return f(t); }, tensor({inf, -inf}, float64), 3);
        check_values(d[0], {1, 0});
        check_values(d[1], {0, 0});
        check_values(d[2], {0, 0});
    }
}

TEST_CASE("a window of zeros has no gradient in lp_pool", "[ops]") {
    for (const DType dtype : {float32, float64}) {
        const std::vector<V> d = derivatives([](const Tensor& t) { return lp_pool1d(t, 2, 2); }, tensor({{{0.0, 0.0, 3.0, 4.0}}}, dtype), 3);
        check_values(d[0], {0, 0, 0.6, 0.8});
        check_values(V{d[1][0], d[1][1], d[2][0], d[2][1]}, {0, 0, 0, 0});
    }
}

TEST_CASE("an impossible example of ctc_loss leaves the others alone", "[ops]") {
    // The second has three labels in two steps.
    const Tensor targets = tensor({{1, 2, 0}, {1, 2, 1}}, int64), inputs = tensor({4, 2}, int64), lengths = tensor({2, 3}, int64);
    for (const bool second_order : {false, true}) {
        const Tensor logits = arange(24, float64).reshape({4, 2, 3}).sin().requires_grad_();
        Tape tape;
        const Tensor losses = ctc_loss(log_softmax(logits, 2), targets, inputs, lengths, {.reduction = Reduction::none});
        CHECK(losses[1].item() == inf);
        const Tensor g = tape.gradient(losses[0], {logits}, {.create_graph = second_order, .retain_graph = true})[0];
        const Tensor chosen = tape.gradient(sum(where(isfinite(losses), losses, 0)), {logits}, {.retain_graph = true})[0];
        const Tensor alone = tape.gradient(ctc_loss(log_softmax(logits, 2).narrow(1, 0, 1), targets.narrow(0, 0, 1), inputs.narrow(0, 0, 1),
                                                    lengths.narrow(0, 0, 1), {.reduction = Reduction::sum}),
                                           {logits})[0];
        check_values(g.to_vector<double>(), alone.to_vector<double>());
        check_values(chosen.to_vector<double>(), alone.to_vector<double>());
        if (second_order) CHECK(isfinite(tape.gradient(sum(square(g)), {logits})[0]).all().item<bool>());
    }
}

TEST_CASE("classes that never come count for nothing in losses", "[ops]") {
    const Tensor x = tensor({{0.0, -1.0, -inf}}, float64).requires_grad_();
    const Tensor p = tensor({{0.25, 0.75, 0.0}}, float64).requires_grad_(),
                 log_p = tensor({{std::log(0.25), std::log(0.75), -inf}}, float64).requires_grad_();
    const double entropy = 0.25 * std::log(0.25) + 0.75 * std::log(0.75);
    Tape tape;
    for (const bool is_log : {false, true}) {
        const Tensor& target = is_log ? log_p : p;
        const Tensor loss = kl_div(x, target, Reduction::sum, is_log);
        CHECK(loss.item() == Approx(entropy + 0.75));
        const std::vector<Tensor> g = tape.gradient(loss, {x, target}, {.create_graph = true});
        check_values(g[0].to_vector<double>(), {-0.25, -0.75, 0});
        CHECK(g[1].to_vector<double>()[2] == 0);
        CHECK(isfinite(tape.gradient(sum(square(g[0])), {target})[0]).all().item<bool>());
        // A finite input beside it, too.
        const Tensor y = tensor({{0.0, -1.0, -2.0}}, float64).requires_grad_();
        check_values(tape.gradient(kl_div(y, target, Reduction::sum, is_log), {y})[0].to_vector<double>(), {-0.25, -0.75, 0});
    }
    const double normaliser = std::log(1 + std::exp(-1.0));
    const Tensor loss = cross_entropy(x, p.detach());
    CHECK(loss.item() == Approx(normaliser + 0.75));
    const double first = std::exp(-normaliser);
    check_values(tape.gradient(loss, {x})[0].to_vector<double>(), {first - 0.25, 1 - first - 0.75, 0});
    check_values(
        tape.gradient(poisson_nll_loss(x, tensor({{0.0, 1.0, 0.0}}, float64), true, false, 1e-8, Reduction::sum), {x})[0].to_vector<double>(),
        {1, std::exp(-1.0) - 1, 0});
}

TEST_CASE("what the number 0 multiplies does not count in addmm and its like", "[ops]") {
    const Tensor nan = full({2, 2}, std::nan(""), float64), c = tensor({{1.0, 2.0}, {3.0, 4.0}}, float64);
    check_values(addmm(c, nan, nan, 1, 0).to_vector<double>(), {1, 2, 3, 4});
    check_values(addmm(nan, c, c, 0, 1).to_vector<double>(), {7, 10, 15, 22});
    check_values(addmm(nan, nan, nan, 0, 0).to_vector<double>(), {0, 0, 0, 0});
    check_values(addmv(c[0], nan, nan[0], 2, 0).to_vector<double>(), {2, 4});
    check_values(baddbmm(c.unsqueeze(0), nan.unsqueeze(0), nan.unsqueeze(0), 1, 0).to_vector<double>(), {1, 2, 3, 4});
    const Tensor a = nan.clone().requires_grad_(), d = c.clone().requires_grad_();
    Tape tape;
    const std::vector<Tensor> g = tape.gradient(sum(addmm(d, a, c, 1, 0)), {d, a});
    check_values(g[0].to_vector<double>(), {1, 1, 1, 1});
    check_values(g[1].to_vector<double>(), {0, 0, 0, 0});
}

// --- Every element-wise op -------------------------------------------------------------------------------------------------------

namespace {

V special(DType dtype) {
    const bool wide = dtype == float64;
    const double largest = wide ? std::numeric_limits<double>::max() : static_cast<double>(std::numeric_limits<float>::max());
    const double normal = wide ? std::numeric_limits<double>::min() : static_cast<double>(std::numeric_limits<float>::min());
    const double smallest = wide ? std::numeric_limits<double>::denorm_min() : static_cast<double>(std::numeric_limits<float>::denorm_min());
    return {0.0, -0.0, inf, -inf, std::nan(""), largest, -largest, normal, -normal, smallest, -smallest, 1, -1, 0.5, 2, -3};
}

// Where a derivative is nan although neither the operands nor the value are, from this order on, and why.
struct Kept {
    std::string_view op;
    int order;
    const char* reason;
};
constexpr Kept kKept[] = {
    {"lerp", 1, "by the weight, between two infinities: infinity less infinity"},
    {"lgamma", 1, "at -inf, where its slope has no limit"},
    {"pow", 1, "by the exponent, of a base below 0, where the power of other exponents is not real"},
    {"xlogy", 1, "by the second operand at (inf, inf): inf / inf"},
    {"atan2", 2, "at the origin, where the slope jumps, and beside an infinite operand"},
    {"hypot", 2, "at the origin, and so near to it that the curvature is beyond all numbers"},
    {"div", 2, "by a divisor whose reciprocal is infinite, of 0"},
    {"acosh", 3, "at 1: infinity less infinity"},
};

// What the others do not keep when they are carried out: see kKept.
int order_kept_nan(std::string_view op) {
    for (const Kept& kept : kKept) {
        if (kept.op == op) return kept.order;
    }
    return 99;
}

bool is_row_to_test(const ElementwiseOp& op) { return op.info.is_recorded() && !op.to_bool && op.types != ElementTypes::Integral; }

// All tuples of special numbers as operands.
std::vector<Tensor> tuples(const ElementwiseOp& op, DType dtype) {
    const V numbers = special(dtype);
    const std::size_t n = numbers.size();
    std::size_t total = 1;
    for (int k = 0; k < op.operands; ++k) total *= n;
    std::vector<Tensor> result;
    std::size_t step = 1;
    for (int k = 0; k < op.operands; ++k, step *= n) {
        V column(total);
        for (std::size_t i = 0; i < total; ++i) column[i] = numbers[i / step % n];
        result.push_back(tensor(column, float64).to(dtype));
    }
    return result;
}

// One row at all tuples, by one of its operands.
struct Case {
    const Call& call;
    std::vector<Tensor> operands;
    int by;

    Tensor operator()(const Tensor& x) const {
        std::vector<Tensor> all = operands;
        all[static_cast<std::size_t>(by)] = x;
        return call.run(all)[0];
    }
    std::vector<V> derivatives(int order, double upstream) const {
        return ::derivatives(*this, operands[static_cast<std::size_t>(by)], order, upstream);
    }
    std::string at(std::size_t i) const {
        std::string text = call.name + " by operand " + std::to_string(by) + " at";
        for (const Tensor& x : operands) text += " " + std::to_string(x.to_vector<double>()[i]);
        return text;
    }
};

template <class Check>
void for_each_row(const Check& check) {
    std::set<std::string> seen;
    for (const Call& call : test::all_calls()) {
        const auto row =
            std::find_if(std::begin(elementwise_ops), std::end(elementwise_ops), [&](const ElementwiseOp& op) { return &op.info == call.op; });
        if (row == std::end(elementwise_ops) || !is_row_to_test(*row) || !seen.insert(call.op->name).second) continue;
        for (const DType dtype : {float32, float64}) {
            const std::vector<Tensor> operands = tuples(*row, dtype);
            for (int by = 0; by < row->operands; ++by) check(*row, Case{call, operands, by});
        }
    }
}

std::vector<bool> any_nan(const std::vector<Tensor>& operands) {
    std::vector<bool> result(static_cast<std::size_t>(operands[0].numel()));
    for (const Tensor& x : operands) {
        const V numbers = x.to_vector<double>();
        for (std::size_t i = 0; i < result.size(); ++i) result[i] = result[i] || std::isnan(numbers[i]);
    }
    return result;
}

}  // namespace

TEST_CASE("where no gradient comes, none goes on: element-wise ops at special numbers", "[ops]") {
    for_each_row([](const ElementwiseOp&, const Case& c) {
        const std::vector<bool> is_nan = any_nan(c.operands);
        const std::vector<V> recorded = c.derivatives(3, 0), fused = c.derivatives(1, 0);
        for (int order = 0; order <= 3; ++order) {  // 0: the first one, by the fused loop
            const V& d = order == 0 ? fused[0] : recorded[static_cast<std::size_t>(order - 1)];
            for (std::size_t i = 0; i < d.size(); ++i) {
                if (is_nan[i] || d[i] == 0) continue;
                INFO(c.at(i) << ", order " << order << ": " << d[i]);
                CHECK(d[i] == 0);
                break;
            }
        }
    });
}

TEST_CASE("derivatives of element-wise ops at special numbers are not nan, nor the fused and the recorded different", "[ops]") {
    std::set<std::string_view> needed;
    for_each_row([&](const ElementwiseOp& op, const Case& c) {
        const std::vector<bool> is_nan = any_nan(c.operands);
        const V value = c(c.operands[static_cast<std::size_t>(c.by)]).to_vector<double>();
        const std::vector<V> d = c.derivatives(3, 1);
        const V fused = c.derivatives(1, 1)[0];
        const int kept = order_kept_nan(op.info.name);
        for (int order = 1; order <= 3; ++order) {
            const V& at = d[static_cast<std::size_t>(order - 1)];
            for (std::size_t i = 0; i < value.size(); ++i) {
                if (is_nan[i] || std::isnan(value[i]) || !std::isnan(at[i])) continue;
                if (order >= kept) {
                    needed.insert(op.info.name);
                    continue;
                }
                INFO(c.at(i) << ", order " << order << ": value " << value[i] << ", derivative " << at[i]);
                CHECK(!std::isnan(at[i]));
                break;
            }
        }
        for (std::size_t i = 0; i < fused.size(); ++i) {
            const double a = fused[i], b = d[0][i];
            if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-5 * (std::abs(a) + 1e-30)) continue;
            INFO(c.at(i) << ": fused " << a << ", recorded " << b);
            CHECK(a == b);
            break;
        }
    });
    for (const Kept& kept : kKept) {
        INFO(kept.op << " is listed as " << kept.reason);
        CHECK((kept.op.empty() || needed.count(kept.op) == 1));
    }
}

TEST_CASE("derivatives at infinity are their limits", "[ops]") {
    for_each_row([](const ElementwiseOp& op, const Case& c) {
        if (op.operands != 1) return;
        const DType dtype = c.operands[0].dtype();
        const auto at = [&](double x) { return derivatives([&](const Tensor& t) { return c.call.run({t})[0]; }, full({1}, x, dtype), 3); };
        for (const double sign : {1.0, -1.0}) {
            const std::vector<V> d = at(sign * inf), near = at(sign * 1e5), far = at(sign * 1e7);
            for (std::size_t k = 0; k < 3; ++k) {
                const double have = d[k][0], a = near[k][0], b = far[k][0];
                if (std::isnan(have) || std::isnan(a) || std::isnan(b) || have == b) continue;  // nan: the other test's
                INFO(op.info.name << " in " << name(dtype) << ", derivative " << k + 1 << " at " << sign * inf << ": " << have << "; at 1e5 " << a
                                  << ", at 1e7 " << b);
                if (std::abs(b) <= std::abs(a) || std::abs(b - a) < 1e-3 * std::abs(b)) {
                    CHECK(std::abs(have - b) <= std::abs(b - a) + 1e-2 * std::abs(b) + 1e-4);
                } else {
                    CHECK(std::isinf(have));
                    CHECK((have > 0) == (b > 0));
                }
            }
        }
    });
}

// --- Every other op --------------------------------------------------------------------------------------------------------------

namespace {

// What mixes elements by sums of products, or by sums over which it normalises: 0 times infinity in one of these is nan. Each with the
// reason; an entry that no call needs fails.
struct Mixing {
    std::string_view op;
    const char* reason;
};
constexpr Mixing kMixing[] = {
    {"convolution", "sums of products with an infinite input or weight"},
    {"conv_transpose", "the same"},
    {"conv_weight", "the same"},
    {"bilinear", "the same"},
    {"baddbmm", "the same"},
    {"cov", "the same, and a mean that is infinite"},
    {"corrcoef", "the same"},
    {"embedding_bag", "sums of rows times weights"},
    {"grid_sample", "weighted sums of pixels"},
    {"gru_gates", "a kernel of its own: products of gates"},
    {"batch_norm", "differences from a mean that is infinite"},
    {"group_norm", "the same"},
    {"layer_norm", "the same"},
    {"cross_entropy", "softmax of infinity is nan; the kernel scales its row"},
    {"cross_entropy_backward", "the same"},
    {"causal_softmax", "the same"},
    {"ctc_loss", "the kernel's gradient of infinite log-probabilities is nan"},
    {"binary_cross_entropy", "the kernel multiplies by differences that are infinite or nan"},
    {"binary_cross_entropy_with_logits", "the same"},
    {"linear", "sums of products with an infinite input or weight"},
    {"matmul", "the same"},
    {"tensordot", "the same"},
    {"lstm_gates", "a kernel of its own: products of gates"},
    {"scaled_dot_product_attention", "softmax of infinity is nan, and sums of products"},
    {"softmax", "softmax of infinity is nan, and of nothing but -inf"},
    {"softmin", "the same"},
    {"log_softmax", "the same"},
    {"softmax_backward", "the same: products with what came out"},
    {"log_softmax_backward", "the same"},
    {"logsumexp", "the same"},
    {"logcumsumexp", "the same"},
    {"weighted_exps", "the same"},
    {"rms_norm", "quotients of infinity by itself"},
    {"norm", "the same, and powers of quotients that are 0"},
    {"normalize", "the same"},
    {"pdist", "the same"},
    {"mse_loss", "a kernel of its own: 0 times an infinite difference; samples of other losses too"},
    {"prod", "products of the others, infinity and 0 among them"},
    {"scatter_reduce", "the same"},
    {"std", "differences from a mean that is infinite"},
    {"var", "the same"},
    {"var_mean", "the same"},
    {"cdist", "the kernel divides infinite differences by an infinite distance"},
    {"dist", "the same"},
    {"cumprod", "products of the others, infinity and 0 among them"},
};

}  // namespace

TEST_CASE("where no gradient comes, none goes on: other ops at special numbers", "[ops]") {
    std::set<std::string_view> needed;
    const auto is_row = [](const OpInfo* info) {
        return std::any_of(std::begin(elementwise_ops), std::end(elementwise_ops), [&](const ElementwiseOp& op) { return &op.info == info; });
    };
    for (const Call& call : test::all_calls()) {
        if (!call.differentiable || call.extreme || call.torch == "random" || is_row(call.op)) continue;
        if (call.name.rfind("linalg_", 0) == 0) continue;  // products with inverses; and LAPACK's iterations need not end
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (std::size_t k = 0; k < inputs.size(); ++k) {
            if (!is_floating(inputs[k].dtype()) || inputs[k].numel() == 0) continue;
            for (const double number : {0.0, inf, -inf, std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min()}) {
                std::vector<Tensor> leaves;
                for (const Tensor& x : inputs) leaves.push_back(x.clone());
                leaves[k].data<double>()[0] = number;
                std::vector<Tensor> sources;
                for (Tensor& x : leaves) {
                    if (is_floating(x.dtype())) sources.push_back(x.requires_grad_());
                }
                V all;
                try {
                    Tape tape;
                    Tensor total;
                    for (const Tensor& y : call.run(leaves)) {
                        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
                        const Tensor part = sum(where(zeros_like(y) == 0, 0, y));
                        total = total.defined() ? total + part : part;
                    }
                    if (!total.defined()) continue;
                    for (const Tensor& g : tape.gradient(total, sources)) {
                        for (const double x : g.to_vector<double>()) all.push_back(x);
                    }
                } catch (const Error&) {
                    continue;  // refused: no such loss, no such factor of a matrix
                }
                const auto bad = std::find_if(all.begin(), all.end(), [](double x) { return x != 0; });
                if (bad == all.end()) continue;
                const auto kept = std::find_if(std::begin(kMixing), std::end(kMixing), [&](const Mixing& m) { return m.op == call.op->name; });
                if (kept != std::end(kMixing)) {
                    needed.insert(kept->op);
                    continue;
                }
                INFO(call.name << ", input " << k << " at " << number << ": a gradient of " << *bad);
                CHECK(*bad == 0);
            }
        }
    }
    for (const Mixing& m : kMixing) {
        INFO(m.op << ": " << m.reason);
        CHECK((m.op.empty() || needed.count(m.op) == 1));
    }
}

namespace {

// Derivatives that are nan although operands and results are numbers, at the least of these numbers and from this order on, and why.
enum class At { largest, smallest, zero };
struct Undefined {
    std::string_view op;
    At at;
    int order;
    const char* reason;
    bool everywhere = true;  // false: the order in which this processor and compiler add decides, so there may be no nan
};
constexpr Undefined kUndefined[] = {
    {"linalg_eigh", At::zero, 1, "equal eigenvalues: their vectors have no derivative"},
    {"linalg_eigvalsh", At::zero, 2, "the same"},
    {"linalg_qr", At::zero, 1, "a singular matrix"},
    {"linalg_svd", At::zero, 1, "equal singular values: their vectors have no derivative"},
    {"linalg_svdvals", At::zero, 2, "the same; norms of matrices are made of it"},
    {"linalg_pinv", At::largest, 2, "products beyond all numbers"},
    {"linalg_solve", At::largest, 2, "the same"},
    {"norm", At::smallest, 1, "powers of quotients beyond all numbers, for other norms than 1, 2 and infinity"},
    {"normalize", At::smallest, 2, "quotients by a length whose reciprocal is infinite"},
    {"mse_loss", At::smallest, 2, "the same, of losses made of cosine_similarity and normalize"},
    {"scatter_reduce", At::smallest, 2, "a product divided by one of its factors, beyond all numbers"},
    {"batch_norm", At::largest, 2, "products of a row of the largest numbers, beyond all numbers"},
    {"batch_norm_backward", At::largest, 1, "the same"},
    {"group_norm", At::largest, 2, "the same"},
    {"group_norm_backward", At::largest, 1, "the same"},
    {"layer_norm", At::largest, 2, "the same"},
    {"layer_norm_backward", At::largest, 1, "the same"},
    {"rms_norm", At::largest, 2, "the same"},
    {"std", At::largest, 1, "differences from a mean that is infinite"},
    {"var_mean", At::largest, 1, "the same"},
    {"cdist", At::largest, 2, "differences beyond all numbers"},
    {"pdist", At::largest, 3, "the same"},
    {"cross_entropy_backward", At::largest, 3, "products beyond all numbers"},
    {"gru_gates_backward", At::largest, 2, "the same"},
    {"lstm_gates_backward", At::largest, 2, "the same"},
    {"matmul", At::largest, 1, "infinity less infinity in a sum of products", false},
    {"prelu", At::largest, 1, "the same, of a weight's gradient", false},
    {"scaled_dot_product_attention", At::largest, 1, "the same", false},
    {"grid_sample", At::largest, 1, "differences of pixels beyond all numbers"},
};

// What a sum of all results, each element with another weight, has as derivatives by all floating inputs: the first order with a nan; 0: none.
// Where a result or a derivative is infinite, it ends there.
int order_of_nan(const Call& call, const std::vector<Tensor>& leaves) {
    std::vector<Tensor> sources;
    for (const Tensor& x : leaves) {
        if (is_floating(x.dtype())) sources.push_back(Tensor(x).requires_grad_());
    }
    bool is_finite = true;
    const auto weighted = [&is_finite](const std::vector<Tensor>& all) {
        Tensor total;
        double phase = 0;
        for (const Tensor& y : all) {
            if (!y.defined() || !is_floating(y.dtype()) || !y.requires_grad()) continue;
            is_finite = is_finite && isfinite(y).all().item<bool>();
            const Tensor part = sum(y * sin(arange(y.numel(), y.dtype()).reshape(y.shape()) + (phase += 0.7)));
            total = total.defined() ? total + part : part;
        }
        return total;
    };
    Tape tape;
    Tensor total = weighted(call.run(leaves));
    for (int order = 1; order <= 3 && is_finite && total.defined(); ++order) {
        const std::vector<Tensor> gradients = tape.gradient(total, sources, {.create_graph = order < 3, .retain_graph = true});
        for (const Tensor& g : gradients) {
            if (g.defined() && isnan(g).any().item<bool>()) return order;
        }
        if (order < 3) total = weighted(gradients);
    }
    return 0;
}

}  // namespace

TEST_CASE("derivatives of other ops are not nan at zeros, the smallest and the largest numbers", "[ops]") {
    std::set<std::string_view> needed;
    const auto is_row = [](const OpInfo* info) {
        return std::any_of(std::begin(elementwise_ops), std::end(elementwise_ops), [&](const ElementwiseOp& op) { return &op.info == info; });
    };
    const auto check = [&](const Call& call, const std::vector<Tensor>& leaves, std::size_t input, At at, double number) {
        int order = 0;
        try {
            order = order_of_nan(call, leaves);
        } catch (const Error&) {
            return;  // refused: no factor of this matrix, or no gradients of that order
        }
        if (order == 0) return;
        const auto kept = std::find_if(std::begin(kUndefined), std::end(kUndefined),
                                       [&](const Undefined& u) { return u.op == call.op->name && at <= u.at && order >= u.order; });
        if (kept != std::end(kUndefined)) {
            needed.insert(kept->op);
            return;
        }
        INFO(call.name << ", " << call.code << ", input " << input << " of " << name(leaves[input].dtype()) << " at " << number << ", order "
                       << order);
        CHECK(order == 0);
    };
    for (const Call& call : test::all_calls()) {
        if (!call.differentiable || call.extreme || call.torch == "random" || is_row(call.op)) continue;
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (std::size_t k = 0; k < inputs.size(); ++k) {
            if (!is_floating(inputs[k].dtype()) || inputs[k].numel() == 0) continue;
            for (const DType dtype : {float32, float64}) {
                const V numbers = special(dtype);
                for (const auto& [at, index] :
                     {std::pair(At::zero, 0), {At::zero, 1}, {At::smallest, 9}, {At::smallest, 10}, {At::largest, 5}, {At::largest, 6}}) {
                    const double number = numbers[static_cast<std::size_t>(index)];
                    for (const bool all : {false, true}) {
                        std::vector<Tensor> leaves;
                        for (const Tensor& x : inputs) leaves.push_back(is_floating(x.dtype()) ? x.to(dtype).clone() : x.clone());
                        Tensor target = all ? leaves[k] : leaves[k].view({-1}).narrow(0, 0, 1);
                        target.fill_(number);
                        check(call, leaves, k, at, number);
                    }
                }
            }
        }
    }
    for (const Undefined& u : kUndefined) {
        INFO(u.op << ": " << u.reason);
        CHECK((!u.everywhere || needed.count(u.op) == 1));
    }
}
