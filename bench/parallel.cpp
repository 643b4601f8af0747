// bench_parallel [RANKS]: what talking to other ranks costs, and how much of it backward() hides. Ranks are the processes that mpirun has started, or
// those that RANK and WORLD_SIZE describe; without them RANKS threads (2).
//
// 1. all_reduce() by size, as Replicas calls it: from the call to its end, for rank 0.
// 2. Steps of a model of 20 MB: what a step takes alone (no_sync()) and with the other ranks, and what was hidden by the Profiler's figures.
// 3. The same steps on paper (scaling.h), with the costs of 1 and of a step alone.
#include <tapir/core/parallel.h>
#include <tapir/nn/parallel/parallel.h>
#include <tapir/optim/optim.h>
#include <tapir/tapir.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "scaling.h"
#include "tapir/nn/parallel/access_impl.h"

using namespace tapir;
using parallel::Group;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Times {
    std::vector<double> all;
    void add(double seconds) { all.push_back(seconds); }
    double best() const { return *std::min_element(all.begin(), all.end()); }
    double median() const {
        std::vector<double> sorted = all;
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
        return sorted[sorted.size() / 2];
    }
    double spread() const {  // the standard deviation of the logarithm
        double sum = 0, squares = 0;
        for (const double seconds : all) sum += std::log(seconds), squares += std::log(seconds) * std::log(seconds);
        const double n = static_cast<double>(all.size()), mean = sum / n;
        return std::sqrt(std::max(squares / n - mean * mean, 0.0));
    }
};

/// In rank 0 alone.
template <class... Args>
void print(const Group& world, const char* format, Args... args) {
    if (world.rank() != 0) return;
    std::printf(format, args...);
    std::fflush(stdout);
}

// --- all_reduce() by size ------------------------------------------------------------------------------------------------------

Times all_reduce_times(const Group& world, std::int64_t bytes, int tensors = 1) {
    std::vector<Tensor> x;
    for (int i = 0; i < tensors; ++i) x.push_back(zeros({bytes / 4}));
    const int count = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{1} << 28) / bytes, 8, 1000));
    Times times;
    for (int i = 0; i < count + 3; ++i) {
        const double begin = now();
        parallel::Access::begin_sum(world, x[static_cast<std::size_t>(i % tensors)], {"all_reduce", "float32", Loc::current()})->wait();
        if (i >= 3) times.add(now() - begin);
    }
    return times;
}

scaling::Link measure_all_reduce(const Group& world, double* call) {
    Times barrier;
    for (int i = 0; i < 1000; ++i) {
        const double begin = now();
        world.barrier();
        barrier.add(now() - begin);
    }
    print(world, "\n| all_reduce of | best us | median us | GB/s at best |\n|---|---|---|---|\n| nothing (barrier) | %.1f | %.1f | |\n",
          barrier.best() * 1e6, barrier.median() * 1e6);
    double small = 0;
    for (std::int64_t kb = 1; kb <= 64 << 10; kb *= 4) {
        const Times times = all_reduce_times(world, kb << 10);
        if (kb == 1) small = times.median();
        print(world, kb < 1024 ? "| %lld KB |" : "| %lld MB |", static_cast<long long>(kb < 1024 ? kb : kb >> 10));
        print(world, " %.1f | %.1f | %.2f |\n", times.best() * 1e6, times.median() * 1e6, static_cast<double>(kb << 10) / times.best() * 1e-9);
    }
    const Times large = all_reduce_times(world, 4 << 20, 5);
    print(world, "| 4 MB, another one each time | %.1f | %.1f | %.2f |\n", large.best() * 1e6, large.median() * 1e6, (4 << 20) / large.best() * 1e-9);
    // Of two ranks: a call is comparing (two messages) and what a thread needs to take it; the sum is two messages of half the bytes each.
    const double latency = std::max(small - barrier.median(), 0.0) / 2;
    *call = std::max(barrier.median() - 2 * latency, 0.0);
    return {latency, (4 << 20) / std::max(large.median() - small, 1e-9), 1e18};
}

// --- Steps ---------------------------------------------------------------------------------------------------------------------

struct Mlp : nn::Module {
    std::vector<nn::Linear> layers;
    Mlp() {
        for (int i = 0; i < 5; ++i) layers.emplace_back(1000, 1000);
    }
    Tensor forward(Tensor x) const {
        for (const nn::Linear& layer : layers) x = relu(layer(x));
        return x;
    }
    void members(nn::Members& m) override { m("layers", layers); }
};

struct Step {
    Times forward, backward, update;
    void run(const Mlp& model, const std::vector<Tensor>& parameters, optim::SGD& sgd, const Tensor& x) {
        const double begin = now();
        Tape tape;
        const Tensor loss = square(model.forward(x)).mean();
        const double middle = now();
        tape.backward(loss);
        for (const Tensor& p : parameters) static_cast<void>(p.grad());  // products that backward has left for later, which Replicas computes in it
        const double end = now();
        sgd.step();
        sgd.zero_grad();
        forward.add(middle - begin);
        backward.add(end - middle);
        update.add(now() - end);
    }
    Times all() const {
        Times sum;
        for (std::size_t i = 0; i < forward.all.size(); ++i) sum.add(forward.all[i] + backward.all[i] + update.all[i]);
        return sum;
    }
};

/// Seconds in which Replicas writes gradients to buckets and averages them.
double copy_time(double bytes) {
    const Tensor gradients = ones({static_cast<std::int64_t>(bytes / 4)});
    Times times;
    for (int i = 0; i < 10; ++i) {
        const double begin = now();
        gradients.clone().mul_(0.5);
        times.add(now() - begin);
    }
    return times.median();
}

void measure_steps(const Group& world, std::int64_t batch, const scaling::Link& link, double call) {
    manual_seed(1);
    Mlp model;
    parallel::Replicas replicas(model, world);
    const std::vector<Tensor> parameters = model.parameters();
    optim::SGD sgd(parameters, {.lr = 1e-3});
    const Tensor x = randn({batch, 1000});
    double bytes = 0;
    for (const Tensor& p : parameters) bytes += static_cast<double>(p.numel()) * 4;
    Step alone, together;
    Times hidden, calls;
    for (int i = 0; i < 24; ++i) {  // in turn, as the machine may be faster now and slower then
        {
            const auto no_sync = replicas.no_sync();
            Step warm_up;
            (i < 4 ? warm_up : alone).run(model, parameters, sgd, x);
        }
        world.barrier();
        std::optional<Profiler> profiler;  // one may live in a process, which may have several ranks
        const bool profiles = world.rank() == 0 || world.engine() != std::string("threads");
        if (profiles) profiler.emplace();
        Step warm_up;
        (i < 4 ? warm_up : together).run(model, parameters, sgd, x);
        if (profiles) {
            profiler->stop();
            double seconds = 0, of_these = 0;
            for (const CommunicationRow& row : profiler->communication()) {
                seconds += row.waiting_seconds + row.sending_seconds;
                of_these += row.hidden_seconds;
            }
            if (i >= 4) hidden.add(of_these / seconds), calls.add(seconds);
        }
    }
    const double copy = copy_time(bytes);
    if (world.rank() != 0) return;
    const double forward = alone.forward.median(), backward = alone.backward.median(), update = alone.update.median();
    const scaling::Job job{.forward = forward,
                           .backward = backward,
                           .update = update,
                           .bytes = bytes,
                           .bucket = 4 << 20,
                           .spread = alone.all().spread(),
                           .way = scaling::Way::ring,
                           .link = link,
                           .copy = copy,
                           .shares_core = true,
                           .call = call,
                           .compares = true};
    const scaling::Result paper = scaling::simulate(job, static_cast<std::size_t>(world.size()), 1000);
    std::sort(hidden.all.begin(), hidden.all.end());
    std::printf("| %lld | %.2f + %.2f + %.2f | %.2f | %.3f | %.2f | %.2f | %.0f%% (%.0f to %.0f) | %.2f | %.0f%% |\n", static_cast<long long>(batch),
                forward * 1e3, backward * 1e3, update * 1e3, copy * 1e3, job.spread, together.all().median() * 1e3, calls.median() * 1e3,
                hidden.median() * 100, hidden.all[hidden.all.size() / 4] * 100, hidden.all[hidden.all.size() * 3 / 4] * 100, paper.step * 1e3,
                paper.hidden * 100);
    std::fflush(stdout);
}

void measure(const Group& world) {
    set_num_threads(1);
    print(world, "%s, %d ranks\n", world.engine(), world.size());
    double call = 0;
    const scaling::Link link = measure_all_reduce(world, &call);
    print(world,
          "\nOn paper: a call %.1f us, a message %.1f us, %.2f GB/s\n\n"
          "| batch | alone: forward + backward + update ms | buckets ms | spread | with the others ms | calls ms | hidden | on paper ms | hidden |\n"
          "|---|---|---|---|---|---|---|---|---|\n",
          call * 1e6, link.latency * 1e6, link.bandwidth * 1e-9);
    for (const std::int64_t batch : {16, 64, 256}) measure_steps(world, batch, link, call);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Group world = parallel::init(argc, argv);
        if (world.size() > 1) {
            measure(world);
        } else {
            parallel::spawn(argc > 1 ? std::atoi(argv[1]) : 2, measure);
        }
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_parallel: %s\n", error.what());
        return 1;
    }
}
