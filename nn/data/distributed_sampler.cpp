#include "tapir/nn/data/distributed_sampler.h"

#include "tapir/core/fail_impl.h"

namespace tapir::data {

using std::int64_t;

DistributedBatchSampler::DistributedBatchSampler(std::shared_ptr<const Sampler> sampler, int64_t batch_size, int rank, int ranks, bool drop_last,
                                                 Loc loc)
    : whole_(sampler, batch_size, drop_last, loc), items_(sampler->size()), batch_size_(batch_size), rank_(rank), ranks_(ranks) {
    const CallerScope caller(loc);
    if (ranks < 1 || rank < 0 || rank >= ranks) fail<ValueError>(loc, "DistributedBatchSampler: there is no rank {} of {}", rank, ranks);
    if (batch_size < ranks) fail<ValueError>(loc, "DistributedBatchSampler: a batch of {} items has no part for each of {} ranks", batch_size, ranks);
    if (items_ < ranks) fail<ValueError>(loc, "DistributedBatchSampler: an epoch of {} items has no part for each of {} ranks", items_, ranks);
}

int64_t DistributedBatchSampler::size() const {
    const int64_t rest = items_ % batch_size_;
    const bool is_joined = rest != 0 && rest < ranks_ && whole_.size() > items_ / batch_size_;
    return whole_.size() - (is_joined ? 1 : 0);
}

std::vector<std::vector<int64_t>> DistributedBatchSampler::batches(Generator& random) const {
    std::vector<std::vector<int64_t>> whole = whole_.batches(random);
    if (whole.size() > 1 && whole.back().size() < static_cast<std::size_t>(ranks_)) {
        const std::vector<int64_t> rest = std::move(whole.back());
        whole.pop_back();
        whole.back().insert(whole.back().end(), rest.begin(), rest.end());
    }
    for (std::vector<int64_t>& batch : whole) {
        const auto n = static_cast<int64_t>(batch.size());
        batch = std::vector<int64_t>(batch.begin() + n * rank_ / ranks_, batch.begin() + n * (rank_ + 1) / ranks_);
    }
    return whole;
}

}  // namespace tapir::data
