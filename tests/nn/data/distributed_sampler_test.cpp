// The parts of batches that ranks take, and runs that go on with another number of ranks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include <tapir/nn/data/data.h>

#include "../../fails.h"

namespace {

using namespace tapir;
using data::BatchSampler;
using data::DistributedBatchSampler;
using data::RandomSampler;
using data::SequentialSampler;

TEST_CASE("the ranks' parts are the batches of one process") {
    for (const int n : {4, 10, 23, 64, 65}) {
        for (const int size : {4, 8}) {
            for (const int ranks : {1, 2, 3, 4}) {
                for (const bool drop : {false, true}) {
                    INFO(n << " items in batches of " << size << ", " << ranks << " ranks, drop " << drop);
                    Generator one(7);
                    std::vector<std::vector<std::int64_t>> whole = BatchSampler(RandomSampler(n), size, drop).batches(one);
                    if (whole.size() > 1 && static_cast<int>(whole.back().size()) < ranks) {
                        whole[whole.size() - 2].insert(whole[whole.size() - 2].end(), whole.back().begin(), whole.back().end());
                        whole.pop_back();
                    }
                    std::vector<std::vector<std::int64_t>> joined(whole.size());
                    for (int rank = 0; rank < ranks; ++rank) {
                        Generator own(7);
                        const DistributedBatchSampler sampler(RandomSampler(n), size, rank, ranks, drop);
                        const auto parts = sampler.batches(own);
                        REQUIRE(parts.size() == whole.size());
                        CHECK(sampler.size() == static_cast<std::int64_t>(whole.size()));
                        for (std::size_t i = 0; i < parts.size(); ++i) {
                            CHECK(!parts[i].empty());
                            CHECK(std::abs(static_cast<double>(parts[i].size()) - static_cast<double>(whole[i].size()) / ranks) < 1);
                            joined[i].insert(joined[i].end(), parts[i].begin(), parts[i].end());
                        }
                    }
                    CHECK(joined == whole);
                }
            }
        }
    }
}

// Two ranks stop in the middle of an epoch; three go on.
TEST_CASE("a run goes on with another number of ranks where it stopped") {
    const Tensor numbers = arange(40);
    const auto make = [&](int rank, int ranks) {
        return data::DataLoader(data::TensorDataset(numbers), DistributedBatchSampler(RandomSampler(40), 8, rank, ranks), {.seed = 3});
    };
    std::vector<std::int64_t> all;
    const auto take = [&](const Tensor& batch) {
        for (const std::int64_t i : batch.to_vector<std::int64_t>()) all.push_back(i);
    };
    NamedTensors state;
    for (int rank = 0; rank < 2; ++rank) {
        auto loader = make(rank, 2);
        int batches = 0;
        for (const auto& batch : loader) {
            take(batch);
            if (++batches == 2) break;
        }
        state = loader.state_dict();
    }
    CHECK(all.size() == 16);
    for (int rank = 0; rank < 3; ++rank) {
        auto loader = make(rank, 3);
        loader.load_state_dict(state);
        for (const auto& batch : loader) take(batch);
    }
    std::sort(all.begin(), all.end());
    CHECK(all == numbers.to_vector<std::int64_t>());  // each once
}

TEST_CASE("a distributed sampler refuses what it cannot share") {
    FAILS(ValueError, "DistributedBatchSampler: there is no rank 2 of 2", DistributedBatchSampler(SequentialSampler(10), 4, 2, 2));
    FAILS(ValueError, "a batch of 2 items has no part for each of 3 ranks", DistributedBatchSampler(SequentialSampler(10), 2, 0, 3));
    FAILS(ValueError, "an epoch of 2 items has no part for each of 3 ranks", DistributedBatchSampler(SequentialSampler(2), 4, 0, 3));
}

}  // namespace
