// scaled_dot_product_attention beside what the op table tests: pieces, memory, masks, dropout, refusals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// With plain ops, all at once.
Tensor reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& add, bool is_causal) {
    Tensor scores = matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.shape().back()));
    if (add.defined()) scores = scores + add;
    if (is_causal) scores = scores + triu(full({q.shape()[q.dim() - 2], k.shape()[k.dim() - 2]}, -kInf, q.dtype()), 1);
    return matmul(softmax(scores, -1), v);
}

double difference(const Tensor& a, const Tensor& b) { return (a - b).abs().amax().item(); }

template <class E, class Fn>
std::string message(const Fn& fn) {
    try {
        fn();
    } catch (const E& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("attention in pieces is attention") {
    // (3, 2, 1200, 900) scores are more than are kept: the first dimension and the queries are split.
    Tensor q = randn({3, 2, 1200, 8}, float64).requires_grad_(), k = randn({2, 900, 8}, float64).requires_grad_();
    Tensor v = randn({3, 1, 900, 4}, float64).requires_grad_(), mask = randn({1, 900}, float64).requires_grad_();
    const Tensor weight = randn({3, 2, 1200, 4}, float64);
    for (const bool is_causal : {false, true}) {
        INFO("causal " << is_causal);
        Tape tape({.persistent = true});
        const Tensor y = scaled_dot_product_attention(q, k, v, mask, 0, is_causal), expected = reference(q, k, v, mask, is_causal);
        CHECK(difference(y, expected) < 1e-12);
        const std::vector<Tensor> g = tape.gradient(sum(y * weight), {q, k, v, mask});
        const std::vector<Tensor> g_expected = tape.gradient(sum(expected * weight), {q, k, v, mask});
        for (std::size_t i = 0; i < g.size(); ++i) CHECK(difference(g[i], g_expected[i]) < 1e-10);
        const Tensor unrecorded = [&] {
            const NoGradScope off;
            return scaled_dot_product_attention(q, k, v, mask, 0, is_causal);
        }();
        CHECK(difference(unrecorded, expected) < 1e-12);
    }
    // Many examples of few scores: several in a piece.
    const Tensor x = randn({500, 4, 50, 4});
    CHECK(difference(scaled_dot_product_attention(x, x, x), reference(x, x, x, {}, false)) < 1e-5);
}

TEST_CASE("attention over long sequences never holds all scores") {
    const Tensor q = randn({1, 6000, 4}).requires_grad_();  // 36 million scores: 144 MB
    const auto before = memory_stats().live_bytes;
    reset_peak_memory();
    Tape tape;
    const Tensor y = scaled_dot_product_attention(q, q, q);
    tape.backward(sum(square(y)));
    CHECK(memory_stats().peak_bytes - before < 16'000'000);
    CHECK(std::isfinite(q.grad().sum().item()));
}

TEST_CASE("dropout of attention in pieces draws the same in backward") {
    Tensor v = randn({1, 2300, 2}, float64).requires_grad_();
    const Tensor q = randn({1, 2300, 4}, float64), g = randn({1, 2300, 2}, float64);
    const auto run = [&] {
        manual_seed(3);
        return scaled_dot_product_attention(q, q, v, {}, 0.5);
    };
    Tape tape;
    tape.backward(sum(run() * g));
    // The result is linear in v: <A v, g> = <v, A^T g>.
    const NoGradScope off;
    CHECK(sum(run() * g).item() == Approx(sum(v * v.grad()).item()).epsilon(1e-9));
    CHECK(difference(run(), reference(q, q, v, {}, false)) > 0.01);
}

TEST_CASE("queries that may look at nothing get zeros") {
    Tensor q = randn({3, 4}).requires_grad_(), k = randn({5, 4}).requires_grad_(), v = randn({5, 2}).requires_grad_();
    const Tensor bools = tensor({1, 0, 1}).to(bool_).reshape({3, 1}), floats = tensor({0.0, -kInf, 0.0}).reshape({3, 1});
    for (const DType dtype : {float32, float16, bfloat16}) {
        INFO(name(dtype));
        for (const Tensor& mask : {bools, floats.to(dtype)}) {
            for (const Tensor& t : {q, k, v}) Tensor(t).zero_grad();
            Tape tape;
            const Tensor y = scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), mask);
            tape.backward(sum(y.to(float32)));
            CHECK(y[1].abs().amax().item() == 0);
            CHECK(y[0].abs().amax().item() > 0);
            CHECK(q.grad()[1].abs().amax().item() == 0);
            CHECK(!k.grad().isnan().any().item<bool>());
        }
    }
}

TEST_CASE("causal attention without a mask") {
    using Sizes = std::pair<int, int>;
    for (const auto& [queries, keys] : {Sizes{5, 5}, {70, 40}, {40, 70}, {300, 300}, {700, 2000}, {2500, 900}}) {
        INFO(queries << " queries, " << keys << " keys");
        Tensor q = randn({2, queries, 4}, float64).requires_grad_(), k = randn({2, keys, 4}, float64).requires_grad_();
        Tensor v = randn({2, keys, 3}, float64).requires_grad_();
        k.index_put_({0, keys - 1}, 1e200);  // seen by few: others must not notice
        const NoGradScope off;
        const Tensor y = scaled_dot_product_attention(q, k, v, {}, 0, true), expected = reference(q, k, v, {}, true);
        const int blind = std::min(queries, keys - 1);
        CHECK(difference(y.narrow(1, 0, blind), expected.narrow(1, 0, blind)) < 1e-12);
        CHECK(difference(y[1], expected[1]) < 1e-12);
    }
    Tensor q = randn({2, 90, 4}, float64).requires_grad_(), k = randn({2, 90, 4}, float64).requires_grad_();
    Tape tape({.persistent = true});
    const Tensor weight = randn({2, 90, 4}, float64);
    const auto g = tape.gradient(sum(scaled_dot_product_attention(q, k, k, {}, 0, true) * weight), {q, k});
    const auto expected = tape.gradient(sum(reference(q, k, k, {}, true) * weight), {q, k});
    CHECK(difference(g[0], expected[0]) < 1e-12);
    CHECK(difference(g[1], expected[1]) < 1e-12);
}

TEST_CASE("queries that may look at nothing for a mask and the causal limit together get zeros") {
    for (const std::int64_t length : {4, 600}) {  // 600: in pieces
        const Tensor q = randn({2, length, 4}), k = randn({2, length, 4}), v = randn({2, length, 3});
        Tensor kept = ones({2, 1, length}).to(bool_);  // padded on the left
        kept.index_put_({1, 0, Slice(0, 3)}, false);
        const Tensor floats = where(kept, zeros({}), -kInf), limits = triu(full({length, length}, -kInf), 1);
        const Tensor padded = softmax(matmul(q[1], k[1].t()) / 2 + floats[1] + limits, -1)[Slice(3)];
        for (const Tensor& mask : {kept, floats}) {
            for (const bool recorded : {false, true}) {
                std::optional<Tape> tape;
                if (recorded) tape.emplace();
                const Tensor y = scaled_dot_product_attention(q, k, v, mask, 0, /*is_causal=*/true);
                CHECK(difference(y[0], reference(q[0], k[0], v[0], {}, true)) < 1e-5);
                CHECK(y[1][Slice(0, 3)].abs().amax().item() == 0);
                CHECK(difference(y[1][Slice(3)], matmul(padded, v[1])) < 1e-5);
            }
        }
    }
}

TEST_CASE("attention of nothing, and what it refuses") {
    CHECK(scaled_dot_product_attention(zeros({2, 0, 3}), zeros({2, 4, 3}), zeros({2, 4, 5})).shape() == Shape{2, 0, 5});
    CHECK(scaled_dot_product_attention(zeros({2, 3, 3}), zeros({2, 0, 3}), zeros({2, 0, 5})).abs().sum().item() == 0);
    const Tensor q = randn({2, 3, 4}), k = randn({2, 5, 4}), v = randn({2, 5, 2});
    const auto begins = [](const std::string& text) { return text.rfind("attention_test.cpp:", 0) == 0; };
    CHECK(begins(message<ShapeError>([&] { scaled_dot_product_attention(q, v, v); })));
    CHECK(begins(message<ShapeError>([&] { scaled_dot_product_attention(q, k, q); })));
    CHECK(begins(message<ShapeError>([&] { scaled_dot_product_attention(randn({4}), k, v); })));
    CHECK(begins(message<ShapeError>([&] { scaled_dot_product_attention(q, k, v, zeros({2, 2, 3, 5})); })));
    CHECK(begins(message<ShapeError>([&] { scaled_dot_product_attention(randn({3, 3, 4}), k, v); })));
    CHECK(begins(message<DTypeError>([&] { scaled_dot_product_attention(q.to(float64), k, v); })));
    CHECK(begins(message<DTypeError>([&] { scaled_dot_product_attention(q, k, v, ones({3, 5}, int64)); })));
    CHECK(begins(message<ValueError>([&] { scaled_dot_product_attention(q, k, v, {}, 2); })));
}
