// The rows of a group: see Note [Rows] in scheduler.cpp.
//
// A row's storage has a version of its own, so that a write to one row says nothing of the others. But an op of the group may have saved the
// block for its gradient, and the block's memory has changed, too: before gradients are computed, and when a row's storage ends, the block
// learns of the writes to its rows. So every log that may save the block lists its rows: that of the group that has made them, and those of groups
// whose operands they become. Rows that are made where nothing is recorded are not followed, and are copied where something is.
#include "tapir/ops/batch/rows_impl.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "tapir/autograd/log_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/join/join_impl.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_impl.h"

namespace tapir::detail {
namespace {

// One piece of memory: this, what it knows of each row, and the rows' tensors. So they lie behind each other, as their elements do in the block.
class Rows final : public RowBlock, public StorageWhole {
 public:
    // Throws OutOfMemory.
    static Rows* make(const Tensor& block, std::int64_t count) {
        const auto n = static_cast<std::size_t>(count);
        const std::size_t head = (sizeof(Rows) + (thread.log ? n * sizeof(std::uint32_t) : 0) + kAlignment - 1) / kAlignment * kAlignment;
        const std::size_t bytes = head + n * sizeof(RowPlace);
        auto* const memory = static_cast<std::byte*>(allocate(bytes));
        if (!memory) fail_no_memory(Loc{});
        return new (memory) Rows(block, n, reinterpret_cast<RowPlace*>(memory + head), bytes);
    }

    void learn() noexcept override {
        if (!is_followed()) return;
        for (std::size_t i = 0; i < count_; ++i) {
            if (seen_[i] != kEnded) learn_of(i);
        }
    }

    Tensor make_row(std::int64_t i) noexcept {
        if (is_followed()) seen_[i] = 0;
        share();
        return detail::make_row(places_[i], block_.impl(), i, row_, release, this);
    }

    // The rows that t is one of, if it is as it was made; else null.
    static Rows* of(const TensorImpl* t) noexcept {
        const Storage* const storage = t->storage;
        if (storage->release != release || storage->version != 0 || storage->is_exposed) return nullptr;
        if (!(t->flags & TensorImpl::kOwnBlock) || !t->is_contiguous() || t->data != storage->data) return nullptr;
        auto* const rows = static_cast<Rows*>(static_cast<StorageWhole*>(storage->context));
        return t->numel == rows->row_ && t->dtype == rows->block_.dtype() ? rows : nullptr;
    }
    std::int64_t index_of(const TensorImpl* row) const noexcept { return reinterpret_cast<const RowPlace*>(row) - places_; }
    const Tensor& block() const noexcept { return block_; }
    bool is_followed() const noexcept { return seen_; }

    // The log will ask the block to learn before it computes gradients.
    void list_in(Log& log) {
        if (listed_in_.exchange(log.id, std::memory_order_relaxed) == log.id) return;
        share();
        log.row_blocks.push_back(RowBlock::Reference(this));
    }

 private:
    static constexpr std::uint32_t kEnded = 0xffffffffu;

    Rows(const Tensor& block, std::size_t count, RowPlace* places, std::size_t bytes) noexcept
        : StorageWhole{block.impl()->storage}, block_(block), row_(block.numel() / std::max<std::int64_t>(static_cast<std::int64_t>(count), 1)),
          count_(count), bytes_(bytes), places_(places) {
        if (!thread.log) return;
        seen_ = reinterpret_cast<std::uint32_t*>(this + 1);
        std::fill_n(seen_, count, kEnded);
    }

    void learn_of(std::size_t i) noexcept {
        const Storage& storage = places_[i].storage;
        const std::uint32_t version = storage.version_now();
        if (version == seen_[i]) return;
        seen_[i] = version;
        block_.impl()->storage->mark_written(storage.last_write);
    }

    static void release(Storage* storage) {
        auto* const rows = static_cast<Rows*>(static_cast<StorageWhole*>(storage->context));
        if (rows->is_followed()) {
            const auto i = static_cast<std::size_t>(rows->index_of(reinterpret_cast<TensorImpl*>(storage) - 1));
            rows->learn_of(i);
            rows->seen_[i] = kEnded;
        }
        rows->drop();
    }

    void end() noexcept override {
        const std::size_t bytes = bytes_;
        this->~Rows();
        deallocate(this, bytes);
    }

    Tensor block_;
    std::int64_t row_;  // elements
    std::size_t count_, bytes_;
    RowPlace* places_;
    std::uint32_t* seen_ = nullptr;             // of each row, if they are followed: the version of its storage of which the block knows
    std::atomic<std::uint32_t> listed_in_ = 0;  // the number of the log that lists them, of several the last
};

// Rows that lie behind each other in one block, as a view of it; undefined if they do not.
Tensor adjacent(const Tensor* rows, std::int64_t count) {
    Rows* const first = Rows::of(rows[0].impl());
    if (!first || (thread.log && !first->is_followed())) return {};
    const std::int64_t start = first->index_of(rows[0].impl());
    for (std::int64_t i = 1; i < count; ++i) {
        const TensorImpl* const t = rows[i].impl();
        if (Rows::of(t) != first || first->index_of(t) != start + i) return {};
    }
    if (thread.log) first->list_in(*thread.log);
    Shape sizes = rows[0].shape();
    sizes.insert(0, count);
    return make_view(first->block().impl(), sizes.rank(), sizes.data(), /*strides=*/nullptr, start * rows[0].numel());
}

}  // namespace

Tensor stacked_rows(const Tensor* rows, std::int64_t count, const Loc& loc) {
    const TensorList list(rows, static_cast<std::size_t>(count), loc);
    Tensor together = adjacent(rows, count);
    if (!together.defined()) return stack(list, 0);
    record_stack(list, together);
    return together;
}

Tensor with_rank(const Tensor& block, int rank) {
    if (block.dim() == rank + 1) return block;
    Shape shape = block.shape();
    while (shape.rank() <= rank) shape.insert(1, 1);
    return reshape(block, shape);
}

Tensor aligned(const Batched& in, int k, int count) {
    int rank = 0;
    for (int i = 0; i < count; ++i) rank = std::max(rank, in[i].dim() - in.is_block(i));
    return in.is_block(k) ? with_rank(in[k], rank) : in[k];
}

Tensor folded(const Tensor& block) {
    Shape shape = block.shape();
    shape.erase(0);
    shape.raw(0) *= block.size(0);
    return reshape(block, shape);
}

Tensor unfolded(const Tensor& result, std::int64_t count) {
    Shape shape = result.shape();
    shape.raw(0) /= count;
    shape.insert(0, count);
    return reshape(result, shape);
}

void rows_of(const Tensor& block, Tensor* rows, std::int64_t count) {
    const Tensor whole = block.contiguous();
    Rows* const owner = Rows::make(whole, count);
    const RowBlock::Reference reference(owner);  // until each row has one
    for (std::int64_t i = 0; i < count; ++i) rows[i] = owner->make_row(i);
    record_unbound(whole, rows, static_cast<int>(count));
    if (thread.log && whole.impl()->node.tape == thread.log->id) owner->list_in(*thread.log);
}

}  // namespace tapir::detail
