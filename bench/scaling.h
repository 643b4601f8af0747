// Simulates training with many ranks on paper: messages of an all-reduce one by one, buckets that travel while backward computes, and ranks that are
// now faster and now slower. Costs come from measurements (bench/parallel.cpp) or from what others have published (bench/scaling.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace scaling {

struct Link {
    double latency;    // seconds of a message without bytes
    double bandwidth;  // bytes a second that a rank sends while it receives as many
    double reduce;     // bytes a second that a rank adds to its own
};

enum class Way { ring, halving, tree };

/// The clocks of ranks: when each is ready, and, after a call, when each is done.
using Clocks = std::vector<double>;

/// Every rank receives a message from from(rank), or none from itself.
template <class From>
void exchange(Clocks& clocks, double bytes, const Link& link, bool reduces, const From& from) {
    const double seconds = link.latency + bytes / link.bandwidth + (reduces ? bytes / link.reduce : 0);
    const Clocks before = clocks;
    for (std::size_t r = 0; r < clocks.size(); ++r) {
        const std::size_t sender = from(r);
        if (sender != r) clocks[r] = std::max(before[r], before[sender]) + seconds;
    }
}

/// An all-reduce of so many bytes; the number of ranks is a power of two.
///   ring: each rank hands parts on to the next, 2 (p - 1) messages of bytes / p.
///   halving: with ever nearer partners half of what is left, and back: 2 log2 p messages, 2 (p - 1) / p bytes in all (Rabenseifner).
///   tree: all bytes to rank 0 in log2 p rounds, and back.
inline void all_reduce(Clocks& clocks, double bytes, const Link& link, Way way) {
    const std::size_t p = clocks.size();
    if (way == Way::ring) {
        for (std::size_t i = 0; i + 2 < 2 * p; ++i)
            exchange(clocks, bytes / static_cast<double>(p), link, i + 1 < p, [p](std::size_t r) { return (r + p - 1) % p; });
        return;
    }
    std::vector<std::size_t> steps;
    for (std::size_t step = 1; step < p; step *= 2) steps.push_back(step);
    if (way == Way::halving) {
        const auto part = [&](std::size_t step) { return bytes * static_cast<double>(step) / static_cast<double>(p); };
        for (std::size_t i = steps.size(); i-- > 0;) exchange(clocks, part(steps[i]), link, true, [&](std::size_t r) { return r ^ steps[i]; });
        for (const std::size_t step : steps) exchange(clocks, part(step), link, false, [step](std::size_t r) { return r ^ step; });
        return;
    }
    for (const std::size_t step : steps) exchange(clocks, bytes, link, true, [step](std::size_t r) { return r % (2 * step) == 0 ? r + step : r; });
    for (std::size_t i = steps.size(); i-- > 0;)
        exchange(clocks, bytes, link, false, [&](std::size_t r) { return r % (2 * steps[i]) == steps[i] ? r - steps[i] : r; });
}

/// What a rank does in a step, and how its gradients travel.
struct Job {
    double forward, backward, update;  // seconds
    double bytes, bucket;              // of gradients, which backward completes at an even pace
    double spread;                     // of the time that a rank needs: the standard deviation of its logarithm
    Way way;
    Link link;
    double copy = 0;           // seconds of a step in which gradients are written to buckets and averaged
    bool shares_core = false;  // calls take their time from what the rank computes meanwhile
    double call = 0;           // seconds of a call beside its messages
    bool compares = false;     // ranks compare each call before it begins: an all-reduce of three words
    // Ranks of one machine add up among themselves first, and one of them goes on with the other machines.
    std::size_t ranks_of_machine = 1;
    Link inside{};
};

inline void all_reduce(Clocks& clocks, double bytes, const Job& job) {
    const std::size_t group = std::min(job.ranks_of_machine, clocks.size());
    for (double& clock : clocks) clock += job.call;
    if (job.compares) all_reduce(clocks, 24, job.link, Way::halving);
    if (group == 1) return all_reduce(clocks, bytes, job.link, job.way);
    Clocks machines;
    for (std::size_t first = 0; first < clocks.size(); first += group) {
        const auto begin = clocks.begin() + static_cast<std::ptrdiff_t>(first);
        Clocks own(begin, begin + static_cast<std::ptrdiff_t>(group));
        all_reduce(own, bytes, job.inside, Way::ring);
        machines.push_back(*std::max_element(own.begin(), own.end()));
    }
    all_reduce(machines, bytes, job.link, job.way);
    for (std::size_t r = 0; r < clocks.size(); ++r) clocks[r] = machines[r / group];
}

struct Result {
    double step = 0;    // seconds
    double hidden = 0;  // share of the time of calls in which a rank computed, from 0 to 1
};

/// The mean over so many steps.
inline Result simulate(const Job& job, std::size_t ranks, int steps = 20, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    Clocks clocks(ranks, 0.0);
    const auto buckets = static_cast<int>(std::ceil(job.bytes / job.bucket));
    double calls = 0, hidden = 0;
    for (int step = 0; step < steps; ++step) {
        std::vector<double> pace(ranks), computed(ranks);  // computed: when backward has ended
        const double computes = job.forward + job.backward + (ranks > 1 ? job.copy : 0);
        for (std::size_t r = 0; r < ranks; ++r) {
            pace[r] = std::exp(job.spread * normal(random) - job.spread * job.spread / 2);  // the mean is 1
            computed[r] = clocks[r] + pace[r] * computes;
        }
        std::vector<double> taken(ranks, 0.0);  // by calls, of what the rank computes
        Clocks sent = clocks;                   // when the thread that communicates is free
        for (int b = 0; ranks > 1 && b < buckets; ++b) {
            const double done = std::min((b + 1) * job.bucket, job.bytes) / job.bytes;
            for (std::size_t r = 0; r < ranks; ++r)
                sent[r] = std::max(sent[r], clocks[r] + taken[r] + pace[r] * (job.forward + (computes - job.forward) * done));
            const Clocks began = sent;
            all_reduce(sent, std::min(job.bucket, job.bytes - b * job.bucket), job);
            for (std::size_t r = 0; r < ranks; ++r) {
                calls += sent[r] - began[r];
                const double meanwhile = std::clamp(computed[r] - began[r], 0.0, sent[r] - began[r]);
                hidden += meanwhile;
                if (!job.shares_core) continue;
                taken[r] += meanwhile;
                computed[r] += meanwhile;
            }
        }
        for (std::size_t r = 0; r < ranks; ++r) clocks[r] = std::max(computed[r], sent[r]) + pace[r] * job.update;
    }
    return {*std::max_element(clocks.begin(), clocks.end()) / steps, calls > 0 ? hidden / calls : 0.0};
}

/// The share of the ranks' time that a rank alone would have needed, too.
inline double efficiency(const Job& job, std::size_t ranks, int steps = 20) {
    return (job.forward + job.backward + job.update) / simulate(job, ranks, steps).step;
}

}  // namespace scaling
