// Examples of size 1 in a named dimension: what copies for other sizes may copy nothing there.
#include <catch2/catch.hpp>

#include "../../fails.h"
#include "tapir/autograd/trace/check_trace.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("an LSTM is traced with one sentence") {
    manual_seed(1);
    nn::LSTM lstm(3, 4, {.batch_first = true});
    const auto fn = [&](const Tensor& x) { return lstm(x).output; };
    const Graph graph = trace(fn, {{"x", randn({1, 5, 3}), {"batch"}}});
    for (const int n : {1, 2, 7}) CHECK(check_trace(graph, fn, {randn({n, 5, 3})}).ok);
}

TEST_CASE("attention is traced with one token") {
    manual_seed(2);
    nn::MultiheadAttention attention(4, 2, {.batch_first = true});
    const auto fn = [&](const Tensor& x) { return attention(x, x, x).output; };
    const Graph graph = trace(fn, {{"x", randn({2, 1, 4}), {"", "time"}}});
    for (const int n : {1, 2, 6}) CHECK(check_trace(graph, fn, {randn({2, n, 4})}).ok);
}

TEST_CASE("copies that only some sizes need are no difference") {
    const auto fn = [](const Tensor& x) { return exp(x.t().contiguous()) + x.t().reshape({x.numel()}).sum(); };
    for (const int example : {1, 3}) {
        const Graph graph = trace(fn, {{"x", randn({example, 4}), {"batch"}}});
        for (const int n : {0, 1, 2, 7}) CHECK(check_trace(graph, fn, {randn({n, 4})}).ok);
    }
    const auto steps = [](const Tensor& x) {
        const auto combine = [](const Tensor& h, const Tensor& row) {
            const Tensor next = tanh(h.t().contiguous()).t() + row;
            return std::pair{next, next};
        };
        return scan(combine, {x}, {ones({3, 4})}).outputs[0];
    };
    const Graph graph = trace(steps, {{"x", randn({1, 4}), {"batch"}}});
    for (const int n : {1, 2, 7}) CHECK(check_trace(graph, steps, {randn({n, 4})}).ok);
}

TEST_CASE("an example of size 1 for which the program does other things is refused") {
    const auto refused = [](const auto& fn) { CHECK_THROWS_AS(trace(fn, {{"x", randn({1, 3}), {"b"}}}), TapeError); };
    refused([](const Tensor& x) { return x.squeeze().cumsum(0).sum(); });
    refused([](const Tensor& x) { return x.size(0) == 1 ? x * 2 : x * 3; });
    refused([](const Tensor& x) { return softmax(x, x.size(0) == 1 ? 0 : 1); });
    refused([](const Tensor& x) { return x.squeeze(0); });
}

TEST_CASE("what the program does for size 1 alone is refused, and undone") {
    nn::BatchNorm1d norm(4);
    const auto fn = [&](const Tensor& x) {
        const Tensor y = norm(x.unsqueeze(2).expand({x.size(0), 4, 2}));
        return x.size(0) == 1 ? y + 1 : y;
    };
    FAILS(TapeError, "trace: what the program does depends on the sizes", trace(fn, {{"x", randn({1, 4}), {"batch"}}}));
    CHECK(norm.num_batches_tracked.item<int>() == 0);
    CHECK(sum(abs(norm.running_mean)).item() == 0);
}

TEST_CASE("a number made of sizes may stand before other constants") {
    const auto fn = [](const Tensor& x) { return x / x.size(0) + tensor({1.f, 2.f, 3.f}) * tensor({{1.f}, {2.f}}).sum(); };
    const Graph graph = trace(fn, {{"x", randn({2, 3}), {"batch"}}});
    for (const int n : {1, 2, 5}) CHECK(check_trace(graph, fn, {randn({n, 3})}).ok);
}
