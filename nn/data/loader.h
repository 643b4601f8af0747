// DataLoader: batches of a dataset's items, one epoch a loop.
//
//     data::DataLoader loader(data::TensorDataset{images, labels}, {.batch_size = 64, .shuffle = true, .num_workers = 2});
//     for (int epoch = 0; epoch < 10; ++epoch) {
//         for (auto& [x, y] : loader) {                // Tensor (64, ...) each
//             ...
//         }
//     }
//
// A dataset made of variables wants braces, DataLoader loader(TensorDataset{x}, {.batch_size = 2}): with round brackets C++ sees the
// declaration of a function, and says "class template placeholder 'TensorDataset' not permitted in this context". A function of your own makes batches of what does not stack, strings or sentences of different lengths:
//
//     data::DataLoader loader(data::VectorDataset{sentences}, {.batch_size = 32},
//                             [](const std::vector<Tensor>& items) { return nn::pad_sequence(items); });
//
// With workers, threads make the batches that come next while the loop's body runs; the batches, their order and what random
// transforms draw are the same at any number of workers. What is thrown in a worker is thrown in the loop where its batch was due,
// as the type that it is. Leaving the loop early stops the workers and waits for the items that they are at.
//
// Items are made with the CPU as default device and without a tape, with workers or without. A Profiler shows what the loop waits for
// ("DataLoader: wait"), and the making of batches with its parts, on the threads that do it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/arguments.h"
#include "tapir/core/generator.h"
#include "tapir/core/named_tensor.h"
#include "tapir/nn/data/collate.h"
#include "tapir/nn/data/dataset.h"
#include "tapir/nn/data/sampler.h"

namespace tapir::data {

struct LoaderOptions {
    std::int64_t batch_size = 1;
    bool shuffle = false;                    ///< another order each epoch
    int num_workers = 0;                     ///< threads; 0: the loop's own
    bool drop_last = false;                  ///< leave out a last batch that is not full
    int prefetch_factor = 2;                 ///< batches that each worker makes ahead
    std::optional<std::uint64_t> seed = {};  ///< of all that is drawn; unless given the seed of default_generator() when the loader is made
};

/// Where a loader is: what comes next is batch `batch` of epoch `epoch`.
struct LoaderState {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
    bool operator==(const LoaderState&) const = default;
};

namespace detail {

class Pass;
class LoaderBase;

/// For loops over epochs.
class Epochs {
 public:
    struct End {
        std::int64_t epoch;
    };
    class Iterator {
     public:
        explicit Iterator(std::int64_t epoch) noexcept : epoch_(epoch) {}
        std::int64_t operator*() const noexcept { return epoch_; }
        Iterator& operator++() noexcept {
            ++epoch_;
            return *this;
        }
        bool operator==(const End& end) const noexcept { return epoch_ >= end.epoch; }

     private:
        std::int64_t epoch_;
    };

    Epochs(std::int64_t first, std::int64_t end) noexcept : first_(first), end_(end) {}
    Iterator begin() const noexcept { return Iterator(first_); }
    End end() const noexcept { return {end_}; }

 private:
    std::int64_t first_, end_;
};

/// Makes one batch, of these items, in this epoch.
using MakeBatch = std::function<std::shared_ptr<void>(const std::vector<std::int64_t>& indices, const LoaderState& state, const Loc& loc)>;

/// The generator of one item.
Generator item_generator(const LoaderState& state, std::int64_t index) noexcept;

/// What loaders of all types share.
class LoaderBase {
 public:
    LoaderBase(const LoaderBase&) = delete;
    LoaderBase& operator=(const LoaderBase&) = delete;

    /// How many batches an epoch has.
    std::int64_t size() const;
    /// The number of the epoch that is running, or comes next.
    std::int64_t epoch() const noexcept { return state_.epoch; }
    /// The numbers of the epochs from the one that the next loop begins, or goes on with after set_state(), to the one before `end`:
    ///     for (std::int64_t epoch : loader.epochs(10)) {
    ///         for (auto& [x, y] : loader) ...              // once
    Epochs epochs(std::int64_t end) const noexcept { return {state_.epoch + (is_under_way_ ? 1 : 0), end}; }

    /// The position. In the loop's body the batch at hand counts as done.
    LoaderState state() const noexcept { return state_; }
    /// The next loop goes on there: with the rest of that epoch. Throws ValueError for a batch that no epoch has.
    void set_state(const LoaderState& state, Loc loc = Loc::current());
    /// The same as tensors, for files.
    NamedTensors state_dict(Loc loc = Loc::current()) const;
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 protected:
    LoaderBase(std::int64_t items, std::shared_ptr<const BatchSampler> batches, const LoaderOptions& options, const Loc& loc);
    ~LoaderBase();
    /// Throws ShapeError for items that the default collate function could not put together.
    [[noreturn]] void fail_collate(const ShapeError& error, const Loc& loc) const;
    static std::shared_ptr<const BatchSampler> batches_of(std::int64_t items, const LoaderOptions& options, const Loc& loc);
    static std::shared_ptr<const BatchSampler> batches_of(std::shared_ptr<const Sampler> sampler, const LoaderOptions& options, const Loc& loc);

 private:
    friend class Pass;
    Loc made_at_;
    std::int64_t items_;
    std::shared_ptr<const BatchSampler> batches_;
    LoaderOptions options_;
    LoaderState state_;
    bool is_under_way_ = false;  // a loop has begun at this position, or before it in the epoch, and has not ended
    std::uint64_t passes_ = 0;   // the last one to begin moves the position
};

/// One loop over a loader: its threads, and the batches that they have made.
class Pass {
 public:
    Pass(LoaderBase& loader, MakeBatch make, const Loc& loc);
    /// Stops the threads and waits for them.
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// The next batch, or null at the end of the epoch. Throws what making it threw.
    std::shared_ptr<void> next();

 private:
    struct Work;
    std::unique_ptr<Work> work_;
};

}  // namespace detail

template <Dataset D, class Collate = DefaultCollate>
class DataLoader : public detail::LoaderBase {
 public:
    using Item = ItemOf<D>;
    using Batch = std::decay_t<std::invoke_result_t<const Collate&, std::vector<Item>>>;

    /// `collate` makes a batch of a std::vector of items, on several threads at once; unless given: data::collate(). Throws
    /// ValueError for options that make no sense, and for a null function.
    explicit DataLoader(D dataset, const LoaderOptions& options = {}, Collate collate = {}, Loc loc = Loc::current())
        : DataLoader(dataset, batches_of(dataset.size(), options, loc), options, std::move(collate), loc, Made{}) {}
    /// In the order of a Sampler.
    template <class S>
        requires std::is_base_of_v<Sampler, S>
    DataLoader(D dataset, S sampler, const LoaderOptions& options = {}, Collate collate = {}, Loc loc = Loc::current())
        : DataLoader(dataset, batches_of(std::make_shared<const S>(std::move(sampler)), options, loc), options, std::move(collate), loc, Made{}) {}
    /// In the batches of a BatchSampler; the options' batch_size and drop_last mean nothing then.
    template <class S>
        requires std::is_base_of_v<BatchSampler, S>
    DataLoader(D dataset, S batches, const LoaderOptions& options = {}, Collate collate = {}, Loc loc = Loc::current())
        : DataLoader(dataset, std::make_shared<const S>(std::move(batches)), options, std::move(collate), loc, Made{}) {}

    const D& dataset() const noexcept { return dataset_; }

    struct End {};
    class Iterator {
     public:
        Batch& operator*() const { return *batch_; }
        Batch* operator->() const { return batch_.get(); }
        Iterator& operator++() {
            batch_ = nullptr;  // given up before the next is waited for
            batch_ = std::static_pointer_cast<Batch>(pass_->next());
            return *this;
        }
        bool operator==(End) const { return !batch_; }

     private:
        friend class DataLoader;
        explicit Iterator(std::unique_ptr<detail::Pass> pass) : pass_(std::move(pass)), batch_(std::static_pointer_cast<Batch>(pass_->next())) {}

        std::unique_ptr<detail::Pass> pass_;
        std::shared_ptr<Batch> batch_;
    };

    /// Begins an epoch: the one of set_state() or, if a loop was left early, the one after it. One loop at a time.
    Iterator begin(Loc loc = Loc::current()) {
        return Iterator(std::make_unique<detail::Pass>(
            *this, [this](const std::vector<std::int64_t>& indices, const LoaderState& state, const Loc& line) { return make(indices, state, line); },
            loc));
    }
    End end() const noexcept { return {}; }

 private:
    struct Made {};
    DataLoader(D& dataset, std::shared_ptr<const BatchSampler> batches, const LoaderOptions& options, Collate&& collate, const Loc& loc, Made)
        : LoaderBase(dataset.size(), std::move(batches), options, loc), dataset_(std::move(dataset)), collate_(std::move(collate)) {
        tapir::detail::check_function("DataLoader", collate_, loc);
    }

    std::shared_ptr<void> make(const std::vector<std::int64_t>& indices, const LoaderState& state, const Loc& loc) const {
        std::vector<Item> items;
        items.reserve(indices.size());
        for (const std::int64_t index : indices) {
            const ProfileScope scope("DataLoader: sample", loc);
            Generator random = detail::item_generator(state, index);
            items.push_back(get_item(dataset_, index, random));
        }
        const ProfileScope scope("DataLoader: collate", loc);
        if constexpr (std::is_same_v<Collate, DefaultCollate>) {
            const CallerScope caller(loc);
            try {
                return std::make_shared<Batch>(collate_(std::move(items)));
            } catch (const ShapeError& error) {
                fail_collate(error, loc);
            }
        } else {
            return std::make_shared<Batch>(collate_(std::move(items)));
        }
    }

    D dataset_;
    Collate collate_;
};

}  // namespace tapir::data
