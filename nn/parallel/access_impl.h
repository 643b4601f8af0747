// What the files of nn/parallel see of a Group.
#pragma once

#include "tapir/nn/parallel/channel_impl.h"

namespace tapir::parallel {

struct Group::State {
    std::shared_ptr<Channel> channel;
    Engine* engine;  // one of the channel's
};

class Access {
 public:
    static Group group(std::shared_ptr<Channel> channel, Engine& engine);
    /// Null: a process alone.
    static Channel* channel(const Group& group) noexcept;
    static Engine* engine(const Group& group) noexcept;
    /// Puts an all_reduce in line and returns. x: contiguous, in the host's memory; nobody touches it meanwhile.
    static std::shared_ptr<Work> begin_sum(const Group& group, const Tensor& x, Call call);
};

/// What has started this process, by the variables that it sets: mpirun or srun; RANK and WORLD_SIZE; nothing.
enum class Launcher : std::uint8_t { none, mpi, variables };
Launcher launcher();

}  // namespace tapir::parallel
