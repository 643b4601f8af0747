// Steps of many parameters on a CUDA device.
#include "compare.h"
#ifdef TAPIR_CUDA_EMULATED
#include "cuda_runtime.h"

using namespace tapir;

TEST_CASE("many parameters take few launches, and small ones few blocks", "[cuda]") {
    NEEDS_CUDA;
    std::vector<Tensor> many;
    for (int i = 0; i < 91; ++i) {
        const std::int64_t n = i == 90 ? 100000 : i % 2 ? 300 : 5;
        many.push_back(ones({n}, {float32, cuda, true}));
        many.back().set_grad(ones({n}, cuda));
    }
    optim::Adam adam(many, {.lr = 0.1});
    adam.step();  // makes its buffers
    const int launches = emulator::kernels_launched();
    const std::int64_t blocks = emulator::blocks_launched();
    adam.step();
    CHECK(emulator::kernels_launched() - launches == 4);  // of 24 parameters each
    CHECK(emulator::blocks_launched() - blocks <= 90 + 100000 / 2048 + 1);
}
#endif
