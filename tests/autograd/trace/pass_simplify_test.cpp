// Algebraic simplification: each rule by what it makes of a program, and programs that must stay as they are.
#include <cmath>
#include <limits>

#include "passes_check.h"

using namespace passes_check;

namespace {

Tensor numbers(const Shape& shape) {
    manual_seed(9);
    return rand(shape, float64) + 0.5;
}

// The ops that are left, and both give the same.
template <class Fn>
void becomes(const std::string& ops, const Fn& fn, const Tensor& x = numbers({3, 4}), const PassOptions& options = {}) {
    Graph graph = trace(fn, {{"x", x}});
    const Graph before = graph;
    simplify(graph, options);
    INFO("before:\n" << before.str() << "after:\n" << graph.str());
    CHECK(ops_of(graph) == ops);
    check_same_graphs(graph, before, {x});
}

template <class Fn>
void stays(const Fn& fn, const Tensor& x = numbers({3, 4})) {
    Graph graph = trace(fn, {{"x", x}});
    becomes(ops_of(graph), fn, x);
}

// Only where nan and infinities may come out otherwise.
template <class Fn>
void becomes_loosely(const std::string& ops, const Fn& fn, const Tensor& x = numbers({3, 4})) {
    becomes(ops, fn, x, {.allow_nonfinite = true});
    stays(fn, x);
}

}  // namespace

TEST_CASE("a listing before and after algebra") {
    Graph graph = trace(
        [](const Tensor& x) {
            const Tensor y = tanh(x) * 1 + 0;
            return log(softmax(-(-y).t().t(), 1)) * 3 + pow(y, 2) * 3;
        },
        {{"x", ones({2, 3}), {"batch"}}});
    const Graph before = graph;
    CHECK(listing(before) ==
          "input x: float32 (batch, 3)\n"
          "%1: float32 (batch, 3) = tanh(x)\n"
          "%2: float32 (batch, 3) = mul(%1, 1.0)\n"
          "%3: float32 (batch, 3) = add(%2, 0.0)\n"
          "%4: float32 (batch, 3) = pow(%3, 2.0)\n"
          "%5: float32 (batch, 3) = mul(%4, 3.0)\n"
          "%6: float32 (batch, 3) = neg(%3)\n"
          "%7: float32 (3, batch) = transpose(%6, dims=(0, 1))\n"
          "%8: float32 (batch, 3) = transpose(%7, dims=(0, 1))\n"
          "%9: float32 (batch, 3) = neg(%8)\n"
          "%10: float32 (batch, 3) = softmax(%9, dim=1)\n"
          "%11: float32 (batch, 3) = log(%10)\n"
          "%12: float32 (batch, 3) = mul(%11, 3.0)\n"
          "%13: float32 (batch, 3) = add(%12, %5)\n"
          "output output = %13\n");
    CHECK(simplify(graph) > 0);
    CHECK(listing(graph) ==
          "input x: float32 (batch, 3)\n"
          "%1: float32 (batch, 3) = tanh(x)\n"
          "%2: float32 (batch, 3) = square(%1)\n"
          "%3: float32 (batch, 3) = log_softmax(%1, dim=1)\n"
          "%4: float32 (batch, 3) = add(%3, %2)\n"
          "%5: float32 (batch, 3) = mul(3.0, %4)\n"
          "output output = %5\n");
    CHECK(simplify(graph) == 0);
    check_same_graphs(graph, before, {numbers({7, 3}).to(float32)}, 1e-5, 1e-6);
}

TEST_CASE("ops that change nothing") {
    becomes("tanh", [](const Tensor& x) { return (tanh(x) * 1 + 0) / 1 - 0; });
    becomes("tanh", [](const Tensor& x) { return 0 + 1 * tanh(x); });
    becomes("tanh", [](const Tensor& x) { return tanh(x) * ones({4}, float64) + zeros({3, 1}, float64); });
    becomes("tanh", [](const Tensor& x) { return pow(tanh(x), 1); });
    becomes("tanh", [](const Tensor& x) {
        const Tensor y = tanh(x);
        return maximum(y, y) + 0;
    });
    becomes("tanh", [](const Tensor& x) { return where(full({3, 4}, true), tanh(x), x * 2); });
    becomes("tanh", [](const Tensor& x) { return where(tensor(false), x * 2, tanh(x)); });
    becomes("tanh", [](const Tensor& x) { return masked_fill(tanh(x), zeros({3, 4}, bool_), 5); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).clone().to(float64); });
    becomes("clone", [](const Tensor& x) { return (x * 1 + 0) / 1 - 0; });  // an output is not the input itself
    becomes("tanh", [](const Tensor& x) {
        Tensor y = zeros({3, 4}, float64);
        y.copy_(tanh(x));
        return y;
    });
    becomes("mul", [](const Tensor& x) { return x + x * 1; }, ones({3}, int64));
}

TEST_CASE("signs") {
    becomes("tanh", [](const Tensor& x) { return -(-tanh(x)); });
    becomes("neg", [](const Tensor& x) { return x * -1; });
    becomes("tanh sub", [](const Tensor& x) { return x + -tanh(x); });
    becomes("tanh sub", [](const Tensor& x) { return -tanh(x) + x; });
    becomes("tanh add", [](const Tensor& x) { return x - -tanh(x); });
    becomes("tanh sub", [](const Tensor& x) { return -(tanh(x) - x); });
    becomes("tanh mul", [](const Tensor& x) { return -tanh(x) * -x; });
    becomes("sub square", [](const Tensor& x) { return square(-(x - 1)); });
    becomes("abs", [](const Tensor& x) { return abs(-x); });
    becomes("tanh mul sub", [](const Tensor& x) { return -tanh(x) * x + x; });
    becomes("tanh mul add", [](const Tensor& x) { return x - x * -tanh(x); });
    becomes("tanh mul", [](const Tensor& x) { return -tanh(x) * 2; });
    becomes("tanh mul", [](const Tensor& x) { return -(2 * tanh(x)); });
    stays([](const Tensor& x) { return abs(-x); }, tensor({1, 2}).to(uint8));  // |-1| is 255
}

TEST_CASE("transposes and permutations") {
    becomes("tanh", [](const Tensor& x) { return tanh(x).t().t(); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).permute({1, 0}).permute({1, 0}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).permute({0, 1}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).t().permute({1, 0}); });
    const Tensor three = numbers({2, 3, 4});
    becomes("tanh", [](const Tensor& x) { return tanh(x).permute({1, 2, 0}).permute({2, 0, 1}); }, three);
    becomes("tanh permute", [](const Tensor& x) { return tanh(x).transpose(0, 1).transpose(1, 2); }, three);
    becomes("tanh transpose", [](const Tensor& x) { return tanh(x).transpose(0, 1).transpose(1, 2).transpose(0, 1); }, three);
    becomes("transpose tanh", [](const Tensor& x) { return tanh(x.permute({0, 2, 1})); }, three);
}

TEST_CASE("reshapes, expansions and slices") {
    becomes("tanh reshape", [](const Tensor& x) { return tanh(x).reshape({12}).reshape({4, 3}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).reshape({12}).reshape({3, 4}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).unsqueeze(1).squeeze(1); });
    becomes("tanh reshape", [](const Tensor& x) { return tanh(x).unsqueeze(0).unsqueeze(3); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).flatten().unflatten(0, {3, 4}); });
    becomes("tanh expand", [](const Tensor& x) { return tanh(x).expand({2, 3, 4}).expand({5, 2, 3, 4}); });
    becomes("tanh expand", [](const Tensor& x) { return tanh(x).unsqueeze(0).expand({2, 3, 4}); });
    becomes("tanh reshape expand", [](const Tensor& x) { return tanh(x).unsqueeze(1).expand({3, 2, 4}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).slice(0, Slice()).slice(1, Slice(0, 4)); });
    becomes("tanh reshape", [](const Tensor& x) { return tanh(x).expand({1, 1, 3, 4}); });
    becomes("sum expand mul", [](const Tensor& x) { return x.sum().expand({3}).reshape({3, 1}) * x; });
    stays([](const Tensor& x) { return tanh(x).slice(0, Slice(0, 2)).slice(1, Slice(None, None, 2)); });
}

TEST_CASE("powers and quotients") {
    becomes("square", [](const Tensor& x) { return pow(x, 2); });
    becomes("square mul", [](const Tensor& x) { return pow(x, 3); });
    becomes("square square", [](const Tensor& x) { return pow(x, 4); });
    becomes_loosely("sqrt", [](const Tensor& x) { return pow(x, 0.5); });
    becomes_loosely("rsqrt", [](const Tensor& x) { return pow(x, -0.5); });
    becomes("reciprocal", [](const Tensor& x) { return pow(x, -1); });
    becomes("reciprocal square", [](const Tensor& x) { return pow(x, -2); });
    becomes("square", [](const Tensor& x) { return pow(x, 2); }, tensor({3, -2}));
    becomes("reciprocal", [](const Tensor& x) { return 1 / x; });
    becomes("rsqrt", [](const Tensor& x) { return 1 / sqrt(x); });
    becomes("tanh div", [](const Tensor& x) { return x * (1 / tanh(x)); });
    stays([](const Tensor& x) { return pow(x, 2.5) + pow(2, x); });
    stays([](const Tensor& x) { return pow(x, 2.0); }, tensor({3, -2}));  // gives floats
}

TEST_CASE("a common factor") {
    becomes("tanh exp add mul", [](const Tensor& x) {
        const Tensor a = tanh(x), b = exp(a);
        return 3 * a + 3 * b;
    });
    becomes_loosely("sin tanh exp sub mul", [](const Tensor& x) {
        const Tensor c = sin(x), a = tanh(x), b = exp(x);
        return a * c - c * b;
    });
    becomes_loosely("sin tanh exp sub div", [](const Tensor& x) {
        const Tensor c = sin(x), a = tanh(x), b = exp(x);
        return a / c - b / c;
    });
    becomes_loosely("sum tanh add mul", [](const Tensor& x) {  // of other shapes
        const Tensor c = sum(x), a = tanh(x);
        return c * a + c * x;
    });
    becomes_loosely("add mul", [](const Tensor& x) { return x * x + x * 2; });
    const Tensor c = numbers({4});
    becomes("tanh exp add mul", [&](const Tensor& x) {  // a constant that is finite
        const Tensor a = tanh(x), b = exp(a);
        return c * a + c * b;
    });
    becomes("tanh exp add div", [&](const Tensor& x) {
        const Tensor a = tanh(x), b = exp(a);
        return a / c + b / c;
    });
    becomes("add mul", [](const Tensor& x) { return x * 2 + x * x; }, tensor({5, -7}));
    stays([](const Tensor& x) {  // the product is needed anyway
        const Tensor a = x * 3, b = tanh(x) * 3;
        return (a + b) * a;
    });
    stays([](const Tensor& x) { return 3 * tanh(x) + 4 * exp(x); });
    stays([](const Tensor& x) { return x * 100 + x * x; }, numbers({3}).to(float16));  // x + 100 may overflow where the products do not
}

TEST_CASE("numbers in a row") {
    becomes("mul", [](const Tensor& x) { return 2 * (x * 3) * 5; });
    becomes("mul", [](const Tensor& x) { return (x + x) * 0.25; });
    becomes("add", [](const Tensor& x) { return x + 1 + 2; });
    stays([](const Tensor& x) { return x + 1e8 + 1e-3; }, numbers({3}).to(float32));
    stays([](const Tensor& x) { return (x * 1e-30) * 1e-30; }, numbers({3}).to(float32));
    stays([](const Tensor& x) { return x * 2 * 3; }, tensor({1, 2}));
}

TEST_CASE("softmax, sigmoid, masks and conversions") {
    becomes("log_softmax", [](const Tensor& x) { return log(softmax(x, 1)); });
    becomes("log_softmax", [](const Tensor& x) { return log(softmax(x, 0)); });
    becomes("logsigmoid", [](const Tensor& x) { return log(sigmoid(x)); });
    becomes("silu", [](const Tensor& x) { return sigmoid(x) * x; });
    becomes("gelu", [](const Tensor& x) { return x * (erf(x / 1.4142135623730951) + 1) * 0.5; });
    stays([](const Tensor& x) { return x * (erf(x / 1.4142135381698608) + 1) * 0.5; });  // not the root of 2 in float64
    stays([](const Tensor& x) {
        const Tensor gate = sigmoid(x);
        return x * gate + gate;
    });
    becomes("gt tanh where", [](const Tensor& x) {
        const Tensor m = x > 1, y = tanh(x);
        return where(logical_not(m), x, y);
    });
    becomes("gt to_dtype", [](const Tensor& x) {
        const Tensor m = x > 1;
        return where(m, ones({3, 4}, float64), zeros({3, 4}, float64));
    });
    becomes("to_dtype", [](const Tensor& x) { return x.to(float32).to(float64).to(float16); }, numbers({3}).to(float32));
    becomes("tanh", [](const Tensor& x) { return tanh(x).to(float64).to(float32); }, numbers({3}).to(float32));
    stays([](const Tensor& x) { return x.to(float32).to(float64); });
    stays([](const Tensor& x) { return x.to(int64).to(float64); });
}

TEST_CASE("gelu, whose number a model of ONNX rounds to float32") {
    const Tensor x = numbers({3}).to(float32);
    Graph graph = trace([](const Tensor& t) { return t * (erf(t / 1.4142135381698608) + 1) * 0.5; }, {{"x", x}});
    simplify(graph);
    eliminate_dead_code(graph);
    CHECK(ops_of(graph) == "gelu");
    CHECK(allclose(graph.run({{"x", x}})[0], gelu(x), 1e-6, 1e-6));
}

TEST_CASE("sums, means and extremes") {
    becomes("tanh sum", [](const Tensor& x) { return tanh(x).sum({0}).sum({0}); });
    becomes("tanh sum", [](const Tensor& x) { return tanh(x).sum({1}, true).sum({0}, true); });
    becomes("tanh sum reshape", [](const Tensor& x) { return tanh(x).sum({1}, true).sum({0}); });
    becomes("tanh amax", [](const Tensor& x) { return amax(amax(tanh(x), {1}), {0}); });
    becomes("tanh sum", [](const Tensor& x) { return tanh(x).sum({0}, true).reshape({4}); });
    becomes("tanh mean", [](const Tensor& x) { return tanh(x).mean({1}).unsqueeze(1); });
    becomes("tanh reshape", [](const Tensor& x) { return mean(tanh(x), {0}) * 1; }, numbers({1, 4}));
    becomes("tanh", [](const Tensor& x) { return tanh(x).sum(); }, numbers({}));
    becomes("tanh sum mul", [](const Tensor& x) { return (tanh(x) * 3).sum({0}); });
    becomes("tanh sum neg", [](const Tensor& x) { return (-tanh(x)).sum({0}); });
    becomes_loosely("sum exp mean mul", [](const Tensor& x) {
        const Tensor w = x.sum({0}, true);
        return (exp(x) * w).mean({0}, true);
    });
    becomes_loosely("exp sum sum div", [](const Tensor& x) {
        const Tensor w = x.sum({0}, true);
        return (exp(x) / w).sum({0});
    });
    becomes("tanh mul", [](const Tensor& x) { return tanh(x).expand({5, 3, 4}).sum({0}); });
    becomes("tanh", [](const Tensor& x) { return tanh(x).expand({5, 3, 4}).mean({0}); });
    becomes("tanh amax", [](const Tensor& x) { return amax(tanh(x).expand({5, 3, 4}), {0, 2}, true).squeeze(0); });
    becomes("sum mul expand", [](const Tensor& x) { return x.sum({1}, true).expand({3, 6}).sum({1}, true).expand({3, 2}); });
    becomes("tanh mean expand mul", [](const Tensor& x) { return tanh(x).expand({5, 3, 4}).mean({1}) * 2; });
    becomes("tanh sum expand clone", [](const Tensor& x) { return tanh(x).expand({5, 3, 4}).sum({1}); });  // an output has elements of its own
    stays([](const Tensor& x) { return (exp(x) * x.sum({1}, true)).sum({0}); });
    stays([](const Tensor& x) { return amax(x.sum({1}), {0}); });
    stays([](const Tensor& x) { return x.sum({0}); }, ones({1, 3}, int32));  // gives int64
    stays([](const Tensor& x) { return mean(mean(x.slice(0, Slice(0, 2)), {0}), {0}); });
}

TEST_CASE("sums over a dimension with a name are counted when the graph runs") {
    Graph graph = trace([](const Tensor& x) { return (x.sum({0}, true) * 2).expand({x.size(0), 4}).sum({0}); }, {{"x", numbers({3, 4}), {"batch"}}});
    const Graph before = graph;
    simplify(graph, {.allow_nonfinite = true});
    CHECK(listing(graph) ==
          "input x: float64 (batch, 4)\n"
          "%1: float64 (1, 4) = sum(x, dims=(0,), keepdim=true)\n"
          "%2: float64 (1, 4) = mul(%1, 2.0:float64)\n"
          "%3: float64 () = number(value=batch, factor=1.0, is_reciprocal=false, dtype=float64)\n"
          "%4: float64 (4,) = reshape(%2, shape=(4,))\n"
          "%5: float64 (4,) = mul(%4, %3)\n"
          "output output = %5\n");
    check_same_graphs(graph, before, {numbers({7, 4})});
}

TEST_CASE("tensors that are full of a number keep their shape and dtype") {
    const auto n = [](const Shape& shape, double number, DType dtype = float64) { return full(shape, number, dtype); };
    becomes("reciprocal", [](const Tensor& x) { return ones_like(x) / x; });
    becomes("reciprocal", [&](const Tensor& x) { return n({4}, 1) / x; });
    stays([&](const Tensor& x) { return n({3, 3}, 1) / x[0].sum(); });
    stays([&](const Tensor& x) { return n({2, 3, 4}, 1) / x; });
    stays([&](const Tensor& x) { return n({3, 4}, 1, int64) / x.sum({1}, true); });
    stays([&](const Tensor& x) { return n({1}, 1) / x.sum(); });
    stays([&](const Tensor& x) { return x * n({2, 3, 4}, -1); });
    stays([&](const Tensor& x) { return pow(x[0].sum(), n({3, 4}, 2)); });
    stays([&](const Tensor& x) { return pow(x[0], n({3, 4}, 2)); });
    stays([&](const Tensor& x) { return matmul(x, n({4, 4}, 1) / 9); });
    stays([&](const Tensor& x) { return n({3, 4}, 1, float64) / x; }, ones({3, 4}));  // gives another dtype
}

TEST_CASE("what would change results stays") {
    stays([](const Tensor& x) { return x * 0; });
    stays([](const Tensor& x) { return x - x; });
    stays([](const Tensor& x) { return exp(log(x)); });
    stays([](const Tensor& x) { return log(exp(x)); });
    stays([](const Tensor& x) { return x + 0.0; }, tensor({1, 2}));             // gives floats
    stays([](const Tensor& x) { return x + zeros({2, 1, 1}, float64); });       // gives another shape
    stays([](const Tensor& x) { return x.to(float32) * ones({1}, float64); });  // gives another dtype
    stays([](const Tensor& x) { return x / 1; }, tensor({1, 2}));               // gives floats
    stays([](const Tensor& x) { return relu(x) * 2; });
    constexpr double inf = std::numeric_limits<double>::infinity();
    Graph graph = trace([](const Tensor& x) { return x * 0 + (x - x); }, {{"x", numbers({2})}});
    optimize(graph);
    CHECK(isnan(graph({tensor({inf, -inf}, float64)})[0]).all().item<bool>());
}

namespace {
// The passes leave nan and infinities where the program has them.
template <class Fn>
void keeps(const Fn& fn, const std::vector<Tensor>& traced_with, const std::vector<Tensor>& special, const std::vector<std::string>& dims = {}) {
    std::vector<TraceInput> inputs;
    for (std::size_t i = 0; i < traced_with.size(); ++i) {
        inputs.push_back({"x" + std::to_string(i), traced_with[i], i == 0 ? dims : std::vector<std::string>()});
    }
    Graph graph = trace(fn, inputs);
    const std::string before = graph.str();
    optimize(graph);
    INFO("before:\n" << before << "after:\n" << graph.str());
    const Tensor wanted = fn(special), got = graph(special)[0];
    INFO(wanted.str() << "\n" << got.str());
    CHECK(allclose(got, wanted, 1e-9, 0, /*equal_nan=*/true));
}
}  // namespace

TEST_CASE("nan and infinities come out as they were") {
    using List = std::vector<Tensor>;
    constexpr double inf = std::numeric_limits<double>::infinity();
    const Tensor a = tensor({2.0, 1.0}), b = tensor({-1.0, 1.0}), c = tensor({3.0, 1.0});
    const auto product = [](const List& x) { return x[2] * x[0] + x[2] * x[1]; };
    const auto quotient = [](const List& x) { return x[0] / x[2] - x[1] / x[2]; };
    for (const double number : {inf, -inf, 0.0}) {
        INFO(number);
        const Tensor special = tensor({number, 1.0});
        keeps(product, {a, b, c}, {a, b, special});
        keeps(quotient, {a, b, c}, {a, b, special});
        keeps([&](const List& x) { return special * x[0] + special * x[1]; }, {a, b}, {a, b});
        keeps([&](const List& x) { return x[0] / number + x[1] / number; }, {a, b}, {a, b});
        keeps([&](const List& x) { return (x[0] * number).sum() + 0; }, {a}, {a - b});
        keeps([](const List& x) { return (x[0] / x[1]).sum({1}); }, {ones({1, 2}, float64), ones({1, 1}, float64)},
              {tensor({{0.0, 1.0}}).to(float64), tensor({{number}}).to(float64)});
        keeps([](const List& x) { return mean(x[0] * x[1]); }, {ones({2}, float64), ones({}, float64)},
              {tensor({2.0, -1.0}, float64), tensor(number).to(float64)});
        keeps([](const List& x) { return (x[0] * x[1]).sum(); }, {ones({4}, float64), ones({}, float64)},
              {zeros({0}, float64), tensor(number).to(float64)}, {"n"});
    }
    keeps([](const List& x) { return pow(x[0], 0.5); }, {c}, {tensor({-inf, -0.0})});
    keeps([](const List& x) { return pow(x[0], -0.5); }, {c}, {tensor({-inf, -0.0})});
    keeps([](const List& x) { return (x[0] / x[0].size(0)).sum(); }, {ones({4}, float64)}, {zeros({0}, float64)}, {"n"});
    keeps([](const List& x) { return x[1].expand({x[0].size(0), 2}).sum({0}); }, {ones({4}, float64), ones({2}, float64)},
          {zeros({0}, float64), tensor({inf, 1.0}, float64)}, {"n"});
}

TEST_CASE("whole numbers that no double holds stay what they are") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(), odd = (std::int64_t{1} << 53) + 1;
    const auto stay = [](const auto& fn) {
        const Tensor x = arange(3, int64);
        Graph graph = trace(fn, {{"x", x}});
        optimize(graph);
        INFO(graph.str());
        CHECK(equal(graph({x})[0], fn(x)));
    };
    stay([&](const Tensor& x) { return minimum(x, full({3}, most, int64)); });
    stay([&](const Tensor& x) { return x + full({3}, odd, int64); });
    stay([&](const Tensor& x) { return x + tensor({odd, odd, odd}); });
    stay([&](const Tensor& x) { return x * full_like(x, odd); });
    stay([&](const Tensor& x) { return x * full_like(x, -odd); });
    stay([&](const Tensor& x) { return where(x > 1, full({3}, odd, int64), full({3}, odd - 1, int64)); });
    stay([&](const Tensor& x) { return where(x > 1, tensor({odd, odd}).sum() * 0 + odd, tensor({odd, odd}).sum() * 0 + (odd - 1)) + x; });
    stay([&](const Tensor& x) { return x.masked_fill(x > 1, most); });
}
