// Functions of tensors, of any signature, called with lists: what trace(), cond(), while_loop() and scan() are given.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir::detail {

/// Does not own the function.
struct TracedFunction {
    void* function;
    std::vector<Tensor> (*call)(void* function, const std::vector<Tensor>& inputs);
    int arity;  // how many tensors it takes; -1: a list

    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const { return call(function, inputs); }
};
/// Throws ValueError where the function takes another number of tensors.
void check_arity(const char* what, const TracedFunction& fn, std::size_t inputs, const Loc& loc);

// What functions give: a tensor, a list, or a pair or tuple of such.
inline void append_to(std::vector<Tensor>& list, Tensor result) { list.push_back(std::move(result)); }
inline void append_to(std::vector<Tensor>& list, std::vector<Tensor> results) {
    for (Tensor& t : results) list.push_back(std::move(t));
}
template <class... T>
void append_to(std::vector<Tensor>& list, std::tuple<T...> results);
template <class A, class B>
void append_to(std::vector<Tensor>& list, std::pair<A, B> results) {
    append_to(list, std::move(results.first));
    append_to(list, std::move(results.second));
}
template <class... T>
void append_to(std::vector<Tensor>& list, std::tuple<T...> results) {
    std::apply([&](auto&... parts) { (append_to(list, std::move(parts)), ...); }, results);
}
template <class Results>
std::vector<Tensor> as_list(Results results) {
    std::vector<Tensor> list;
    append_to(list, std::move(results));
    return list;
}

template <class Fn, std::size_t... I>
decltype(auto) call_with(Fn& fn, [[maybe_unused]] const std::vector<Tensor>& x, std::index_sequence<I...>) {
    return fn(x[I]...);
}
template <std::size_t>
using TensorOf = const Tensor&;
template <class Fn, class Index>
inline constexpr bool takes = false;
template <class Fn, std::size_t... I>
inline constexpr bool takes<Fn, std::index_sequence<I...>> = std::is_invocable_v<Fn&, TensorOf<I>...>;
template <class Fn>
inline constexpr bool takes_list = std::is_invocable_v<Fn&, const std::vector<Tensor>&>;

inline constexpr int kMostArguments = 8;
template <class Fn, int N = 0>
constexpr int arity_of() {
    if constexpr (takes_list<Fn>) {
        return -1;
    } else if constexpr (N > kMostArguments) {
        static_assert(N <= kMostArguments, "the function is to take Tensors (at most 8), or one std::vector<Tensor>");
        return 0;
    } else if constexpr (takes<Fn, std::make_index_sequence<N>>) {
        return N;
    } else {
        return arity_of<Fn, N + 1>();
    }
}

template <class Fn>
decltype(auto) call_traced(Fn& fn, const std::vector<Tensor>& x) {
    constexpr int arity = arity_of<Fn>();
    if constexpr (arity < 0) {
        return fn(x);
    } else {
        return call_with(fn, x, std::make_index_sequence<static_cast<std::size_t>(arity)>());
    }
}
template <class Fn>
using ResultOf = std::decay_t<decltype(call_traced(std::declval<Fn&>(), std::declval<const std::vector<Tensor>&>()))>;

template <class Fn>
TracedFunction traced(Fn& fn) {
    return {const_cast<void*>(static_cast<const void*>(&fn)),
            [](void* function, const std::vector<Tensor>& x) { return as_list(call_traced(*static_cast<Fn*>(function), x)); },
            arity_of<Fn>()};
}

// A list as what a function gives.
template <class Results>
struct FromList {
    static_assert(std::is_same_v<Results, Tensor>, "the function is to give a Tensor, a std::vector<Tensor>, or a pair or tuple of Tensors");
    static Tensor get(std::vector<Tensor> list) { return std::move(list[0]); }
};
template <>
struct FromList<std::vector<Tensor>> {
    static std::vector<Tensor> get(std::vector<Tensor> list) { return list; }
};
template <>
struct FromList<std::pair<Tensor, Tensor>> {
    static std::pair<Tensor, Tensor> get(std::vector<Tensor> list) { return {std::move(list[0]), std::move(list[1])}; }
};
template <class... T>
struct FromList<std::tuple<T...>> {
    static std::tuple<T...> get(std::vector<Tensor> list) {
        return [&]<std::size_t... I>(std::index_sequence<I...>) {
            return std::tuple<T...>{std::move(list[I])...};
        }(std::index_sequence_for<T...>());
    }
};

}  // namespace tapir::detail
