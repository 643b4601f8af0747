// What ranks compute together of memory of their CUDA devices: by NCCL where all have it and no two share a device, else by way of the host.
//
// Calls come from the channel's thread. They put their work on the current stream, and return before it is done.
#pragma once

#include <array>

#include "tapir/core/device.h"
#include "tapir/nn/parallel/engine_impl.h"

namespace tapir::parallel {

class DeviceCollectives : public Collectives {
 public:
    /// From the watchdog's thread: throws EngineError if another rank's part of what is on the stream will not come any more.
    virtual void check() {}
    /// Ends what is on the stream, whatever the other ranks do. Nothing is called after it.
    virtual void abort() noexcept {}
};

/// Collective: the ranks' devices may have different numbers.
std::unique_ptr<DeviceCollectives> device_collectives(Engine& engine, Device device);

// --- cuda/parallel/nccl.cpp, or no_nccl.cpp ------------------------------------------------------------------------------------

/// What a rank tells the others before they connect.
struct NcclPeer {
    std::int32_t version = 0;          // of NCCL; 0: there is none
    std::array<char, 16> device = {};  // the GPU's own number, which no other GPU has
};
using NcclId = std::array<char, 128>;
NcclPeer nccl_peer(Device device);
/// Names a group that comes into being. Throws EngineError.
NcclId nccl_id();
/// Waits for the other ranks. Throws EngineError.
std::unique_ptr<DeviceCollectives> nccl_collectives(const NcclId& id, int rank, int ranks, Device device);

}  // namespace tapir::parallel
