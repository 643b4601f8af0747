// Pools arrays whose channels are last: as many channels at once as vectors have room for.
//
// Vectors are plain variables, which no lambda captures: g++ 12's address sanitizer does not align 64-byte variables
// whose address is taken.
#include "tapir/ops/pooling/pooling_kernels.h"

#include <type_traits>
#include <utility>

#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

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

// The elements of the window (a, b, c), or the windows that the element (a, b, c) can be in: `first` and the ones `steps` further, as
// places in a channel.
struct Box {
    i64 first = 0, counts[3], steps[3];

    template <class T>
    Box(const Pool<T>& args, bool is_of_windows, i64 a, i64 b, i64 c) {
        const PoolRange ranges[3] = {args.ranges[0][a], args.ranges[1][b], args.ranges[2][c]};
        i64 stride = 1;
        for (int d = 3; d-- > 0;) {
            const PoolDim& dim = args.shape.dims[d];
            const i64 step = is_of_windows ? 1 : dim.dilation, reach = ranges[d].end - ranges[d].begin;
            counts[d] = step == 1 ? reach : (reach + step - 1) / step;
            steps[d] = step * stride;
            first += ranges[d].begin * stride;
            stride *= is_of_windows ? dim.out : dim.in;
        }
    }
    bool is_empty() const { return counts[0] <= 0 || counts[1] <= 0 || counts[2] <= 0; }
};

// --- Channels ------------------------------------------------------------------------------------------------------------

// Calls f(vectors, k, n) for parts of the channels: of two vectors, of one, and of 0 for the last n, which one vector holds.
template <class T, class F>
[[gnu::always_inline]] inline void for_channels(i64 channels, const F& f) {
    constexpr i64 width = kWidth<T>;
    i64 k = 0;
    for (; k + 2 * width <= channels; k += 2 * width) f(std::integral_constant<int, 2>(), k, 2 * width);
    for (; k + width <= channels; k += width) f(std::integral_constant<int, 1>(), k, width);
    if (k < channels) f(std::integral_constant<int, 0>(), k, channels - k);
}

template <int kVectors, class T>
[[gnu::always_inline]] inline Vector<T> load_channels(const T* x, i64 n) {
    return kVectors == 0 ? load_first(x, n) : load(x);
}
template <int kVectors, class T>
[[gnu::always_inline]] inline void store_channels(T* x, Vector<T> v, i64 n) {
    kVectors == 0 ? store_first(x, v, n) : store(x, v);
}

// Holds the indices of a vector of T, as wide as its elements: for float64 the first half of a vector of 32-bit ones.
typedef std::int32_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));

template <int... I>
[[gnu::always_inline]] inline HalfVector first_half(Vector<std::int32_t> v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, I...);
}
template <int... I>
[[gnu::always_inline]] inline Vector<std::int32_t> twice(HalfVector v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, I..., I...);
}
template <int kVectors, class T>
[[gnu::always_inline]] inline Vector<MaskInt<T>> load_index(const std::int32_t* index, i64 n) {
    if constexpr (sizeof(T) == sizeof(*index)) {
        return load_channels<kVectors>(index, n);
    } else {
        const Vector<std::int32_t> whole = load_first(index, kVectors == 0 ? n : kWidth<T>);
        return __builtin_convertvector(first_half(whole, std::make_integer_sequence<int, kWidth<T>>()), Vector<i64>);
    }
}
template <int kVectors, class T>
[[gnu::always_inline]] inline void store_index(std::int32_t* index, Vector<MaskInt<T>> v, i64 n) {
    if constexpr (sizeof(T) == sizeof(*index)) {
        store_channels<kVectors>(index, v, n);
    } else {
        const HalfVector half = __builtin_convertvector(v, HalfVector);
        store_first(index, twice(half, std::make_integer_sequence<int, kWidth<T>>()), kVectors == 0 ? n : kWidth<T>);
    }
}

// --- Windows -------------------------------------------------------------------------------------------------------------

template <class T>
T divisor_of(const Pool<T>& args, i64 a, i64 b, i64 c) {
    if (!args.sizes[0]) return static_cast<T>(args.shape.divisor);
    return static_cast<T>(args.sizes[0][a] * args.sizes[1][b] * args.sizes[2][c]);
}

// x: of an image, y and index: of a window.
template <int kVectors, class T>
void max_of_window(const Box& box, i64 channels, const T* x, T* y, std::int32_t* index, i64 n) {
    using Index = Vector<MaskInt<T>>;
    Vector<T> largest = Vector<T>{} + lowest<T>(), largest_2 = largest;
    Index place = Index{} + static_cast<MaskInt<T>>(box.is_empty() ? -1 : box.first), place_2 = place;  // if all are -inf: the first
    i64 row = box.first;
    for (i64 i = 0; i < box.counts[0]; ++i, row += box.steps[0]) {
        i64 column = row;
        for (i64 j = 0; j < box.counts[1]; ++j, column += box.steps[1]) {
            i64 here = column;
            for (i64 k = 0; k < box.counts[2]; ++k, here += box.steps[2]) {
                const T* from = x + here * channels;
                const Index lanes_here = Index{} + static_cast<MaskInt<T>>(here);
                const Vector<T> value = load_channels<kVectors>(from, n);
                const auto is_larger = (value > largest) | (value != value);
                largest = is_larger ? value : largest;
                place = is_larger ? lanes_here : place;
                if constexpr (kVectors == 2) {
                    const Vector<T> value_2 = load(from + kWidth<T>);
                    const auto is_larger_2 = (value_2 > largest_2) | (value_2 != value_2);
                    largest_2 = is_larger_2 ? value_2 : largest_2;
                    place_2 = is_larger_2 ? lanes_here : place_2;
                }
            }
        }
    }
    store_channels<kVectors>(y, largest, n);
    store_index<kVectors, T>(index, place, n);
    if constexpr (kVectors == 2) {
        store(y + kWidth<T>, largest_2);
        store_index<kVectors, T>(index + kWidth<T>, place_2, n);
    }
}

// The largest element of each channel. A nan is larger than all others.
template <int kVectors, class T>
void largest_of_box(const Box& box, i64 channels, const T* x, T* y, i64 n) {
    Vector<T> largest = Vector<T>{} + lowest<T>(), largest_2 = largest;
    i64 row = box.first;
    for (i64 i = 0; i < box.counts[0]; ++i, row += box.steps[0]) {
        i64 column = row;
        for (i64 j = 0; j < box.counts[1]; ++j, column += box.steps[1]) {
            const T* from = x + column * channels;
            for (i64 k = 0; k < box.counts[2]; ++k, from += box.steps[2] * channels) {
                largest = Max::combine(largest, load_channels<kVectors>(from, n));
                if constexpr (kVectors == 2) largest_2 = Max::combine(largest_2, load(from + kWidth<T>));
            }
        }
    }
    store_channels<kVectors>(y, largest, n);
    if constexpr (kVectors == 2) store(y + kWidth<T>, largest_2);
}

// Adds parts of about kSumRows elements, and groups of as many parts, so that the mean of a large window keeps its digits.
template <int kVectors, class T>
[[gnu::noinline]] void mean_of_large_window(const Box& box, i64 channels, const T* x, T divisor, T* y, i64 n) {
    Vector<T> sum{}, sum_2{}, group{}, group_2{}, part{}, part_2{};
    i64 in_part = 0, in_group = 0, row = box.first;
    for (i64 i = 0; i < box.counts[0]; ++i, row += box.steps[0]) {
        i64 column = row;
        for (i64 j = 0; j < box.counts[1]; ++j, column += box.steps[1]) {
            i64 here = column;
            for (i64 k = 0; k < box.counts[2];) {
                const i64 end = smaller(k + kSumRows, box.counts[2]);
                in_part += end - k;
                for (; k < end; ++k, here += box.steps[2]) {
                    const T* from = x + here * channels;
                    part += load_channels<kVectors>(from, n);
                    if constexpr (kVectors == 2) part_2 += load(from + kWidth<T>);
                }
                if (in_part < kSumRows) continue;
                group += part;
                if constexpr (kVectors == 2) group_2 += part_2;
                part = part_2 = Vector<T>{};
                in_part = 0;
                if (++in_group < kSumRows) continue;
                sum += group;
                if constexpr (kVectors == 2) sum_2 += group_2;
                group = group_2 = Vector<T>{};
                in_group = 0;
            }
        }
    }
    store_channels<kVectors>(y, (sum + (group + part)) / divisor, n);
    if constexpr (kVectors == 2) store(y + kWidth<T>, (sum_2 + (group_2 + part_2)) / divisor);
}

template <int kVectors, class T>
void mean_of_window(const Box& box, i64 channels, const T* x, T divisor, T* y, i64 n) {
    if (box.counts[0] * box.counts[1] * box.counts[2] > kSumRows) {
        return mean_of_large_window<kVectors>(box, channels, x, divisor, y, n);
    }
    Vector<T> sum{}, sum_2{};
    i64 row = box.first;
    for (i64 i = 0; i < box.counts[0]; ++i, row += box.steps[0]) {
        i64 column = row;
        for (i64 j = 0; j < box.counts[1]; ++j, column += box.steps[1]) {
            i64 here = column;
            for (i64 k = 0; k < box.counts[2]; ++k, here += box.steps[2]) {
                const T* from = x + here * channels;
                sum += load_channels<kVectors>(from, n);
                if constexpr (kVectors == 2) sum_2 += load(from + kWidth<T>);
            }
        }
    }
    store_channels<kVectors>(y, sum / divisor, n);
    if constexpr (kVectors == 2) store(y + kWidth<T>, sum_2 / divisor);
}

// g and index: of an image's windows, to: of the element at `place`.
template <int kVectors, class T>
void max_to_element(const Box& box, i64 channels, const T* g, const std::int32_t* index, i64 place, T* to, i64 n) {
    const auto own = static_cast<MaskInt<T>>(place);
    Vector<T> sum{}, sum_2{};
    i64 row = box.first;
    for (i64 i = 0; i < box.counts[0]; ++i, row += box.steps[0]) {
        i64 column = row;
        for (i64 j = 0; j < box.counts[1]; ++j, column += box.steps[1]) {
            i64 window = column;
            for (i64 k = 0; k < box.counts[2]; ++k, window += box.steps[2]) {
                const i64 at = window * channels;
                const Vector<T> gradient = load_channels<kVectors>(g + at, n);
                sum += load_index<kVectors, T>(index + at, n) == own ? gradient : Vector<T>{};
                if constexpr (kVectors == 2) {
                    const Vector<T> gradient_2 = load(g + at + kWidth<T>);
                    sum_2 += load_index<kVectors, T>(index + at + kWidth<T>, n) == own ? gradient_2 : Vector<T>{};
                }
            }
        }
    }
    store_channels<kVectors>(to, sum, n);
    if constexpr (kVectors == 2) store(to + kWidth<T>, sum_2);
}

// --- All of them ---------------------------------------------------------------------------------------------------------

// True if windows have many elements of the last dimension in common, and there is room for those of one.
inline bool share_columns(const PoolShape& s) {
    const PoolDim& last = s.dims[2];
    return !last.is_adaptive && 2 * last.kernel >= 3 * last.stride && ((last.kernel - 1) * last.dilation + 1) * s.channels <= kPoolRoom;
}

// Elements of a window in two dimensions, each a run of channels.
struct WindowRuns {
    i64 rows, row_step, count, step;
};

template <int kVectors, class T>
[[gnu::always_inline]] inline Vector<T> largest_of_runs(i64 rows, i64 row_step, i64 count, i64 step, const T* x, i64 n) {
    Vector<T> largest = load_channels<kVectors>(x, n);
    for (i64 k = 1; k < count; ++k) largest = Max::combine(largest, load_channels<kVectors>(x + k * step, n));
    for (i64 j = 1; j < rows; ++j) {
        x += row_step;
        for (i64 k = 0; k < count; ++k) largest = Max::combine(largest, load_channels<kVectors>(x + k * step, n));
    }
    return largest;
}

// y[i] = the largest of these elements of x + i. Rows, Count: how many, or 0 for any.
template <int Rows, int Count, class T>
void largest_of_runs(const WindowRuns& runs, const T* x, i64 n, T* y) {
    const i64 rows = Rows == 0 ? runs.rows : Rows, count = Count == 0 ? runs.count : Count;
    const i64 row_step = runs.row_step, step = runs.step;
    i64 i = 0;
    for (; i + kWidth<T> <= n; i += kWidth<T>) store(y + i, largest_of_runs<1>(rows, row_step, count, step, x + i, 0));
    if (i < n) store_first(y + i, largest_of_runs<0>(rows, row_step, count, step, x + i, n - i), n - i);
}

template <class T>
void largest_of_runs(const WindowRuns& runs, const T* x, i64 n, T* y) {
    if (runs.rows <= 0 || runs.count <= 0) {  // windows of padding only
        for (i64 i = 0; i < n; ++i) y[i] = lowest<T>();
    } else if (runs.rows == 1 && runs.count == 3) {  // as in most windows
        largest_of_runs<1, 3>(runs, x, n, y);
    } else {
        largest_of_runs<0, 0>(runs, x, n, y);
    }
}

// Windows of a row whose columns are [from, to), for which there is room. x: of an image, y: of the row.
template <class T>
void largest_of_columns(const Pool<T>& args, const Box& first_window, i64 first, i64 end, PoolRange columns, const T* x, T* y) {
    const i64 channels = args.shape.channels, step = args.shape.dims[2].dilation;
    const PoolRange* const ranges = args.ranges[2];
    const WindowRuns rows{first_window.counts[0], first_window.steps[0] * channels, first_window.counts[1], first_window.steps[1] * channels};
    const T* from = x + (first_window.first + columns.begin - ranges[first].begin) * channels;
    largest_of_runs(rows, from, (columns.end - columns.begin) * channels, args.columns);
    for (i64 c = first; c < end;) {
        const i64 begin = ranges[c].begin, reach = ranges[c].end - begin;
        i64 alike = 1;  // windows one element apart are one long run
        while (c + alike < end && ranges[c + alike].begin == begin + alike && ranges[c + alike].end == begin + alike + reach) ++alike;
        const WindowRuns window{1, 0, reach > 0 ? (reach + step - 1) / step : 0, step * channels};
        largest_of_runs(window, args.columns + (begin - columns.begin) * channels, alike * channels, y + c * channels);
        c += alike;
    }
}

// The windows [first, end) of a row, as many at a time as there is room for.
template <class T>
void largest_of_row(const Pool<T>& args, i64 a, i64 b, i64 first, i64 end, const T* x, T* y) {
    const PoolRange* const ranges = args.ranges[2];
    for (i64 c = first; c < end;) {
        PoolRange columns = ranges[c];
        i64 next = c + 1;
        for (; next < end; ++next) {  // with dilation, a window at the edge may begin behind the next one
            const PoolRange wider{smaller(columns.begin, ranges[next].begin), -smaller(-columns.end, -ranges[next].end)};
            if ((wider.end - wider.begin) * args.shape.channels > kPoolRoom) break;
            columns = wider;
        }
        largest_of_columns(args, Box(args, /*is_of_windows=*/false, a, b, c), c, next, columns, x, y);
        c = next;
    }
}

// Without places: the largest element of each column first, where windows share columns.
template <class T>
void largest_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, row = s.dims[2].out;
    if (!share_columns(s)) {
        return for_places({s.dims[0].out, s.dims[1].out, row}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
            const Box box(args, /*is_of_windows=*/false, a, b, c);
            const T* x = args.from + image * s.in_volume() * channels;
            T* y = args.to + place * channels;
            for_channels<T>(channels, [&](auto vectors, i64 k, i64 n) { largest_of_box<vectors>(box, channels, x + k, y + k, n); });
        });
    }
    for_places({s.dims[0].out, s.dims[1].out, 1}, begin / row, (end + row - 1) / row, [&](i64 place, i64 image, i64 a, i64 b, i64) {
        const i64 first = place * row < begin ? begin - place * row : 0, last = (place + 1) * row > end ? end - place * row : row;
        largest_of_row(args, a, b, first, last, args.from + image * s.in_volume() * channels, args.to + place * row * channels);
    });
}

template <class T>
void max_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    if (!args.index) return largest_of_windows(args, begin, end);
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        const Box box(args, /*is_of_windows=*/false, a, b, c);
        const T* x = args.from + image * s.in_volume() * channels;
        T* y = args.to + place * channels;
        std::int32_t* index = args.index + place * channels;
        for_channels<T>(channels, [&](auto vectors, i64 k, i64 n) { max_of_window<vectors>(box, channels, x + k, y + k, index + k, n); });
    });
}

template <class T>
void max_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        const Box box(args, /*is_of_windows=*/true, i, j, k);
        const i64 windows = image * s.out_volume() * channels, here = place - image * s.in_volume();
        const T* g = args.from + windows;
        const std::int32_t* index = args.index + windows;
        T* to = args.to + place * channels;
        for_channels<T>(channels, [&](auto vectors, i64 c, i64 n) { max_to_element<vectors>(box, channels, g + c, index + c, here, to + c, n); });
    });
}

template <class T>
void mean_of_windows(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels;
    for_places({s.dims[0].out, s.dims[1].out, s.dims[2].out}, begin, end, [&](i64 place, i64 image, i64 a, i64 b, i64 c) {
        const Box box(args, /*is_of_windows=*/false, a, b, c);
        const T* x = args.from + image * s.in_volume() * channels;
        T* y = args.to + place * channels;
        const T divisor = divisor_of(args, a, b, c);
        for_channels<T>(channels, [&](auto vectors, i64 k, i64 n) { mean_of_window<vectors>(box, channels, x + k, divisor, y + k, n); });
    });
}

template <class T>
void mean_to_elements(const Pool<T>& args, i64 begin, i64 end) {
    const PoolShape& s = args.shape;
    const i64 channels = s.channels, outputs = s.out_volume();
    for_places({s.dims[0].in, s.dims[1].in, s.dims[2].in}, begin, end, [&](i64 place, i64 image, i64 i, i64 j, i64 k) {
        T* to = args.to + place * channels;
        for (i64 n = 0; n < channels; ++n) to[n] = 0;
        for_windows_of(args, i, j, k, [&](i64 window, i64 a, i64 b, i64 c) {
            const T* g = args.from + (image * outputs + window) * channels;
            const T divisor = divisor_of(args, a, b, c);
#pragma omp simd
            for (i64 n = 0; n < channels; ++n) to[n] += g[n] / divisor;
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
