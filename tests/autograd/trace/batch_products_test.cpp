// Products with one matrix that are made one: which, and that the results stay.
#include <catch2/catch.hpp>
#include <functional>

#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

int count_of(const Graph& graph, const std::string& op) {
    int count = 0;
    for (const auto& node : graph.nodes()) count += node->op() == op;
    return count;
}

}  // namespace

TEST_CASE("a tree's products are made level by level") {
    manual_seed(1);
    const nn::NaryTreeLSTMCell cell(40, 40);
    const std::function<LSTMState(const Tensor&, std::int64_t, std::int64_t)> encode = [&](const Tensor& x, std::int64_t from, std::int64_t to) {
        if (to - from == 1) return cell(x[from]);
        const std::int64_t middle = from + (to - from) / 3 + 1;  // not balanced
        return cell(encode(x, from, middle), encode(x, middle, to));
    };
    const Tensor x = randn({9, 40});
    const auto tree = [&](const Tensor& t) {
        const LSTMState state = encode(t, 0, 9);
        return std::vector<Tensor>{state.h, state.c};
    };
    Graph graph = trace(tree, {{"x", x}});
    CHECK(count_of(graph, "linear") == 17);
    Graph batched = graph;
    CHECK(batch_products(batched) > 1);
    batched.check();
    CHECK(count_of(batched, "linear") < 9);
    const std::vector<Tensor> wanted = tree(x), got = batched({x});
    for (std::size_t i = 0; i < 2; ++i) CHECK(allclose(got[i], wanted[i], 1e-4, 1e-6));
    for (int i = 0; i < 3; ++i) {
        const std::vector<Tensor> run = graph.run({{"x", x}});
        for (std::size_t k = 0; k < 2; ++k) CHECK(equal(run[k], got[k]));
    }
}

TEST_CASE("products that need each other stay apart") {
    const Tensor w = randn({40, 40}).requires_grad_();
    Graph graph = trace(
        [=](const Tensor& x, const Tensor& y) {
            const Tensor a = matmul(x, w), b = matmul(tanh(a), w);  // one after the other
            return std::vector<Tensor>{b, matmul(y, w) + 1};        // beside the first
        },
        {{"x", randn({2, 40})}, {"y", randn({3, 40})}});
    const Tensor x = randn({2, 40}), y = randn({3, 40});
    const std::vector<Tensor> wanted = graph({x, y});
    CHECK(batch_products(graph) == 1);
    graph.check();
    CHECK(count_of(graph, "matmul") == 2);
    const std::vector<Tensor> got = graph({x, y});
    for (std::size_t i = 0; i < 2; ++i) CHECK(allclose(got[i], wanted[i], 1e-4, 1e-5));
}

TEST_CASE("products with others, of many rows, or of sizes that are not known stay as they are") {
    const Tensor w = randn({40, 40}).requires_grad_(), v = randn({40, 40}).requires_grad_(), small = randn({4, 40}).requires_grad_();
    Graph graph = trace(
        [=](const Tensor& x, const Tensor& many, const Tensor& some) {
            return std::vector<Tensor>{linear(x, w), linear(x, v), linear(many, w), linear(some, w), linear(x, small), linear(x * 2, small)};
        },
        {{"x", randn({2, 40})}, {"many", randn({100, 40})}, {"some", randn({3, 40}), {"batch"}}});
    CHECK(batch_products(graph) == 0);
}

TEST_CASE("two groups that feed each other make no circle") {
    manual_seed(2);
    const Tensor w = randn({40, 40}).requires_grad_(), v = randn({40, 40}).requires_grad_();
    const auto fn = [=](const Tensor& x, const Tensor& y) {
        const Tensor a = matmul(x, w), b = matmul(tanh(a), v);  // w, then v
        const Tensor c = matmul(y, v), d = matmul(tanh(c), w);  // v, then w
        return b + d;
    };
    Graph graph = trace(fn, {{"x", randn({40})}, {"y", randn({40})}});
    batch_products(graph);
    graph.check();
    const Tensor x = randn({40}), y = randn({40});
    CHECK(allclose(graph({x, y})[0], fn(x, y), 1e-4, 1e-5));
    for (int i = 0; i < 3; ++i) CHECK(allclose(graph.run({{"x", x}, {"y", y}})[0], fn(x, y), 1e-4, 1e-5));
}

TEST_CASE("gradients of batched products") {
    manual_seed(3);
    const Tensor w = randn({40, 40}).requires_grad_();
    const auto fn = [=](const Tensor& x) { return sum(tanh(matmul(x[0], w)) * tanh(matmul(x[1], w))); };
    Graph graph = trace(fn, {{"x", randn({2, 40})}});
    CHECK(batch_products(graph) == 1);
    const Tensor x = randn({2, 40}).requires_grad_();
    Tape tape;
    const std::vector<Tensor> wanted = tape.gradient(fn(x), {x, w}), got = tape.gradient(graph({x})[0], {x, w});
    for (std::size_t i = 0; i < 2; ++i) CHECK(allclose(got[i], wanted[i], 1e-4, 1e-5));
}

TEST_CASE("products that are outputs are tensors of their own") {
    const Tensor w = randn({40, 40}).requires_grad_(), b = randn({40}).requires_grad_(), u = ones({40}).requires_grad_();
    const Graph graph = trace([&](const Tensor& x, const Tensor& y) { return std::pair(linear(x, w, b), linear(y, w, b).reshape({5, 8})); },
                              {{"x", ones({40})}, {"y", ones({40})}});
    for (int i = 0; i < 3; ++i) {
        std::vector<Tensor> results = graph.run({{"x", randn({40})}, {"y", randn({40})}});
        CHECK_FALSE(results[0].shares_storage(results[1]));
        Tape tape;
        const Tensor loss = (u * results[0]).sum();
        results[1].add_(1);
        CHECK_NOTHROW(tape.backward(loss));
    }
}
