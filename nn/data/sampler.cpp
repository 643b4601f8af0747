// Samplers.
#include "tapir/nn/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "tapir/core/fail_impl.h"

namespace tapir::data {
namespace {

using std::int64_t;
__extension__ using Wide = unsigned __int128;

// 64-bit numbers of a generator, two for each counter: see Note [The numbers of a draw].
class Numbers {
 public:
    explicit Numbers(Generator& random) : random_(random) {}

    std::uint64_t next() {
        if (left_ == 0) {
            const Philox p = philox4x32(random_.take(1), 0, random_.seed());
            for (int i = 0; i < 2; ++i) words_[i] = p.value[2 * i] | std::uint64_t{p.value[2 * i + 1]} << 32;
            left_ = 2;
        }
        return words_[2 - left_--];
    }
    /// Returns an integer in [0, n).
    int64_t below(int64_t n) { return static_cast<int64_t>(static_cast<Wide>(next()) * static_cast<std::uint64_t>(n) >> 64); }
    /// Returns a number in [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
    Generator& random_;
    std::uint64_t words_[2] = {};
    int left_ = 0;
};

std::vector<int64_t> range(int64_t n) {
    std::vector<int64_t> indices(static_cast<std::size_t>(n));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    return indices;
}

std::vector<int64_t> shuffled(int64_t n, Numbers& numbers) {
    std::vector<int64_t> indices = range(n);
    for (int64_t i = n; i > 1; --i) {
        std::swap(indices[static_cast<std::size_t>(i - 1)], indices[static_cast<std::size_t>(numbers.below(i))]);
    }
    return indices;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t n, Loc loc) : n_(n) {
    const CallerScope caller(loc);
    if (n < 0) fail<ValueError>(loc, "SequentialSampler: the size is negative: {}", n);
}

std::vector<int64_t> SequentialSampler::indices(Generator&) const { return range(n_); }

RandomSampler::RandomSampler(int64_t n, const RandomSamplerOptions& options, Loc loc) : n_(n), options_(options) {
    const CallerScope caller(loc);
    if (n < 0) fail<ValueError>(loc, "RandomSampler: the size is negative: {}", n);
    if (options.num_samples < 0 || (options.num_samples > 0 && n == 0)) {
        fail<ValueError>(loc, "RandomSampler: {} samples of {} items", options.num_samples, n);
    }
    if (options_.num_samples == 0) options_.num_samples = n;
}

std::vector<int64_t> RandomSampler::indices(Generator& random) const {
    Numbers numbers(random);
    const auto count = static_cast<std::size_t>(options_.num_samples);
    std::vector<int64_t> result;
    result.reserve(count);
    while (result.size() < count) {
        if (options_.replacement) {
            result.push_back(numbers.below(n_));
            continue;
        }
        const std::vector<int64_t> more = shuffled(n_, numbers);
        result.insert(result.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(std::min(more.size(), count - result.size())));
    }
    return result;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t num_samples, bool replacement, Loc loc)
    : weights_(std::move(weights)), num_samples_(num_samples), replacement_(replacement) {
    const CallerScope caller(loc);
    double total = 0;
    int64_t positive = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        if (!(weights_[i] >= 0) || std::isinf(weights_[i])) {
            fail<ValueError>(loc, "WeightedRandomSampler: weight {} is {}; weights must be finite and not negative", i, weights_[i]);
        }
        total += weights_[i];
        positive += weights_[i] > 0 ? 1 : 0;
    }
    if (num_samples < 0) fail<ValueError>(loc, "WeightedRandomSampler: the number of samples is negative: {}", num_samples);
    if (num_samples > 0 && positive == 0) fail<ValueError>(loc, "WeightedRandomSampler: all weights are 0");
    if (std::isinf(total)) fail<ValueError>(loc, "WeightedRandomSampler: the sum of the weights is infinite");
    if (!replacement && num_samples > positive) {
        fail<ValueError>(loc, "WeightedRandomSampler: {} samples without replacement from {} weights above 0", num_samples, positive);
    }
}

std::vector<int64_t> WeightedRandomSampler::indices(Generator& random) const {
    Numbers numbers(random);
    std::vector<int64_t> result(static_cast<std::size_t>(num_samples_));
    if (result.empty()) return result;
    if (replacement_) {
        std::vector<double> sums(weights_.size());
        std::partial_sum(weights_.begin(), weights_.end(), sums.begin());
        // Takes the first whose sum is above the number, so never one of weight 0. `last` handles a product rounded up to the whole sum.
        const auto last = std::lower_bound(sums.begin(), sums.end(), sums.back());
        for (int64_t& index : result) {
            index = std::min(std::upper_bound(sums.begin(), sums.end(), numbers.uniform() * sums.back()), last) - sums.begin();
        }
        return result;
    }
    // Efraimidis & Spirakis 2006: takes the smallest of exponential times with these rates, in order.
    std::vector<std::pair<double, int64_t>> times;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
        const double u = numbers.uniform();
        if (weights_[i] > 0) times.emplace_back(-std::log1p(-u) / weights_[i], static_cast<int64_t>(i));
    }
    std::partial_sort(times.begin(), times.begin() + num_samples_, times.end());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = times[i].second;
    return result;
}

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, int64_t batch_size, bool drop_last, Loc loc)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
    const CallerScope caller(loc);
    if (!sampler_) fail<ValueError>(loc, "BatchSampler: the sampler is null");
    if (batch_size < 1) fail<ValueError>(loc, "BatchSampler: the batch size must be at least 1, got {}", batch_size);
}

int64_t BatchSampler::size() const {
    const int64_t n = sampler_ ? sampler_->size() : 0;
    return n / batch_size_ + (!drop_last_ && n % batch_size_ != 0 ? 1 : 0);
}

std::vector<std::vector<int64_t>> BatchSampler::batches(Generator& random) const {
    std::vector<std::vector<int64_t>> result;
    if (!sampler_) return result;
    const std::vector<int64_t> indices = sampler_->indices(random);
    const auto n = static_cast<int64_t>(indices.size());
    for (int64_t begin = 0; begin < n; begin += batch_size_) {
        const int64_t end = n - begin > batch_size_ ? begin + batch_size_ : n;
        if (drop_last_ && end - begin < batch_size_) break;
        result.emplace_back(indices.begin() + begin, indices.begin() + end);
    }
    return result;
}

}  // namespace tapir::data
