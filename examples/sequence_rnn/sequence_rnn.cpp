// A recurrent network written as the loop that it is, on the adding problem (Hochreiter and Schmidhuber 1997): each step brings a
// number and a mark; what is asked at the end is the sum of the two numbers that were marked. The pictures show the norm of the
// loss's gradient with respect to the state after each step, what of the error reaches back so far, and what each step adds to the
// gradient of the recurrent matrix (Tape::gradient_by_use). That matrix begins as the identity (Le, Jaitly and Hinton 2015), as a
// random orthogonal matrix, or as Gaussian noise.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    std::int64_t length = 40, hidden = 64, batch = 32;
    int steps = 3000;
    double lr = 1e-3;
    std::string init = "identity", chart = "sequence_rnn.svg";
};

nn::RecurrentInit initialisers(const std::string& recurrent) {
    nn::RecurrentInit init;
    init.input = [](const Tensor& w) { nn::init::normal_(w, 0, 0.1); };
    init.bias = [](const Tensor& b) { nn::init::zeros_(b); };
    if (recurrent == "identity") {
        init.recurrent = [](const Tensor& w) { Tensor(w).copy_(eye(w.shape()[0])); };
    } else if (recurrent == "orthogonal") {
        init.recurrent = [](const Tensor& w) { nn::init::orthogonal_(w); };
    } else if (recurrent == "normal") {
        init.recurrent = [](const Tensor& w) { nn::init::normal_(w, 0, 0.5 / std::sqrt(static_cast<double>(w.shape()[0]))); };
    } else {
        throw std::runtime_error(fmt::format("'{}' is not an initialiser: identity, orthogonal or normal", recurrent));
    }
    return init;
}

struct Model : nn::Module {
    nn::RNNCell cell;
    nn::Linear out;
    explicit Model(const Options& o) : cell(2, o.hidden, /*with_bias=*/true, /*relu=*/o.init == "identity", initialisers(o.init)), out(o.hidden, 1) {}
    void members(nn::Members& m) override { m("cell", cell)("out", out); }

    // x: (time, batch, 2). `states` gets the state after each step.
    Tensor forward(const Tensor& x, std::vector<Tensor>& states) const {
        Tensor h;
        for (const Tensor& x_t : x) {
            h = cell(x_t, h);
            states.push_back(h);
        }
        return out(h).squeeze(1);
    }
};

struct Batch {
    Tensor x, sum;
};

Batch draw(const Options& o) {
    const Tensor numbers = rand({o.length, o.batch}), half = randint(0, o.length / 2, {2, o.batch});
    const Tensor marks = one_hot(half[0], o.length) + one_hot(half[1] + o.length / 2, o.length);  // one in each half
    const Tensor marked = marks.transpose(0, 1).to(float32);
    return {stack({numbers, marked}, 2), sum(numbers * marked, 0)};
}

void run(int argc, char** argv) {
    Options o;
    std::uint64_t seed = 1;
    CLI::App app("The adding problem");
    app.add_option("--length", o.length, "of the sequences")->capture_default_str()->check(CLI::Range(2, 10000));
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--steps", o.steps)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's")->capture_default_str();
    app.add_option("--init", o.init, "of the recurrent matrix: identity, orthogonal or normal")->capture_default_str();
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(seed);
    Model model(o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    show::Progress progress(o.steps);
    std::vector<show::Curve> norms, uses;
    double mean_loss = 1;
    for (int step = 0; step < o.steps; ++step) {
        const Batch batch = draw(o);
        std::vector<Tensor> states;
        Tape tape({.persistent = true});
        const Tensor loss = mse_loss(model.forward(batch.x, states), batch.sum);
        if (step == 0 || step == o.steps / 10 || step == o.steps - 1) {
            const std::vector<Tensor> gradients = tape.gradient(loss, states);
            show::Curve curve{fmt::format("step {}", step), {}, {}};
            for (std::size_t t = 0; t < gradients.size(); ++t) curve.add(static_cast<double>(t), norm(gradients[t]).item());
            norms.push_back(std::move(curve));
            show::Curve by_use{fmt::format("step {}", step), {}, {}};
            for (const GradientUse& use : tape.gradient_by_use(loss, model.cell.weight_hh)) {
                by_use.add(static_cast<double>(by_use.x.size()), use.norm);
            }
            uses.push_back(std::move(by_use));
        }
        tape.backward(loss);
        optim::clip_grad_norm_(model.parameters(), 1);
        adam.step();
        adam.zero_grad();
        mean_loss += 0.01 * (loss.item() - mean_loss);
        progress.update(step + 1, fmt::format("squared error {:.4f}", mean_loss));
    }
    show::write_chart(
        o.chart, norms,
        {.title = "Gradient of the loss with respect to the state, " + o.init, .x_label = "time step", .y_label = "norm", .log_y = true});
    if (!o.chart.empty()) {
        const std::size_t end = std::min(o.chart.rfind(".svg"), o.chart.size());
        show::write_chart(o.chart.substr(0, end) + "_uses.svg", uses,
                          {.title = "What each step adds to the gradient of the recurrent matrix, " + o.init,
                           .x_label = "time step",
                           .y_label = "norm",
                           .log_y = true});
    }
    fmt::print("squared error {:.4f}; of the best constant answer, 1: {:.4f}\n", mean_loss, 1 / 6.0);
    fmt::print("result {:.4f}\n", mean_loss);
}

}  // namespace

int main(int argc, char** argv) { return show::run("sequence_rnn", argc, argv, run); }
