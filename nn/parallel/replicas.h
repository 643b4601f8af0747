// Data parallelism: every rank has a copy of the model and computes the gradient of its own part of a batch; the gradients become one.
//
//     const parallel::Group world = parallel::init(argc, argv);
//     Model model;
//     parallel::Replicas replicas(model, world);                  // all ranks have rank 0's parameters now
//     optim::Adam adam(model.parameters());
//     for (const Batch& batch : batches_of(world.rank())) {
//         Tape tape;
//         tape.backward(loss(model, batch));                      // each gradient is the mean over the ranks
//         adam.step();                                            // the same step on all
//         adam.zero_grad();
//     }
//
// Gradients travel in buckets while backward() still computes the ones before them. The result is that of one process whose batch is all ranks'
// batches, up to the order of sums; all ranks get the same bits, and so keep the same parameters.
//
// Where the parts of a batch are not of the same size, say how large they are:
//
//     replicas.backward(loss, batch.size());   // loss: the mean over this rank's samples. Gradients: of the mean over all ranks' samples
//     replicas.backward(Tensor(), 0);          // a rank that has no samples in this step
//
// What each rank must do alike: as many backward() calls, of the same parameters. A parameter that no rank used keeps its gradient undefined, as in one
// process; one that some ranks used gets their sum. Rows of an embedding's gradient stay rows, so that lazy optimizers do what they do in one process.
#pragma once

#include <memory>
#include <vector>

#include "tapir/core/error.h"
#include "tapir/core/tensor.h"
#include "tapir/nn/module.h"
#include "tapir/nn/parallel/group.h"

namespace tapir::parallel {

struct ReplicasOptions {
    /// Bytes of gradients that travel together. Sums over processes of one machine are fastest while they are in its caches.
    std::int64_t bucket = 4 << 20;
    /// mean: of the ranks' losses. sum: for losses that are sums over samples.
    Reduce combine = Reduce::mean;
};

class Replicas {
 public:
    /// Gives all ranks the parameters and buffers of rank 0. Collective. Throws CommError where the ranks' models differ, ValueError for a parameter
    /// that another Replicas has, or a model without any.
    Replicas(nn::Module& model, const Group& group, const ReplicasOptions& options = {}, Loc loc = Loc::current());
    Replicas(const std::vector<Tensor>& parameters, const Group& group, const ReplicasOptions& options = {}, Loc loc = Loc::current());
    /// The parameters are those of a process alone from here on.
    ~Replicas();
    Replicas(const Replicas&) = delete;
    Replicas& operator=(const Replicas&) = delete;

    const Group& group() const noexcept;

    /// tape.backward(loss) on the thread's tape, where loss is the mean over so many samples of this rank. Gradients become those of the mean over
    /// all ranks' samples, also over several backward() calls of which only the last is not in a no_sync() scope. Without samples: an undefined loss,
    /// or that of an empty batch where the model's forward has called the other ranks, as SyncBatchNorm does.
    /// Throws ValueError for a negative count, and for calls of which some have a count and others not.
    void backward(const Tensor& loss, std::int64_t samples, Loc loc = Loc::current());

    /// While it lives, backward() adds to the gradients of this rank alone. The next one after it makes one of all.
    class NoSync {
     public:
        ~NoSync();
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

     private:
        friend class Replicas;
        explicit NoSync(Replicas& replicas) noexcept;
        Replicas& replicas_;
    };
    [[nodiscard]] NoSync no_sync() noexcept { return NoSync(*this); }

 private:
    class Reducer;
    std::unique_ptr<Reducer> reducer_;
};

}  // namespace tapir::parallel
