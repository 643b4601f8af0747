// Pipeline parallelism: each rank computes one part of a model, a stage, and sends the result to the next. A batch is cut into micro-batches, so that the
// ranks work at the same time. Narayanan et al. 2019, "PipeDream: generalized pipeline parallelism for DNN training"; the schedule is the one that is
// flushed at the end of each batch, 1F1B of Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM".
//
//     Stage stage = make_stage(world.rank());                                      // a module: each rank has its own
//     parallel::Pipeline pipeline([&](const Tensor& x) { return stage(x); }, cross_entropy_of, world, {.micro_batches = 8});
//     optim::Adam adam(stage.parameters());
//     for (const auto& [x, y] : batches) {
//         const Tensor loss = pipeline.forward_backward(x, y);                     // adds to the gradients of this rank's stage
//         adam.step();
//         adam.zero_grad();
//     }
#pragma once

#include <functional>

#include "tapir/core/tensor.h"
#include "tapir/nn/parallel/group.h"
#include "tapir/nn/parallel/replicas.h"

namespace tapir::parallel {

struct PipelineOptions {
    /// With m micro-batches and p ranks, (p - 1) / (m + p - 1) of the time is spent waiting.
    int micro_batches = 4;
    /// Of this rank's stage, on the group of the ranks that have the same stage: gradients are summed over them with the last micro-batch.
    Replicas* replicas = nullptr;
};

class Pipeline {
 public:
    using Stage = std::function<Tensor(const Tensor& x)>;
    /// The mean over a micro-batch's samples.
    using Loss = std::function<Tensor(const Tensor& y, const Tensor& target)>;

    /// Rank 0 has the first stage, the last rank the last one. Throws ValueError for less than one micro-batch and empty functions.
    Pipeline(Stage stage, Loss loss, const Group& group, const PipelineOptions& options = {}, Loc loc = Loc::current());

    /// Computes the loss of a batch and adds its gradients to the grad() of what the stages use. x: (samples, ...), read on the first rank alone;
    /// target: (samples, ...), read on the last. Returns the mean loss, on all ranks. A rank keeps the activations of at most size() - rank()
    /// micro-batches at a time. Collective. Throws ShapeError for fewer samples than micro-batches, TapeError on a thread with a tape.
    Tensor forward_backward(const Tensor& x, const Tensor& target, Loc loc = Loc::current());

    /// Computes the last stage's result for x, without gradients: on the last rank, undefined on the others. Collective.
    Tensor forward(const Tensor& x, Loc loc = Loc::current()) const;

 private:
    struct Run;
    Stage stage_;
    Loss loss_;
    Group group_;
    PipelineOptions options_;
};

}  // namespace tapir::parallel
