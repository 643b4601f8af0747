// Pooling of arrays whose channels are last: the innermost loops go along them.
#include "tapir/ops/kernels/pooling.h"

#include <limits>
#include <type_traits>

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

// Calls f(place, image, o0, o1, o2) for the places [begin, end) of (batch, sizes...).
template <class F>
void for_places(const i64 (&sizes)[3], i64 begin, i64 end, const F& f) {
    i64 rest = begin;
    i64 c = rest % sizes[2];
    rest /= sizes[2];
    i64 b = rest % sizes[1];
    rest /= sizes[1];
    i64 a = rest % sizes[0], image = rest / sizes[0];
    for (i64 place = begin; place < end; ++place) {
        f(place, image, a, b, c);
        if (++c < sizes[2]) continue;
        c = 0;
        if (++b < sizes[1]) continue;
        b = 0;
        if (++a < sizes[0]) continue;
        a = 0;
        ++image;
    }
}

// Calls f(place in a channel) for the elements of a window.
template <class T, class F>
void for_window(const Pool<T>& args, i64 a, i64 b, i64 c, const F& f) {
    const PoolDim(&dims)[3] = args.shape.dims;
    const PoolRange rows = args.ranges[0][a], columns = args.ranges[1][b], last = args.ranges[2][c];
    for (i64 i = rows.begin; i < rows.end; i += dims[0].dilation) {
        for (i64 j = columns.begin; j < columns.end; j += dims[1].dilation) {
            for (i64 k = last.begin; k < last.end; k += dims[2].dilation) f((i * dims[1].in + j) * dims[2].in + k);
        }
    }
}

// Calls f(place of a window in a channel, o0, o1, o2) for the windows that an element can be in.
template <class T, class F>
void for_windows_of(const Pool<T>& args, i64 i, i64 j, i64 k, const F& f) {
    const PoolDim(&dims)[3] = args.shape.dims;
    const PoolRange rows = args.ranges[0][i], columns = args.ranges[1][j], last = args.ranges[2][k];
    for (i64 a = rows.begin; a < rows.end; ++a) {
        for (i64 b = columns.begin; b < columns.end; ++b) {
            for (i64 c = last.begin; c < last.end; ++c) f((a * dims[1].out + b) * dims[2].out + c, a, b, c);
        }
    }
}

template <class T>
T divisor_of(const Pool<T>& args, i64 a, i64 b, i64 c) {
    if (!args.sizes[0]) return static_cast<T>(args.shape.divisor);
    return static_cast<T>(args.sizes[0][a] * args.sizes[1][b] * args.sizes[2][c]);
}

// --- Channels side by side ---------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// W numbers, or one.
template <class T, int W>
struct LanesOf {
    typedef T type __attribute__((vector_size(W * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <class T>
struct LanesOf<T, 1> {
    using type = T;
};
template <class T, int W>
using Lanes = typename LanesOf<T, W>::type;
template <class T>
using Same = std::conditional_t<sizeof(T) == 4, std::int32_t, i64>;  // whole numbers of T's width, as comparisons give

template <class T, int W>
Lanes<T, W> load(const T* from) {
    return *reinterpret_cast<const Lanes<T, W>*>(from);
}
template <class T, int W>
void store(T* to, const Lanes<T, W>& x) {
    *reinterpret_cast<Lanes<T, W>*>(to) = x;
}
template <class To, class From, int W>
Lanes<To, W> converted(const Lanes<From, W>& x) {
    if constexpr (W == 1) {
        return static_cast<To>(x);
    } else {
        return __builtin_convertvector(x, Lanes<To, W>);
    }
}

// Calls f(width, first) for parts of the channels, as wide as a vector, or less where there are fewer; where they are no multiple of that, the last
// one begins within the one before.
template <class T, int W = kVectorBytes / static_cast<int>(sizeof(T)), class F>
void for_parts(i64 channels, const F& f) {
    if constexpr (W > 1) {
        if (channels < W) return for_parts<T, W / 2>(channels, f);
    }
    for (i64 k = 0; k < channels; k += W) f(std::integral_constant<int, W>(), k + W <= channels ? k : channels - W);
}

// --- The four ----------------------------------------------------------------------------------------------------------

template <class T>
void max_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        const T* channel = args.from + image * s.in_volume() * channels;
        for_parts<T>(channels, [&](auto width, i64 first) {
            constexpr int W = width;
            auto best = Lanes<T, W>() - std::numeric_limits<T>::infinity();
            auto index = Lanes<Same<T>, W>() - 1;
            bool is_first = true;
            for_window(args, a, b, c, [&](i64 i) {
                const auto x = load<T, W>(channel + i * channels + first);
                const auto is_larger = is_first ? x == x || x != x : x > best || x != x;
                is_first = false;
                best = is_larger ? x : best;
                index = is_larger ? Lanes<Same<T>, W>() + static_cast<Same<T>>(i) : index;
            });
            store<T, W>(args.to + place * channels + first, best);
            store<std::int32_t, W>(args.index + place * channels + first, converted<std::int32_t, Same<T>, W>(index));
        });
    });
}

template <class T>
void max_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, outputs = s.out_volume();
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        const auto here = static_cast<Same<T>>(place - image * s.in_volume());
        for_parts<T>(channels, [&](auto width, i64 first) {
            constexpr int W = width;
            auto sum = Lanes<T, W>();
            for_windows_of(args, i, j, k, [&](i64 window, i64, i64, i64) {
                const i64 at = (image * outputs + window) * channels + first;
                const auto index = converted<Same<T>, std::int32_t, W>(load<std::int32_t, W>(args.index + at));
                sum += index == here ? load<T, W>(args.from + at) : Lanes<T, W>();
            });
            store<T, W>(args.to + place * channels + first, sum);
        });
    });
}

template <class T>
void mean_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        const T* channel = args.from + image * s.in_volume() * channels;
        const T divisor = divisor_of(args, a, b, c);
        for_parts<T>(channels, [&](auto width, i64 first) {
            constexpr int W = width;
            auto sum = Lanes<T, W>();
            for_window(args, a, b, c, [&](i64 i) { sum += load<T, W>(channel + i * channels + first); });
            store<T, W>(args.to + place * channels + first, sum / divisor);
        });
    });
}

template <class T>
void mean_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, outputs = s.out_volume();
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        for_parts<T>(channels, [&](auto width, i64 first) {
            constexpr int W = width;
            auto sum = Lanes<T, W>();
            for_windows_of(args, i, j, k, [&](i64 window, i64 a, i64 b, i64 c) {
                sum += load<T, W>(args.from + (image * outputs + window) * channels + first) / divisor_of(args, a, b, c);
            });
            store<T, W>(args.to + place * channels + first, sum);
        });
    });
}

}  // namespace

void max_pool_f32(const Pool<float>& args, i64 begin, i64 end) { max_of_windows(args, begin, end); }
void max_pool_f64(const Pool<double>& args, i64 begin, i64 end) { max_of_windows(args, begin, end); }
void max_pool_backward_f32(const Pool<float>& args, i64 begin, i64 end) { max_to_elements(args, begin, end); }
void max_pool_backward_f64(const Pool<double>& args, i64 begin, i64 end) { max_to_elements(args, begin, end); }
void avg_pool_f32(const Pool<float>& args, i64 begin, i64 end) { mean_of_windows(args, begin, end); }
void avg_pool_f64(const Pool<double>& args, i64 begin, i64 end) { mean_of_windows(args, begin, end); }
void avg_pool_backward_f32(const Pool<float>& args, i64 begin, i64 end) { mean_to_elements(args, begin, end); }
void avg_pool_backward_f64(const Pool<double>& args, i64 begin, i64 end) { mean_to_elements(args, begin, end); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
