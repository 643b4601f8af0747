// The part of each batch that belongs to one of several processes (nn/parallel).
//
//     data::DistributedBatchSampler sampler(data::RandomSampler(n), 64, world.rank(), world.size());
//     data::DataLoader loader(dataset, sampler, {.seed = 1});       // the same seed on all ranks
//
// The batches are those of one process, 64 items each, and every rank takes its part of each. So a loader's place in an epoch, which a
// TrainingState saves, means the same whatever the number of ranks: a run may go on with more or fewer of them.
#pragma once

#include "tapir/nn/data/sampler.h"

namespace tapir::data {

class DistributedBatchSampler : public BatchSampler {
 public:
    /// batch_size: of all ranks together. Parts differ by one item at most; none is empty: a last batch of fewer items than ranks is joined to the
    /// one before. Throws ValueError for a rank that is not in [0, ranks), for a batch size or a sampler with fewer items than ranks.
    DistributedBatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, int rank, int ranks, bool drop_last = false,
                            Loc loc = Loc::current());
    template <class S>
        requires std::is_base_of_v<Sampler, S>
    DistributedBatchSampler(S sampler, std::int64_t batch_size, int rank, int ranks, bool drop_last = false, Loc loc = Loc::current())
        : DistributedBatchSampler(std::make_shared<const S>(std::move(sampler)), batch_size, rank, ranks, drop_last, loc) {}

    std::int64_t size() const override;
    std::vector<std::vector<std::int64_t>> batches(Generator& random) const override;

 private:
    BatchSampler whole_;
    std::int64_t items_, batch_size_;
    int rank_, ranks_;
};

}  // namespace tapir::data
