// What the table of calls (calls.cpp) is made of: a line is a name, C++ parameters, and an expression of them. The
// parameters' text is read too, so that names and defaults are PyTorch's: arguments come by place or by name, as in
// Python.
#pragma once

#include <tapir/tapir.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace judge {

using namespace tapir;

/// An argument as check.py encodes it; Value of check.py has the same members.
struct Value {
    enum Kind : std::int32_t { none, boolean, integer, number, text, tensor, list, dtype, slice, ellipsis };
    Kind kind = none;
    std::int32_t count = 0;  // of a list
    std::int64_t whole = 0;  // of a bool, an integer, a dtype; of a list 1 where it is a tuple
    double real = 0;
    const char* word = nullptr;
    const Value* items = nullptr;  // of a list; start, stop and step of a slice
    const Tensor* array = nullptr;
};

using Tensors = std::vector<Tensor>;
using Ints = std::vector<std::int64_t>;
using Indices = std::vector<Index>;
template <class T>
using Opt = std::optional<T>;

/// An argument of PyTorch's that Tapir has only the default of.
struct Nothing {};

/// Whether a value can be the argument of a parameter of type T, and the argument.
template <class T>
struct As;

inline bool is_number(const Value& v) { return v.kind == Value::boolean || v.kind == Value::integer || v.kind == Value::number; }
inline bool all_are(const Value& v, Value::Kind kind) {
    for (int i = 0; i < v.count; ++i) {
        if (v.items[i].kind != kind) return false;
    }
    return v.kind == Value::list;
}
inline Ints ints(const Value& v) {
    Ints numbers;
    for (int i = 0; i < v.count; ++i) numbers.push_back(v.items[i].kind == Value::none ? -1 : v.items[i].whole);
    return numbers;
}

#define TAPIR_JUDGE_AS(Type, condition, result)                \
    template <>                                                \
    struct As<Type> {                                          \
        static bool fits(const Value& v) { return condition; } \
        static Type get(const Value& v) { return result; }     \
    };
TAPIR_JUDGE_AS(In, v.kind == Value::tensor, In(*v.array))
TAPIR_JUDGE_AS(Tensor, v.kind == Value::tensor || v.kind == Value::none, v.array ? *v.array : Tensor())
TAPIR_JUDGE_AS(bool, v.kind == Value::boolean, v.whole != 0)
TAPIR_JUDGE_AS(Flag, v.kind == Value::boolean, Flag(v.whole != 0))
TAPIR_JUDGE_AS(int, v.kind == Value::integer, static_cast<int>(v.whole))
TAPIR_JUDGE_AS(std::int64_t, v.kind == Value::integer, v.whole)
TAPIR_JUDGE_AS(Dim, v.kind == Value::integer, Dim(v.whole))
TAPIR_JUDGE_AS(double, is_number(v), v.kind == Value::number ? v.real : static_cast<double>(v.whole))
TAPIR_JUDGE_AS(Scalar, is_number(v), v.kind == Value::number ? Scalar(v.real) : v.kind == Value::integer ? Scalar(v.whole) : Scalar(v.whole != 0))
TAPIR_JUDGE_AS(const char*, v.kind == Value::text, v.word)
TAPIR_JUDGE_AS(DType, v.kind == Value::dtype, static_cast<DType>(v.whole))
TAPIR_JUDGE_AS(Nothing, v.kind == Value::none || (v.kind == Value::boolean && !v.whole), (void(v), Nothing()))
TAPIR_JUDGE_AS(Ints, all_are(v, Value::integer), ints(v))
TAPIR_JUDGE_AS(Reduction, v.kind == Value::text,
               v.word == std::string("none")       ? Reduction::none
                   : v.word == std::string("sum")  ? Reduction::sum
                   : v.word == std::string("mean") ? Reduction::mean
                                                   : Reduction::batchmean)
inline bool are_sizes(const Value& v) {
    for (int i = 0; i < v.count; ++i) {
        if (v.items[i].kind != Value::integer && v.items[i].kind != Value::none) return false;
    }
    return v.kind == Value::list;
}
/// Sizes or dimensions: a number, numbers, or none; None among them, in pools the input's size, is -1.
TAPIR_JUDGE_AS(Shape, v.kind == Value::none || v.kind == Value::integer || are_sizes(v), v.kind == Value::integer ? Shape(v.whole) : Shape(ints(v)))
TAPIR_JUDGE_AS(Padding, v.kind == Value::text || v.kind == Value::integer || all_are(v, Value::integer),
               v.kind == Value::text          ? Padding(v.word)
                   : v.kind == Value::integer ? Padding(v.whole)
                                              : Padding(Shape(ints(v))))

template <>
struct As<Tensors> {
    static bool fits(const Value& v) { return all_are(v, Value::tensor); }
    static Tensors get(const Value& v) {
        Tensors tensors;
        for (int i = 0; i < v.count; ++i) tensors.push_back(*v.items[i].array);
        return tensors;
    }
};
template <class T>
struct As<std::optional<T>> {
    static bool fits(const Value& v) { return v.kind == Value::none || As<T>::fits(v); }
    static std::optional<T> get(const Value& v) { return v.kind == Value::none ? std::optional<T>() : As<T>::get(v); }
};
template <>
struct As<Indices> {
    static bool fits(const Value&) { return true; }
    static Index one(const Value& v) {
        const auto end = [](const Value& e) { return e.kind == Value::none ? Slice::kOpen : e.whole; };
        switch (v.kind) {
            case Value::none: return None;
            case Value::ellipsis: return Ellipsis;
            case Value::tensor: return *v.array;
            case Value::slice: return Slice(end(v.items[0]), end(v.items[1]), v.items[2].kind == Value::none ? 1 : v.items[2].whole);
            case Value::list: return tapir::tensor(ints(v));
            default: return v.whole;
        }
    }
    static Indices get(const Value& v) {
        if (v.kind != Value::list || v.whole == 0) return {one(v)};  // x[[1, 2]] is not x[1, 2]
        Indices indices;
        for (int i = 0; i < v.count; ++i) indices.push_back(one(v.items[i]));
        return indices;
    }
};

inline void give(Tensors& to, const Tensor& y) {
    if (y.defined()) to.push_back(y);
}
inline void give(Tensors& to, bool y) { to.push_back(tapir::tensor(y)); }
inline void give(Tensors& to, const Tensors& ys) { to.insert(to.end(), ys.begin(), ys.end()); }
inline void give(Tensors& to, const std::pair<Tensor, Tensor>& y) { give(to, y.first), give(to, y.second); }
template <class R>
void give(Tensors& to, const R& result) {  // a struct of two or three tensors
    if constexpr (requires { R{Tensor(), Tensor(), Tensor()}; }) {
        const auto& [a, b, c] = result;
        give(to, a), give(to, b), give(to, c);
    } else {
        const auto& [a, b] = result;
        give(to, a), give(to, b);
    }
}

struct Call {
    std::string name;
    const char* parameters;
    bool (*fits)(const Value* arguments);
    void (*run)(const Value* arguments, Tensors& results);
};

template <auto function>
struct Erased;
template <class R, class... A, R (*function)(A...)>
struct Erased<function> {
    static bool fits(const Value* v) {
        return [&]<std::size_t... i>(std::index_sequence<i...>) { return (As<A>::fits(v[i]) && ...); }(std::index_sequence_for<A...>());
    }
    static void run(const Value* v, Tensors& results) {
        [&]<std::size_t... i>(std::index_sequence<i...>) { give(results, function(As<A>::get(v[i])...)); }(std::index_sequence_for<A...>());
    }
};

#define TAPIR_JUDGE_UNWRAP(...) __VA_ARGS__
/// {"sum", (In input, Dims dim = {}, Flag keepdim = false), sum(input, dim, keepdim)}
#define TAPIR_JUDGE_CALL(name, parameters, ...)                                                                                      \
    Call {                                                                                                                           \
        name, #parameters, Erased<+[] parameters { return __VA_ARGS__; }>::fits, Erased<+[] parameters { return __VA_ARGS__; }>::run \
    }

/// calls.cpp. Those of one name are tried in their order.
const std::vector<Call>& calls();

}  // namespace judge
