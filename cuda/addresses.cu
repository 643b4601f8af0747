#include "tapir/cuda/addresses.h"
#include "tapir/cuda/device.cuh"

namespace tapir::gpu {
namespace {

__global__ void __launch_bounds__(kThreads) list_addresses_kernel(void** to, char* first, i64 bytes, i64 count) {
    const i64 k = global_index();
    if (k < count) to[k] = first + k * bytes;
}

}  // namespace

void list_addresses(void** to, void* first, i64 bytes, i64 count) {
    launch(list_addresses_kernel, blocks_for(count, kThreads), kThreads, to, static_cast<char*>(first), bytes, count);
}

}  // namespace tapir::gpu
