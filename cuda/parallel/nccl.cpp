// Collectives of CUDA devices by NCCL. Of Tapir::parallel; nothing else sees NCCL's header.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "tapir/core/device_impl.h"
#include "tapir/core/stream.h"
#include "tapir/cuda/context.h"
#include "tapir/nn/parallel/on_device_impl.h"

namespace tapir::parallel {
namespace {

void check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) {
    if (result == ncclSuccess) return;
    const char* const more = ncclGetLastError(comm);
    throw EngineError(std::string("NCCL: ") + call + ": " + ncclGetErrorString(result) + (more && *more ? std::string(": ") + more : ""));
}

ncclDataType_t type_of(DType dtype) {
    switch (dtype) {
        case DType::boolean:  // only their least and greatest are asked for
        case DType::uint8: return ncclUint8;
        case DType::int32: return ncclInt32;
        case DType::int64: return ncclInt64;
        case DType::float16: return ncclFloat16;
        case DType::bfloat16: return ncclBfloat16;
        case DType::float32: return ncclFloat32;
        case DType::float64: return ncclFloat64;
    }
    return ncclUint8;
}

ncclRedOp_t op_of(Reduce reduce) {
    switch (reduce) {
        case Reduce::sum:
        case Reduce::mean: return ncclSum;
        case Reduce::product: return ncclProd;
        case Reduce::min: return ncclMin;
        case Reduce::max: return ncclMax;
    }
    return ncclSum;
}

// Several calls that NCCL begins together: each may wait for another.
class Together {
 public:
    Together() { check(ncclGroupStart(), "ncclGroupStart"); }
    ~Together() {
        if (!is_ended_) static_cast<void>(ncclGroupEnd());
    }
    void end() {
        is_ended_ = true;
        check(ncclGroupEnd(), "ncclGroupEnd");
    }

 private:
    bool is_ended_ = false;
};

class Nccl final : public DeviceCollectives {
 public:
    Nccl(const NcclId& id, int rank, int ranks, Device device) : device_(device), rank_(rank), ranks_(ranks) {
        ncclUniqueId unique;
        std::memcpy(&unique, id.data(), sizeof(unique));
        device_api::select(device);
        parallel::check(ncclCommInitRank(&comm_, ranks, unique, rank), "ncclCommInitRank");
    }
    ~Nccl() override {
        if (comm_) ncclCommDestroy(comm_);
    }

    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override {
        if (count > 0) call("ncclAllReduce", ncclAllReduce(data, data, size(count), type_of(dtype), op_of(reduce), comm_, stream()));
    }
    void broadcast(void* data, std::int64_t bytes, int root) override {
        if (bytes > 0) call("ncclBroadcast", ncclBroadcast(data, data, size(bytes), ncclUint8, root, comm_, stream()));
    }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override {
        if (std::all_of(bytes.begin(), bytes.end(), [&](std::int64_t of_rank) { return of_rank == bytes[0]; })) {
            if (bytes[0] > 0) call("ncclAllGather", ncclAllGather(in, out, size(bytes[0]), ncclUint8, comm_, stream()));
            return;
        }
        Together together;
        auto* to = static_cast<std::byte*>(out);
        for (int root = 0; root < ranks_; ++root) {
            const std::int64_t of_root = bytes[static_cast<std::size_t>(root)];
            if (of_root > 0) call("ncclBroadcast", ncclBroadcast(root == rank_ ? in : to, to, size(of_root), ncclUint8, root, comm_, stream()));
            to += of_root;
        }
        together.end();
    }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        if (count > 0) call("ncclReduceScatter", ncclReduceScatter(in, out, size(count), type_of(dtype), op_of(reduce), comm_, stream()));
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override {
        if (bytes == 0) return;
        Together together;
        for (int other = 0; other < ranks_; ++other) {
            call("ncclSend", ncclSend(static_cast<const std::byte*>(in) + other * bytes, size(bytes), ncclUint8, other, comm_, stream()));
            call("ncclRecv", ncclRecv(static_cast<std::byte*>(out) + other * bytes, size(bytes), ncclUint8, other, comm_, stream()));
        }
        together.end();
    }

    void check() override {
        const std::lock_guard lock(mutex_);
        if (!comm_) return;
        ncclResult_t now = ncclSuccess;
        call("ncclCommGetAsyncError", ncclCommGetAsyncError(comm_, &now));
        if (now != ncclInProgress) call("a collective", now);
    }
    void abort() noexcept override {
        const std::lock_guard lock(mutex_);
        if (comm_) ncclCommAbort(comm_);
        comm_ = nullptr;
    }

 private:
    static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
    cudaStream_t stream() const { return static_cast<cudaStream_t>(Stream::current(device_).native_handle()); }
    void call(const char* name, ncclResult_t result) const { parallel::check(result, name, comm_); }

    Device device_;
    int rank_, ranks_;
    ncclComm_t comm_ = nullptr;  // null: aborted
    std::mutex mutex_;           // of comm_, which the watchdog asks and the channel's thread aborts
};

}  // namespace

NcclPeer nccl_peer(Device device) {
    NcclPeer peer;
    cudaDeviceProp properties;
    TAPIR_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
    static_assert(sizeof(properties.uuid) == sizeof(peer.device));
    std::memcpy(peer.device.data(), &properties.uuid, sizeof(properties.uuid));
    int version = 0;
    if (ncclGetVersion(&version) == ncclSuccess) peer.version = version;
    return peer;
}

NcclId nccl_id() {
    ncclUniqueId unique;
    check(ncclGetUniqueId(&unique), "ncclGetUniqueId");
    NcclId id;
    static_assert(sizeof(unique) == sizeof(id));
    std::memcpy(id.data(), &unique, sizeof(id));
    return id;
}

std::unique_ptr<DeviceCollectives> nccl_collectives(const NcclId& id, int rank, int ranks, Device device) {
    return std::make_unique<Nccl>(id, rank, ranks, device);
}

}  // namespace tapir::parallel
