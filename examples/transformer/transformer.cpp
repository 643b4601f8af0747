// A small language model: a transformer that sees the characters so far and predicts the next one (Vaswani et al. 2017; Radford
// et al. 2018). Any text file will do; without one it takes the GPL that every Debian has.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "../common/show.h"
#include "../common/text.h"

using namespace tapir;

namespace {

struct Options {
    std::string text = "/usr/share/common-licenses/GPL-3", chart = "transformer.svg";
    std::int64_t width = 128, heads = 4, layers = 3, context = 64, batch = 16;
    int steps = 1500;
    double lr = 2e-3, dropout = 0.1, temperature = 0.7;
};

struct Model : nn::Module {
    nn::Embedding embedding;
    Tensor positions;
    nn::TransformerEncoder layers;
    nn::Linear out;
    nn::Dropout dropout;

    Model(std::int64_t characters, const Options& o)
        : embedding(characters, o.width, {.sparse = false}), positions((0.02 * randn({o.context, o.width})).detach().requires_grad_()),
          layers(o.width, o.heads, o.layers,
                 {.dim_feedforward = 4 * o.width,
                  .dropout = o.dropout,
                  .activation = nn::TransformerActivation::gelu,
                  .batch_first = true,
                  .norm_first = true},
                 /*final_norm=*/true),
          out(o.width, characters), dropout(o.dropout) {}
    void members(nn::Members& m) override { m("embedding", embedding)("positions", positions)("layers", layers)("out", out)("dropout", dropout); }

    // codes: (batch, time) -> scores (batch, time, characters); those at a time depend on nothing that comes later.
    Tensor forward(const Tensor& codes) const {
        const Tensor x = dropout(embedding(codes) + positions.narrow(0, 0, codes.shape()[1]));
        return out(layers(x, {.is_causal = true}));
    }
};

std::string write(Model& model, const std::string& alphabet, std::int64_t context, std::int64_t count, double temperature) {
    model.eval();
    std::vector<std::int64_t> codes = {0};
    while (static_cast<std::int64_t>(codes.size()) <= count) {
        const std::size_t from = codes.size() > static_cast<std::size_t>(context) ? codes.size() - static_cast<std::size_t>(context) : 0;
        const Tensor scores =
            model.forward(tensor(std::vector<std::int64_t>(codes.begin() + static_cast<std::ptrdiff_t>(from), codes.end())).unsqueeze(0));
        codes.push_back(multinomial(softmax(scores[0][-1] / temperature, 0), 1).item<std::int64_t>());
    }
    model.train();
    std::string text;
    for (std::size_t i = 1; i < codes.size(); ++i) text += alphabet[static_cast<std::size_t>(codes[i])];
    return text;
}

void run(int argc, char** argv) {
    Options o;
    std::uint64_t seed = 1;
    int threads = 1;
    CLI::App app("A small language model");
    app.add_option("--text", o.text, "the file that it reads")->capture_default_str();
    app.add_option("--width", o.width)->capture_default_str();
    app.add_option("--heads", o.heads)->capture_default_str();
    app.add_option("--layers", o.layers)->capture_default_str();
    app.add_option("--context", o.context, "characters that it sees")->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--steps", o.steps)->capture_default_str();
    app.add_option("--lr", o.lr, "AdamW's highest")->capture_default_str();
    app.add_option("--threads", threads)->capture_default_str();
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(seed);
    set_num_threads(threads);
    const show::Text text(o.text);
    const Tensor& codes = text.codes;
    const std::int64_t size = text.size();
    if (size < 10 * o.context) throw std::runtime_error(fmt::format("{}: too short", o.text));
    const std::int64_t training = size * 9 / 10;  // the rest is for the test
    Model model(text.characters(), o);
    optim::AdamW adam(model.parameters(), {.lr = o.lr, .weight_decay = 0.1});
    optim::OneCycleLR schedule(adam, {.max_lr = o.lr, .total_steps = o.steps, .pct_start = 0.1});
    fmt::print("{}: {} characters, {} different ones; {} parameters\n", o.text, size, text.characters(), model.parameter_count());

    // Stretches of the text that begin anywhere in [from, to).
    const auto loss_of = [&](std::int64_t from, std::int64_t to) {
        const Tensor begins = randint(from, to - o.context, {o.batch, 1}), at = begins + arange(o.context);
        return cross_entropy(model.forward(codes.index({at})).flatten(0, 1), codes.index({at + 1}).flatten());
    };
    const auto tested = [&] {
        const NoGradScope off;
        model.eval();
        double sum = 0;
        for (int i = 0; i < 20; ++i) sum += loss_of(training, size - 1).item() / std::log(2.0);
        model.train();
        return sum / 20;
    };
    show::Progress progress(o.steps);
    show::Curve curve{"training", {}, {}}, test{"test", {}, {}};
    double bits = std::log2(static_cast<double>(text.characters()));
    for (int step = 1; step <= o.steps; ++step) {
        {
            Tape tape;
            const Tensor loss = loss_of(0, training);
            tape.backward(loss);
            optim::clip_grad_norm_(model.parameters(), 1);
            adam.step();
            adam.zero_grad();
            schedule.step();
            bits += 0.05 * (loss.item() / std::log(2.0) - bits);
        }
        if (step % 10 == 0) curve.add(step, bits);
        progress.update(step, fmt::format("{:.3f} bits per character", bits));
        if (step % std::max(o.steps / 5, 1) == 0) {
            test.add(step, tested());
            progress.print(fmt::format("--- step {}, test {:.3f} bits per character:\n{}\n---", step, test.y.back(),
                                       write(model, text.alphabet, o.context, 200, o.temperature)));
        }
    }
    show::write_chart(o.chart, {curve, test}, {.title = "A transformer learns to write", .x_label = "step", .y_label = "bits per character"});
    fmt::print("result {:.4f}\n", test.y.empty() ? bits : test.y.back());
}

}  // namespace

int main(int argc, char** argv) { return show::run("transformer", argc, argv, run); }
