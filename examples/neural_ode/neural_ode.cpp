// A neural ordinary differential equation (Chen et al. 2018): a small network gives the speed of a point, and an integrator
// follows it. The integrator chooses its steps as it goes (Bogacki and Shampine 1989), so the depth of what is trained
// is not known before it has run: a `while` loop, recorded by the tape like everything else. What is learned is a spiral.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "../common/show.h"

using namespace tapir;

namespace {

// Follows dx/dt = f(x) from time 0 to t by the Runge-Kutta pair 3(2). `steps` counts those that were tried.
template <class F>
Tensor integrate(const F& f, Tensor x, double t, double tolerance, int& steps) {
    double at = 0, dt = std::min(t, 0.1);
    Tensor k1 = f(x);
    while (at < t) {
        dt = std::min(dt, t - at);
        const Tensor k2 = f(x + 0.5 * dt * k1), k3 = f(x + 0.75 * dt * k2);
        const Tensor next = x + dt * (2 / 9.0 * k1 + 1 / 3.0 * k2 + 4 / 9.0 * k3), k4 = f(next);
        const Tensor estimate = dt * (-5 / 72.0 * k1 + 1 / 12.0 * k2 + 1 / 9.0 * k3 - 1 / 8.0 * k4);
        const double error = amax(abs(estimate)).item() / tolerance;
        ++steps;
        if (error <= 1) {
            at = t - at - dt < 1e-12 ? t : at + dt;
            x = next;
            k1 = k4;
        }
        dt *= std::clamp(0.9 / std::cbrt(std::max(error, 1e-9)), 0.2, 5.0);
    }
    return x;
}

void run(int argc, char** argv) {
    int iterations = 8000;
    double lr = 1e-2, tolerance = 1e-3;
    std::uint64_t seed = 1;
    std::string chart = "neural_ode.svg";
    CLI::App app("A neural ODE learns a spiral");
    app.add_option("--steps", iterations)->capture_default_str();
    app.add_option("--lr", lr, "Adam's; it falls to 0 over the run")->capture_default_str();
    app.add_option("--tolerance", tolerance, "of a step of the integrator")->capture_default_str();
    app.add_option("--chart", chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(seed);
    // The truth: dx/dt = A x^3, seen at 100 times.
    const Tensor a = tensor({{-0.1, 2.0}, {-2.0, -0.1}}).to(float32);
    const auto truth = [&](const Tensor& x) { return matmul(x * x * x, a); };
    constexpr std::int64_t times = 100, ahead = 10;
    constexpr double interval = 0.1;
    int exact_steps = 0;
    std::vector<Tensor> points = {tensor({2.0, 0.0}).to(float32)};
    while (static_cast<std::int64_t>(points.size()) < times + ahead) points.push_back(integrate(truth, points.back(), interval, 1e-6, exact_steps));
    const Tensor path = stack(points);

    nn::Sequential net(nn::Linear(2, 64), nn::Tanh(), nn::Linear(64, 2));
    const auto speed = [&](const Tensor& x) { return net(x * x * x); };
    optim::Adam adam(net.parameters(), {.lr = lr});
    optim::CosineAnnealingLR schedule(adam, {.T_max = iterations});
    show::Progress progress(iterations);
    double loss_mean = 1;
    int least = 1 << 30, most = 0;
    for (int i = 1; i <= iterations; ++i) {
        // From 16 points of the path on, `ahead` intervals each.
        const Tensor begins = randint(0, times, {16});
        Tape tape;
        Tensor x = path.index({begins}), loss = zeros({});
        int steps = 0;
        for (std::int64_t k = 1; k <= ahead; ++k) {
            x = integrate(speed, x, interval, tolerance, steps);
            loss = loss + l1_loss(x, path.index({begins + k}));
        }
        tape.backward(loss / static_cast<double>(ahead));
        adam.step();
        adam.zero_grad();
        schedule.step();
        least = std::min(least, steps), most = std::max(most, steps);
        loss_mean += 0.02 * (loss.item() / static_cast<double>(ahead) - loss_mean);
        progress.update(i, fmt::format("distance {:.4f}, {} steps of the integrator", loss_mean, steps));
    }
    // The whole path from its first point.
    const auto curve_of = [](const char* name, const std::vector<Tensor>& list) {
        show::Curve curve{name, {}, {}};
        for (const Tensor& p : list) curve.add(p[0].item(), p[1].item());
        return curve;
    };
    std::vector<Tensor> followed = {points[0]};
    int steps = 0;
    for (std::int64_t k = 1; k < times; ++k) followed.push_back(integrate(speed, followed.back(), interval, tolerance, steps));
    points.resize(times);
    const double distance = (stack(followed) - stack(points)).abs().mean().item();
    show::write_chart(chart, {curve_of("truth", points), curve_of("learned", followed)},
                      {.title = "A spiral and what was learned of it", .x_label = "x", .y_label = "y"});
    fmt::print("a pass had {} to {} steps of the integrator; the whole spiral is met to {:.4f} on average\n", least, most, distance);
    fmt::print("result {:.4f}\n", distance);
}

}  // namespace

int main(int argc, char** argv) { return show::run("neural_ode", argc, argv, run); }
