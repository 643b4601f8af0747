// SyncBatchNorm against nn::BatchNorm of one process that has all ranks' batches.
#include <tapir/optim/optim.h>

#include "cases.h"
#include "tapir/nn/parallel/replicas.h"
#include "tapir/nn/parallel/sync_batch_norm.h"

namespace cases {
namespace {

using parallel::Replicas;

struct Net : nn::Module {
    nn::Conv2d convolution{2, 4, 3};
    nn::BatchNorm2d norm{4};
    nn::Linear linear{4, 3};
    void members(nn::Members& m) override { m("convolution", convolution)("norm", norm)("linear", linear); }
    Tensor forward(const Tensor& x) const { return linear(mean(relu(norm(convolution(x))), {2, 3})); }
};

Tensor part_of(int rank, int step, std::int64_t samples) {
    Generator generator(static_cast<std::uint64_t>(rank + 10 * step));
    return randn({samples, 2, 5, 5}, generator, float64) * (rank + 1) + 3 * rank;  // a mean and variance of its own
}

// samples_of(rank, step): how many a rank has
void train(const Group& world, const std::function<std::int64_t(int, int)>& samples_of) {
    manual_seed(static_cast<std::uint64_t>(world.rank()));
    Net have;
    manual_seed(0);
    Net want;
    have.to(float64);
    want.to(float64);
    parallel::convert_sync_batchnorm(have, world);
    Replicas replicas(have, world);
    optim::Adam step_have(have.parameters(), {.lr = 0.01}), step_want(want.parameters(), {.lr = 0.01});
    for (int step = 0; step < 50; ++step) {
        const std::int64_t samples = samples_of(world.rank(), step);
        {
            Tape tape;
            replicas.backward(square(have.forward(part_of(world.rank(), step, samples)) - 1).mean(), samples);
        }
        std::vector<Tensor> parts;
        for (int r = 0; r < world.size(); ++r) parts.push_back(part_of(r, step, samples_of(r, step)));
        {
            Tape tape;
            tape.backward(square(want.forward(cat(parts)) - 1).mean());
        }
        step_have.step();
        step_want.step();
        step_have.zero_grad();
        step_want.zero_grad();
    }
    const NamedTensors got = have.state_dict(), expected = want.state_dict();
    for (std::size_t i = 0; i < got.size(); ++i) {
        const Tensor mine = got[i].tensor.detach();
        require_close(mine, expected[i].tensor.detach(), 1e-8);
        require_equal(world.broadcast(mine), mine);
    }
    have.eval();
    want.eval();
    const Tensor x = part_of(7, 7, 2);
    require_close(have.forward(x), want.forward(x), 1e-8);
}

void even(const Group& world) {
    train(world, [](int, int) { return 3; });
}
void uneven(const Group& world) {
    train(world, [&](int rank, int step) { return world.size() == 1 ? 2 : (rank + step) % world.size(); });
}

// A parameter that only some ranks use, behind the layer: they have its bucket before the layer's calls in backward, the others after them.
void unused(const Group& world) {
    manual_seed(6);
    nn::Linear first(3, 4), second(4, 2), want_first = nn::clone(first), want_second = nn::clone(second);
    parallel::SyncBatchNorm norm(4, world, {.affine = false});
    const nn::BatchNorm1d want_norm(4, {.affine = false});
    std::vector<Tensor> parameters = first.parameters();
    for (const Tensor& p : second.parameters()) parameters.push_back(p);
    const Replicas replicas(parameters, world, {.bucket = 1});
    const auto used = [&](int rank, int step) { return (rank + step) % 2 == 0; };
    const auto loss = [](const Tensor& h, const nn::Linear& last, bool uses) { return uses ? square(last(h) - 1).sum() : h.pow(3).sum(); };
    for (int step = 0; step < 4; ++step) {
        std::vector<Tensor> inputs;
        for (int r = 0; r < world.size(); ++r) {
            Generator generator(static_cast<std::uint64_t>(r + 10 * step));
            inputs.push_back(randn({5, 3}, generator));
        }
        {
            Tape tape;
            tape.backward(loss(norm(first(inputs[static_cast<std::size_t>(world.rank())])), second, used(world.rank(), step)));
        }
        Tape tape;
        const Tensor h = want_norm(want_first(cat(inputs)));
        Tensor total = zeros({});
        for (int r = 0; r < world.size(); ++r) total = total + loss(h.narrow(0, 5 * r, 5), want_second, used(r, step));
        tape.backward(total / world.size());
        for (const auto& [have, want] : {std::pair{&first, &want_first}, {&second, &want_second}}) {
            require(have->weight.grad().defined() == want->weight.grad().defined(), "somebody has used it");
            if (have->weight.grad().defined()) require_close(have->weight.grad(), want->weight.grad(), 1e-4);
            have->zero_grad();
            want->zero_grad();
        }
    }
}

// In other dtypes, without parameters or running statistics, and without momentum.
void options(const Group& world) {
    const Tensor x = part_of(world.rank(), 1, 4).to(float32);
    std::vector<Tensor> parts;
    for (int r = 0; r < world.size(); ++r) parts.push_back(part_of(r, 1, 4).to(float32));
    const Tensor all = cat(parts), mean_of_all = mean(all, {0, 2, 3}, true), variance = var(all, {0, 2, 3}, 0, true);
    const Tensor want = (x - mean_of_all) * rsqrt(variance + 1e-5);
    const parallel::SyncBatchNorm plain(2, world, {.affine = false, .track_running_stats = false});
    require_close(plain(x), want, 1e-5);
    require_close(plain(x.to(bfloat16)).to(float32), want, 0.05);
    parallel::SyncBatchNorm average(2, world, {.momentum = {}});
    for (int step = 0; step < 3; ++step) average(x * (step + 1));
    require_close(average.running_mean, mean_of_all.flatten() * 2, 1e-5);
}

void refused(const Group& world) {
    const parallel::SyncBatchNorm norm(3, world);
    require_in("SyncBatchNorm: it has 3 channels", message_of<ShapeError>([&] { norm(ones({4, 2})); }));
    const std::string alone = message_of<ValueError>([&] { norm(ones({world.rank() == 0 ? 1 : 0, 3})); });
    require_in(world.size() == 1 ? "needs more than one element" : "needs more than one element on all ranks together, it has 1", alone);
    require_in("sync_batch_norm_cases.cpp:", alone);
    require_equal(norm.running_mean, zeros({3}));
}

}  // namespace

std::vector<Case> sync_batch_norm_cases() {
    return {{"SyncBatchNorm", 1, even},
            {"SyncBatchNorm of uneven batches", 1, uneven},
            {"SyncBatchNorm and unused parameters", 1, unused},
            {"options of SyncBatchNorm", 1, options},
            {"misuse of SyncBatchNorm", 1, refused}};
}

}  // namespace cases
