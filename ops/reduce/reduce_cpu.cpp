// Sums, products and extremes over any dimensions.
//
// Note [Accuracy of sums]
// A block of float32 elements or rows is added in independent lanes, and the blocks' results in float64. So no float32
// accumulator takes more than 32 terms, however long the sum is.
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/loss/loss.h"
#include "tapir/ops/reduce/reduce_kernels.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kBuffer = 1024;   // elements converted at a time
constexpr i64 kColumns = 1024;  // accumulators of a block of columns: they stay in the first-level cache
constexpr i64 kBlockRows = 64;  // rows that these take before they are added to the wide ones

template <class T>
void map_elements(const ReduceArgs& args, T* x, i64 n) {
    switch (args.map) {
        case Map::none: break;
        case Map::not_zero:
#pragma omp simd
            for (i64 i = 0; i < n; ++i) x[i] = x[i] != T(0) ? T(1) : T(0);
            break;
        case Map::abs:
#pragma omp simd
            for (i64 i = 0; i < n; ++i) x[i] = abs(x[i]);
            break;
        case Map::square:
#pragma omp simd
            for (i64 i = 0; i < n; ++i) x[i] = x[i] * x[i];
            break;
        case Map::power: {
            const T p = static_cast<T>(args.exponent);
#pragma omp simd
            for (i64 i = 0; i < n; ++i) x[i] = pow(abs(x[i]), p);
            break;
        }
    }
}

template <class T>
void fetch_mapped(const ReduceArgs& args, i64 offset, i64 stride, T* to, i64 n) {
    fetch(args, offset, stride, to, n);
    if constexpr (__is_same(T, double)) map_elements(args, to, n);
}

template <class W>
W finished(const ReduceArgs& args, W value) {
    if constexpr (__is_same(W, double)) {
        switch (args.finish) {
            case Finish::none: return value;
            case Finish::divide: return value / args.divisor;
            case Finish::sqrt: return sqrt(value);
            case Finish::root: return pow(value, 1 / args.exponent);
        }
    }
    return value;
}

template <class T>
void put(const ReduceArgs& args, const T* values, i64 position, i64 n) {
    auto* out = static_cast<std::byte*>(args.out) + position * static_cast<i64>(itemsize(args.out_dtype));
    convert(stored_type<T>, values, 1, args.out_dtype, out, 1, n);
}

// --- Along rows ------------------------------------------------------------------------------------------------------------

// The squares of a run of float32 numbers, summed in double in one pass.
double sum_squares(const float* x, i64 n) {
    constexpr i64 lanes = 32;
    double sums[lanes] = {};
    i64 i = 0;
    for (; i + lanes <= n; i += lanes) {
        fetch_ahead(x + i);
        fetch_ahead(x + i + lanes / 2);  // the second line of memory
#pragma omp simd
        for (i64 k = 0; k < lanes; ++k) {
            const auto value = static_cast<double>(x[i + k]);
            sums[k] += value * value;
        }
    }
    for (; i < n; ++i) sums[i % lanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
}

// Computes one output: every reduced position, starting at `base`.
template <class Op, class T>
Wide<T> fold_all(const ReduceArgs& args, i64 base, bool direct) {
    Runs runs(args.reduced_sizes, args.reduced_strides, args.reduced);
    if constexpr (__is_same(Op, Sum) && __is_same(T, double)) {
        if (args.map == Map::square && args.dtype == DType::float32 && args.reduced <= 1 && runs.stride() == 1) {
            return sum_squares(static_cast<const float*>(args.x) + base, runs.length());
        }
    }
    if (direct && args.reduced <= 1) return fold<Op>(static_cast<const T*>(args.x) + base, runs.length());
    i64 count = 1;
    for (int d = 0; d < args.reduced; ++d) count *= args.reduced_sizes[d];
    Wide<T> result = Op::template identity<Wide<T>>();
    const T* const x = static_cast<const T*>(args.x) + base;
    const i64 length = runs.length();
    if (direct && length > kFoldBlock / 2) {
        for (; count > 0; count -= length) {
            result = Op::combine(result, fold<Op>(x + runs.offset, length));
            runs.advance(length);
        }
        return result;
    }
    if (direct && length >= 64) {  // as many runs as make a block: their lanes are combined at its end
        for (i64 left = count / length; left > 0;) {
            Lanes<Op, T> lanes;
            for (i64 i = smaller(left, kFoldBlock / length); i > 0; --i, --left) {
                lanes.take(x + runs.offset, length);
                runs.advance(length);
            }
            result = Op::combine(result, static_cast<Wide<T>>(across<Op, T>(lanes.together())));
        }
        return result;
    }
    alignas(64) T buffer[kBuffer];
    while (count > 0) {
        i64 filled = 0;
        while (filled < kBuffer && count > 0) {
            const i64 n = smaller(runs.left(), kBuffer - filled);
            fetch_mapped(args, base + runs.offset, runs.stride(), buffer + filled, n);
            runs.advance(n);
            filled += n;
            count -= n;
        }
        result = Op::combine(result, fold<Op>(buffer, filled));
    }
    return result;
}

template <class Op, class T>
void reduce_rows(const ReduceArgs& args, i64 begin, i64 end) {
    const bool direct = args.dtype == stored_type<T> && args.map == Map::none && (args.reduced == 0 || args.reduced_strides[args.reduced - 1] == 1);
    const bool same_type = args.out_dtype == stored_type<T>;
    if (direct && same_type && args.reduced <= 1 && args.kept <= 1) {
        const i64 n = args.reduced ? args.reduced_sizes[0] : 1, stride = args.kept ? args.kept_strides[0] : 0;
        const T* x = static_cast<const T*>(args.x) + begin * stride;
        for (i64 i = begin; i < end; ++i, x += stride) {
            static_cast<T*>(args.out)[i] = static_cast<T>(finished(args, fold<Op>(x, n)));
        }
        return;
    }
    Runs kept(args.kept_sizes, args.kept_strides, args.kept);
    kept.seek(begin);
    for (i64 position = begin; position < end; ++position) {
        const T value = static_cast<T>(finished(args, fold_all<Op, T>(args, kept.offset, direct)));
        if (same_type) {
            static_cast<T*>(args.out)[position] = value;
        } else {
            put(args, &value, position, 1);
        }
        kept.advance(1);
    }
}

// --- Along columns -----------------------------------------------------------------------------------------------------------

// The accumulators of a block of columns.
template <class T>
struct ColumnBlock {
    alignas(64) T narrow[kColumns];
    alignas(64) T row[kColumns];
    alignas(64) Wide<T> wide[kColumns];
};

template <class Op, class T>
void set_identity(T* acc, i64 width) {
#pragma omp simd
    for (i64 j = 0; j < width; ++j) acc[j] = Op::template identity<T>();
}

template <class Op, class T>
void add_to_wide(ColumnBlock<T>& block, i64 width) {
#pragma omp simd
    for (i64 j = 0; j < width; ++j) {
        block.wide[j] = Op::combine(block.wide[j], static_cast<Wide<T>>(block.narrow[j]));
        block.narrow[j] = Op::template identity<T>();
    }
}

// Folds a narrow contiguous block of `rows` x `width`: takes a power of two of its rows as one longer row.
template <class Op, class T>
void fold_packed(T* acc, const T* x, i64 rows, i64 width) {
    i64 group = 1;
    while (group * 2 <= rows && group * 2 * width <= 128) group *= 2;
    const i64 wide = group * width;
    set_identity<Op>(acc, wide);
    fold_rows<Op>(acc, x, wide, rows / group, wide);
    const i64 rest = rows % group;
    fold_rows<Op>(acc, x + (rows - rest) * width, 0, 1, rest * width);
    for (i64 half = wide / 2; half >= width; half /= 2) fold_rows<Op>(acc, acc + half, 0, 1, half);
}

// Combines `rows` rows of `width` columns into acc.
template <class Op, class T>
void fold_strip(const ReduceArgs& args, T* acc, T* buffer, i64 offset, i64 stride, i64 rows, i64 column_stride, i64 width) {
    if (args.dtype == stored_type<T> && args.map == Map::none && column_stride == 1) {
        fold_rows<Op>(acc, static_cast<const T*>(args.x) + offset, stride, rows, width);
        return;
    }
    for (i64 k = 0; k < rows; ++k) {
        fetch_mapped(args, offset + k * stride, column_stride, buffer, width);
        fold_rows<Op>(acc, buffer, 0, 1, width);
    }
}

// Reduces `width` columns that begin at `base`: into `acc` when there are few rows, else into block.wide.
template <class Op, class T>
void fold_columns(const ReduceArgs& args, ColumnBlock<T>& block, T* acc, bool few, i64 base, i64 column_stride, i64 width) {
    Runs runs(args.reduced_sizes, args.reduced_strides, args.reduced);
    const i64 length = runs.length(), stride = runs.stride();
    i64 runs_left = 1, taken = 0;
    for (int d = 0; d + 1 < args.reduced; ++d) runs_left *= args.reduced_sizes[d];
    set_identity<Op>(acc, width);
    if (!few) set_identity<Op>(block.wide, width);
    for (; runs_left > 0; --runs_left) {
        for (i64 r = 0; r < length;) {
            const i64 rows = few ? length : smaller(length - r, kBlockRows - taken);
            fold_strip<Op>(args, acc, block.row, base + runs.offset + r * stride, stride, rows, column_stride, width);
            r += rows;
            taken += rows;
            if (taken == kBlockRows && !few) {
                add_to_wide<Op>(block, width);
                taken = 0;
            }
        }
        runs.advance(length);
    }
    if (!few) add_to_wide<Op>(block, width);
}

// Folds all columns of a narrow contiguous block.
template <class Op, class T>
void fold_packed_columns(const ReduceArgs& args, ColumnBlock<T>& block, i64 base, i64 rows, i64 width) {
    const T* x = static_cast<const T*>(args.x) + base;
    set_identity<Op>(block.wide, width);
    for (i64 r = 0; r < rows; r += 4 * kBlockRows) {
        fold_packed<Op>(block.narrow, x + r * width, smaller(rows - r, 4 * kBlockRows), width);
        add_to_wide<Op>(block, width);
    }
}

template <class Op, class T>
void put_columns(const ReduceArgs& args, ColumnBlock<T>& block, i64 position, i64 width) {
    if (args.finish == Finish::none) {
#pragma omp simd
        for (i64 j = 0; j < width; ++j) block.row[j] = static_cast<T>(block.wide[j]);
    } else {
        for (i64 j = 0; j < width; ++j) block.row[j] = static_cast<T>(finished(args, block.wide[j]));
    }
    put(args, block.row, position, width);
}

template <class Op, class T>
void reduce_columns(const ReduceArgs& args, i64 begin, i64 end) {
    ColumnBlock<T> block;
    i64 rows = 1;
    for (int d = 0; d < args.reduced; ++d) rows *= args.reduced_sizes[d];
    const bool plain = args.dtype == stored_type<T> && args.map == Map::none && args.kept_strides[args.kept - 1] == 1;
    // Writes straight to the output if nothing else remains to be done.
    const bool few = rows <= kBlockRows && args.out_dtype == stored_type<T> && args.finish == Finish::none;
    Runs kept(args.kept_sizes, args.kept_strides, args.kept);
    kept.seek(begin);
    for (i64 position = begin; position < end;) {
        const i64 width = smaller(smaller(kept.left(), kColumns), end - position);
        if (rows == 1 && few) {
            fetch_mapped(args, kept.offset, kept.stride(), static_cast<T*>(args.out) + position, width);
        } else if (plain && width <= 32 && rows >= 64 && args.reduced == 1 && args.reduced_strides[0] == width) {
            fold_packed_columns<Op>(args, block, kept.offset, rows, width);
            put_columns<Op>(args, block, position, width);
        } else {
            T* acc = few ? static_cast<T*>(args.out) + position : block.narrow;
            fold_columns<Op>(args, block, acc, few, kept.offset, kept.stride(), width);
            if (!few) put_columns<Op>(args, block, position, width);
        }
        kept.advance(width);
        position += width;
    }
}

template <class Op, class T>
void reduce_with(const ReduceArgs& args, i64 begin, i64 end) {
    if (args.columns) {
        reduce_columns<Op, T>(args, begin, end);
    } else {
        reduce_rows<Op, T>(args, begin, end);
    }
}

// Dispatches by type; integers wrap around in sums and products.
template <class Op, class Integer>
void reduce_as(const ReduceArgs& args, i64 begin, i64 end) {
    switch (args.compute) {
        case DType::float32: return reduce_with<Op, float>(args, begin, end);
        case DType::float64: return reduce_with<Op, double>(args, begin, end);
        default: return reduce_with<Op, Integer>(args, begin, end);
    }
}

}  // namespace

void reduce(const ReduceArgs& args, i64 begin, i64 end) {
    switch (args.reduction) {
        case Reduction::sum: return reduce_as<Sum, u64>(args, begin, end);
        case Reduction::prod: return reduce_as<Prod, u64>(args, begin, end);
        case Reduction::max: return reduce_as<Max, i64>(args, begin, end);
        case Reduction::min: return reduce_as<Min, i64>(args, begin, end);
        case Reduction::all: return reduce_with<All, std::uint8_t>(args, begin, end);
        case Reduction::any: return reduce_with<Any, std::uint8_t>(args, begin, end);
    }
}

double sum_floats(const float* x, i64 n) { return fold<Sum>(x, n); }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
