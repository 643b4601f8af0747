// A device that does not go on ends the program. ctest runs this alone and looks at what it writes.
#include "check.h"
#include "tapir/nn/parallel/parallel.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>

using namespace tapir;

TEST_CASE("a device that does not go on", "[.][cuda]") {
    parallel::spawn(2,
                    [](const parallel::Group& world) {
                        const DeviceScope scope(cuda(world.rank()));
                        const Tensor x = ones({4});
                        world.all_reduce(x);
                        synchronize(default_device());
                        world.barrier();
                        if (world.rank() == 1) emulator::hold(nullptr);
                        world.all_reduce(x);
                        synchronize(default_device());
                    },
                    {.timeout = 0.5});
}
#endif
