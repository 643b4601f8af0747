// batch(): many examples at once. A function of one example runs for each of many, and their ops are computed together.
//
//     Tape tape;
//     std::vector<Tensor> losses = batch(trees, [&](const Tree& tree) { return loss_of(model.forward(tree), tree); });
//     tape.backward(sum(stack(losses)));
//
// Each example is an instance: its function runs on a stack of its own, in ordinary C++, with `if`, loops and recursion. An op in it waits until
// its peers, the same op on operands of the same shapes in other instances, wait too. Then all are computed as one. So an instance
// always has its values: it may read them and branch on them. batch() inside of an instance forks it: the two children of a node
// are computed together.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/error.h"
#include "tapir/core/flat_map.h"
#include "tapir/core/std_function.h"

namespace tapir {

/// What batch() did, by ops. Several calls may add to one report.
struct BatchReport {
    struct Op {
        std::int64_t together = 0;  // calls that were computed in groups
        std::int64_t groups = 0;
        std::int64_t alone = 0;    // calls that found no peer
        std::int64_t at_once = 0;  // calls that did not wait, which would have taken longer: see BatchOptions::all_wait
    };
    FlatMap<std::string, Op> ops;
    /// Calls of ops that cannot be computed together, "dropout model.cpp:31": they ran at once, one by one.
    FlatMap<std::string, std::int64_t> unbatched;
    std::int64_t instances = 0;

    /// What was computed one after the other: an op, and how many calls each item had in it (several from a batch() inside of its instance).
    /// Kept if keeps_schedule is set.
    struct Step {
        std::string op;
        FlatMap<std::int64_t, int> calls;  // by the item's number
    };
    bool keeps_schedule = false;
    std::vector<Step> schedule;

    /// A table of ops, and a list of what ran one by one.
    std::string str() const;
    /// A drawing of the schedule: a line a step, a column an item.
    std::string schedule_str() const;
};

struct BatchOptions {
    std::optional<int> most{};                 // instances that run at the same time; default: 100, 50 on the CPU without a tape; 16 that fork
    std::size_t stack = std::size_t{1} << 20;  // bytes of each one's stack; pages take memory when they are used
    /// Without a tape, an op on the CPU mostly takes less time than to wait for peers. So there only convolutions and products with a matrix of 16K
    /// elements or more wait, and an inner batch() runs in the instance that called it if 16 others run. If this is set, all ops wait everywhere.
    /// An inner batch() does as the outermost one says.
    bool all_wait = false;
    bool together = true;  // false: one after the other, to compare and to debug; so does TAPIR_BATCH=off
    BatchReport* report = nullptr;
    /// The items are shared out to so many threads of the CPU, and with them the backward pass; the function runs on several at a time then. Each
    /// computes the ops of its own items together. Results are the same but for rounding, and the same each time. With a report, a profiler or another
    /// watcher, and for tensors on another device, one thread computes all.
    int threads = 1;
};

namespace detail {
/// Returns the item at place i of a range that begins there.
template <class Iterator>
decltype(auto) item_at(const Iterator& first, std::int64_t i) {
    if constexpr (requires { first[i]; }) {
        return first[i];
    } else {
        Iterator it = first;
        while (--i >= 0) ++it;
        return *it;
    }
}
template <class Items>
std::int64_t count_of(Items& items) {
    if constexpr (requires { std::size(items); }) {
        return static_cast<std::int64_t>(std::size(items));
    } else {
        std::int64_t count = 0;
        for (auto it = std::begin(items); it != std::end(items); ++it) ++count;
        return count;
    }
}
/// Calls body(i) for i in [0, count).
void run_batch(std::int64_t count, const std::function<void(std::int64_t)>& body, const BatchOptions& options, const Loc& loc);
}  // namespace detail

/// Calls fn(item) for each item, and returns the results in order. Random numbers of an instance are the same whatever runs beside it.
/// An exception of an instance ends all others, whose destructors run, drops what they have recorded, and is thrown on: that of the first
/// instance that has one. Throws ValueError for options out of range, TapeError while tracing, and OutOfMemory where there is no memory for
/// instances and groups; that ends all, too.
template <class Items, class Fn>
auto batch(Items&& items, const Fn& fn, const BatchOptions& options = {}, const Loc& loc = Loc::current()) {
    using Result = std::invoke_result_t<const Fn&, decltype(*std::begin(items))>;
    const auto first = std::begin(items);
    const std::int64_t count = detail::count_of(items);
    if constexpr (std::is_void_v<Result>) {
        const auto body = [&](std::int64_t i) { fn(detail::item_at(first, i)); };
        detail::run_batch(count, std::ref(body), options, loc);
    } else {
        std::vector<std::optional<std::decay_t<Result>>> made;
        std::vector<std::decay_t<Result>> results;
        {
            const CallerScope caller(loc);  // where there is no memory for them
            made.resize(static_cast<std::size_t>(count));
            results.reserve(made.size());
        }
        const auto body = [&](std::int64_t i) { made[static_cast<std::size_t>(i)].emplace(fn(detail::item_at(first, i))); };
        detail::run_batch(count, std::ref(body), options, loc);
        for (auto& result : made) results.push_back(std::move(*result));
        return results;
    }
}

}  // namespace tapir
