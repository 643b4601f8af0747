// SPINN, a stack machine that reads a tree as a sequence of two moves (Bowman et al. 2016, "A fast unified model for parsing and
// sentence understanding"): shift puts the next word on a stack, reduce joins its two uppermost entries. A tracking LSTM watches the
// stack, takes part in each joining, and learns to foretell the next move, so that in the end the machine parses for itself.
// The trees are ListOps expressions, made from a seed.
#include <fmt/format.h>
#include <tapir/nn/data/data.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <random>

#include "../common/show.h"
#include "../tree_lstm/listops.h"

using namespace tapir;
using tree_lstm::Tree;

namespace {

struct Options {
    std::int64_t hidden = 96, tracking = 48;
    int trees = 10000, test_trees = 500, max_length = 40, epochs = 6, batch = 25;
    double lr = 2e-3, parse_weight = 0.5;
    std::uint64_t seed = 1;
    std::string chart = "spinn.svg";
};

enum Move : std::int64_t { kShift, kReduce };

// The moves that build a tree: its nodes stand children first.
std::vector<std::int64_t> moves_of(const Tree& tree) {
    std::vector<std::int64_t> moves;
    const std::function<void(const data::TreeNode&)> visit = [&](const data::TreeNode& node) {
        if (!node.is_leaf()) visit(*node.left), visit(*node.right);
        moves.push_back(node.is_leaf() ? kShift : kReduce);
    };
    visit(tree.root());
    return moves;
}

struct Spinn : nn::Module {
    nn::Embedding embedding;
    nn::Linear encode, project, classify, foretell;
    nn::LSTMCell tracker;
    nn::NaryTreeLSTMCell compose;
    std::int64_t hidden;

    Spinn(std::int64_t words, std::int64_t classes, const Options& o)
        : embedding(words, o.hidden), encode(o.hidden, 2 * o.hidden), project(o.tracking, o.hidden), classify(o.hidden, classes),
          foretell(o.tracking, 2), tracker(3 * o.hidden, o.tracking), compose(o.hidden, o.hidden, 2, {.inner_input = true}), hidden(o.hidden) {}
    void members(nn::Members& m) override {
        m("embedding", embedding)("encode", encode)("project", project)("classify", classify)("foretell", foretell);
        m("tracker", tracker)("compose", compose);
    }

    struct Result {
        Tensor scores;  // of the classes
        Tensor moves;   // scores of both moves before each, (moves, 2)
        std::vector<std::int64_t> made;
    };

    // Makes the given moves; without any, those that it foretells, as far as they are possible.
    Result forward(const std::vector<std::int64_t>& words, const std::vector<std::int64_t>* moves) const {
        std::vector<LSTMState> buffer, stack;  // the buffer's first word is its last entry
        for (const Tensor& word : encode(embedding(tensor(words)))) {
            buffer.insert(buffer.begin(), {tanh(word.narrow(0, 0, hidden)), word.narrow(0, hidden, hidden)});
        }
        const Tensor nothing = zeros({hidden});
        const auto seen = [&](const std::vector<LSTMState>& v, std::size_t from_top) {
            return v.size() > from_top ? v[v.size() - 1 - from_top].h : nothing;
        };
        LSTMState track;
        Result result;
        std::vector<Tensor> foretold;
        const std::size_t all = 2 * words.size() - 1;
        for (std::size_t i = 0; i < all; ++i) {
            track = tracker(cat({seen(buffer, 0), seen(stack, 0), seen(stack, 1)}), track);
            foretold.push_back(foretell(track.h));
            std::int64_t move = moves ? (*moves)[i] : argmax(foretold.back(), 0).item<std::int64_t>();
            if (buffer.empty()) move = kReduce;
            if (stack.size() < 2) move = kShift;
            result.made.push_back(move);
            if (move == kShift) {
                stack.push_back(buffer.back());
                buffer.pop_back();
            } else {
                const LSTMState right = stack.back(), left = stack[stack.size() - 2];
                stack.resize(stack.size() - 2);
                stack.push_back(compose(project(track.h), {left, right}));
            }
        }
        result.scores = classify(stack.back().h);
        result.moves = tapir::stack(foretold);
        return result;
    }
};

std::vector<std::int64_t> words_of(const Tree& tree) {
    std::vector<std::int64_t> words;
    for (const data::TreeNode& node : tree.nodes()) {
        if (node.is_leaf()) words.push_back(node.token);
    }
    return words;
}

struct Score {
    double accuracy = 0, moves = 0;
};

// With moves of its own, or those of the tree.
Score score(const Spinn& model, const std::vector<Tree>& trees, bool own_moves) {
    Score result;
    for (const Tree& tree : trees) {
        const std::vector<std::int64_t> moves = moves_of(tree);
        const Spinn::Result r = model.forward(words_of(tree), own_moves ? nullptr : &moves);
        result.accuracy += argmax(r.scores, 0).item<int>() == tree.root().label;
        double same = 0;
        for (std::size_t i = 0; i < moves.size(); ++i) same += r.made[i] == moves[i];
        result.moves += same / static_cast<double>(moves.size());
    }
    const auto n = static_cast<double>(trees.size());
    return {result.accuracy / n, result.moves / n};
}

void run(int argc, char** argv) {
    Options o;
    CLI::App app("A shift-reduce parser that learns what expressions are worth");
    app.add_option("--trees", o.trees, "for training")->capture_default_str();
    app.add_option("--test-trees", o.test_trees)->capture_default_str();
    app.add_option("--max-length", o.max_length, "of an expression, in tokens")->capture_default_str();
    app.add_option("--epochs", o.epochs)->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--hidden", o.hidden)->capture_default_str();
    app.add_option("--lr", o.lr, "Adam's; it falls to 0 over the run")->capture_default_str();
    app.add_option("--chart", o.chart, "where the picture goes; '' for none")->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    show::parse(app, argc, argv);
    manual_seed(o.seed);
    const tree_lstm::Dataset data = tree_lstm::make_listops({.train = o.trees, .test = o.test_trees, .max_length = o.max_length, .seed = o.seed});
    Spinn model(data.vocabulary.size(), 10, o);
    optim::Adam adam(model.parameters(), {.lr = o.lr});
    const std::int64_t steps =
        o.epochs * static_cast<std::int64_t>((data.train.size() + static_cast<std::size_t>(o.batch) - 1) / static_cast<std::size_t>(o.batch));
    optim::CosineAnnealingLR schedule(adam, {.T_max = steps});
    fmt::print("{} expressions, {} parameters\n", o.trees, model.parameter_count());

    show::Progress progress(static_cast<std::int64_t>(o.epochs) * o.trees);
    show::Curve accuracy{"accuracy", {}, {}}, parsing{"moves foretold", {}, {}};
    std::vector<std::size_t> order(data.train.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(o.seed);
    double loss_mean = 2.3;
    std::int64_t done = 0;
    Score tested;
    for (int epoch = 1; epoch <= o.epochs; ++epoch) {
        std::shuffle(order.begin(), order.end(), random);
        for (std::size_t begin = 0; begin < order.size(); begin += static_cast<std::size_t>(o.batch)) {
            const std::size_t end = std::min(order.size(), begin + static_cast<std::size_t>(o.batch));
            Tape tape;
            Tensor loss = zeros({});
            for (std::size_t i = begin; i < end; ++i) {
                const Tree& tree = data.train[order[i]];
                const std::vector<std::int64_t> moves = moves_of(tree);
                const Spinn::Result r = model.forward(words_of(tree), &moves);
                const Tensor of_class = cross_entropy(r.scores, tensor(tree.root().label));
                loss = loss + of_class + o.parse_weight * cross_entropy(r.moves, tensor(moves));
                loss_mean += 0.002 * (of_class.item() - loss_mean);
            }
            tape.backward(loss / static_cast<double>(end - begin));
            optim::clip_grad_norm_(model.parameters(), 5);
            adam.step();
            adam.zero_grad();
            schedule.step();
            done += static_cast<std::int64_t>(end - begin);
            progress.update(done, fmt::format("epoch {}  loss {:.3f}", epoch, loss_mean));
        }
        tested = score(model, data.test, /*own_moves=*/true);
        accuracy.add(epoch, tested.accuracy);
        parsing.add(epoch, tested.moves);
        progress.print(fmt::format("epoch {}  loss {:.3f}  test accuracy {:.3f}, {:.3f} of the moves as the trees have them", epoch, loss_mean,
                                   tested.accuracy, tested.moves));
    }
    const Score given = score(model, data.test, /*own_moves=*/false);
    show::write_chart(o.chart, {accuracy, parsing},
                      {.title = "SPINN on ListOps, parsing for itself", .x_label = "epoch", .y_label = "of the test expressions"});
    fmt::print("with the trees' own moves: accuracy {:.3f}\nresult {:.4f}\n", given.accuracy, tested.accuracy);
}

}  // namespace

int main(int argc, char** argv) { return show::run("spinn", argc, argv, run); }
