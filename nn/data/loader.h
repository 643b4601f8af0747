// DataLoader: makes batches of a dataset's items; a loop over it is one epoch.
//
//     data::DataLoader loader(data::TensorDataset{images, labels}, {.batch_size = 64, .shuffle = true, .num_workers = 2});
//     for (int epoch = 0; epoch < 10; ++epoch) {
//         for (auto& [x, y] : loader) {                // Tensor (64, ...) each
//             ...
//         }
//     }
//
// A dataset made of variables needs braces, DataLoader loader(TensorDataset{x}, {.batch_size = 2}). With round brackets C++ declares a function:
// "class template placeholder 'TensorDataset' not permitted in this context". Items that do not stack need a function of your own:
//
//     data::DataLoader loader(data::VectorDataset{sentences}, {.batch_size = 32},
//                             [](const std::vector<Tensor>& items) { return nn::pad_sequence(items); });
//
// With workers, threads make the next batches while the loop's body runs. The batches, their order and the random numbers of
// transforms are the same for any number of workers. An exception in a worker is thrown in the loop where its batch was due,
// with its own type. Leaving the loop early stops the workers and waits for the items that they are making.
//
// Items are made with the CPU as default device and without a tape, with or without workers. A Profiler shows the time that the loop
// waits ("DataLoader: wait"), and the making of batches with its parts, on the threads that do it.
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
    bool shuffle = false;                    ///< a new order for each epoch
    int num_workers = 0;                     ///< threads; 0: the loop's own thread
    bool drop_last = false;                  ///< leave out a last batch that is not full
    int prefetch_factor = 2;                 ///< batches that each worker makes ahead
    std::optional<std::uint64_t> seed = {};  ///< of all random numbers; without it the seed of default_generator() when the loader is made
};

/// Position of a loader: the next batch is number `batch` of epoch `epoch`.
struct LoaderState {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
    bool operator==(const LoaderState&) const = default;
};

namespace detail {

class Pass;
class LoaderBase;

/// Range of epoch numbers, for loops over epochs.
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

/// Makes one batch of these items, in this epoch.
using MakeBatch = std::function<std::shared_ptr<void>(const std::vector<std::int64_t>& indices, const LoaderState& state, const Loc& loc)>;

/// Returns the generator for one item.
Generator item_generator(const LoaderState& state, std::int64_t index) noexcept;

/// Common base of loaders of all types.
class LoaderBase {
 public:
    LoaderBase(const LoaderBase&) = delete;
    LoaderBase& operator=(const LoaderBase&) = delete;

    /// Returns how many batches an epoch has.
    std::int64_t size() const;
    /// Returns the number of the current epoch, or of the next if none is running.
    std::int64_t epoch() const noexcept { return state_.epoch; }
    /// Returns the epoch numbers from the one that the next loop begins, or continues after set_state(), to the one before `end`:
    ///     for (std::int64_t epoch : loader.epochs(10)) {
    ///         for (auto& [x, y] : loader) ...              // once
    Epochs epochs(std::int64_t end) const noexcept { return {state_.epoch + (is_under_way_ ? 1 : 0), end}; }

    /// Returns the position. In the loop's body the current batch counts as done.
    LoaderState state() const noexcept { return state_; }
    /// Makes the next loop continue there, with the rest of that epoch. Throws ValueError for a batch that no epoch has.
    void set_state(const LoaderState& state, Loc loc = Loc::current());
    /// Returns the state as tensors, for files.
    NamedTensors state_dict(Loc loc = Loc::current()) const;
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 protected:
    LoaderBase(std::int64_t items, std::shared_ptr<const BatchSampler> batches, const LoaderOptions& options, const Loc& loc);
    ~LoaderBase();
    /// Throws ShapeError for items that the default collate function could not stack.
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
    std::uint64_t passes_ = 0;   // only the loop that began last moves the position
};

/// One loop over a loader: its threads, and the batches that they have made.
class Pass {
 public:
    Pass(LoaderBase& loader, MakeBatch make, const Loc& loc);
    /// Stops the threads and waits for them.
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// Returns the next batch, or null at the end of the epoch. Rethrows what making it threw.
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

    /// `collate` makes a batch of a std::vector of items, on several threads at once; the default is data::collate(). Throws
    /// ValueError for invalid options, and for a null function.
    explicit DataLoader(D dataset, const LoaderOptions& options = {}, Collate collate = {}, Loc loc = Loc::current())
        : DataLoader(dataset, batches_of(dataset.size(), options, loc), options, std::move(collate), loc, Made{}) {}
    /// Takes items in the order of a Sampler.
    template <class S>
        requires std::is_base_of_v<Sampler, S>
    DataLoader(D dataset, S sampler, const LoaderOptions& options = {}, Collate collate = {}, Loc loc = Loc::current())
        : DataLoader(dataset, batches_of(std::make_shared<const S>(std::move(sampler)), options, loc), options, std::move(collate), loc, Made{}) {}
    /// Takes the batches of a BatchSampler; the options' batch_size and drop_last are then ignored.
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
            batch_ = nullptr;  // released before the next is waited for
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

    /// Begins an epoch: the one of set_state() or, if a loop was left early, the one after it. Only one loop may run at a time.
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
