// Building blocks of the reduction kernels: the ways to combine two values (or vectors of values), and folds over contiguous
// elements with them. For ops/cpu/*.cpp: everything is in an anonymous namespace, one copy per instruction set.
#pragma once

#include <cstdint>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/reduce/reduce_kernels.h"

#ifndef TAPIR_ISA
#error "for files of ops/cpu/ only"
#endif

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using u64 = std::uint64_t;

template <class T>
struct VectorOf {
    typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
[[gnu::always_inline]] inline Vector<T> load(const T* x) {
    Vector<T> v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
}

template <class T>
[[gnu::always_inline]] inline void store(T* x, Vector<T> v) {
    __builtin_memcpy(x, &v, sizeof v);
}

// For a loop that reads memory in order and computes little: the machine's own fetching begins anew with each page.
template <class T>
[[gnu::always_inline]] inline void fetch_ahead(const T* x) {
    __builtin_prefetch(x + 512);
}

// These handle the first n < kWidth<T> lanes; the others are loaded as 0 and not stored. No other memory is touched.
#if defined(__AVX512BW__)
template <class T>
[[gnu::always_inline]] inline Vector<T> load_first(const T* x, i64 n) {
    const u64 bits = (u64{1} << n) - 1;
    if constexpr (sizeof(T) == 4) {
        return (Vector<T>)_mm512_maskz_loadu_epi32(static_cast<__mmask16>(bits), x);
    } else if constexpr (sizeof(T) == 8) {
        return (Vector<T>)_mm512_maskz_loadu_epi64(static_cast<__mmask8>(bits), x);
    } else {
        return (Vector<T>)_mm512_maskz_loadu_epi8(bits, x);
    }
}
template <class T>
[[gnu::always_inline]] inline void store_first(T* x, Vector<T> v, i64 n) {
    const u64 bits = (u64{1} << n) - 1;
    if constexpr (sizeof(T) == 4) {
        _mm512_mask_storeu_epi32(x, static_cast<__mmask16>(bits), (__m512i)v);
    } else if constexpr (sizeof(T) == 8) {
        _mm512_mask_storeu_epi64(x, static_cast<__mmask8>(bits), (__m512i)v);
    } else {
        _mm512_mask_storeu_epi8(x, bits, (__m512i)v);
    }
}
#else
template <class T>
[[gnu::always_inline]] inline Vector<T> load_first(const T* x, i64 n) {
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        return (Vector<T>)_mm256_maskload_epi32(reinterpret_cast<const int*>(x), mask);
    } else if constexpr (sizeof(T) == 8) {
        const __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
        return (Vector<T>)_mm256_maskload_epi64(reinterpret_cast<const long long*>(x), mask);
    }
#endif
    T lanes[kWidth<T>] = {};
    for (i64 i = 0; i < n; ++i) lanes[i] = x[i];
    return load(lanes);
}
template <class T>
[[gnu::always_inline]] inline void store_first(T* x, Vector<T> v, i64 n) {
    T lanes[kWidth<T>];
    store(lanes, v);
    for (i64 i = 0; i < n; ++i) x[i] = lanes[i];
}
#endif

// An integer type of the same size as T, for masks.
template <int Bytes>
struct IntOf;
template <>
struct IntOf<1> {
    using type = std::int8_t;
};
template <>
struct IntOf<4> {
    using type = std::int32_t;
};
template <>
struct IntOf<8> {
    using type = i64;
};
template <class T>
using MaskInt = typename IntOf<sizeof(T)>::type;

template <class T, int... I>
[[gnu::always_inline]] inline Vector<MaskInt<T>> lane_numbers(std::integer_sequence<int, I...>) {
    return Vector<MaskInt<T>>{static_cast<MaskInt<T>>(I)...};
}

/// Partial results are added up in this type: blocks of float32 in float64.
template <class T>
struct WideOf {
    using type = T;
};
template <>
struct WideOf<float> {
    using type = double;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
constexpr T lowest() {
    if constexpr (__is_same(T, i64)) {
        return INT64_MIN;
    } else {
        return static_cast<T>(-__builtin_inf());
    }
}
template <class T>
constexpr T highest() {
    if constexpr (__is_same(T, i64)) {
        return INT64_MAX;
    } else {
        return static_cast<T>(__builtin_inf());
    }
}

struct Sum {
    template <class T>
    static constexpr T identity() {
        return T(0);
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return static_cast<X>(a + b);
    }
};
struct Prod {
    template <class T>
    static constexpr T identity() {
        return T(1);
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return static_cast<X>(a * b);
    }
};
// A nan stays, once it was met: nothing is larger than it.
struct Max {
    template <class T>
    static constexpr T identity() {
        return lowest<T>();
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return (b > a) | (b != b) ? b : a;
    }
};
struct Min {
    template <class T>
    static constexpr T identity() {
        return highest<T>();
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return (b < a) | (b != b) ? b : a;
    }
};
// For bytes that are 0 or 1.
struct All {
    template <class T>
    static constexpr T identity() {
        return T(1);
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return static_cast<X>(a & b);
    }
};
struct Any {
    template <class T>
    static constexpr T identity() {
        return T(0);
    }
    template <class X>
    [[gnu::always_inline]] static X combine(X a, X b) {
        return static_cast<X>(a | b);
    }
};

template <int Distance, class T, int... I>
[[gnu::always_inline]] inline Vector<T> rotated(Vector<T> v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, ((I + Distance) % kWidth<T>)...);
}

/// Combines all lanes, in a tree.
template <class Op, class T, int Distance = kWidth<T> / 2>
[[gnu::always_inline]] inline T across(Vector<T> v) {
    if constexpr (Distance == 0) {
        return v[0];
    } else {
        return across<Op, T, Distance / 2>(Op::combine(v, rotated<Distance, T>(v, std::make_integer_sequence<int, kWidth<T>>{})));
    }
}

/// Returns v with the identity in its lanes from n on.
template <class Op, class T>
[[gnu::always_inline]] inline Vector<T> only_first(Vector<T> v, i64 n) {
    const Vector<MaskInt<T>> lanes = lane_numbers<T>(std::make_integer_sequence<int, kWidth<T>>{});
    return lanes < static_cast<MaskInt<T>>(n) ? v : Vector<T>{} + Op::template identity<T>();
}

/// Four vectors of independent lanes. take() combines them with the elements of a run, as often as there are runs.
template <class Op, class T>
struct Lanes {
    Vector<T> a = Vector<T>{} + Op::template identity<T>(), b = a, c = a, d = a;

    /// Takes four vectors at a time, from i on; returns where those end.
    [[gnu::always_inline]] i64 take_fours(const T* x, i64 i, i64 n) {
        constexpr i64 width = kWidth<T>;
        for (; i + 4 * width <= n; i += 4 * width) {
            a = Op::combine(a, load(x + i));
            b = Op::combine(b, load(x + i + width));
            c = Op::combine(c, load(x + i + 2 * width));
            d = Op::combine(d, load(x + i + 3 * width));
        }
        return i;
    }
    [[gnu::always_inline]] void take(const T* x, i64 n) {
        constexpr i64 width = kWidth<T>;
        i64 i = take_fours(x, 0, n);
        for (; i + width <= n; i += width) a = Op::combine(a, load(x + i));
        if (i < n) b = Op::combine(b, only_first<Op, T>(load_first(x + i, n - i), n - i));
    }
    [[gnu::always_inline]] Vector<T> together() const { return Op::combine(Op::combine(a, b), Op::combine(c, d)); }
};

/// Combines n contiguous elements, in 4 vectors of independent lanes.
template <class Op, class T>
inline T fold_block(const T* x, i64 n) {
    constexpr i64 width = kWidth<T>;
    if constexpr (__is_same(Op, Sum) || __is_same(Op, Prod)) {
        if (n <= 8) {  // cheaper than the shuffles of across()
            T result = Op::template identity<T>();
            for (i64 i = 0; i < n; ++i) result = Op::combine(result, x[i]);
            return result;
        }
    }
    if (n < width) return across<Op, T>(only_first<Op, T>(load_first(x, n), n));
    Vector<T> a = load(x);
    i64 i = width;
    if (n >= 4 * width) {
        Lanes<Op, T> lanes{a, load(x + width), load(x + 2 * width), load(x + 3 * width)};
        i = lanes.take_fours(x, 4 * width, n);
        a = lanes.together();
    }
    for (; i + width <= n; i += width) a = Op::combine(a, load(x + i));
    if (i < n) a = Op::combine(a, only_first<Op, T>(load_first(x + i, n - i), n - i));
    return across<Op, T>(a);
}

constexpr i64 kFoldBlock = 16 * kVectorBytes;  // 16 float32 elements for each lane
constexpr i64 kSimdBlock = 4 * kVectorBytes;   // the same for a loop with one vector of sums
constexpr i64 kSumRows = 32;                   // rows whose column sums are taken in T, before they are added to wider ones

template <class Op, class T>
inline Wide<T> fold(const T* x, i64 n) {
    if (n <= kFoldBlock) return fold_block<Op>(x, n);
    Wide<T> result = Op::template identity<Wide<T>>();
    for (; n > 0; x += kFoldBlock, n -= kFoldBlock) {
        result = Op::combine(result, static_cast<Wide<T>>(fold_block<Op>(x, n < kFoldBlock ? n : kFoldBlock)));
    }
    return result;
}

/// The terms of sum_of() read through these: the elements of a vector's lanes, and the last ones with zeros in the lanes behind
/// them.
template <class T>
struct WholeVector {
    i64 i;
    [[gnu::always_inline]] Vector<T> operator()(const T* p) const { return load(p + i); }
};
template <class T>
struct LastVector {
    i64 i, n;
    [[gnu::always_inline]] Vector<T> operator()(const T* p) const { return load_first(p + i, n); }
};

template <class T>
struct Sums {
    Wide<T> first, second;
};
template <class T>
struct Terms {
    Vector<T> first, second;
};

/// Sums n terms of two kinds: terms(at) gives vectors of them, where at(p) are the elements of p for the lanes.
template <class T, class Fn>
[[gnu::always_inline]] inline Sums<T> sums_of(i64 n, const Fn& terms) {
    constexpr i64 width = kWidth<T>;
    Sums<T> total{};
    for (i64 begin = 0; begin < n; begin += kFoldBlock / 2) {
        const i64 end = begin + kFoldBlock / 2 < n ? begin + kFoldBlock / 2 : n;
        Vector<T> a{}, b{}, c{}, d{};
        i64 i = begin;
        for (; i + 2 * width <= end; i += 2 * width) {
            const Terms<T> one = terms(WholeVector<T>{i}), two = terms(WholeVector<T>{i + width});
            a += one.first, b += one.second;
            c += two.first, d += two.second;
        }
        if (i + width <= end) {
            const Terms<T> one = terms(WholeVector<T>{i});
            a += one.first, b += one.second;
            i += width;
        }
        if (i < end) {
            const Terms<T> last = terms(LastVector<T>{i, end - i});
            c += only_first<Sum, T>(last.first, end - i);
            d += only_first<Sum, T>(last.second, end - i);
        }
        total.first += static_cast<Wide<T>>(across<Sum, T>(a + c));
        total.second += static_cast<Wide<T>>(across<Sum, T>(b + d));
    }
    return total;
}

// Sums the terms [begin, end), in four vectors of independent lanes.
template <class T, class Fn>
[[gnu::always_inline]] inline T block_sum(i64 begin, i64 end, const Fn& term) {
    constexpr i64 width = kWidth<T>;
    Vector<T> a{}, b{}, c{}, d{};
    i64 i = begin;
    for (; i + 4 * width <= end; i += 4 * width) {
        a += term(WholeVector<T>{i});
        b += term(WholeVector<T>{i + width});
        c += term(WholeVector<T>{i + 2 * width});
        d += term(WholeVector<T>{i + 3 * width});
    }
    for (; i + width <= end; i += width) a += term(WholeVector<T>{i});
    if (i < end) b += only_first<Sum, T>(term(LastVector<T>{i, end - i}), end - i);
    return across<Sum, T>((a + b) + (c + d));
}

/// Sums one kind of terms.
template <class T, class Fn>
[[gnu::always_inline]] inline Wide<T> sum_of(i64 n, const Fn& term) {
    Wide<T> total = 0;
    for (i64 begin = 0; begin < n; begin += kFoldBlock) {
        const i64 end = begin + kFoldBlock < n ? begin + kFoldBlock : n;
        total += static_cast<Wide<T>>(block_sum<T>(begin, end, term));
    }
    return total;
}
/// Sums one kind of terms, rounded to T: quicker for the few terms of one block.
template <class T, class Fn>
[[gnu::always_inline]] inline T rounded_sum_of(i64 n, const Fn& term) {
    return n <= kFoldBlock ? block_sum<T>(0, n, term) : static_cast<T>(sum_of<T>(n, term));
}

/// to[i] = fn(i-th vector of x), for any n: fn takes and returns a Vector<T>.
template <class T, class Fn>
[[gnu::always_inline]] inline void for_vectors(const T* x, T* to, i64 n, const Fn& fn) {
    i64 i = 0;
    for (; i + kWidth<T> <= n; i += kWidth<T>) store(to + i, fn(load(x + i)));
    if (i < n) store_first(to + i, fn(load_first(x + i, n - i)), n - i);
}

/// Combines acc[j] with the elements of `rows` rows at x, x + stride, ...
template <class Op, class T>
inline void fold_rows(T* acc, const T* x, i64 stride, i64 rows, i64 width) {
    constexpr i64 step = kWidth<T>;
    const i64 whole = width / step * step, rest = width - whole;
    if (rest > 0) {  // the last columns, in registers
        const T* tail = x + whole;
        Vector<T> a = load_first(acc + whole, rest), b = Vector<T>{} + Op::template identity<T>();
        i64 r = 0;
        for (; r + 2 <= rows; r += 2, tail += 2 * stride) {
            a = Op::combine(a, load_first(tail, rest));
            b = Op::combine(b, load_first(tail + stride, rest));
        }
        if (r < rows) a = Op::combine(a, load_first(tail, rest));
        store_first(acc + whole, Op::combine(a, b), rest);
    }
    if (whole == 0) return;
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        const T *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
        for (i64 j = 0; j < whole; j += step) {
            const Vector<T> a = Op::combine(load(x + j), load(x1 + j)), b = Op::combine(load(x2 + j), load(x3 + j));
            store(acc + j, Op::combine(load(acc + j), Op::combine(a, b)));
        }
    }
    for (; rows > 0; --rows, x += stride) {
        for (i64 j = 0; j < whole; j += step) store(acc + j, Op::combine(load(acc + j), load(x + j)));
    }
}

/// Walks positions of a strided array in row-major order; the last dimension is handed out as a run.
struct Runs {
    const i64* sizes;
    const i64* strides;
    int rank;
    i64 index[8] = {};
    i64 offset = 0;

    Runs(const i64* all_sizes, const i64* all_strides, int dims) : sizes(all_sizes), strides(all_strides), rank(dims) {}
    /// Starts at the linear position `position`.
    void seek(i64 position) {
        offset = 0;
        for (int d = rank; d-- > 0;) {
            index[d] = position % sizes[d];
            position /= sizes[d];
            offset += index[d] * strides[d];
        }
    }
    i64 length() const { return rank == 0 ? 1 : sizes[rank - 1]; }
    i64 stride() const { return rank == 0 ? 0 : strides[rank - 1]; }
    /// Returns the number of elements left in the current run.
    i64 left() const { return rank == 0 ? 1 : sizes[rank - 1] - index[rank - 1]; }
    void advance(i64 n) {  // n <= left()
        if (rank == 0) return;
        int d = rank - 1;
        index[d] += n;
        offset += n * strides[d];
        while (d > 0 && index[d] == sizes[d]) {
            offset -= sizes[d] * strides[d];
            index[d] = 0;
            --d;
            ++index[d];
            offset += strides[d];
        }
    }
};

template <class T>
constexpr DType stored_type = DType::int64;  // i64 and u64
template <>
constexpr DType stored_type<float> = DType::float32;
template <>
constexpr DType stored_type<double> = DType::float64;
template <>
constexpr DType stored_type<std::uint8_t> = DType::boolean;

/// Reads n elements from `offset` on, as T.
template <class T>
inline void fetch(const ReduceArgs& args, i64 offset, i64 stride, T* to, i64 n) {
    const auto* from = static_cast<const std::byte*>(args.x) + offset * static_cast<i64>(itemsize(args.dtype));
    convert(args.dtype, from, stride, stored_type<T>, to, 1, n);
}

}  // namespace
}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
