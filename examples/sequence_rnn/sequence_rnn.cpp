// A recurrent network written as the loop that it is, on the adding problem (Hochreiter and Schmidhuber 1997): each step brings a
// number and a mark; what is asked at the end is the sum of the two numbers that were marked. The pictures show the norm of the
// loss's gradient with respect to the state after each step, what of the error reaches back so far, and what each step adds to the
// gradient of the recurrent matrix (Tape::gradient_by_use). That matrix begins as the identity (Le, Jaitly and Hinton 2015), as a
// random orthogonal matrix, or as Gaussian noise.
//
// With --shortest the sequences of a step have lengths that differ. Then the loop runs for one sequence, as far as it goes, and batch()
// computes those of a step together: nothing is padded.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    std::int64_t length = 40, shortest = 0, hidden = 64, batch = 32;
    int steps = 3000;
    double lr = 1e-3;
    std::optional<bool> together;
    bool report = false;
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

    // x: (time, batch, 2), or one sequence, (time, 2). `states` gets the state after each step.
    Tensor forward(const Tensor& x, std::vector<Tensor>& states) const {
        Tensor h;
        for (const Tensor& x_t : x) {
            h = cell(x_t, h);
            states.push_back(h);
        }
        return out(h).squeeze(-1);
    }
};

struct Sequences {
    Tensor x, sum;
};

Sequences draw(std::int64_t length, std::int64_t count) {
    const Tensor numbers = rand({length, count}), half = randint(0, length / 2, {2, count});
    const Tensor marks = one_hot(half[0], length) + one_hot(half[1] + length / 2, length);  // one in each half
    const Tensor marked = marks.transpose(0, 1).to(float32);
    return {stack({numbers, marked}, 2), sum(numbers * marked, 0)};
}

// What a step computes. The states are those of the longest sequence.
struct Answers {
    Tensor given, right;
    std::vector<Tensor> states;
};

Answers answer(const Model& model, const Options& o) {
    Answers answers;
    const Sequences all = draw(o.length, o.batch);
    answers.given = model.forward(all.x, answers.states);
    answers.right = all.sum;
    return answers;
}

// The same for sequences of lengths that differ.
Answers answer_each(const Model& model, const Options& o, const BatchOptions& options) {
    std::vector<Sequences> sequences;
    std::vector<Tensor> right;
    for (std::int64_t i = 0; i < o.batch; ++i) {
        const auto length = randint(o.shortest, o.length + 1, {}).item<std::int64_t>();
        const Sequences one = draw(length, 1);
        sequences.push_back({one.x.squeeze(1), one.sum.squeeze(0)});
        right.push_back(sequences.back().sum);
    }
    Answers answers;
    const auto forward = [&](const Sequences& one) {
        std::vector<Tensor> states;
        const Tensor given = model.forward(one.x, states);
        if (states.size() > answers.states.size()) answers.states = states;
        return given;
    };
    answers.given = stack(batch(sequences, forward, options));
    answers.right = stack(right);
    return answers;
}

// One use of the recurrent matrix is one time step, of all sequences.
show::Curve uses_of(Tape& tape, const Tensor& loss, const Model& model, int step) {
    show::Curve curve{fmt::format("step {}", step), {}, {}};
    for (const GradientUse& use : tape.gradient_by_use(loss, model.cell.weight_hh)) curve.add(static_cast<double>(curve.x.size()), use.norm);
    return curve;
}

void run(int argc, char** argv) {
    Options o;
    std::uint64_t seed = 1;
    CLI::App app("The adding problem");
    app.add_option("--length", o.length, "of the sequences")->capture_default_str()->check(CLI::Range(2, 10000));
    app.add_option("--shortest", o.shortest, "length, if lengths are to differ: from this to --length")->check(CLI::Range(2, 10000));
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--steps", o.steps)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's")->capture_default_str();
    app.add_option("--init", o.init, "of the recurrent matrix: identity, orthogonal or normal")->capture_default_str();
    app.add_flag("--together,!--no-batch", o.together, "compute sequences whose lengths differ at the same time, or not [from hidden 128 on]");
    app.add_flag("--report", o.report, "say what was computed together of these");
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
    show::parse(app, argc, argv);
    if (!o.together) o.together = o.hidden >= 128;  // smaller products gain less than it costs
    if (o.shortest > o.length) throw std::runtime_error(fmt::format("--shortest {} is longer than --length {}", o.shortest, o.length));
    manual_seed(seed);
    Model model(o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    show::Progress progress(o.steps);
    std::vector<show::Curve> norms, uses;
    BatchReport report;
    const BatchOptions options{.together = *o.together, .report = o.report ? &report : nullptr};
    double mean_loss = 1;
    for (int step = 0; step < o.steps; ++step) {
        Tape tape({.persistent = true});
        const Answers answers = o.shortest > 0 ? answer_each(model, o, options) : answer(model, o);
        const Tensor loss = mse_loss(answers.given, answers.right);
        if (step == 0) progress.print(fmt::format("loss of the first step {:.6f}", loss.item()));
        if (step == 0 || step == o.steps / 10 || step == o.steps - 1) {
            const std::vector<Tensor> gradients = tape.gradient(loss, answers.states);
            show::Curve curve{fmt::format("step {}", step), {}, {}};
            for (std::size_t t = 0; t < gradients.size(); ++t) curve.add(static_cast<double>(t), norm(gradients[t]).item());
            norms.push_back(std::move(curve));
            if (o.shortest == 0) uses.push_back(uses_of(tape, loss, model, step));
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
    if (!o.chart.empty() && o.shortest == 0) {
        const std::size_t end = std::min(o.chart.rfind(".svg"), o.chart.size());
        show::write_chart(o.chart.substr(0, end) + "_uses.svg", uses,
                          {.title = "What each step adds to the gradient of the recurrent matrix, " + o.init,
                           .x_label = "time step",
                           .y_label = "norm",
                           .log_y = true});
    }
    if (o.report) fmt::print("{}", report.str());
    fmt::print("squared error {:.4f}; of the best constant answer, 1: {:.4f}\n", mean_loss, 1 / 6.0);
    fmt::print("result {:.4f}\n", mean_loss);
}

}  // namespace

int main(int argc, char** argv) { return show::run("sequence_rnn", argc, argv, run); }
