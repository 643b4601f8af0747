// A network that learns to write: an LSTM reads a text character by character and predicts the next one (Karpathy 2015, "The
// unreasonable effectiveness of recurrent neural networks"). Any text file will do; without one it takes the GPL that every Debian
// has. Every so often it writes a few lines itself.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <stdexcept>

#include "../common/show.h"
#include "../common/text.h"

using namespace tapir;

namespace {

struct Options {
    std::string text = "/usr/share/common-licenses/GPL-3", chart = "char_rnn.svg";
    std::int64_t hidden = 256, layers = 1, batch = 32, length = 64;
    int steps = 1500, sample_every = 300;
    double lr = 3e-3, temperature = 0.7;
};

struct Model : nn::Module {
    nn::Embedding embedding;
    nn::LSTM lstm;
    nn::Linear out;
    Model(std::int64_t characters, const Options& o)
        : embedding(characters, 64), lstm(64, o.hidden, {.num_layers = o.layers}), out(o.hidden, characters) {}
    void members(nn::Members& m) override { m("embedding", embedding)("lstm", lstm)("out", out); }

    // codes: (time, batch) -> scores (time, batch, characters); goes on from `state` and leaves the new one there.
    Tensor forward(const Tensor& codes, LSTMState& state) const {
        auto [output, last] = lstm(embedding(codes), state);
        state = last;
        return out(output);
    }
};

std::string write(const Model& model, const show::Text& text, std::int64_t count, double temperature) {
    std::string result;
    LSTMState state;
    Tensor code = randint(0, text.characters(), {1, 1});
    for (std::int64_t i = 0; i < count; ++i) {
        const Tensor scores = model.forward(code, state);
        code = multinomial(softmax(scores[0][0] / temperature, 0), 1).unsqueeze(0);
        result += text.alphabet[static_cast<std::size_t>(code.item<std::int64_t>())];
    }
    return result;
}

void run(int argc, char** argv) {
    Options o;
    std::uint64_t seed = 1;
    CLI::App app("A network that learns to write");
    app.add_option("--text", o.text, "the file that it reads")->capture_default_str();
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--layers", o.layers)->capture_default_str();
    app.add_option("--batch", o.batch, "places of the text that are read side by side")->capture_default_str();
    app.add_option("--length", o.length, "characters a step")->capture_default_str();
    app.add_option("--steps", o.steps)->capture_default_str();
    app.add_option("--sample-every", o.sample_every, "steps; 0: never")->capture_default_str();
    app.add_option("--temperature", o.temperature, "of what it writes: lower is safer")->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's")->capture_default_str();
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(seed);
    const show::Text text(o.text);
    const std::int64_t stretch = (text.size() - 1) / o.batch;  // each row of the batch reads one
    if (stretch < o.length) throw std::runtime_error(fmt::format("{}: too short for {} rows of {} characters", o.text, o.batch, o.length));
    const Tensor inputs = text.codes.narrow(0, 0, stretch * o.batch).reshape({o.batch, stretch}).transpose(0, 1);
    const Tensor targets = text.codes.narrow(0, 1, stretch * o.batch).reshape({o.batch, stretch}).transpose(0, 1);
    Model model(text.characters(), o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    fmt::print("{}: {} characters, {} different ones; {} parameters\n", o.text, text.size(), text.characters(), model.parameter_count());

    show::Progress progress(o.steps);
    show::Curve curve{"bits per character", {}, {}};
    LSTMState state;
    std::int64_t at = 0;
    double bits = std::log2(static_cast<double>(text.characters()));
    for (int step = 1; step <= o.steps; ++step) {
        if (at + o.length > stretch) {
            at = 0;
            state = {};
        }
        Tape tape;  // what the state holds was computed before: a constant (truncated backpropagation through time)
        const Tensor scores = model.forward(inputs.narrow(0, at, o.length), state);
        const Tensor loss = cross_entropy(scores.flatten(0, 1), targets.narrow(0, at, o.length).flatten());
        tape.backward(loss);
        optim::clip_grad_norm_(model.parameters(), 5);
        adam.step();
        adam.zero_grad();
        at += o.length;
        bits += 0.05 * (loss.item() / std::log(2.0) - bits);
        if (step % 10 == 0) curve.add(step, bits);
        progress.update(step, fmt::format("{:.3f} bits per character", bits));
        const NoGradScope off;
        if (o.sample_every > 0 && step % o.sample_every == 0) {
            progress.print(fmt::format("--- step {}, {:.3f} bits per character:\n{}\n---", step, bits, write(model, text, 300, o.temperature)));
        }
    }
    show::write_chart(o.chart, {curve}, {.title = "Learning to write", .x_label = "step", .y_label = "bits per character"});
    fmt::print("result {:.4f}\n", bits);
}

}  // namespace

int main(int argc, char** argv) { return show::run("char_rnn", argc, argv, run); }
