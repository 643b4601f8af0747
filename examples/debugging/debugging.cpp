// A model with five mistakes in it, and the tool that finds each. README.md beside this file walks through them: every run there
// is `debugging --fixed N`, where the first N mistakes are mended and the next one is looked for.
#include <fmt/format.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <vector>

#include "../common/show.h"

using namespace tapir;

namespace {

enum Mistake { shape, nan_gradient, forgotten, vanishing, leak };
int fixed = 0;  // so many mistakes are mended
bool has(Mistake mistake) { return mistake >= fixed; }

// Reads a sequence of vectors step by step, and says which of two classes it belongs to.
struct Reader : nn::Module {
    nn::Linear input{4, 16};
    nn::Parameter recurrent{eye(16) * (has(vanishing) ? 0.05 : 0.9)};  // mistake 4: what is remembered fades at once
    nn::Parameter scale{ones({16})};
    nn::Linear output{17, 2};

    void members(nn::Members& m) override {
        m("input", input)("recurrent", recurrent)("output", output);
        if (!has(forgotten)) m("scale", scale);  // mistake 3: nobody trains scale
    }

    // x: (steps, batch, 4)
    Tensor forward(const Tensor& x) {
        const nn::ModuleScope scope(*this);
        Tensor h = zeros({x.size(1), 16}), before;
        for (const Tensor& now : x) {
            before = h;
            h = tanh(input(now) + matmul(h, recurrent) * scale);
        }
        // How far the last step went. Mistake 2: sqrt has no derivative where that is 0.
        const Tensor squares = square(h - before).sum(1);
        const Tensor moved = sqrt(has(nan_gradient) ? squares : squares + 1e-6);
        // Mistake 1: moved is (batch,), the states are (batch, 16).
        return output(cat({h, has(shape) ? moved : moved.unsqueeze(1)}, 1));
    }
};

struct Batch {
    Tensor x, y;
};

// Whether the first vector of the sequence points up. Later ones say nothing, and the last examples do not move at all.
Batch make_batch(Generator& generator) {
    constexpr int steps = 12, size = 32;
    Tensor x = randn({steps, size, 4}, generator) * 0.3;
    const Tensor y = (x[0].select(1, 0) > 0).to(int64);
    x[0] += (y.to(float32) * 2 - 1).unsqueeze(1);
    x.narrow(1, size - 2, 2).fill_(0);
    return {x, y};
}

std::vector<Tensor> history;

double train(Reader& model, int steps, Generator& generator) {
    optim::Adam adam(model.parameters(), {.lr = 5e-3});
    double shown = 0;
    for (int i = 0; i < steps; ++i) {
        const Batch batch = make_batch(generator);
        Tape tape;
        const Tensor scores = model.forward(batch.x);
        const Tensor loss = cross_entropy(scores, batch.y);
        tape.backward(loss);
        adam.step();
        adam.zero_grad();
        if (has(leak)) history.push_back(scores);  // mistake 5: a few numbers would do
        shown = shown * 0.9 + loss.item() * 0.1;
    }
    return shown;
}

void look_for_shape(Reader& model, Generator& generator) { train(model, 1, generator); }

void look_for_nan(Reader& model, Generator& generator) {
    fmt::print("mean loss of 20 steps: {}\n", std::abs(train(model, 20, generator)));
    Reader fresh;
    const CheckFiniteScope check;
    train(fresh, 1, generator);
}

void look_for_forgotten(Reader& model, Generator& generator) {
    const Batch batch = make_batch(generator);
    model.parameters();  // a model tells its parameters their names when it is asked for them
    Tape tape;
    const Tensor loss = cross_entropy(model.forward(batch.x), batch.y);
    tape.print("leaf");
}

void look_for_vanishing(Reader& model, Generator& generator) {
    Reader trained;
    fmt::print("mean loss after 300 steps: {:.3f}\n", train(trained, 300, generator));
    const Batch batch = make_batch(generator);
    Tape tape;
    const Tensor loss = cross_entropy(model.forward(batch.x), batch.y);
    fmt::print("{}", gradient_report(tape.gradient_by_use(loss, model.recurrent)));
}

void look_for_leak(Reader& model, Generator& generator) {
    train(model, 1, generator);
    const MemoryProfiler memory;
    train(model, 1, generator);
    const auto before = memory.now();
    train(model, 10, generator);
    fmt::print("{}", memory.leaks(before));
}

void run(int argc, char** argv) {
    CLI::App app("A model with five mistakes, and the tools that find them");
    app.add_option("--fixed", fixed, "so many of them are mended")->check(CLI::Range(0, 5))->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(1);
    Generator generator(1);
    Reader model;
    switch (fixed) {
        case shape: return look_for_shape(model, generator);
        case nan_gradient: return look_for_nan(model, generator);
        case forgotten: return look_for_forgotten(model, generator);
        case vanishing: return look_for_vanishing(model, generator);
        case leak: return look_for_leak(model, generator);
        default: fmt::print("mean loss after 300 steps: {:.3f}\n", train(model, 300, generator));
    }
}

}  // namespace

int main(int argc, char** argv) { return show::run("debugging", argc, argv, run); }
