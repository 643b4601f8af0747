// mpirun -n 3 parallel_ranks [CASE]: the cases of tests/nn/parallel, for processes. TAPIR_TEST_CUDA=1: on the first CUDA device.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cases.h"

int main(int argc, char** argv) {
    using namespace cases;
    try {
        const Group world = parallel::init(argc, argv, {.timeout = 60});
        require(process_rank() == world.rank(), "the process knows its rank");
        const DeviceScope device(std::getenv("TAPIR_TEST_CUDA") ? Device(cuda) : Device(cpu));
        for (const Case& one : all_cases()) {
            if (world.size() < one.least_ranks || (argc > 1 && std::strcmp(argv[1], one.name) != 0)) continue;
            one.run(world);
            world.barrier();
            if (world.rank() == 0) std::printf("%s: %s, %d ranks\n", one.name, world.engine(), world.size());
        }
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}
