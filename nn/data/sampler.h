// Samplers decide in which order, and how often, a DataLoader takes the items of an epoch.
//
//     data::DataLoader loader(dataset, data::WeightedRandomSampler(weights, 1000), {.batch_size = 32});
//
// Your own sampler derives from Sampler and returns the indices of an epoch. One that also decides which items share a batch
// (sentences of one length, say) derives from BatchSampler. The numbers of `random` are the same in each run and differ from
// epoch to epoch.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/generator.h"

namespace tapir::data {

class Sampler {
 public:
    virtual ~Sampler() = default;
    /// Returns how many indices an epoch has.
    virtual std::int64_t size() const = 0;
    /// Returns the indices of one epoch.
    virtual std::vector<std::int64_t> indices(Generator& random) const = 0;
};

/// Takes 0 ... n-1 in order.
class SequentialSampler : public Sampler {
 public:
    explicit SequentialSampler(std::int64_t n, Loc loc = Loc::current());
    std::int64_t size() const override { return n_; }
    std::vector<std::int64_t> indices(Generator& random) const override;

 private:
    std::int64_t n_;
};

struct RandomSamplerOptions {
    bool replacement = false;      ///< draw each index from all, independently
    std::int64_t num_samples = 0;  ///< of an epoch; 0: n. More than n without replacement: several shuffles in a row
};
/// Takes 0 ... n-1 in random order (Fisher and Yates).
class RandomSampler : public Sampler {
 public:
    explicit RandomSampler(std::int64_t n, const RandomSamplerOptions& options = {}, Loc loc = Loc::current());
    std::int64_t size() const override { return options_.num_samples; }
    std::vector<std::int64_t> indices(Generator& random) const override;

 private:
    std::int64_t n_;
    RandomSamplerOptions options_;
};

/// Draws index i with probability proportional to weights[i]. Throws ValueError for weights that are negative, not finite or all 0, and
/// for more samples than positive weights when not replacing.
class WeightedRandomSampler : public Sampler {
 public:
    WeightedRandomSampler(std::vector<double> weights, std::int64_t num_samples, bool replacement = true, Loc loc = Loc::current());
    std::int64_t size() const override { return num_samples_; }
    std::vector<std::int64_t> indices(Generator& random) const override;

 private:
    std::vector<double> weights_;
    std::int64_t num_samples_;
    bool replacement_;
};

/// Forms the batches: takes items from a sampler, `batch_size` at a time. The last batch may be smaller, or is left out.
class BatchSampler {
 public:
    /// Throws ValueError for a null sampler or a batch size below 1.
    BatchSampler(std::shared_ptr<const Sampler> sampler, std::int64_t batch_size, bool drop_last = false, Loc loc = Loc::current());
    template <class S>
        requires std::is_base_of_v<Sampler, S>
    BatchSampler(S sampler, std::int64_t batch_size, bool drop_last = false, Loc loc = Loc::current())
        : BatchSampler(std::make_shared<const S>(std::move(sampler)), batch_size, drop_last, loc) {}
    virtual ~BatchSampler() = default;

    /// Returns how many batches an epoch has.
    virtual std::int64_t size() const;
    virtual std::vector<std::vector<std::int64_t>> batches(Generator& random) const;

 protected:
    BatchSampler() = default;

 private:
    std::shared_ptr<const Sampler> sampler_;
    std::int64_t batch_size_ = 1;
    bool drop_last_ = false;
};

}  // namespace tapir::data
