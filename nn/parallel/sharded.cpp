#include "tapir/nn/parallel/sharded.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "tapir/autograd/function.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/nn/parallel/access_impl.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/make.h"
#include "tapir/optim/rule_impl.h"

namespace tapir::parallel {
namespace {

using optim::Slot;
using optim::StepPart;

constexpr std::int64_t kPacketBytes = 4 << 20;  // about what travels at once; see ReplicasOptions::bucket

// What one rank sends to all others.
struct Packet {
    int owner;
    std::vector<const StepPart*> parts;
    std::int64_t bytes = 0;
    Tensor values{};  // uint8
    std::shared_ptr<Work> work{};
};

// The part's values, contiguous, in the host's memory; of the shape that they have in `parameter`, or of its rows.
Tensor values_of(const StepPart& part) {
    const Tensor values = part.rows.defined() ? part.parameter.index_select(0, part.rows) : part.parameter.detach();
    return values.to(cpu).contiguous();
}

Shape shape_of(const StepPart& part) {
    Shape shape = part.parameter.shape();
    if (part.rows.defined()) shape.raw(0) = part.rows.numel();
    return shape;
}

std::int64_t bytes_of(const StepPart& part) { return shape_of(part).numel() * static_cast<std::int64_t>(itemsize(part.parameter.dtype())); }

void write(const StepPart& part, const std::byte* bytes, const Loc& loc) {
    const Tensor values = tapir::detail::make_empty(shape_of(part), part.parameter.dtype(), cpu, loc);
    std::memcpy(values.impl()->data, bytes, static_cast<std::size_t>(bytes_of(part)));
    Tensor parameter = part.parameter;
    if (part.rows.defined()) {
        parameter.index_copy_(0, part.rows, values.to(parameter.device()), loc);
    } else {
        parameter.copy_(values, loc);
    }
}

}  // namespace

class Shards final : public optim::StepSharing {
 public:
    explicit Shards(const Group& group) : group_(group), loads_(static_cast<std::size_t>(group.size())) {}

    std::vector<bool> divide(const std::vector<Tensor>& parameters) override;
    void begin(const std::vector<StepPart>& parts, const Loc& loc) override;
    void end(const std::vector<StepPart>& parts, const Loc& loc) override;

    void collect(const StateWith& state_with, int to, const Loc& loc);
    const NamedTensors* collected(const Loc& loc) const;
    void forget() { state_.reset(); }

 private:
    std::vector<Packet> packets_of(const std::vector<StepPart>& parts) const;
    void send(const Slot& slot, int to, const Loc& loc) const;
    void receive(Slot& slot, int from, const Loc& loc) const;

    const Group group_;
    std::vector<int> owners_;          // by place
    std::vector<std::int64_t> loads_;  // bytes of parameters, by rank
    std::optional<NamedTensors> state_;
};

// The largest first, each to the rank that has least: no rank has more than 4/3 of the best division (Graham 1969), or one large parameter.
std::vector<bool> Shards::divide(const std::vector<Tensor>& parameters) {
    std::vector<std::size_t> order(parameters.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes_of(parameters[a]) > bytes_of(parameters[b]); });
    const std::size_t first = owners_.size();
    owners_.resize(first + parameters.size());
    std::vector<bool> is_elsewhere(parameters.size());
    for (const std::size_t i : order) {
        const auto least = std::min_element(loads_.begin(), loads_.end());
        *least += bytes_of(parameters[i]);
        owners_[first + i] = static_cast<int>(least - loads_.begin());
        is_elsewhere[i] = owners_[first + i] != group_.rank();
    }
    return is_elsewhere;
}

void Shards::begin(const std::vector<StepPart>& parts, const Loc& loc) {
    if (CustomFunction::is_traced()) fail<TapeError>(loc, "Sharded: a graph cannot hold a step that other ranks share");
    if (group_.size() == 1) return;
    std::string all;
    for (const StepPart& part : parts) all += fmt::format("{}: {} bytes, ", part.place, bytes_of(part));
    Call call{"step", fmt::format("{} parameters with gradients (of all: {:08x})", parts.size(), fingerprint_of(all) >> 32), loc};
    Access::channel(group_)->post(*Access::engine(group_), std::move(call), [] {})->wait();
    forget();
}

std::vector<Packet> Shards::packets_of(const std::vector<StepPart>& parts) const {
    std::vector<Packet> packets;
    for (int owner = 0; owner < group_.size(); ++owner) {
        std::int64_t room = 0;
        for (const StepPart& part : parts) {
            if (owners_[part.place] != owner) continue;
            const std::int64_t bytes = bytes_of(part);
            if (bytes > room) {
                packets.push_back({owner, {}});
                room = std::max(kPacketBytes, bytes);
            }
            packets.back().parts.push_back(&part);
            packets.back().bytes += bytes;
            room -= bytes;
        }
    }
    return packets;
}

void Shards::end(const std::vector<StepPart>& parts, const Loc& loc) {
    if (group_.size() == 1) return;
    const NoGradScope pause;
    std::vector<Packet> packets = packets_of(parts);
    for (Packet& packet : packets) {
        packet.values = tapir::detail::make_empty(Shape{packet.bytes}, uint8, cpu, loc);
        std::byte* to = packet.values.impl()->data;
        if (packet.owner == group_.rank()) {
            for (const StepPart* part : packet.parts) {
                const Tensor values = values_of(*part);
                std::memcpy(to, values.impl()->data, static_cast<std::size_t>(bytes_of(values)));
                to += bytes_of(values);
            }
        }
        Engine* const engine = Access::engine(group_);
        Call call{"step", fmt::format("{} bytes of parameters from rank {}", packet.bytes, packet.owner), loc};
        packet.work = Access::channel(group_)->post(*engine, std::move(call), [engine, values = packet.values, owner = packet.owner] {
            engine->broadcast(values.impl()->data, values.numel(), owner);
        });
    }
    for (Packet& packet : packets) {
        packet.work->wait();
        if (packet.owner == group_.rank()) continue;
        const std::byte* from = packet.values.impl()->data;
        for (const StepPart* part : packet.parts) {
            write(*part, from, loc);
            from += bytes_of(*part);
        }
        packet.values = Tensor();
    }
}

// --- State ---------------------------------------------------------------------------------------------------------------

// Messages: the number of steps, the number of the rule, a bit for each buffer that there is; then these buffers.
void Shards::send(const Slot& slot, int to, const Loc& loc) const {
    double has = 0;
    for (int k = 0; k < optim::kMaxBuffers; ++k) has += slot.buffers[k].defined() ? 1 << k : 0;
    group_.send(tensor({static_cast<double>(slot.steps), slot.number, has}, {float64, cpu}), to, loc);
    for (const Tensor& buffer : slot.buffers) {
        if (!buffer.defined()) continue;
        const Tensor flat = buffer.contiguous().flatten();
        for (std::int64_t at = 0; at < flat.numel(); at += kPacketBytes)
            group_.send(flat.narrow(0, at, std::min(kPacketBytes, flat.numel() - at)), to, loc);
    }
}

void Shards::receive(Slot& slot, int from, const Loc& loc) const {
    const Tensor numbers = group_.recv(from, cpu, loc);
    slot.steps = static_cast<std::int64_t>(numbers[0].item<double>());
    slot.number = numbers[1].item<double>();
    const auto has = static_cast<int>(numbers[2].item<double>());
    for (int k = 0; k < optim::kMaxBuffers; ++k) {
        slot.buffers[k] = Tensor();
        if (!(has >> k & 1)) continue;
        const std::int64_t numel = slot.parameter.numel();
        const DType dtype = computed_in(slot.parameter.dtype());
        const Tensor flat = tapir::detail::make_empty(Shape{numel}, dtype, cpu, loc);
        for (std::int64_t at = 0; at < numel; at += kPacketBytes)
            flat.narrow(0, at, std::min(kPacketBytes, numel - at)).copy_(group_.recv(from, cpu, loc));
        slot.buffers[k] = flat.reshape(slot.parameter.shape()).to(slot.parameter.device());
    }
}

void Shards::collect(const StateWith& state_with, int to, const Loc& loc) {
    const CallerScope caller(loc);
    if (to < 0 || to >= group_.size()) fail<ValueError>(loc, "consolidate_state_dict: there is no rank {} in a group of {}", to, group_.size());
    if (group_.size() == 1) return;
    const NoGradScope pause;
    group_.barrier(loc);  // compares the lines
    std::size_t place = 0;
    NamedTensors state = state_with([&](Slot& slot) {
        const int owner = owners_[place++];
        if (owner == to) return;
        if (owner == group_.rank()) send(slot, to, loc);
        if (to == group_.rank()) receive(slot, owner, loc);
    });
    if (to == group_.rank()) state_ = std::move(state);
}

const NamedTensors* Shards::collected(const Loc& loc) const {
    if (group_.size() == 1) return nullptr;
    if (!state_)
        fail<ValueError>(loc, "state_dict: other ranks have parts of the state: call consolidate_state_dict() on all ranks, and this on rank 0");
    return &*state_;
}

std::shared_ptr<Shards> make_shards(const Group& group) { return std::make_shared<Shards>(group); }
optim::StepSharing& sharing_of(Shards& shards) { return shards; }
void collect_state(Shards& shards, const StateWith& state_with, int to, const Loc& loc) { shards.collect(state_with, to, loc); }
void forget_state(Shards& shards) { shards.forget(); }
const NamedTensors* collected_state(const Shards& shards, const Loc& loc) { return shards.collected(loc); }

}  // namespace tapir::parallel
