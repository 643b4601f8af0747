// Makes a batch of items for a DataLoader.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/tensor.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"

namespace tapir::data {

template <class T>
auto collate(std::vector<T> items);

namespace detail {

template <class T>
inline constexpr bool is_tuple = false;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;

// Returns member I of all items: element I of a tuple, or field I of a struct.
template <std::size_t I, class T>
auto column(std::vector<T>& items) {
    const auto member = [](T& item) -> auto& {
        if constexpr (is_tuple<T>) {
            return std::get<I>(item);
        } else {
            return std::get<I>(item.fields());
        }
    };
    std::vector<std::decay_t<decltype(member(items.front()))>> result;
    result.reserve(items.size());
    for (T& item : items) result.push_back(std::move(member(item)));
    return result;
}

template <class T, std::size_t... I>
auto collate_tuple(std::vector<T>& items, std::index_sequence<I...>) {
    if constexpr (requires(T t) { t.second; }) {
        return std::pair<decltype(collate(column<I>(items)))...>(collate(column<I>(items))...);
    } else {
        return std::tuple<decltype(collate(column<I>(items)))...>(collate(column<I>(items))...);
    }
}

template <class T, std::size_t... I>
T collate_fields(std::vector<T>& items, std::index_sequence<I...>) {
    T batch = items.front();
    const auto set = [](auto& field, auto value) {
        static_assert(std::is_same_v<std::decay_t<decltype(field)>, decltype(value)>,
                      "the fields of a struct must be tensors, or structs of them: a batch is the same struct. Give the loader a "
                      "collate function of your own for others");
        field = std::move(value);
    };
    (set(std::get<I>(batch.fields()), collate(column<I>(items))), ...);
    return batch;
}

}  // namespace detail

/// Returns the batch of some items, at least one:
///   Tensor                 stack(items): (N, ...)
///   a number               a tensor (N,): whole numbers int64; bool_, float32 or float64 as they are
///   std::pair, std::tuple  the pair or tuple of the batches of each member
///   a struct that has      `auto fields() { return std::tie(image, label); }`: the same struct, each field, a tensor or such a
///                          struct, the batch of that field
///   anything else          std::vector of the items: strings, vectors, trees
/// Throws ShapeError for tensors of different shapes.
template <class T>
auto collate(std::vector<T> items) {
    if constexpr (std::is_same_v<T, Tensor>) {
        return stack(items);
    } else if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
        return tensor(items);
    } else if constexpr (std::is_integral_v<T>) {
        return tensor(std::vector<std::int64_t>(items.begin(), items.end()));
    } else if constexpr (detail::is_tuple<T>) {
        return detail::collate_tuple(items, std::make_index_sequence<std::tuple_size_v<T>>());
    } else if constexpr (requires(T item) { std::tuple_size<decltype(item.fields())>::value; }) {
        using Fields = decltype(std::declval<T&>().fields());
        return detail::collate_fields(items, std::make_index_sequence<std::tuple_size_v<Fields>>());
    } else {
        return items;
    }
}

/// collate() as the function of a loader.
struct DefaultCollate {
    template <class T>
    auto operator()(std::vector<T> items) const {
        return collate(std::move(items));
    }
};

}  // namespace tapir::data
