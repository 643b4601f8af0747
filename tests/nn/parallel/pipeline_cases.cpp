// Stages on several ranks against the whole model in one process.
#include <fmt/format.h>

#include <algorithm>

#include <tapir/tapir.h>

#include "cases.h"
#include "tapir/nn/parallel/pipeline.h"

namespace cases {
namespace {

using parallel::Pipeline;

// Layers 0 to ranks - 1, each a stage: 6 -> 6.
std::vector<nn::Linear> made_layers(int count) {
    manual_seed(8);
    std::vector<nn::Linear> layers;
    for (int i = 0; i < count; ++i) {
        layers.emplace_back(6, 6);
        layers.back().to(float64);
    }
    return layers;
}
Tensor batch_of(int step, std::int64_t samples) {
    Generator generator(static_cast<std::uint64_t>(step));
    return randn({samples, 6}, generator, float64);
}
const Pipeline::Loss kLoss = [](const Tensor& y, const Tensor& target) { return square(y - target).mean(); };

// Micro-batches that divide the batch, and that do not.
void training(const Group& world) {
    for (const int micro_batches : {1, 2, 5, 7}) {
        const std::vector<nn::Linear> layers = made_layers(world.size()), whole = made_layers(world.size());
        const nn::Linear& mine = layers[static_cast<std::size_t>(world.rank())];
        int alive = 0, most = 0;  // activations that wait for their gradient
        Pipeline pipeline(
            [&](const Tensor& x) {
                const Tensor y = tanh(mine(x));
                if (!is_recording()) return y;
                most = std::max(most, ++alive);
                y.register_hook([&](const Tensor& g) {
                    --alive;
                    return g;
                });
                return y;
            },
            kLoss, world, {.micro_batches = micro_batches});
        std::vector<Tensor> parameters;
        for (const nn::Linear& layer : whole) {
            for (const Tensor& p : layer.parameters()) parameters.push_back(p);
        }
        optim::Adam step_mine(mine.parameters(), {.lr = 0.01}), step_whole(parameters, {.lr = 0.01});
        const auto whole_of = [&](Tensor x) {
            for (const nn::Linear& layer : whole) x = tanh(layer(x));
            return x;
        };
        for (int step = 0; step < 5; ++step) {
            const Tensor x = batch_of(step, 14), target = batch_of(100 + step, 14);
            const Tensor loss = pipeline.forward_backward(world.rank() == 0 ? x : Tensor(), world.rank() + 1 == world.size() ? target : Tensor());
            Tape tape;
            const Tensor want = kLoss(whole_of(x), target);
            tape.backward(want);
            require_close(loss, want.detach(), 1e-12);
            const std::vector<Tensor> have = mine.parameters(), of_whole = whole[static_cast<std::size_t>(world.rank())].parameters();
            for (std::size_t i = 0; i < have.size(); ++i) require_close(have[i].grad(), of_whole[i].grad(), 1e-10);
            step_mine.step();
            step_whole.step();
            step_mine.zero_grad();
            step_whole.zero_grad();
        }
        require(alive == 0, "all gradients came");
        require(most == std::min(micro_batches, world.size() - world.rank()), fmt::format("at most {} activations at a time", most));
        const Tensor x = batch_of(9, 14), y = pipeline.forward(x);
        require(y.defined() == (world.rank() + 1 == world.size()), "the result is on the last rank");
        if (y.defined()) require_close(y, whole_of(x), 1e-10);
    }
}

// Two pipelines beside each other, each with half of the batch.
void with_replicas(const Group& world) {
    if (world.size() % 2 != 0) return;
    const int stages = world.size() / 2, stage = world.rank() / 2, half = world.rank() % 2;
    const Group pipe = world.split(half), alike = world.split(stage);
    const std::vector<nn::Linear> layers = made_layers(stages), whole = made_layers(stages);
    nn::Linear mine = layers[static_cast<std::size_t>(stage)];
    parallel::Replicas replicas(mine, alike);
    Pipeline pipeline([&](const Tensor& x) { return tanh(mine(x)); }, kLoss, pipe, {.micro_batches = 3, .replicas = &replicas});
    const Tensor x = batch_of(1, 12), target = batch_of(2, 12);
    pipeline.forward_backward(x.narrow(0, 6 * half, 6), target.narrow(0, 6 * half, 6));
    Tape tape;
    Tensor y = x;
    for (const nn::Linear& layer : whole) y = tanh(layer(y));
    tape.backward(kLoss(y, target));
    require_close(mine.weight.grad(), whole[static_cast<std::size_t>(stage)].weight.grad(), 1e-10);
}

// Words into the first stage; a first stage without parameters.
void other_tensors(const Group& world) {
    if (world.size() < 2) return;
    manual_seed(2);
    nn::Linear last(4, 1);
    Pipeline pipeline(
        [&](const Tensor& x) {
            if (world.rank() + 1 < world.size()) return x * 2;
            return last(x.to(float32));
        },
        kLoss, world, {.micro_batches = 2});
    const Tensor words = arange(8).reshape({2, 4});
    pipeline.forward_backward(words, zeros({2, 1}));
    const Tensor seen = (words * (1 << (world.size() - 1))).to(float32);
    if (world.rank() + 1 < world.size()) return;
    const Tensor have = last.weight.grad().clone();
    last.weight.zero_grad();
    Tape tape;
    tape.backward(square(last(seen)).mean());
    require_close(have, last.weight.grad(), 1e-4);
}

void refused(const Group& world) {
    const Pipeline::Stage stage = [](const Tensor& x) { return x; };
    require_in("needs a stage and a loss", message_of<ValueError>([&] { const Pipeline none({}, kLoss, world); }));
    require_in("at least 1 micro-batch, got 0", message_of<ValueError>([&] { const Pipeline none(stage, kLoss, world, {.micro_batches = 0}); }));
    Pipeline pipeline(stage, kLoss, world);
    {
        Tape tape;
        require_in("call it outside of any other", message_of<TapeError>([&] { pipeline.forward_backward(ones({4, 1}), ones({4, 1})); }));
    }
    if (world.size() > 1) return;
    require_in("has fewer samples than the 4 micro-batches", message_of<ShapeError>([&] { pipeline.forward_backward(ones({3, 1}), ones({4, 1})); }));
    require_in("a target of shape (2, 1)", message_of<ShapeError>([&] { pipeline.forward_backward(ones({4, 1}), ones({2, 1})); }));
    Pipeline bad([](const Tensor&) { return Tensor(); }, kLoss, world);
    require_in("the stage of rank 0 returns an undefined tensor", message_of<ValueError>([&] { bad.forward_backward(ones({4, 1}), ones({4, 1})); }));
}

}  // namespace

std::vector<Case> pipeline_cases() {
    return {{"Pipeline", 1, training},
            {"pipelines with replicas", 2, with_replicas},
            {"other tensors in a pipeline", 2, other_tensors},
            {"misuse of Pipeline", 1, refused}};
}

}  // namespace cases
