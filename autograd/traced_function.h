// Functions of tensors, of any signature, called with lists: the arguments of trace(), cond(), while_loop() and scan().
#pragma once

#include <bit>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/std_function.h"
#include "tapir/core/tensor.h"

namespace tapir::detail {

/// A reference to a function; does not own it.
struct TracedFunction {
    void* function;
    std::vector<Tensor> (*call)(void* function, const std::vector<Tensor>& inputs, std::vector<std::string>* names, const Loc& loc);
    unsigned counts;  // bit n: it takes n tensors
    bool takes_list;
    Loc loc;  // of the call that it was passed to; ops have it if the function takes In

    /// names: receives the names of the results; see Flattener.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, std::vector<std::string>* names = nullptr) const {
        return call(function, inputs, names, loc);
    }
};
/// Throws ValueError if the function takes another number of tensors.
void check_arity(const char* what, const TracedFunction& fn, std::size_t inputs, const Loc& loc);

struct Anything {
    template <class T>
    operator T() const;
};
/// The number of members of a struct of results, up to 4; 0: not such a struct.
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

/// Collects the results of a function in one list: a tensor, a list, pair or tuple, a map with names, a struct such as nn::LSTMResult,
/// and these nested. Undefined members of structs are left out.
class Flattener {
 public:
    /// names: receives the results' names: "" for a single tensor, "1_0" for the first of the second, "logits" for a key of a map; may be
    /// null.
    explicit Flattener(std::vector<std::string>* names) : names_(names) {}
    std::vector<Tensor> list;

    void add(const Tensor& t) {
        list.push_back(t);
        if (names_) names_->push_back(path_);
    }
    template <class Results>
    void add(const Results& results) {
        if constexpr (requires {
                          results.begin()->first;
                          results.begin()->second;
                      }) {
            for (const auto& [name, part] : results) add_part(name, part);
        } else if constexpr (requires {
                                 results.begin()->name;
                                 results.begin()->tensor;
                             }) {
            for (const auto& [name, part] : results) add_part(name, part);
        } else if constexpr (requires {
                                 results.begin();
                                 results.end();
                             }) {
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

template <class Fn>
inline constexpr bool is_module = requires(Fn& fn) {
    fn.named_parameters();
    fn.named_buffers();
};
/// std::ref(fn), std::cref(fn).
template <class Fn>
inline constexpr bool is_reference = requires(Fn& fn) { requires std::is_same_v<decltype(fn.get()), typename Fn::type&>; };

/// The argument for functions with written-out parameter types: converts to a Tensor, or to an In with the line of the call that the
/// function was passed to.
struct Argument {
    const Tensor& tensor;
    const Loc& loc;
    operator const Tensor&() const noexcept { return tensor; }
    operator In() const noexcept { return In(tensor, loc); }
};
template <class T, std::size_t>
using Repeated = T;
template <class Fn, class... X>
concept Calls = requires(Fn& fn, const X&... x) { fn(x...); };
template <class Fn, class... X>
concept Forwards = requires(Fn& fn, const X&... x) { fn.forward(x...); };

// How to call a function with that many tensors: the argument types, and for a module forward() if operator() does not take them.
// Asking whether a generic lambda takes a type compiles its body with it, which may fail: it is asked for Tensors alone.
enum class Way { none, arguments, ins, tensors, forward_arguments, forward_ins, forward_tensors };

template <class Fn, std::size_t... I>
constexpr Way way_of(std::index_sequence<I...>) {
    constexpr bool is_function = std::is_function_v<std::remove_pointer_t<Fn>>, is_object = requires { &Fn::operator(); };
    if constexpr (is_function || is_object) {
        if constexpr (Calls<Fn, Repeated<Argument, I>...>) return Way::arguments;
        if constexpr (Calls<Fn, Repeated<Tensor, I>...>) return Way::tensors;
    } else if constexpr (!is_module<Fn> || requires { &Fn::template operator()<Repeated<Tensor, I>...>; }) {
        if constexpr (Calls<Fn, Repeated<Tensor, I>...>) return Way::tensors;
    } else if constexpr (Calls<Fn, Repeated<In, I>...>) {
        return Way::ins;
    } else if constexpr (Calls<Fn, Repeated<Tensor, I>...>) {
        return Way::tensors;
    }
    if constexpr (is_module<Fn>) {
        if constexpr (requires { &Fn::forward; }) {
            if constexpr (Forwards<Fn, Repeated<Argument, I>...>) return Way::forward_arguments;
            if constexpr (Forwards<Fn, Repeated<Tensor, I>...>) return Way::forward_tensors;
        } else if constexpr (requires { &Fn::template forward<Repeated<Tensor, I>...>; }) {
            if constexpr (Forwards<Fn, Repeated<Tensor, I>...>) return Way::forward_tensors;
        } else if constexpr (Forwards<Fn, Repeated<In, I>...>) {
            return Way::forward_ins;
        } else if constexpr (Forwards<Fn, Repeated<Tensor, I>...>) {
            return Way::forward_tensors;
        }
    }
    return Way::none;
}
template <class Fn, std::size_t Count>
inline constexpr Way way = way_of<Fn>(std::make_index_sequence<Count>());

inline constexpr std::size_t kMostArguments = 8;
/// The numbers of tensors that it can be called with, as bits. 0: only without arguments, or with a list.
template <class Fn>
inline constexpr unsigned counts_from_one = []<std::size_t... I>(std::index_sequence<I...>) {
    return (0U | ... | (way<Fn, I + 1> == Way::none ? 0U : 2U << I));
}(std::make_index_sequence<kMostArguments>());

template <class Fn>
constexpr bool takes_list() {
    if constexpr (counts_from_one<Fn> != 0) {
        return false;
    } else {
        return Calls<Fn, std::vector<Tensor>> || (is_module<Fn> && Forwards<Fn, std::vector<Tensor>>);
    }
}
template <class Fn>
constexpr unsigned counts() {
    if constexpr (takes_list<Fn>() || is_module<Fn>) {
        return counts_from_one<Fn>;
    } else if constexpr (counts_from_one<Fn> != 0 && !requires { &Fn::operator(); }) {
        return counts_from_one<Fn>;  // an empty pack, which no op takes
    } else {
        return counts_from_one<Fn> | (way<Fn, 0> == Way::none ? 0U : 1U);
    }
}

template <class Fn, std::size_t... I>
decltype(auto) call_with(Fn& fn, [[maybe_unused]] const std::vector<Tensor>& x, [[maybe_unused]] const Loc& loc, std::index_sequence<I...>) {
    constexpr Way how = way<Fn, sizeof...(I)>;
    if constexpr (how == Way::arguments) {
        return fn(Argument{x[I], loc}...);
    } else if constexpr (how == Way::ins) {
        return fn(In(x[I], loc)...);
    } else if constexpr (how == Way::tensors) {
        return fn(x[I]...);
    } else if constexpr (how == Way::forward_arguments) {
        return fn.forward(Argument{x[I], loc}...);
    } else if constexpr (how == Way::forward_ins) {
        return fn.forward(In(x[I], loc)...);
    } else {
        return fn.forward(x[I]...);
    }
}
template <class Fn>
decltype(auto) call_with_list(Fn& fn, const std::vector<Tensor>& x) {
    if constexpr (Calls<Fn, std::vector<Tensor>>) {
        return fn(x);
    } else {
        return fn.forward(x);
    }
}

/// Calls give() with a call of fn for x.size() tensors, trying the numbers that it takes from the smallest on.
template <class Fn, std::size_t Count = 0, class Give>
void call_traced(Fn& fn, const std::vector<Tensor>& x, const Loc& loc, const Give& give) {
    if constexpr (takes_list<Fn>()) {
        give([&]() -> decltype(auto) { return call_with_list(fn, x); });
    } else if constexpr (Count <= kMostArguments) {
        if constexpr ((counts<Fn>() >> Count & 1) != 0) {
            const auto call = [&]() -> decltype(auto) { return call_with(fn, x, loc, std::make_index_sequence<Count>()); };
            if (x.size() == Count) return give(call);
        }
        call_traced<Fn, Count + 1>(fn, x, loc, give);
    }
}
template <class Fn>
decltype(auto) call_least(Fn& fn, const std::vector<Tensor>& x, const Loc& loc) {
    static_assert(takes_list<Fn>() || counts<Fn>() != 0,
                  "the function is to take Tensors (at most 8), or one std::vector<Tensor>, or, a module, have a forward() that takes them");
    if constexpr (takes_list<Fn>()) {
        return call_with_list(fn, x);
    } else {
        return call_with(fn, x, loc, std::make_index_sequence<static_cast<std::size_t>(std::countr_zero(counts<Fn>()))>());
    }
}
/// The result type of a function of type Fn.
template <class Fn>
using ResultOf = std::decay_t<decltype(call_least(std::declval<Fn&>(), std::declval<const std::vector<Tensor>&>(), std::declval<const Loc&>()))>;

/// Wraps fn; `what` is the caller's name for messages. Throws ValueError for a null function.
template <class Fn>
TracedFunction traced(Fn& fn, const Loc& loc = Loc{}, const char* what = "trace") {
    if constexpr (is_reference<Fn>) {
        return traced(fn.get(), loc, what);
    } else {
        check_function(what, fn, loc);
        static_assert(takes_list<Fn>() || counts<Fn>() != 0,
                      "the function is to take Tensors (at most 8), or one std::vector<Tensor>, or, a module, have a forward() that takes them");
        void* address;
        if constexpr (std::is_function_v<Fn>) {
            address = reinterpret_cast<void*>(&fn);
        } else {
            address = const_cast<void*>(static_cast<const void*>(&fn));
        }
        const auto call = [](void* function, const std::vector<Tensor>& x, std::vector<std::string>* names, const Loc& line) {
            Flattener flat(names);
            const auto give = [&](const auto& results) {
                if constexpr (std::is_void_v<decltype(results())>) {
                    results();
                } else {
                    flat.add(results());
                }
            };
            if constexpr (std::is_function_v<Fn>) {
                call_traced(*reinterpret_cast<Fn*>(function), x, line, give);
            } else {
                call_traced(*static_cast<Fn*>(function), x, line, give);
            }
            return std::move(flat.list);
        };
        return {address, call, counts<Fn>(), takes_list<Fn>(), loc};
    }
}

/// A function that takes tensors one by one, and no list.
template <class Fn>
concept FunctionOfTensors =
    !std::is_convertible_v<Fn, std::function<Tensor(const std::vector<Tensor>&)>> && requires { requires counts<const Fn>() != 0; };
/// Returns a copy of fn that takes a list. Calling it throws ValueError for a number of tensors that fn does not take.
template <class Fn>
std::function<Tensor(const std::vector<Tensor>&)> of_list(const char* what, const Fn& fn, const Loc& loc) {
    static_assert(std::is_convertible_v<ResultOf<const Fn>, Tensor>, "the function is to give a Tensor");
    check_function(what, fn, loc);
    return [what, fn, loc](const std::vector<Tensor>& x) {
        const TracedFunction list = traced(fn, loc);
        check_arity(what, list, x.size(), loc);
        return list(x)[0];
    };
}

// Converts a list to the result type of a function.
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
        return [&]<std::size_t... I>(std::index_sequence<I...>) { return std::tuple<T...>{std::move(list[I])...}; }(std::index_sequence_for<T...>());
    }
};

}  // namespace tapir::detail
