// Datasets: a DataLoader (loader.h) takes items from them.
//
//     data::TensorDataset train(images, labels);                            // an item: std::tuple<Tensor, Tensor>
//     auto noisy = data::map(train, [](auto item, Generator& random) {
//         std::get<0>(item) = std::get<0>(item) + 0.1 * randn({28, 28}, random);
//         return item;
//     });
//     const auto parts = data::random_split(train, {50000, 10000});         // two data::Subset
//     data::ConcatDataset all{train, noisy};                                // 120,000 items
//
// A dataset is any type with these members. A loader keeps a copy of it, so a dataset should hold large data by handle:
//
//     std::int64_t size() const;
//     Item get(std::int64_t index) const;                                   // 0 <= index < size(); or, with random numbers,
//     Item get(std::int64_t index, Generator& random) const;
//
// If a loader has workers, several threads call get() at once. `random` is a generator for this item alone, made of the
// loader's seed, the epoch and the index: its numbers depend on nothing else.
#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/generator.h"
#include "tapir/core/tensor.h"

namespace tapir::data {

template <class D>
concept Dataset = requires(const D& d, std::int64_t index, Generator& random) {
    d.size();
    requires requires { d.get(index); } || requires { d.get(index, random); };
};

/// Calls d.get(index), with the generator if it takes one.
template <Dataset D>
decltype(auto) get_item(const D& d, std::int64_t index, Generator& random) {
    if constexpr (requires { d.get(index, random); }) {
        return d.get(index, random);
    } else {
        return d.get(index);
    }
}

/// The type of the dataset's items.
template <Dataset D>
using ItemOf = std::decay_t<decltype(get_item(std::declval<const D&>(), 0, std::declval<Generator&>()))>;

namespace detail {

/// Throws ShapeError unless all have the same number of rows.
void check_rows(const Tensor* tensors, std::size_t count, const Loc& loc);
/// Throws IndexError unless 0 <= index < size.
void check_index(std::int64_t index, std::int64_t size, const char* what, const Loc& loc);
/// Checks all of the indices like check_index().
void check_indices(const std::vector<std::int64_t>& indices, std::int64_t size, const char* what, const Loc& loc);
/// Returns 0 ... n-1, shuffled and cut into parts of these sizes. Throws ValueError unless they add up to n.
std::vector<std::vector<std::int64_t>> split(std::int64_t n, const std::vector<std::int64_t>& sizes, Generator& random, const Loc& loc);
/// Returns the sizes of these fractions of n. Throws ValueError unless the fractions add up to 1.
std::vector<std::int64_t> sizes_of(std::int64_t n, const std::vector<double>& fractions, const Loc& loc);

/// Returns the ends of datasets of these sizes when they are concatenated. Throws ValueError for an empty list.
std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& sizes, const Loc& loc);
/// Returns the first part whose end is behind the index.
std::size_t part_of(std::int64_t index, const std::vector<std::int64_t>& ends);

template <class>
using InFor = In;

}  // namespace detail

/// Rows of tensors with equally many rows. An item is the tuple of row i of each, as views; for one tensor, that row. Throws
/// ShapeError. Use braces to make one from variables only, within another's brackets: `DataLoader loader(TensorDataset(x), {.batch_size = 2});`
/// declares a function in C++ ("placeholder ... not permitted"), `DataLoader loader(TensorDataset{x}, ...);` makes a loader.
template <class... T>
    requires(sizeof...(T) > 0 && (std::is_same_v<T, Tensor> && ...))
class TensorDataset {
 public:
    explicit TensorDataset(detail::InFor<T>... tensors) : tensors_{tensors.tensor...} {
        const Loc lines[] = {tensors.loc...};
        detail::check_rows(tensors_, sizeof...(T), lines[0]);
    }
    std::int64_t size() const { return tensors_[0].shape()[0]; }
    /// Returns a row; a negative index counts from the end. Throws IndexError.
    auto get(std::int64_t index, Loc loc = Loc::current()) const { return rows(index, loc, std::index_sequence_for<T...>()); }
    /// Returns tensor number i, whole.
    const Tensor& tensor(std::size_t i = 0) const { return tensors_[i]; }

 private:
    template <std::size_t... I>
    auto rows(std::int64_t index, const Loc& loc, std::index_sequence<I...>) const {
        if constexpr (sizeof...(T) == 1) {
            return tensors_[0].select(0, index, loc);
        } else {
            return std::tuple<T...>(tensors_[I].select(0, index, loc)...);
        }
    }

    Tensor tensors_[sizeof...(T)];
};
template <class... T>
TensorDataset(const T&...) -> TensorDataset<T...>;

/// The elements of a vector, which all copies share. An item is a copy of its element. Use braces to make one within another's
/// brackets: `DataLoader loader(VectorDataset(v));` declares a function in C++, `DataLoader loader(VectorDataset{v});`
/// makes a loader.
template <class T>
class VectorDataset {
 public:
    explicit VectorDataset(std::vector<T> items) : items_(std::make_shared<const std::vector<T>>(std::move(items))) {}
    std::int64_t size() const { return static_cast<std::int64_t>(items_->size()); }
    /// Throws IndexError.
    const T& get(std::int64_t index, Loc loc = Loc::current()) const {
        detail::check_index(index, size(), "VectorDataset", loc);
        return (*items_)[static_cast<std::size_t>(index)];
    }

 private:
    std::shared_ptr<const std::vector<T>> items_;
};

/// Selects items of another dataset by their indices, in this order. Throws IndexError.
template <Dataset D>
class Subset {
 public:
    Subset(D dataset, std::vector<std::int64_t> indices, Loc loc = Loc::current()) : dataset_(std::move(dataset)), indices_(std::move(indices)) {
        detail::check_indices(indices_, dataset_.size(), "Subset", loc);
    }
    std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }
    decltype(auto) get(std::int64_t index, Generator& random, Loc loc = Loc::current()) const {
        detail::check_index(index, size(), "Subset", loc);
        return get_item(dataset_, indices_[static_cast<std::size_t>(index)], random);
    }
    const std::vector<std::int64_t>& indices() const noexcept { return indices_; }

 private:
    D dataset_;
    std::vector<std::int64_t> indices_;
};

/// Concatenates datasets: the items of the first, then those of the second, and so on. They may have several types, but the same item
/// type; get() throws IndexError unless 0 <= index < size(). Made of variables within another's brackets it needs braces, as
/// TensorDataset does.
template <class... D>
class ConcatDataset {
    static_assert(sizeof...(D) > 0 && (Dataset<D> && ...), "a ConcatDataset is made of datasets, or of a vector of them");
    using Item = ItemOf<std::tuple_element_t<0, std::tuple<D...>>>;
    static_assert((std::is_same_v<ItemOf<D>, Item> && ...), "datasets with items of several types: make them one with data::map()");

 public:
    explicit ConcatDataset(D... datasets) : datasets_(std::move(datasets)...) {}
    std::int64_t size() const {
        return std::apply([](const D&... d) { return (static_cast<std::int64_t>(d.size()) + ...); }, datasets_);
    }
    Item get(std::int64_t index, Generator& random, Loc loc = Loc::current()) const {
        detail::check_index(index, size(), "ConcatDataset", loc);
        return find<0>(index, random);
    }

 private:
    template <std::size_t I>
    Item find(std::int64_t index, Generator& random) const {
        const auto& d = std::get<I>(datasets_);
        if constexpr (I + 1 < sizeof...(D)) {
            if (index >= d.size()) return find<I + 1>(index - d.size(), random);
        }
        return get_item(d, index, random);
    }

    std::tuple<D...> datasets_;
};

/// Concatenates any number of datasets: `data::ConcatDataset all{parts}` of a std::vector. Throws ValueError for an empty one.
template <Dataset D>
class ConcatDataset<std::vector<D>> {
 public:
    explicit ConcatDataset(std::vector<D> datasets, Loc loc = Loc::current()) : datasets_(std::move(datasets)) {
        std::vector<std::int64_t> sizes;
        for (const D& d : datasets_) sizes.push_back(d.size());
        ends_ = detail::ends_of(sizes, loc);
    }
    std::int64_t size() const { return ends_.back(); }
    ItemOf<D> get(std::int64_t index, Generator& random, Loc loc = Loc::current()) const {
        detail::check_index(index, size(), "ConcatDataset", loc);
        const std::size_t part = detail::part_of(index, ends_);
        return get_item(datasets_[part], part == 0 ? index : index - ends_[part - 1], random);
    }

 private:
    std::vector<D> datasets_;
    std::vector<std::int64_t> ends_;
};

/// Applies a function to the items of another dataset: fn(item), or fn(item, random) with a Generator&. Made by map().
template <Dataset D, class F>
class MapDataset {
 public:
    MapDataset(D dataset, F fn, Loc loc = Loc::current()) : dataset_(std::move(dataset)), fn_(std::move(fn)) {
        tapir::detail::check_function("map", fn_, loc);
    }
    std::int64_t size() const { return dataset_.size(); }
    decltype(auto) get(std::int64_t index, Generator& random) const {
        if constexpr (std::is_invocable_v<const F&, ItemOf<D>, Generator&>) {
            return fn_(ItemOf<D>(get_item(dataset_, index, random)), random);
        } else {
            return fn_(ItemOf<D>(get_item(dataset_, index, random)));
        }
    }

 private:
    D dataset_;
    F fn_;
};

/// Returns the dataset with fn applied to each item when it is taken. Several threads call fn at once.
template <Dataset D, class F>
MapDataset<D, F> map(D dataset, F fn, Loc loc = Loc::current()) {
    return {std::move(dataset), std::move(fn), loc};
}

/// Splits into parts of these sizes, in random order. Throws ValueError unless they add up to the dataset's size.
template <Dataset D>
std::vector<Subset<D>> random_split(const D& dataset, const std::vector<std::int64_t>& sizes, Generator& random = default_generator(),
                                    Loc loc = Loc::current()) {
    std::vector<Subset<D>> parts;
    for (auto& indices : detail::split(dataset.size(), sizes, random, loc)) parts.emplace_back(dataset, std::move(indices), loc);
    return parts;
}
/// Splits by fractions, which add up to 1: {0.9, 0.1}. Sizes are rounded down; the first parts get one of the remaining items each.
template <Dataset D>
std::vector<Subset<D>> random_split(const D& dataset, const std::vector<double>& fractions, Generator& random = default_generator(),
                                    Loc loc = Loc::current()) {
    return random_split(dataset, detail::sizes_of(dataset.size(), fractions, loc), random, loc);
}
template <Dataset D>
std::vector<Subset<D>> random_split(const D& dataset, std::initializer_list<int> sizes, Generator& random = default_generator(),
                                    Loc loc = Loc::current()) {
    return random_split(dataset, std::vector<std::int64_t>(sizes.begin(), sizes.end()), random, loc);
}
template <Dataset D>
std::vector<Subset<D>> random_split(const D& dataset, std::initializer_list<double> fractions, Generator& random = default_generator(),
                                    Loc loc = Loc::current()) {
    return random_split(dataset, std::vector<double>(fractions), random, loc);
}

}  // namespace tapir::data
