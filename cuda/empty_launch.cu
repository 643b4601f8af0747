// Launches an empty kernel.
#include "tapir/cuda/device.cuh"

namespace tapir::gpu {
namespace {

__global__ void empty_kernel(const float*, const float*, float*, i64) {}  // has the parameters of an op with two operands

}  // namespace

void launch_empty(int count) {
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 32;
    config.stream = current().handle;
    const float* none = nullptr;
    for (int i = 0; i < count; ++i) {
        TAPIR_CUDA_CHECK(cudaLaunchKernelEx(&config, empty_kernel, none, none, static_cast<float*>(nullptr), i64{0}));
    }
}

}  // namespace tapir::gpu
