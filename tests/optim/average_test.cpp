// Averages of weights against their closed forms, in and out of the model, state.
#include <stdexcept>

#include "../fails.h"
#include "../nn/check.h"
#include "tapir/optim/optim.h"

using namespace tapir;

namespace {

// What the parameter is before update t.
Tensor at(int t, DType dtype = float64) { return check::values({3, 2}, 1 + 1.7 * t, dtype); }

}  // namespace

TEST_CASE("an exponential moving average is the weighted sum of all values") {
    for (const DType dtype : {float32, float64}) {
        Tensor p = at(0, dtype).requires_grad_();
        optim::ExponentialMovingAverage ema({p}, {.decay = 0.8});
        CHECK(ema.averages()[0].to_vector<double>() == p.to_vector<double>());
        Tensor expected = at(0) * std::pow(0.8, 6);
        for (int t = 1; t <= 6; ++t) {
            p.detach().copy_(at(t));
            ema.update();
            expected = expected + at(t) * (0.2 * std::pow(0.8, 6 - t));
        }
        CHECK(ema.updates() == 6);
        check::same("average", ema.averages()[0], expected.to_vector<double>(), dtype == float32 ? 1e-6 : 1e-14);
        CHECK(p.to_vector<double>() == at(6, dtype).to_vector<double>());
        CHECK(!ema.averages()[0].requires_grad());
    }
}

TEST_CASE("a moving average warms up") {
    Tensor p = zeros({}, float64);
    optim::ExponentialMovingAverage ema({p}, {.decay = 0.15, .warmup = true});
    p.fill_(1);
    ema.update();  // a decay of 1 / 10
    CHECK(ema.averages()[0].item() == Approx(0.9));
    ema.update();  // 2 / 11 is above 0.15
    CHECK(ema.averages()[0].item() == Approx(1 - 0.1 * 0.15));
}

TEST_CASE("a stochastic weight average is the mean, whatever the weights were at the beginning") {
    Tensor p = full({3, 2}, 100, float64);
    optim::StochasticWeightAverage swa({p});
    Tensor sum = zeros({3, 2}, float64);
    for (int t = 0; t < 5; ++t) {
        p.copy_(at(t));
        sum = sum + at(t);
        swa.update();
        if (t == 0) CHECK(swa.averages()[0].to_vector<double>() == at(0).to_vector<double>());
    }
    check::same("mean", swa.averages()[0], (sum / 5).to_vector<double>(), 1e-14);
}

TEST_CASE("averages of 16-bit weights are kept in float32, strided and counting tensors are followed") {
    Tensor half = ones({4}, bfloat16), strided = zeros({2, 3}).t(), count = zeros({}, int64);
    optim::ExponentialMovingAverage ema({half, strided, count}, {.decay = 0.999});
    half.fill_(2);
    strided.index_put_({0, 1}, 1);
    count.fill_(7);
    ema.update();
    CHECK(ema.averages()[0].dtype() == float32);
    CHECK(ema.averages()[0][0].item() == Approx(1.001));  // bfloat16 has no such number
    CHECK(ema.averages()[1].at<float>({0, 1}) == Approx(0.001));
    CHECK(ema.averages()[2].item<std::int64_t>() == 7);
    ema.copy_to_parameters();
    CHECK(half[0].item() == 1);
    CHECK(strided.at<float>({0, 1}) == Approx(0.001));
}

TEST_CASE("the averages are in the model within a scope, and out of it after an exception too") {
    nn::Linear model(3, 2);
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    optim::ExponentialMovingAverage ema(model.parameters(), {.decay = 0.5});
    const Tensor before = model.weight.detach().clone(), view = model.weight.detach();
    model.weight.detach().add_(1);
    ema.update();
    const std::vector<float> own = model.weight.to_vector<float>();
    try {
        const optim::AverageScope scope(ema);
        check::same("average", model.weight, (before + 0.5).to_vector<double>(), 1e-6);
        check::same("views", view, (before + 0.5).to_vector<double>(), 1e-6);
        CHECK(model.weight.requires_grad());
        throw std::runtime_error("evaluation failed");
    } catch (const std::runtime_error&) {}
    CHECK(model.weight.to_vector<float>() == own);
    Tape tape;  // the tape sees it: a gradient of two different weights would be of neither
    const Tensor loss = sum(square(model.weight) * model.weight);
    { const optim::AverageScope scope(ema); }
    CHECK(check::contains(check::message<TapeError>([&] { tape.backward(loss); }), "modified in place"));
}

TEST_CASE("an average is not updated while a scope has averages in the model") {
    nn::Linear model(3, 2), apart(3, 2);
    optim::ExponentialMovingAverage ema(model.parameters(), {.decay = 0.5}), other({apart.weight});
    optim::StochasticWeightAverage swa({model.bias});
    model.weight.detach().add_(1);
    ema.update();
    const std::vector<float> own = model.weight.to_vector<float>(), average = ema.averages()[0].to_vector<float>();
    {
        const optim::AverageScope scope(ema);
        FAILS_IN(ValueError, "update: an AverageScope lives", "of this ExponentialMovingAverage have averages", ema.update());
        FAILS_IN(ValueError, "update: an AverageScope lives", "of this StochasticWeightAverage have averages", swa.update());
        other.update();  // of another model
        { const optim::AverageScope inner(ema); }
        FAILS(ValueError, "an AverageScope lives", ema.update());
        CHECK(model.weight.to_vector<float>() == average);
    }
    CHECK(model.weight.to_vector<float>() == own);
    CHECK(ema.averages()[0].to_vector<float>() == average);
    CHECK(ema.updates() == 1);
    ema.update();
    CHECK(ema.updates() == 2);
}

TEST_CASE("averages follow a model that is converted") {
    nn::Linear model(3, 2);
    optim::ExponentialMovingAverage ema(model.parameters(), {.decay = 0.5});
    model.to(float64);
    ema.update();
    CHECK(ema.averages()[0].dtype() == float64);
    const optim::AverageScope scope(ema);
    CHECK(model.weight.dtype() == float64);
}

TEST_CASE("the state of an average is saved and resumed to the same numbers, or refused") {
    Tensor p = at(0), q = at(0);
    const optim::ExponentialMovingAverageOptions options{.decay = 0.99, .warmup = true};
    optim::ExponentialMovingAverage first({p}, options), second({q}, options);
    p.copy_(at(1));
    first.update();
    second.load_state_dict(first.state_dict());
    CHECK(second.updates() == 1);
    p.copy_(at(2));
    q.copy_(at(2));
    first.update();
    second.update();
    CHECK(first.averages()[0].to_vector<double>() == second.averages()[0].to_vector<double>());
    optim::StochasticWeightAverage other({zeros({2}), zeros({3, 2})});
    const std::string text = check::message<ValueError>([&] { other.load_state_dict(first.state_dict()); });
    CHECK(check::contains(text, "load_state_dict: the state is not of this StochasticWeightAverage:"));
    CHECK(other.updates() == 0);
    CHECK(!check::message<ValueError>([&] { optim::ExponentialMovingAverage({p}, {.decay = 1.5}); }).empty());
    CHECK(!check::message<ValueError>([&] { optim::StochasticWeightAverage({Tensor()}); }).empty());
}
