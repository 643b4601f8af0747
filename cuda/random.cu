// Arrays of random numbers, and dropout. See Note [The numbers of a draw] in core/generator.h.
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/philox.cuh"

namespace tapir::gpu {
namespace {

using kernels::Draw;
using kernels::DropoutArgs;

template <int Words>
__device__ __forceinline__ u64 word64(const u32 (&words)[Words], int i) {
    return words[2 * i] | static_cast<u64>(words[2 * i + 1]) << 32;
}

// --- From words to elements ------------------------------------------------------------------------------------------------
//
// A struct with the element type T, the number of words for an element, and make(words, e, first): number first + e of the draw,
// e elements into a thread's words. Normal numbers are made in pairs, by pair(), of the words of both.

template <class Type>
struct Uniform {
    using T = Type;
    static constexpr int words = sizeof(T) == 8 ? 2 : 1;
    template <int N>
    __device__ T make(const u32 (&w)[N], int e, i64) const {
        if constexpr (std::is_same_v<T, double>) return static_cast<double>(word64(w, e) >> 11) * 0x1p-53;
        if constexpr (std::is_same_v<T, float>) return static_cast<float>(w[e] >> 8) * 0x1p-24F;
        if constexpr (std::is_same_v<T, Half>) return to_half(static_cast<float>(w[e] >> 21) * 0x1p-11F);
        if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(static_cast<float>(w[e] >> 24) * 0x1p-8F);
    }
};

__device__ __forceinline__ void sin_cos(float t, float* s, float* c) { ::sincosf(t, s, c); }
__device__ __forceinline__ void sin_cos(double t, double* s, double* c) { ::sincos(t, s, c); }

template <class Type>
struct Normal {
    using T = Type;
    static constexpr int words = sizeof(T) == 8 ? 2 : 1;
    __device__ static void pair(u32 first, u32 second, float* x) {
        const float u = (static_cast<float>(first >> 1) + 1.0F) * 0x1p-31F;
        const float r = sqrt(-2.0F * log(u)), t = static_cast<float>(second >> 8) * (6.283185307179586F * 0x1p-24F);
        sin_cos(t, x + 1, x);
        x[0] *= r;
        x[1] *= r;
    }
    __device__ static void pair(u64 first, u64 second, double* x) {
        const double u = (static_cast<double>(first >> 11) + 1.0) * 0x1p-53;
        const double r = sqrt(-2.0 * log(u));
        const double t = static_cast<double>(second >> 11) * (6.283185307179586477 * 0x1p-53);
        sin_cos(t, x + 1, x);
        x[0] *= r;
        x[1] *= r;
    }
};

template <class Type>
struct Integers {
    using T = Type;
    static constexpr int words = 2;
    i64 low;
    u64 range;  // 0 stands for 2^64
    template <int N>
    __device__ T make(const u32 (&w)[N], int e, i64) const {
        const u64 value = word64(w, e), scaled = range ? __umul64hi(value, range) : value;
        return convert<T>(static_cast<i64>(static_cast<u64>(low) + scaled));
    }
};

template <class Type>
struct Bernoulli {
    using T = Type;
    static constexpr int words = 1;
    u32 threshold;
    bool always;
    template <int N>
    __device__ T make(const u32 (&w)[N], int e, i64) const {
        return convert<T>(always || w[e] < threshold ? 1 : 0);
    }
};

// Each element has its own probability.
template <class Type>
struct BernoulliOf {
    using T = Type;
    static constexpr int words = 1;
    const T* p;
    i64 n;
    FaultSlot* fault;
    template <int N>
    __device__ T make(const u32 (&w)[N], int e, i64 first) const {
        const double probability = first + e < n ? convert<double>(p[first + e]) : 0.0;
        if (!(probability >= 0 && probability <= 1)) report(fault, probability);
        return convert<T>(static_cast<double>(w[e]) < probability * 0x1p32 ? 1 : 0);
    }
};

template <class Maker, int E, int N>
__device__ __forceinline__ void make_all(const Maker& maker, const u32 (&w)[N], i64 first, typename Maker::T (&y)[E]) {
    if constexpr (requires { maker.make(w, 0, first); }) {
        TAPIR_UNROLL
        for (int e = 0; e < E; ++e) y[e] = maker.make(w, e, first);
    } else {
        TAPIR_UNROLL
        for (int e = 0; e < E; e += 2) {
            Computed<typename Maker::T> x[2];
            if constexpr (Maker::words == 2) {
                Maker::pair(word64(w, e), word64(w, e + 1), x);
            } else {
                Maker::pair(w[e], w[e + 1], x);
            }
            y[e] = convert<typename Maker::T>(x[0]);
            y[e + 1] = convert<typename Maker::T>(x[1]);
        }
    }
}

// Elements that a thread makes: at least 16 bytes, and all elements of whole counters.
template <class T, int Words>
constexpr int kMade = 16 / sizeof(T) > 4 / Words ? 16 / sizeof(T) : 4 / Words;

template <class T, int E>
__device__ __forceinline__ void store_elements(T* out, i64 first, i64 n, const T (&y)[E], bool aligned) {
    constexpr int V = 16 / sizeof(T);
    if (aligned && first + E <= n) {
        TAPIR_UNROLL
        for (int p = 0; p < E / V; ++p) {
            Pack<T, V> pack;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) pack.value[v] = y[p * V + v];
            reinterpret_cast<Pack<T, V>*>(out + first)[p] = pack;
        }
        return;
    }
    TAPIR_UNROLL
    for (int e = 0; e < E; ++e) {
        if (first + e < n) out[first + e] = y[e];
    }
}

template <class Maker>
__global__ void __launch_bounds__(kThreads) draw_kernel(i64 n, Draw draw, Maker maker, typename Maker::T* out, bool aligned) {
    constexpr int E = kMade<typename Maker::T, Maker::words>, counters = E * Maker::words / 4;
    const i64 group = global_index(), first = group * E;
    if (first >= n) return;
    u32 words[4 * counters];
    draw_words<counters>(draw, group * counters, words);
    typename Maker::T y[E];
    make_all(maker, words, first, y);
    store_elements(out, first, n, y, aligned);
}

template <class Maker>
void run(const Draw& draw, const Maker& maker, void* out, i64 n) {
    using T = typename Maker::T;
    const unsigned blocks = blocks_for(n, kThreads * kMade<T, Maker::words>);
    launch(draw_kernel<Maker>, blocks, kThreads, n, draw, maker, static_cast<T*>(out), is_aligned(out, 16));
}

// --- Dropout ---------------------------------------------------------------------------------------------------------------

// y = keep ? x * scale : 0, where keep is drawn and stored (Draws), or read.
template <class T, bool Draws>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(i64 n, const T* x, std::uint8_t* keep, T* y, Draw draw, u32 threshold, bool always, Computed<T> scale, bool aligned) {
    using C = Computed<T>;
    constexpr int V = 16 / sizeof(T), E = kMade<T, 1>;
    const i64 group = global_index(), first = group * E;
    if (first >= n) return;
    const bool whole = aligned && first + E <= n;
    T value[E];
    std::uint8_t kept[E];
    TAPIR_UNROLL
    for (int p = 0; p < E / V; ++p) {
        Pack<T, V> pack;
        if (whole) pack = reinterpret_cast<const Pack<T, V>*>(x + first)[p];
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            const i64 i = first + p * V + v;
            value[p * V + v] = whole ? pack.value[v] : i < n ? x[i] : convert<T>(0);
        }
    }
    if constexpr (Draws) {
        u32 words[E];
        draw_words<E / 4>(draw, group * (E / 4), words);
        TAPIR_UNROLL
        for (int e = 0; e < E; ++e) kept[e] = always || words[e] < threshold ? 1 : 0;
    } else {
        Pack<std::uint8_t, E> pack;
        if (whole) pack = *reinterpret_cast<const Pack<std::uint8_t, E>*>(keep + first);
        TAPIR_UNROLL
        for (int e = 0; e < E; ++e) kept[e] = whole ? pack.value[e] : first + e < n ? keep[first + e] : 0;
    }
    TAPIR_UNROLL
    for (int e = 0; e < E; ++e) value[e] = convert<T>(kept[e] ? convert<C>(value[e]) * scale : C(0));
    store_elements(y, first, n, value, aligned);
    if (!Draws || !keep) return;
    if (whole) {
        Pack<std::uint8_t, E> pack;
        TAPIR_UNROLL
        for (int e = 0; e < E; ++e) pack.value[e] = kept[e];
        *reinterpret_cast<Pack<std::uint8_t, E>*>(keep + first) = pack;
        return;
    }
    TAPIR_UNROLL
    for (int e = 0; e < E; ++e) {
        if (first + e < n) keep[first + e] = kept[e];
    }
}

// For a probability below 1, the event happens for words below this threshold.
u32 threshold_of(double p) { return p >= 1 ? 0 : static_cast<u32>(p * 0x1p32); }

template <bool Draws>
void run_dropout(DType dtype, const void* x, std::uint8_t* keep, void* y, i64 n, const Draw& draw, double p, double scale) {
    with_floating(dtype, [&]<class T>() {
        const bool aligned = is_aligned(x, 16) && is_aligned(y, 16) && is_aligned(keep, 16);
        launch(dropout_kernel<T, Draws>, blocks_for(n, kThreads * kMade<T, 1>), kThreads, n, static_cast<const T*>(x), keep, static_cast<T*>(y), draw,
               threshold_of(p), p >= 1, static_cast<Computed<T>>(scale), aligned);
    });
}

}  // namespace

void random_uniform(Draw draw, DType dtype, void* out, i64 n) {
    with_floating(dtype, [&]<class T>() { run(draw, Uniform<T>{}, out, n); });
}
void random_normal(Draw draw, DType dtype, void* out, i64 n) {
    with_floating(dtype, [&]<class T>() { run(draw, Normal<T>{}, out, n); });
}
void random_integers(Draw draw, i64 low, u64 range, DType dtype, void* out, i64 n) {
    with_dtype(dtype, [&]<class T>() { run(draw, Integers<T>{low, range}, out, n); });
}
void random_bernoulli(Draw draw, double p, DType dtype, void* out, i64 n) {
    with_dtype(dtype, [&]<class T>() { run(draw, Bernoulli<T>{threshold_of(p), p >= 1}, out, n); });
}
void random_bernoulli_of(Draw draw, const void* p, DType dtype, void* out, i64 n) {
    const OpenFault fault("p must be in [0, 1], got {0}");
    with_floating(dtype, [&]<class T>() { run(draw, BernoulliOf<T>{static_cast<const T*>(p), n, fault.slot()}, out, n); });
}

void dropout(const DropoutArgs& args) { run_dropout<true>(args.dtype, args.x, args.keep, args.y, args.n, args.draw, args.p_keep, args.scale); }
void masked_scale(DType dtype, const void* x, const std::uint8_t* keep, void* y, double scale, i64 count) {
    run_dropout<false>(dtype, x, const_cast<std::uint8_t*>(keep), y, count, {}, 1, scale);
}

}  // namespace tapir::gpu
