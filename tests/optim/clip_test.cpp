// Clipping gradients by their norm and by their values.
#include <algorithm>
#include <cmath>

#include "../nn/check.h"
#include "tapir/optim/optim.h"

using namespace tapir;

TEST_CASE("clip_grad_norm_ scales all gradients together") {
    Tensor a = ones({2}).requires_grad_(), b = ones({1, 2}).requires_grad_(), none = ones({2}).requires_grad_();
    const auto reset = [&] {
        a.set_grad(tensor({3.0, 0.0}));
        b.set_grad(tensor({{0.0, -4.0}}));
    };
    reset();
    CHECK(optim::clip_grad_norm_({a, b, none}, 10).item() == Approx(5));
    CHECK(a.grad().to_vector<float>() == std::vector<float>{3, 0});
    CHECK(optim::clip_grad_norm_({a, b, none, a}, 1).item() == Approx(5));
    check::same("a", a.grad(), {0.6, 0}, 1e-6);
    check::same("b", b.grad(), {0, -0.8}, 1e-6);
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 1, 1).item() == Approx(7));
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 2, INFINITY).item() == Approx(4));
    check::same("b", b.grad(), {0, -2}, 1e-6);
    reset();
    CHECK(optim::clip_grad_norm_({a, b}, 100, 3).item() == Approx(std::cbrt(91.0)));
    optim::clip_grad_value_({a, b, none}, 2);
    check::same("a", a.grad(), {2, 0}, 1e-6);
    check::same("b", b.grad(), {0, -2}, 1e-6);
    a.set_grad(full({2}, 1e30));  // its squares are beyond float
    CHECK(optim::clip_grad_norm_({a}, 1).item() == Approx(std::sqrt(2.0) * 1e30));
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_norm_({a}, -1); }).empty());
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_norm_({a}, 1, 0); }).empty());
    CHECK(!check::message<ValueError>([&] { optim::clip_grad_value_({a}, NAN); }).empty());
}

TEST_CASE("clip_grad_norm_ adds 1e-6 to the norm") {
    Tensor a = ones({2}, float64).requires_grad_();
    a.set_grad(tensor({3e-6, 4e-6}, float64));
    CHECK(optim::clip_grad_norm_({a}, 3e-6).item() == Approx(5e-6));
    check::same("a", a.grad(), {1.5e-6, 2e-6}, 1e-12);  // times 3 / (5 + 1)
    a.set_grad(tensor({3.0, 4.0}, float64));
    optim::clip_grad_norm_({a}, 5);
    CHECK(a.grad()[0].item() == Approx(3 * (5 / (5 + 1e-6))).epsilon(1e-12));
    CHECK(a.grad()[0].item() < 3);
}

TEST_CASE("clipping sums up repeated rows first, and keeps them sparse") {
    nn::Embedding table(5, 2);
    const auto backward = [&] {
        table.zero_grad();
        Tape tape;
        tape.backward(sum(table(tensor({1, 3, 1}))));
    };
    backward();
    const double norm = std::sqrt(2 * 4.0 + 2 * 1.0);
    CHECK(optim::clip_grad_norm_(table.parameters(), 1).item() == Approx(norm));
    const Tensor start = table.weight.clone().detach();
    optim::SGD(table.parameters(), {.lr = 1}).step();
    check::same("row 1", start[1] - table.weight.detach()[1], {2 / norm, 2 / norm}, 1e-5);
    backward();
    optim::clip_grad_value_(table.parameters(), 1.5);
    check::same("values", table.weight.grad(), {0, 0, 1.5, 1.5, 0, 0, 1, 1, 0, 0}, 1e-6);
}

TEST_CASE("norms of large gradients are their definition's, the same on any number of threads") {
    const int before = num_threads();
    for (const DType dtype : {float32, float64}) {
        const std::int64_t n = 700'001;  // more than the blocks of several threads, and a rest
        Tensor w = zeros({n}, dtype).requires_grad_(), small = zeros({5000}, dtype).requires_grad_();
        const Tensor g = check::values({n}, 1, dtype), h = check::values({5000}, 2, dtype);
        const auto numbers = g.to_vector<double>(), more = h.to_vector<double>();
        for (const double p : {1.0, 2.0, 2.5, 3.0, static_cast<double>(INFINITY)}) {
            double expected = 0;
            for (const auto& list : {numbers, more}) {
                for (const double x : list) expected = std::isinf(p) ? std::max(expected, std::abs(x)) : expected + std::pow(std::abs(x), p);
            }
            if (!std::isinf(p)) expected = std::pow(expected, 1 / p);
            std::vector<double> norms;
            std::vector<std::vector<float>> clipped;
            for (const int threads : {1, 2, 3}) {
                set_num_threads(threads);
                w.set_grad(g.clone());
                small.set_grad(h.clone());
                norms.push_back(optim::clip_grad_norm_({w, small, w}, 0.5, p).item());
                clipped.push_back(w.grad().to_vector<float>());
            }
            CHECK(norms[0] == Approx(expected).epsilon(dtype == float64 ? 1e-12 : 1e-6));
            CHECK(norms[1] == norms[0]);
            CHECK(norms[2] == norms[0]);
            CHECK(clipped[1] == clipped[0]);
            CHECK(clipped[2] == clipped[0]);
            CHECK(clipped[0][7] == Approx(numbers[7] * std::min(1.0, 0.5 / expected)).epsilon(1e-5));
        }
        set_num_threads(2);
        Tensor odd = g.clone();
        odd[600'000].fill_(NAN);
        odd[5].fill_(INFINITY);
        w.set_grad(odd);
        for (const double p : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
            CHECK(std::isnan(optim::clip_grad_norm_({w}, INFINITY, p).item()));
            w.set_grad(odd.clone());
        }
        w.set_grad(g.clone());
        optim::clip_grad_value_({w}, 0.25);
        CHECK(w.grad().equal(g.clamp(-0.25, 0.25)));
    }
    set_num_threads(before);
}

TEST_CASE("clipping rows that need no summing up leaves what they were made of") {
    nn::Embedding table(5, 2);
    const Tensor kept = full({2, 2}, 4.0);
    const Tensor other = zeros({2, 2}).requires_grad_();
    Tape tape;
    tape.backward(table(tensor({1, 3})) + other, {.gradient = kept});
    optim::clip_grad_norm_(table.parameters(), 0.1);
    CHECK(other.grad().to_vector<float>() == std::vector<float>(4, 4.0F));
    CHECK(kept.to_vector<float>() == std::vector<float>(4, 4.0F));
    CHECK(optim::clip_grad_norm_(table.parameters(), 1e9).item() == Approx(0.1));
}
