// A straight line through points, found by gradient descent and by solving the normal equations; then logistic regression on
// two clouds of points. The two smallest models there are.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>

#include "../common/show.h"

using namespace tapir;

namespace {

// y = w x + b.
void fit_line(int steps, const std::string& chart) {
    const Tensor x = rand({100}) * 4 - 2, y = 1.5 * x - 0.7 + 0.3 * randn({100});
    Tensor w = zeros({}).requires_grad_(), b = zeros({}).requires_grad_();
    optim::SGD sgd({w, b}, {.lr = 0.1});
    for (int step = 0; step < steps; ++step) {
        Tape tape;
        tape.backward(mse_loss(w * x + b, y));
        sgd.step();
        sgd.zero_grad();
    }
    // The exact answer: (X^T X) [w, b] = X^T y.
    const Tensor inputs = stack({x, ones({100})}, 1);
    const std::vector<double> exact = linalg::solve(matmul(inputs.transpose(0, 1), inputs), matmul(inputs.transpose(0, 1), y)).to_vector<double>();
    fmt::print("line: w = {:.4f}, b = {:.4f}; exactly {:.4f} and {:.4f}\n", w.item(), b.item(), exact[0], exact[1]);

    const show::Curve points{"points", x.to_vector<double>(), y.to_vector<double>()};
    show::Curve line{"fitted", {}, {}};
    for (int i = 0; i <= 60; ++i) line.add(-2 + i / 15.0, w.item() * (-2 + i / 15.0) + b.item());
    show::write_chart(chart, {points, line}, {.title = "A line through 100 points", .x_label = "x", .y_label = "y", .points = true});
}

// p(class 1) = sigmoid(x w + b), by Newton-like full batches of L-BFGS.
void classify(int steps) {
    const Tensor labels = arange(400) % 2, centres = tensor({{-1.0, -0.5}, {1.0, 0.5}});
    const Tensor x = centres.index({labels}) + randn({400, 2}), y = labels.to(float32);
    nn::Linear model(2, 1);
    optim::LBFGS lbfgs(model.parameters(), {.lr = 1, .max_iter = steps, .line_search_fn = optim::LineSearch::strong_wolfe});
    lbfgs.step([&] {
        Tape tape;
        lbfgs.zero_grad();
        const Tensor loss = binary_cross_entropy_with_logits(model(x).squeeze(1), y);
        tape.backward(loss);
        return loss;
    });
    const double right = ((model(x).squeeze(1) > 0) == (labels > 0)).to(float32).mean().item();
    fmt::print("logistic regression: w = {}, accuracy {:.3f}\n", fmt::join(model.weight.to_vector<float>(), ", "), right);
    fmt::print("result {:.4f}\n", right);
}

void run(int argc, char** argv) {
    int steps = 100;
    std::string chart = "linear.svg";
    CLI::App app("Linear fit and logistic regression");
    app.add_option("--steps", steps, "of gradient descent")->capture_default_str();
    app.add_option("--chart", chart, "where the picture goes; '' for none")->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(1);
    fit_line(steps, chart);
    classify(20);
}

}  // namespace

int main(int argc, char** argv) { return show::run("linear", argc, argv, run); }
