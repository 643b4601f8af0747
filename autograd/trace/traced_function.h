// Functions of tensors, of any signature, called with lists: what trace(), cond(), while_loop() and scan() are given.
#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir::detail {

/// Does not own the function.
struct TracedFunction {
    void* function;
    std::vector<Tensor> (*call)(void* function, const std::vector<Tensor>& inputs, std::vector<std::string>* names);
    int arity;  // how many tensors it takes; -1: a list

    /// names: what the results are called; see Flattener.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, std::vector<std::string>* names = nullptr) const {
        return call(function, inputs, names);
    }
};
/// Throws ValueError where the function takes another number of tensors.
void check_arity(const char* what, const TracedFunction& fn, std::size_t inputs, const Loc& loc);

struct Anything {
    template <class T>
    operator T() const;
};
/// How many members a struct of results has, up to 4; 0: it is none.
template <class T>
constexpr int member_count() {
    if constexpr (!std::is_aggregate_v<T>) {
        return 0;
    } else if constexpr (requires { T{Anything(), Anything(), Anything(), Anything(), Anything()}; }) {
        return 0;
    } else if constexpr (requires { T{Anything(), Anything(), Anything(), Anything()}; }) {
        return 4;
    } else if constexpr (requires { T{Anything(), Anything(), Anything()}; }) {
        return 3;
    } else if constexpr (requires { T{Anything(), Anything()}; }) {
        return 2;
    } else {
        return 1;
    }
}

/// What functions give as one list: a tensor, a list, pair or tuple, a map with names, a struct such as nn::LSTMResult, and these in
/// one another. Undefined members of structs are left out.
class Flattener {
 public:
    /// names: also what they are called, "" for a single tensor, "1_0" for the first of the second, "logits" of a map; null: nobody asks.
    explicit Flattener(std::vector<std::string>* names) : names_(names) {}
    std::vector<Tensor> list;

    void add(const Tensor& t) {
        list.push_back(t);
        if (names_) names_->push_back(path_);
    }
    template <class Results>
    void add(const Results& results) {
        if constexpr (requires { results.begin()->first; results.begin()->second; }) {
            for (const auto& [name, part] : results) add_part(name, part);
        } else if constexpr (requires { results.begin()->name; results.begin()->tensor; }) {
            for (const auto& [name, part] : results) add_part(name, part);
        } else if constexpr (requires { results.begin(); results.end(); }) {
            int i = 0;
            for (const auto& part : results) add_part(i++, part);
        } else if constexpr (requires { std::tuple_size<Results>::value; }) {
            int i = 0;
            std::apply([&](const auto&... parts) { (add_part(i++, parts), ...); }, results);
        } else {
            constexpr int count = member_count<Results>();
            static_assert(count > 0, "the function is to give Tensors: one, a list, pair, tuple or map of them, or a struct of at most 4");
            const auto members = [&](const auto&... parts) {
                int i = 0;
                (add_member(i++, parts), ...);
            };
            if constexpr (count == 1) {
                const auto& [a] = results;
                members(a);
            } else if constexpr (count == 2) {
                const auto& [a, b] = results;
                members(a, b);
            } else if constexpr (count == 3) {
                const auto& [a, b, c] = results;
                members(a, b, c);
            } else if constexpr (count == 4) {
                const auto& [a, b, c, d] = results;
                members(a, b, c, d);
            }
        }
    }

 private:
    template <class Name, class Part>
    void add_part(const Name& name, const Part& part) {
        if (!names_) return add(part);
        const std::size_t size = path_.size();
        if (size > 0) path_ += '_';
        if constexpr (std::is_same_v<Name, int>) {
            path_ += std::to_string(name);
        } else {
            path_ += name;
        }
        add(part);
        path_.resize(size);
    }
    template <class Part>
    void add_member(int i, const Part& part) {
        if constexpr (std::is_same_v<Part, Tensor>) {
            if (!part.defined()) return;
        }
        add_part(i, part);
    }

    std::vector<std::string>* names_;
    std::string path_;
};

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
            [](void* function, const std::vector<Tensor>& x, std::vector<std::string>* names) {
                Flattener flat(names);
                flat.add(call_traced(*static_cast<Fn*>(function), x));
                return std::move(flat.list);
            },
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
