// What the files of nn/parallel see of a Group.
#pragma once

#include <functional>

#include "tapir/autograd/function.h"
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
    /// Puts an all_reduce in line and returns. x: contiguous; nobody touches it meanwhile, on a device: no other stream than the current one.
    static std::shared_ptr<Work> begin_sum(const Group& group, const Tensor& x, Call call);
};

/// What a recorded call computes, and its gradient.
struct Rule {
    std::function<Tensor(const Tensor& x)> forward;
    std::function<Tensor(const Tensor& g, const FunctionContext& context)> backward;
    bool saves = false;  // x and the result
};
/// Returns forward(x), recorded where x is.
Tensor recorded(const OpInfo& op, const Tensor& x, Rule rule, const Loc& loc);
/// Throw for an undefined x, and where a graph is made, which cannot hold what other ranks compute.
void check_tensor(const char* op, const Tensor& x, const Loc& loc);

inline std::int64_t bytes_of(const Tensor& t) { return t.numel() * static_cast<std::int64_t>(itemsize(t.dtype())); }

/// What has started this process, by the variables that it sets: mpirun or srun; RANK and WORLD_SIZE; nothing.
enum class Launcher : std::uint8_t { none, mpi, variables };
Launcher launcher();

}  // namespace tapir::parallel
