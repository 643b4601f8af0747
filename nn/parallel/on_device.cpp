#include "tapir/nn/parallel/on_device_impl.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tapir/core/device_impl.h"

namespace tapir::parallel {
namespace {

// Copies to the host, lets the engine do it there, and copies back.
class ByHost final : public DeviceCollectives {
 public:
    ByHost(Engine& engine, Device device) : engine_(engine), device_(device) {}

    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override {
        std::vector<std::byte> host = taken(data, count * item(dtype));
        engine_.all_reduce(host.data(), count, dtype, reduce);
        give(data, host);
    }
    void broadcast(void* data, std::int64_t bytes, int root) override {
        std::vector<std::byte> host = taken(data, bytes);
        engine_.broadcast(host.data(), bytes, root);
        give(data, host);
    }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override {
        const std::vector<std::byte> host = taken(in, bytes[static_cast<std::size_t>(engine_.rank())]);
        std::vector<std::byte> all(static_cast<std::size_t>(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0})));
        engine_.all_gather(host.data(), all.data(), bytes);
        give(out, all);
    }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        std::vector<std::byte> host = taken(in, count * item(dtype) * engine_.size()), part(static_cast<std::size_t>(count * item(dtype)));
        engine_.reduce_scatter(host.data(), part.data(), count, dtype, reduce);
        give(out, part);
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override {
        const std::vector<std::byte> host = taken(in, bytes * engine_.size());
        std::vector<std::byte> all(host.size());
        engine_.all_to_all(host.data(), all.data(), bytes);
        give(out, all);
    }

 private:
    static std::int64_t item(DType dtype) { return static_cast<std::int64_t>(itemsize(dtype)); }
    std::vector<std::byte> taken(const void* data, std::int64_t bytes) const {
        std::vector<std::byte> host(static_cast<std::size_t>(bytes));
        if (bytes > 0) device_api::copy(host.data(), cpu, data, device_, host.size(), /*wait=*/true);
        return host;
    }
    void give(void* data, const std::vector<std::byte>& host) const {
        if (!host.empty()) device_api::copy(data, device_, host.data(), cpu, host.size(), /*wait=*/false);
    }

    Engine& engine_;
    Device device_;
};

// NCCL, but for what it computes otherwise than the engines: it is not said what the least and the greatest of numbers with a nan are.
class ByNccl final : public DeviceCollectives {
 public:
    ByNccl(std::unique_ptr<DeviceCollectives> nccl, Engine& engine, Device device) : nccl_(std::move(nccl)), by_host_(engine, device) {}

    void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) override { of(dtype, reduce).all_reduce(data, count, dtype, reduce); }
    void broadcast(void* data, std::int64_t bytes, int root) override { nccl_->broadcast(data, bytes, root); }
    void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) override { nccl_->all_gather(in, out, bytes); }
    void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) override {
        of(dtype, reduce).reduce_scatter(in, out, count, dtype, reduce);
    }
    void all_to_all(const void* in, void* out, std::int64_t bytes) override { nccl_->all_to_all(in, out, bytes); }
    void check() override { nccl_->check(); }
    void abort() noexcept override { nccl_->abort(); }

 private:
    Collectives& of(DType dtype, Reduce reduce) {
        if (is_floating(dtype) && (reduce == Reduce::min || reduce == Reduce::max)) return by_host_;
        return *nccl_;
    }
    std::unique_ptr<DeviceCollectives> nccl_;
    ByHost by_host_;
};

bool can_use_nccl(const std::vector<NcclPeer>& peers) {
    for (std::size_t i = 0; i < peers.size(); ++i) {
        if (peers[i].version == 0 || peers[i].version != peers[0].version) return false;
        for (std::size_t j = 0; j < i; ++j) {
            if (peers[j].device == peers[i].device) return false;  // which NCCL refuses
        }
    }
    return true;
}

// Rank 0's, or why it has none.
NcclId shared_id(Engine& engine) {
    struct {
        NcclId id;
        char problem[256];
    } message = {};
    if (engine.rank() == 0) {
        try {
            message.id = nccl_id();
        } catch (const EngineError& e) {
            std::strncpy(message.problem, e.what(), sizeof(message.problem) - 1);
        }
    }
    engine.broadcast(&message, sizeof(message), 0);
    if (message.problem[0] != '\0') throw EngineError(message.problem);
    return message.id;
}

}  // namespace

std::unique_ptr<DeviceCollectives> device_collectives(Engine& engine, Device device) {
    const NcclPeer own = nccl_peer(device);
    std::vector<NcclPeer> peers(static_cast<std::size_t>(engine.size()));
    engine.all_gather(&own, peers.data(), std::vector<std::int64_t>(peers.size(), sizeof(own)));
    if (!can_use_nccl(peers)) return std::make_unique<ByHost>(engine, device);
    const NcclId id = shared_id(engine);
    return std::make_unique<ByNccl>(nccl_collectives(id, engine.rank(), engine.size(), device), engine, device);
}

}  // namespace tapir::parallel
