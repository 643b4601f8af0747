// restart FILE KILLED_RANK STEP: trains 60 steps; the rank kills itself in the middle of that step (-1: nobody). Started again it goes on from the last
// state.
#include <csignal>
#include <cstdlib>

#include "training.h"

int main(int argc, char** argv) {
    try {
        const tapir::parallel::Group world = tapir::parallel::init(argc, argv, {.timeout = 20});
        const int killed = std::atoi(argv[2]), at = std::atoi(argv[3]);
        training::run(world, argv[1], 60, [&](std::int64_t step) {
            if (step == at && world.rank() == killed) std::raise(SIGKILL);
        });
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
