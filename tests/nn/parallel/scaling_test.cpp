// bench/scaling.h against what can be computed by hand.
#include "../../../bench/scaling.h"

#include <catch2/catch.hpp>

namespace {

using namespace scaling;

constexpr Link kLink{3e-6, 2e9, 5e9};
constexpr double kBytes = 1 << 22;

double seconds(std::size_t ranks, Way way) {
    Clocks clocks(ranks, 1.0);
    all_reduce(clocks, kBytes, kLink, way);
    return *std::max_element(clocks.begin(), clocks.end()) - 1.0;
}

TEST_CASE("all-reduces on paper take what their closed forms say") {
    for (const std::size_t ranks : {2, 4, 16, 256, 1024}) {
        const double p = static_cast<double>(ranks), rounds = std::log2(p), part = (p - 1) / p * kBytes;
        CHECK(seconds(ranks, Way::ring) == Approx(2 * (p - 1) * kLink.latency + 2 * part / kLink.bandwidth + part / kLink.reduce));
        CHECK(seconds(ranks, Way::halving) == Approx(2 * rounds * kLink.latency + 2 * part / kLink.bandwidth + part / kLink.reduce));
        CHECK(seconds(ranks, Way::tree) == Approx(rounds * (2 * kLink.latency + 2 * kBytes / kLink.bandwidth + kBytes / kLink.reduce)));
    }
    for (const Way way : {Way::ring, Way::halving, Way::tree}) CHECK(seconds(1, way) == 0);
}

TEST_CASE("an all-reduce on paper ends after its last rank has come") {
    for (const Way way : {Way::ring, Way::halving, Way::tree}) {
        Clocks clocks(8, 0.0);
        clocks[5] = 1;
        all_reduce(clocks, kBytes, kLink, way);
        for (const double clock : clocks) CHECK(clock > 1);
        CHECK(*std::max_element(clocks.begin(), clocks.end()) <= 1 + seconds(8, way) * (1 + 1e-9));
    }
}

TEST_CASE("steps on paper: what is hidden, and what is not") {
    Job job{.forward = 0.01, .backward = 0.02, .update = 0.001, .bytes = 20e6, .bucket = 4e6, .spread = 0, .way = Way::ring, .link = {0, 1e9, 1e15}};
    const double bucket = 4e6 / 1e9;  // seconds, of two ranks; backward completes one in 4 ms
    CHECK(simulate(job, 1).step == Approx(0.031));
    CHECK(simulate(job, 2).step == Approx(0.031 + bucket));
    CHECK(simulate(job, 2).hidden == Approx(0.8));
    CHECK(efficiency(job, 2) == Approx(0.031 / 0.035));
    job.shares_core = true;  // four of five buckets make the rank compute longer
    CHECK(simulate(job, 2).step == Approx(0.031 + 5 * bucket));
    job.shares_core = false;
    job.copy = 0.005;  // of ranks that have others: buckets come a millisecond later each
    CHECK(simulate(job, 1).step == Approx(0.031));
    CHECK(simulate(job, 2).step == Approx(0.031 + 0.005 + bucket));
    job.copy = 0;
    job.bucket = 20e6;  // all at the end
    CHECK(simulate(job, 2).step == Approx(0.031 + 5 * bucket));
    CHECK(simulate(job, 2).hidden == Approx(0).margin(1e-9));
    job.bucket = 4e6;
    job.link.bandwidth /= 4;  // four times as long as backward: the line is never empty from the first bucket on
    CHECK(simulate(job, 2).step == Approx(0.01 + 0.004 + 5 * 4 * bucket + 0.001));
    job.call = 0.001;
    CHECK(simulate(job, 2).step == Approx(0.01 + 0.004 + 5 * (4 * bucket + 0.001) + 0.001));
    job.link.latency = 0.0001;  // of two messages of the sum, and of two that compare the calls
    job.compares = true;
    CHECK(simulate(job, 2).step == Approx(0.01 + 0.004 + 5 * (4 * bucket + 0.001 + 0.0004) + 0.001));
}

TEST_CASE("steps on paper wait for the slowest rank") {
    const Job job{.forward = 1, .backward = 2, .update = 0, .bytes = 1, .bucket = 1, .spread = 0.1, .way = Way::halving, .link = {0, 1e15, 1e15}};
    // The mean of the greatest of n numbers of that distribution: exp(0.1 z - 0.005), where z is 0.564 for 2 and 3.24 for 1,024.
    CHECK(simulate(job, 2, 4000).step == Approx(3 * (1 + 0.1 * 0.564)).epsilon(0.01));
    CHECK(simulate(job, 1024, 200).step == Approx(3 * std::exp(0.324 - 0.005)).epsilon(0.02));
}

TEST_CASE("ranks of one machine on paper add up among themselves first") {
    Job job{.forward = 0, .backward = 0, .update = 0, .bytes = kBytes, .bucket = kBytes, .spread = 0, .way = Way::ring, .link = kLink};
    job.ranks_of_machine = 4;
    job.inside = {1e-6, 1e10, 1e11};
    const double inside = 6e-6 + 1.5 * kBytes / 1e10 + 0.75 * kBytes / 1e11;
    CHECK(simulate(job, 4).step == Approx(inside));
    CHECK(simulate(job, 32).step == Approx(inside + seconds(8, Way::ring)));
}

}  // namespace
