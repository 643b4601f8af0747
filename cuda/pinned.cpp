// Page-locked host memory, for copies that devices make on their own. Kept for reuse by powers of two; a block that a
// copy still reads or writes waits for that copy's event first.
#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <vector>

#include "tapir/core/capture_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/stream.h"
#include "tapir/cuda/context.h"

namespace tapir::gpu {
namespace {

struct PinnedBlock {
    void* data;
    std::size_t bytes;
    std::vector<cudaEvent_t> events;  // of copies that may still run

    bool is_free() {
        while (!events.empty() && cudaEventQuery(events.back()) != cudaErrorNotReady) {
            cudaEventDestroy(events.back());
            events.pop_back();
        }
        return events.empty();
    }
};

struct PinnedMemory {
    std::mutex mutex;
    std::map<std::size_t, std::vector<PinnedBlock*>> spare;  // by size
};
PinnedMemory& memory() {
    static auto* const made = new PinnedMemory;
    return *made;
}

void release_pinned(Storage* storage) {
    auto* block = static_cast<PinnedBlock*>(storage->context);
    const std::lock_guard lock(memory().mutex);
    memory().spare[block->bytes].push_back(block);
}

}  // namespace
}  // namespace tapir::gpu

namespace tapir::device_api {

using namespace gpu;

void allocate_pinned(Storage& storage, const Loc& loc) {
    refuse_capture();
    const std::size_t bytes = std::bit_ceil(std::max<std::size_t>(storage.nbytes, 512));
    PinnedBlock* block = nullptr;
    {
        const std::lock_guard lock(memory().mutex);
        auto& spare = memory().spare[bytes];
        const auto found = std::find_if(spare.begin(), spare.end(), [](PinnedBlock* b) { return b->is_free(); });
        if (found != spare.end()) {
            block = *found;
            spare.erase(found);
        }
    }
    if (!block) {
        void* data = nullptr;
        if (cudaMallocHost(&data, bytes) != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            fail<OutOfMemory>(loc, "no page-locked memory for {} bytes", bytes);
        }
        block = new PinnedBlock{data, bytes, {}};
    }
    storage.data = static_cast<std::byte*>(block->data);
    storage.context = block;
    storage.release = release_pinned;
}

bool is_pinned(const Storage& storage) noexcept { return storage.release == release_pinned; }

void pinned_used(Storage& storage, Device device) {
    refuse_capture();
    select(device);
    cudaEvent_t event;
    TAPIR_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    TAPIR_CUDA_CHECK(cudaEventRecord(event, current().handle));
    const std::lock_guard lock(memory().mutex);
    static_cast<PinnedBlock*>(storage.context)->events.push_back(event);
}

}  // namespace tapir::device_api
