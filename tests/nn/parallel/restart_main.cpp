// restart FILE KILLED_RANK STEP: trains 60 steps and saves every 10; the rank kills itself before that step (-1: nobody). Started again it goes on from
// the last state. Rank 0 prints the parameters at the end, to the bit.
#include <tapir/tapir.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tapir/nn/parallel/parallel.h"

int main(int argc, char** argv) {
    using namespace tapir;
    try {
        const parallel::Group world = parallel::init(argc, argv, {.timeout = 20});
        const std::string path = argv[1];
        const int killed = std::atoi(argv[2]), at = std::atoi(argv[3]);
        manual_seed(static_cast<std::uint64_t>(world.rank()));
        nn::Linear first(6, 8), second(8, 2);
        std::vector<Tensor> parameters = first.parameters();
        for (const Tensor& p : second.parameters()) parameters.push_back(p);
        const parallel::Replicas replicas(parameters, world);
        optim::Adam adam(parameters, {.lr = 0.01});
        std::int64_t step = 0;
        nn::TrainingState run(path);
        run("first", first)("second", second)("adam", adam)("step", step);
        run.load();
        world.barrier();  // nobody saves while another still reads
        while (step < 60) {
            if (step == at && world.rank() == killed) std::raise(SIGKILL);
            Generator data(static_cast<std::uint64_t>(1000 * step + world.rank()));
            Tape tape;
            tape.backward(square(second(tanh(first(randn({4, 6}, data)))) - 1).mean());
            adam.step();
            adam.zero_grad();
            if (++step % 10 == 0 && world.rank() == 0) run.save();
        }
        world.barrier();
        if (world.rank() != 0) return 0;
        for (const Tensor& p : parameters) {
            for (const float x : p.detach().to_vector<float>()) std::printf("%a\n", static_cast<double>(x));
        }
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
