// Schedules the steps of a plan that may run at once.
#include <algorithm>
#include <cmath>
#include <set>

#include "tapir/autograd/trace/run/frame_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::detail {

namespace {

// The times of steps that run at once. Below, waking a thread, which takes microseconds, does not pay. Above, a step splits its work
// among threads itself, as large products do (ops/gemm.cpp).
std::atomic<std::int64_t> least_ns{15'000};
constexpr std::int64_t kSharedOutNs = 60'000;

}  // namespace

void set_least_parallel_ns(std::int64_t ns) noexcept { least_ns = ns; }
std::int64_t least_parallel_ns() noexcept { return least_ns.load(std::memory_order_relaxed); }

// Keeps the order of the program, except that independent steps which are worth a thread each are grouped.
void Plan::schedule(Frame& frame) const {
    frame.order.resize(tail_);
    frame.stages.resize(tail_);
    for (std::size_t s = 0; s < tail_; ++s) frame.order[s] = frame.stages[s] = static_cast<int>(s);
    if (num_threads() == 1) return;
    std::vector<int> maker(at(slot_count_), -1), missing(tail_, 0);
    std::vector<std::vector<int>> users(tail_);
    std::vector<bool> is_worth(tail_, false);
    int worth = 0, last_random = -1;
    for (std::size_t s = 0; s < tail_; ++s) {
        const Graph::Node& node = *steps_[s].node;
        std::int64_t results = 0;
        for (std::size_t k = 0; k < node.results.size(); ++k) {
            const int slot = steps_[s].first_result + static_cast<int>(k);
            maker[at(slot)] = static_cast<int>(s);
            if (frame.seen[at(slot)].is_defined) results += frame.seen[at(slot)].shape.numel();
        }
        const auto after = [&](int other) {
            users[at(other)].push_back(static_cast<int>(s));
            ++missing[s];
        };
        for (const int input : steps_[s].inputs) {
            if (maker[at(input)] >= 0) after(maker[at(input)]);
        }
        // Random numbers are drawn in the order of the program, also within branches and loops.
        if (node.attributes().is_random()) {
            if (last_random >= 0) after(last_random);
            last_random = static_cast<int>(s);
        }
        if (!node.form().into) continue;
        // A rough estimate of the time on one thread of a 2020s core.
        std::int64_t elements = results;
        for (std::size_t i = 0; i < steps_[s].inputs.size(); ++i) elements += numel_of(frame, steps_[s].inputs[i]);
        std::int64_t ns = elements / 4;
        if ((node.is(linear_form) || node.is(matmul_form)) && steps_[s].inputs.size() >= 2) {
            const std::int64_t rows = std::max<std::int64_t>(numel_of(frame, steps_[s].inputs[0]), 1), matrix = numel_of(frame, steps_[s].inputs[1]);
            // results = rows * n and rows * k, n * k elements: their product's root is rows * n * k.
            ns = std::max(
                static_cast<std::int64_t>(std::sqrt(static_cast<double>(results) * static_cast<double>(rows) * static_cast<double>(matrix))) / 70,
                elements / 8);
        }
        is_worth[s] = ns >= least_parallel_ns() && ns < kSharedOutNs;
        worth += is_worth[s];
    }
    if (worth < 2) return;
    std::vector<int> order, stages;
    std::set<int> ready, large;  // large: steps that are worth a thread
    for (std::size_t s = 0; s < tail_; ++s) {
        if (missing[s] == 0) (is_worth[s] ? large : ready).insert(static_cast<int>(s));
    }
    bool any = false;
    while (!ready.empty() || !large.empty()) {
        std::vector<int> now;
        if (!ready.empty()) {
            now.push_back(*ready.begin());
            ready.erase(ready.begin());
        } else {
            now.assign(large.begin(), large.end());
            large.clear();
        }
        any = any || now.size() > 1;
        stages.push_back(static_cast<int>(order.size()));
        for (const int s : now) {
            order.push_back(s);
            for (const int user : users[at(s)]) {
                if (--missing[at(user)] == 0) (is_worth[at(user)] ? large : ready).insert(user);
            }
        }
    }
    if (!any) return;
    frame.order = std::move(order);
    frame.stages = std::move(stages);
}

std::int64_t Plan::numel_of(const Frame& frame, int slot) const {
    const Geometry& seen = frame.seen[at(slot)];
    if (seen.is_defined) return seen.shape.numel();
    const Tensor* x = frame.where[at(slot)];
    return x && x->defined() ? x->numel() : 0;
}

}  // namespace tapir::detail
