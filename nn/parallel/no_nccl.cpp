// What a build without NCCL has in place of cuda/parallel/nccl.cpp.
#include "tapir/nn/parallel/on_device_impl.h"

namespace tapir::parallel {

NcclPeer nccl_peer(Device) { return {}; }
NcclId nccl_id() { return {}; }
std::unique_ptr<DeviceCollectives> nccl_collectives(const NcclId&, int, int, Device) { return nullptr; }

}  // namespace tapir::parallel
