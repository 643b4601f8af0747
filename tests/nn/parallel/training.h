// The training that the tests of failures disturb.
#pragma once

#include <tapir/tapir.h>

#include <cstdio>
#include <string>

#include "tapir/nn/parallel/parallel.h"

namespace training {

using namespace tapir;

// Trains up to so many steps, from the state in the file if there is one, and saves every 10. in_step(step) is called in the middle of backward(). Rank 0
// prints the parameters, to the bit.
template <class InStep>
void run(const parallel::Group& world, const std::string& path, std::int64_t steps, const InStep& in_step, std::int64_t width = 8) {
    manual_seed(static_cast<std::uint64_t>(world.rank()));
    nn::Linear first(6, width), second(width, 2);
    std::vector<Tensor> parameters = first.parameters();
    for (const Tensor& p : second.parameters()) parameters.push_back(p);
    const parallel::Replicas replicas(parameters, world, {.bucket = 1});  // each parameter has a bucket of its own
    optim::Adam adam(parameters, {.lr = 0.01});
    std::int64_t step = 0;
    nn::TrainingState state(path);
    state("first", first)("second", second)("adam", adam)("step", step);
    state.load();
    world.barrier();  // nobody saves while another still reads
    while (step < steps) {
        Generator data(static_cast<std::uint64_t>(1000 * step + world.rank()));
        Tape tape;
        const Tensor h = tanh(first(randn({4, 6}, data)));
        h.register_hook([&](const Tensor& g) {
            in_step(step);
            return g;
        });
        tape.backward(square(second(h) - 1).mean());
        adam.step();
        adam.zero_grad();
        if (++step % 10 == 0) world.on_rank(0, [&] { state.save(); });
    }
    world.barrier();
    if (world.rank() != 0) return;
    for (const Tensor& p : parameters) {
        for (const float x : p.detach().to_vector<float>()) std::printf("%a\n", static_cast<double>(x));
    }
}

}  // namespace training
