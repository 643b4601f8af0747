// Batch normalization whose batch is that of all ranks: with few samples a rank, their mean and variance alone are too rough.
//
//     parallel::convert_sync_batchnorm(model, world);   // every BatchNorm of the model
//     parallel::Replicas replicas(model, world);
#pragma once

#include "tapir/nn/normalization.h"
#include "tapir/nn/parallel/group.h"

namespace tapir::parallel {

/// nn::BatchNorm for x (n, channels, ...) of any number of dimensions from 2, where n may differ between ranks, and may be 0. In training each channel
/// gets the mean and variance of all ranks' elements, and so do the running statistics: those of one process that has the whole batch. forward() is
/// collective in training, and so is backward(): a rank without samples must call both, with an empty batch. Throws ValueError where all ranks
/// together have one element of a channel, and otherwise what nn::BatchNorm throws.
class SyncBatchNorm : public nn::BatchNorm {
 public:
    SyncBatchNorm(std::int64_t channels, const Group& group, const nn::BatchNormLayerOptions& options = {}, Loc loc = Loc::current());
};

/// Lets every BatchNorm of a model normalize as SyncBatchNorm does. Its parameters, buffers and name stay.
void convert_sync_batchnorm(nn::Module& model, const Group& group);

}  // namespace tapir::parallel
