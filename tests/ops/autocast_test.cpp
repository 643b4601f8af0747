// Mixed precision: which ops convert, gradients through the conversions, weights converted once; and GradScaler. Where CUDA is
// there, on it too.
#include <cmath>
#include <limits>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

std::vector<Device> devices() { return cuda_is_available() ? std::vector<Device>{cpu, cuda} : std::vector<Device>{cpu}; }

}  // namespace

TEST_CASE("autocast converts as the lists say", "[ops]") {
    for (const Device device : devices()) {
        for (const DType low : {bfloat16, float16}) {
            const Tensor x = rand({4, 4}).to(device) + 0.5, h = x.to(low), wide = x.to(float64), b = rand({4}).to(device);
            const AutocastScope autocast(low);
            CHECK(matmul(x, x).dtype() == low);
            CHECK(mm(h, x).dtype() == low);
            CHECK(mv(x, b).dtype() == low);
            CHECK(linear(x, x, b).dtype() == low);
            CHECK(matmul(x.unsqueeze(0), x).dtype() == low);
            CHECK(matmul(wide, wide).dtype() == float64);
            CHECK(exp(h).dtype() == float32);
            CHECK(log(h).dtype() == float32);
            CHECK(pow(h, 2).dtype() == float32);
            CHECK(reciprocal(h).dtype() == float32);
            CHECK(erfinv(h - 1).dtype() == float32);
            const Tensor images = ones({1, 1, 2, 2}).to(device), grid = zeros({1, 1, 1, 2}).to(device);
            CHECK(grid_sample(images.to(low), grid.to(low)).dtype() == low);
            CHECK(grid_sample(images.to(low), grid).dtype() == float32);
            CHECK(grid_sample(images, grid.to(low)).item() == 1);
            CHECK(softplus(h).dtype() == float32);
            CHECK(tanh(h).dtype() == low);
            CHECK(relu(h).dtype() == low);
            CHECK((h + x).dtype() == float32);
            CHECK((h * h).dtype() == low);
            CHECK(softmax(h, 1).dtype() == float32);
            CHECK(log_softmax(h, 1).dtype() == float32);
            CHECK(logsumexp(h, {1}).dtype() == float32);
            CHECK(layer_norm(h, {4}).dtype() == float32);
            CHECK(sum(h).dtype() == float32);
            CHECK(prod(h, 0).dtype() == float32);
            CHECK(cumsum(h, 0).dtype() == float32);
            CHECK(cumprod(h, 0).dtype() == float32);
            CHECK(norm(h).dtype() == float32);
            CHECK(mse_loss(h, h).dtype() == float32);
            CHECK(cross_entropy(h, tensor({0, 1, 2, 3}, {int64, device})).dtype() == float32);
            {
                const AutocastScope off(low, false);
                CHECK(matmul(x, x).dtype() == float32);
                CHECK(exp(h).dtype() == low);
            }
            CHECK(matmul(x, x).dtype() == low);
        }
        const Tensor x = rand({4, 4}).to(device);
        CHECK(matmul(x, x).dtype() == float32);
    }
    FAILS(DTypeError, "AutocastScope: the dtype must be float16 or bfloat16, got float32", AutocastScope scope(float32));
    const Tensor p = rand({3}, bfloat16);
    const AutocastScope autocast(bfloat16);
    FAILS(ValueError, "use binary_cross_entropy_with_logits", binary_cross_entropy(p, p));
}

TEST_CASE("gradients through autocast have the parameters' dtype", "[ops]") {
    for (const Device device : devices()) {
        const Tensor x = rand({5, 4}).to(device);
        const Tensor w = rand({3, 4}).to(device).requires_grad_();
        Tape tape;
        Tensor loss;
        std::size_t records;
        {
            const AutocastScope autocast(bfloat16);
            const Tensor first = linear(x, w);
            records = tape.size();
            const Tensor second = linear(x * 2, w);
            CHECK(tape.size() == records + 1);  // w is not converted again
            loss = sum(first * second);
        }
        tape.backward(loss);
        CHECK(w.grad().dtype() == float32);
        // d sum(2 (x w)^2) / dw = 4 (x w)^T x
        const Tensor want = matmul((matmul(x, w.detach().t()) * 4).t(), x);
        CHECK(amax(abs(w.grad() - want)).item() <= 0.03 * amax(abs(want)).item());
    }
}

TEST_CASE("a weight that changes is converted anew", "[ops]") {
    Tensor w = ones({2, 2}, {float32, cpu, true});
    const Tensor x = ones({1, 2});
    const AutocastScope autocast(bfloat16);
    CHECK(linear(x, w)[0][0].item() == 2);
    w.fill_(3);
    CHECK(linear(x, w)[0][0].item() == 6);
}

TEST_CASE("GradScaler scales, unscales, leaves out and adapts", "[optim]") {
    for (const Device device : devices()) {
        Tensor w = ones({2}, {float32, device, true});
        optim::SGD sgd({w}, {.lr = 0.5});
        optim::GradScaler scaler({.init_scale = 8, .growth_interval = 2});
        const auto step = [&](double factor) {
            sgd.zero_grad();
            Tape tape;
            tape.backward(scaler.scale(sum(w * factor)));
            const bool stepped = scaler.step(sgd);
            scaler.update();
            return stepped;
        };
        CHECK(step(1));
        CHECK(w[0].item() == 0.5);
        CHECK(scaler.get_scale() == 8);
        CHECK(step(1));
        CHECK(scaler.get_scale() == 16);
        CHECK_FALSE(step(std::numeric_limits<double>::infinity()));
        CHECK(w[0].item() == 0);
        CHECK(scaler.get_scale() == 8);
        CHECK(step(1));
        CHECK(scaler.get_scale() == 8);

        sgd.zero_grad();
        Tape tape;
        tape.backward(scaler.scale(sum(w * 3)));
        CHECK(w.grad()[0].item() == 24);
        scaler.unscale_(sgd);
        CHECK(w.grad()[0].item() == 3);
        FAILS(ValueError, "unscale_: the gradients of this optimizer were unscaled already", scaler.unscale_(sgd));
        CHECK(scaler.step(sgd));
        scaler.update();

        optim::GradScaler other;
        other.load_state_dict(scaler.state_dict());
        CHECK(other.get_scale() == scaler.get_scale());
        FAILS(ValueError, "load_state_dict: the state is not of this GradScaler:\n  missing: scale, growth_tracker", other.load_state_dict({}));
    }
    FAILS(ValueError, "GradScaler: init_scale 0", optim::GradScaler({.init_scale = 0}));
    optim::GradScaler off({.enabled = false});
    const Tensor loss = ones({});
    CHECK(off.scale(loss).is_same(loss));
}

TEST_CASE("recurrent cells run in 16 bits under autocast, with states of any dtype") {
    manual_seed(4);
    const nn::RNNCell rnn(5, 4);
    const nn::GRUCell gru(5, 4);
    const nn::LSTMCell lstm(5, 4);
    const nn::NaryTreeLSTMCell tree(5, 4);
    const nn::ChildSumTreeLSTMCell sums(5, 4);
    const auto run = [&](const Tensor& x, const Tensor& h, const Tensor& c) {
        const Tensor given = lstm(x, {h, c}).h, fresh = lstm(x, lstm(x)).h;
        const LSTMState leaf = tree(x), other{h, c};
        return stack({rnn(x, h), rnn(x, rnn(x)), gru(x, h), gru(x, gru(x)), given, fresh, tree(leaf, leaf).h, tree(leaf, other).h,
                      sums(x, {other, sums(x, {})}).h});
    };
    const Tensor x = randn({3, 5}), h = randn({3, 4}).requires_grad_(), c = randn({3, 4}).requires_grad_();
    Tensor want, have, want_h, want_c;
    {
        Tape tape;
        want = run(x, h, c);
        tape.backward(sum(want));
        want_h = h.grad();
        want_c = c.grad();
    }
    for (Tensor t : {h, c}) t.zero_grad();
    for (const DType low : {float16, bfloat16}) {
        const double limit = low == float16 ? 1e-2 : 8e-2;
        {
            const AutocastScope autocast(low);
            Tape tape;
            have = run(x, h, c);
            tape.backward(sum(have));
        }
        CHECK(have.dtype() == low);
        CHECK(h.grad().dtype() == float32);
        for (const auto& [a, b] : {std::pair(have, want), std::pair(h.grad(), want_h), std::pair(c.grad(), want_c)}) {
            CHECK((a.detach().to(float32) - b.detach()).abs().amax().item() < limit);
        }
        for (Tensor t : {h, c}) t.zero_grad();
    }
    FAILS(DTypeError, "c has dtype float64, the gates have float32", lstm(x, {h, zeros({3, 4}, float64)}));
}
