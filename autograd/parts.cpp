// Backward through what several threads have recorded, on several threads.
//
// Each part is walked with a table of gradients of its own. Its own values' gradients so far are moved into it before. What it adds to values
// outside of the part, those before all parts and leaves, is added to the walk's afterwards, part by part: so the sums are the same each time.
#include <memory>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/core/on_threads_impl.h"

namespace tapir {
namespace {

// What a thread that walks a part has for its state: rules are neither recorded nor watched, and no tape of others misses them.
class PartWalkState {
 public:
    PartWalkState() noexcept : before_(detail::thread) {
        detail::thread = detail::ThreadState{};
        detail::thread.muted = true;
        ++ThreadTapes::own().no_grad_scopes;
        detail::thread.observed.is_apart = false;
    }
    ~PartWalkState() {
        --ThreadTapes::own().no_grad_scopes;
        detail::thread = before_;
    }
    PartWalkState(const PartWalkState&) = delete;
    PartWalkState& operator=(const PartWalkState&) = delete;

 private:
    detail::ThreadState before_;
};

}  // namespace

void Walk::run_parts(const Log::Parts& parts) {
    const int count = static_cast<int>(parts.ends.size());
    const auto begin_of = [&](int k) { return k == 0 ? parts.first : parts.ends[static_cast<std::size_t>(k) - 1]; };
    const auto end_of = [&](int k) { return parts.ends[static_cast<std::size_t>(k)]; };
    // Calls f(value) for the values outside of the parts, and for all leaves.
    const auto for_outer = [&](const auto& f) {
        for (auto value = static_cast<std::uint32_t>(begin); value < parts.first; ++value) {
            if (!(log.records[value]->flags & Record::kLeaf)) f(value);
        }
        for (const std::uint32_t leaf : log.leaves) {
            if (leaf < extent) f(leaf);
        }
    };
    std::vector<std::unique_ptr<Walk>> walks(static_cast<std::size_t>(count));
    for (int k = 1; k < count; ++k) {
        auto& walk = walks[static_cast<std::size_t>(k)] = std::make_unique<Walk>(Walk{log, begin});
        walk->releasing = releasing;
        walk->is_of_part = true;
        walk->extent = extent;
        walk->wanted = wanted;
        walk->reached = reached;
        walk->kept = kept;
        walk->slots.resize(extent);
        for (std::uint32_t value = begin_of(k); value < end_of(k); ++value) {
            if (!(log.records[value]->flags & Record::kLeaf)) walk->slots[value] = std::move(slots[value]);
        }
    }
    detail::on_threads(count, [&](int k) {
        if (k == 0) return run_in_order(begin_of(0), end_of(0));
        const PartWalkState state;
        Walk& walk = *walks[static_cast<std::size_t>(k)];
        walk.run_in_order(begin_of(k), end_of(k));
        for_outer([&](std::uint32_t value) {
            if (!walk.slots[value].pending) return;
            walk.sum_held(value);
            walk.complete_products(value);
        });
    });
    for (int k = 1; k < count; ++k) {
        Walk& walk = *walks[static_cast<std::size_t>(k)];
        for (auto& kept_grad : walk.kept_grads) kept_grads.push_back(std::move(kept_grad));
        for_outer([&](std::uint32_t value) {
            GradientSlot& slot = walk.slots[value];
            if (slot.grad.defined()) add(value, std::move(slot.grad));
            if (!slot.pending) return;
            for (const SparseRows& rows : slot.pending->rows) add_rows(value, rows.indices, rows.values);
        });
    }
}

}  // namespace tapir
