// Random programs of branches and loops, one in another, whose bodies write in place, choose elements by their values and compute with several
// dtypes: the graph does what the program does, for other sizes too, none among them, before and after all passes; so does its gradient.
#include <random>

#include "../../sanitizers.h"
#include "passes_check.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/grad.h"

using namespace passes_check;
using Tensors = std::vector<Tensor>;

namespace {

constexpr DType kDTypes[] = {float64, float32, int64};

// As it is, in about [-3, 3].
Tensor bounded(const Tensor& x) { return is_floating(x.dtype()) ? tanh(x) : remainder(x, 7) - 3; }
Tensor as(const Tensor& x, DType dtype) { return is_floating(dtype) || !is_floating(x.dtype()) ? x.to(dtype) : (x * 8.13 + 0.037).to(dtype); }

// Ops on tensors of one shape, (3,) or (n, 3), the same for the same seed.
class Block {
 public:
    Block(unsigned seed, int depth, bool draws, bool views) : random_(seed), depth_(depth), draws_(draws), views_(views) {}

    // `given`, and others that can be seen, are not written to. Gives as many tensors as `dtypes` has, of these.
    Tensors run(const Tensors& given, const Tensors& seen, const std::vector<DType>& dtypes) {
        shape_ = given[0].shape();
        values_ = given;
        for (const Tensor& x : seen) {
            if (x.shape() == shape_) values_.push_back(x);
        }
        for (int i = 0, steps = 2 + static_cast<int>(number(4)); i < steps; ++i) values_.push_back(bounded(step()));
        Tensors results;
        for (const DType dtype : dtypes) results.push_back(bounded(as(values_.back(), dtype) + as(any(), dtype)));
        return results;
    }

 private:
    std::size_t number(std::size_t below) { return static_cast<std::size_t>(random_() % below); }
    Tensor any() { return values_[number(values_.size())]; }
    Tensor floating() { return as(any(), number(3) ? float64 : float32); }
    std::int64_t column() { return static_cast<std::int64_t>(number(3)); }
    Block inner() {
        const auto seed = static_cast<unsigned>(random_());
        return Block(seed, depth_ - 1, draws_, views_);
    }

    Tensor step() {
        const Tensor a = any(), b = any();
        switch (number(depth_ > 0 ? 20 : 14)) {
            case 0: return a + b;
            case 1: return a * b - 1;
            case 2: return where(a > b, a, b * 2);
            case 3: {
                Tensor c = a.clone();
                if (views_) c.select(-1, column()).copy_(as(b, c.dtype()).select(-1, column()));
                return c * 2;
            }
            case 4: {
                Tensor c = bounded(a).clone();
                c.masked_fill_(b > 0.1, 2);
                return c + a;
            }
            case 5: {  // a view that is used after what it is a view of was written to
                Tensor c = a * 2, view = c.narrow(-1, 1, 2);
                if (views_) view.add_(1);
                const Tensor d = c + as(b, c.dtype());
                if (views_) c.mul_(2);
                return cat({view, d.narrow(-1, 0, 1)}, -1);
            }
            case 6: return cumsum(floating(), 0) * 0.1;
            case 7: return a.sum({0}, true) + b;
            case 8: return exp(floating().transpose(0, -1)).transpose(0, -1) - a;
            case 9: return as(a, kDTypes[number(3)]);
            case 10: return (views_ ? floating().masked_select(a > 0).sum() : floating().amax({0}, true)) * 0.1 + b;
            case 11: return floating().detach() * floating() + a;
            case 12: {  // slices with bounds that some sizes are less than
                const Tensor c = floating();
                if (!views_) return full({}, 0.5, float64) * b;
                if (number(2)) return c.slice(0, Slice(0, 4)).sum({0}, true) * 0.1 + c.slice(0, Slice(-2, None)).sum({0}, true) * b;
                return cat({c.slice(0, Slice(0, 2)) * 2, c.slice(0, Slice(2, None)) + 1}, 0) * b;
            }
            case 13: return draws_ ? rand_like(floating()) + b : -(-a);
            case 14:
            case 15: {
                Block one = inner(), other = inner();
                const std::vector<DType> dtypes = {kDTypes[number(3)], float64};
                const Tensor c = floating();
                const Tensors made =
                    cond(sum(a) > 0.0371, [&] { return one.run({c}, {a, b}, dtypes); }, [&] { return other.run({b, a}, {}, dtypes); });
                return made[0] * made[1];
            }
            case 16:
            case 17: {
                const Block body = inner();
                const std::vector<DType> dtypes = {float64, int64};
                const Tensors end = while_loop([&](const Tensor& n, const Tensor&, const Tensor& y) { return logical_and(n < 3, sum(y) != 7); },
                                               [&](const Tensor& n, const Tensor& x, const Tensor& y) {
                                                   Tensors next = Block(body).run({x, y}, {a}, dtypes);
                                                   return std::tuple(n + 1, next[0], next[1]);
                                               },
                                               {zeros({}, int64), as(a, float64), as(b, int64)});
                return end[1] + end[2];
            }
            default: {
                const Block body = inner();
                const bool has_steps = shape_.rank() == 2;
                const Tensors xs = {has_steps ? floating() : stack({a, b}, 0)};
                const Tensor init = has_steps ? as(b, float64).sum({0}) * 0.1 : as(b, float64);
                const auto combine = [&](const Tensor& h, const Tensor& x) {
                    Tensors next = Block(body).run({h, x}, {h * 2, x}, {float64, x.dtype()});
                    return std::pair(next[0], next[1]);
                };
                const ScanResult result = scan(combine, {init}, xs, {.reverse = number(2) == 0});
                return has_steps ? result.outputs[0] + result.carry[0] : result.outputs[0].sum({0}) + result.carry[0];
            }
        }
    }

    std::mt19937 random_;
    int depth_;
    bool draws_, views_;  // random numbers; what has no gradient: writes into views, sums of as many elements as data says
    Shape shape_;
    Tensors values_;
};

Tensors run_program(unsigned seed, const Tensor& x, bool draws, bool views) {
    Tensors results = Block(seed, 3, draws, views).run({x, x.to(float32) * 2, as(x, int64)}, {}, {float64, float32, int64});
    return results;
}

void check_runs(const Graph& graph, const Tensor& x, const Tensors& wanted) {
    for (int again = 0; again < 2; ++again) {
        manual_seed(11);
        check_same(graph({x}), wanted, 1e-4, 1e-5);
        manual_seed(11);
        check_same(graph.run({{"x", x}}), wanted, 1e-4, 1e-5);
    }
}

}  // namespace

TEST_CASE("random programs of branches and loops") {
    std::size_t parts = 0;
    for (unsigned seed = 0; seed < test::share(80U); ++seed) {
        INFO("seed " << seed);
        const bool draws = seed % 4 == 0;
        manual_seed(seed);
        const Graph graph =
            trace([&](const Tensor& x) { return run_program(seed, x, draws, /*views=*/true); }, {{"x", randn({3, 3}, float64), {"n"}}});
        graph.check();
        Graph passed = graph;
        optimize(passed);
        passed.check();
        for (const auto& node : graph.nodes()) parts += node->attributes().has_graph();
        INFO("unpassed:\n" << graph.str() << "passed:\n" << passed.str());
        for (const std::int64_t n : {3, 1, 0, 6}) {
            INFO("n = " << n);
            const Tensor x = randn({n, 3}, float64);
            manual_seed(11);
            const Tensors wanted = run_program(seed, x, draws, /*views=*/true);
            check_runs(graph, x, wanted);
            check_runs(passed, x, wanted);
        }
    }
    CHECK(parts > test::share<std::size_t>(40));
}

TEST_CASE("gradients of random programs of branches and loops") {
    int compared = 0;
    for (unsigned seed = 0; seed < test::share(40U); ++seed) {
        INFO("seed " << seed);
        const auto loss = [&](const Tensor& x) { return sum(run_program(seed, x, /*draws=*/false, /*views=*/false)[0] * 0.5); };
        manual_seed(seed);
        Graph gradient;
        try {
            gradient = grad(trace(loss, {{"x", randn({3, 3}, float64), {"n"}}}), {"output"}, {"x"});
        } catch (const TapeError&) {
            continue;  // no gradient flows to x
        }
        Graph passed = gradient;
        optimize(passed);
        INFO("before:\n" << gradient.str() << "after:\n" << passed.str());
        for (const std::int64_t n : {3, 1, 5}) {
            INFO("n = " << n);
            const Tensor x = randn({n, 3}, float64).requires_grad_();
            Tape tape;
            const Tensor y = loss(x);  // the way that it takes may be one without a gradient
            const Tensor wanted = y.requires_grad() ? tape.gradient(y, {x})[0] : zeros_like(x);
            for (const Graph* graph : {&gradient, &passed}) {
                const Graph::Value* out = graph->outputs().back().value;
                INFO("%" << out->number);
                check_same({(*graph)({x.detach()}).back()}, {wanted}, 1e-4, 1e-5);
                check_same({graph->run({{"x", x.detach()}}).back()}, {wanted}, 1e-4, 1e-5);
            }
            ++compared;
        }
    }
    CHECK(compared > test::share(30));
}
