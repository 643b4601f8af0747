// Workers that do not wait for each other train one perceptron on Fashion-MNIST: with a parameter server, between processes (mpirun -n 3) or threads
// (--workers 3), or as threads that write to the same weights without locks (--method hogwild).
#include <fmt/format.h>
#include <tapir/nn/data/data.h>
#include <tapir/nn/parallel/parallel.h>
#include <tapir/tapir.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "../common/show.h"

using namespace tapir;

namespace {

struct Options {
    std::string data = "/usr/share/datasets/fashion-mnist", method = "server";
    int workers = 2, epochs = 4;
    std::int64_t examples = 60000, batch = 32, staleness = 8;
    double lr = 0.05;
    std::uint64_t seed = 1;
};

struct Model : nn::Module {
    nn::Linear first{784, 128}, second{128, 10};
    void members(nn::Members& m) override { m("first", first)("second", second); }
    Tensor loss(const Tensor& images, const Tensor& labels) const { return cross_entropy(second(relu(first(images))), labels); }
};

struct Data {
    Tensor images, labels;
    std::int64_t size() const { return labels.numel(); }
};

Data load(const Options& o) {
    const auto all = data::mnist(o.data);
    const std::int64_t count = std::min(o.examples, all.size());
    return {all.tensor(0).narrow(0, 0, count).to(float32).reshape({count, 784}) / 255, all.tensor(1).narrow(0, 0, count)};
}

double loss_of_all(const Model& model, const Data& data) { return model.loss(data.images, data.labels).item<double>(); }

// The worker's part of all steps. before() and after() each step take the parameters and give back what has changed.
template <class Before, class After>
void train(const Model& model, const Data& data, const Options& o, int worker, int workers, const Before& before, const After& after) {
    optim::SGD sgd(model.parameters(), {.lr = o.lr});
    const std::int64_t batches = data.size() / o.batch, steps = o.epochs * batches;
    show::Progress progress(steps);
    Generator order(o.seed);
    Tensor places;
    for (std::int64_t step = 0; step < steps; ++step) {
        if (step % batches == 0) places = randperm(data.size(), order);  // the same for all workers
        if (step % workers != worker) continue;
        before();
        const Tensor batch = places.narrow(0, step % batches * o.batch, o.batch);
        Tape tape;
        const Tensor loss = model.loss(data.images.index_select(0, batch), data.labels.index_select(0, batch));
        tape.backward(loss);
        sgd.step();
        sgd.zero_grad();
        after();
        if (worker == 0) progress.update(step, fmt::format("loss {:.4f}", loss.item()));
    }
}

// Returns the loss on all training images.
double with_server(const parallel::Group& world, const Data& data, const Options& o) {
    manual_seed(o.seed);
    const Model model;
    parallel::ParameterServer server(model.parameters(), world, {.staleness = o.staleness});
    train(model, data, o, world.rank(), world.size(), [&] { server.pull(); }, [&] { server.push(); });
    server.finish();
    return loss_of_all(model, data);
}

double with_hogwild(const Data& data, const Options& o) {
    manual_seed(o.seed);
    const Model model;
    const parallel::UncheckedWrites unchecked(model.parameters());
    std::vector<std::thread> threads;
    for (int worker = 0; worker < o.workers; ++worker) {
        threads.emplace_back([&, worker] {
            set_num_threads(1);
            train(nn::alias(model), data, o, worker, o.workers, [] {}, [] {});
        });
    }
    for (std::thread& thread : threads) thread.join();
    return loss_of_all(model, data);
}

void run(int argc, char** argv) {
    const parallel::Group world = parallel::init(argc, argv);
    Options o;
    CLI::App app("Workers that do not wait for each other");
    app.add_option("--data", o.data, "the folder with the IDX files of Fashion-MNIST")->capture_default_str();
    app.add_option("--method", o.method, "server or hogwild")->capture_default_str();
    app.add_option("--workers", o.workers, "threads; under mpirun the processes")->capture_default_str();
    app.add_option("--epochs", o.epochs)->capture_default_str();
    app.add_option("--examples", o.examples, "of the 60,000 for training")->capture_default_str();
    app.add_option("--batch", o.batch)->capture_default_str();
    app.add_option("--staleness", o.staleness, "steps that a worker may be ahead of the slowest")->capture_default_str();
    app.add_option("--lr", o.lr)->capture_default_str();
    app.add_option("--seed", o.seed)->capture_default_str();
    show::parse(app, argc, argv);
    set_num_threads(1);
    const Data data = load(o);
    double loss = 0;
    if (o.method == "hogwild") {
        loss = with_hogwild(data, o);
    } else if (o.method != "server") {
        throw std::runtime_error(fmt::format("'{}' is not a method: server or hogwild", o.method));
    } else if (world.size() > 1) {
        o.workers = world.size();
        loss = with_server(world, data, o);
    } else {
        parallel::spawn(o.workers, [&](const parallel::Group& group) {
            const double mine = with_server(group, data, o);
            if (group.rank() == 0) loss = mine;
        });
    }
    if (world.rank() != 0) return;
    const double one = with_server(parallel::Group(), data, o);  // which makes all steps itself
    fmt::print("training loss {:.4f} with {} workers, {:.4f} with one\nresult {:.4f}\n", loss, o.workers, one, loss / one);
}

}  // namespace

int main(int argc, char** argv) { return show::run("asynchronous", argc, argv, run); }
