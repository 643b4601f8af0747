// Computes variances in one pass over memory.
//
// Rows are read in blocks that stay in the first-level cache: mean and squared distances of a block in two passes, then
// merged with those of the previous blocks (Chan, Golub & LeVeque 1979). Columns are updated row by row (Welford 1962).
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/reduce/reduce_kernels.h"
#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kBlock = 1024;
constexpr i64 kColumns = 256;

struct Moments {
    double count = 0, mean = 0, squares = 0;

    void merge(const Moments& other) {
        const double total = count + other.count, delta = other.mean - mean;
        mean += delta * (other.count / total);
        squares += other.squares + delta * delta * (count * other.count / total);
        count = total;
    }
};

Moments moments_of(const double* x, i64 n) {
    const auto count = static_cast<double>(n);
    const double mean = fold_block<Sum>(x, n) / count;
    double squares = 0, rest = 0;  // the rest is 0 but for the rounding of the mean
#pragma omp simd reduction(+ : squares, rest)
    for (i64 i = 0; i < n; ++i) {
        const double d = x[i] - mean;
        squares += d * d;
        rest += d;
    }
    return {count, mean, squares - rest * rest / count};
}

double finished(const ReduceArgs& args, double squares) {
    const double variance = squares / args.divisor;
    return args.finish == Finish::sqrt ? sqrt(variance) : variance;
}

void put(const ReduceArgs& args, const double* values, i64 position, i64 n) {
    auto* out = static_cast<std::byte*>(args.out) + position * static_cast<i64>(itemsize(args.out_dtype));
    convert(DType::float64, values, 1, args.out_dtype, out, 1, n);
}

void moments_rows(const ReduceArgs& args, i64 begin, i64 end) {
    alignas(64) double buffer[kBlock];
    Runs kept(args.kept_sizes, args.kept_strides, args.kept);
    kept.seek(begin);
    i64 size = 1;
    for (int d = 0; d < args.reduced; ++d) size *= args.reduced_sizes[d];
    for (i64 position = begin; position < end; ++position) {
        Runs runs(args.reduced_sizes, args.reduced_strides, args.reduced);
        Moments all;
        for (i64 left = size; left > 0;) {
            i64 filled = 0;
            while (filled < kBlock && left > 0) {
                const i64 n = smaller(runs.left(), kBlock - filled);
                fetch(args, kept.offset + runs.offset, runs.stride(), buffer + filled, n);
                runs.advance(n);
                filled += n;
                left -= n;
            }
            all.merge(moments_of(buffer, filled));
        }
        const double value = finished(args, all.squares);
        put(args, &value, position, 1);
        kept.advance(1);
    }
}

void moments_columns(const ReduceArgs& args, i64 begin, i64 end) {
    alignas(64) double mean[kColumns], squares[kColumns], row[kColumns];
    Runs kept(args.kept_sizes, args.kept_strides, args.kept);
    kept.seek(begin);
    i64 size = 1;
    for (int d = 0; d < args.reduced; ++d) size *= args.reduced_sizes[d];
    for (i64 position = begin; position < end;) {
        const i64 width = smaller(smaller(kept.left(), kColumns), end - position);
        Runs runs(args.reduced_sizes, args.reduced_strides, args.reduced);
        for (i64 j = 0; j < width; ++j) mean[j] = squares[j] = 0;
        for (i64 r = 1; r <= size; ++r) {
            fetch(args, kept.offset + runs.offset, kept.stride(), row, width);
            const double share = 1 / static_cast<double>(r);
#pragma omp simd
            for (i64 j = 0; j < width; ++j) {
                const double d = row[j] - mean[j];
                mean[j] += d * share;
                squares[j] += d * (row[j] - mean[j]);
            }
            runs.advance(1);
        }
        for (i64 j = 0; j < width; ++j) row[j] = finished(args, squares[j]);
        put(args, row, position, width);
        kept.advance(width);
        position += width;
    }
}

}  // namespace

void moments(const ReduceArgs& args, i64 begin, i64 end) {
    if (args.columns) {
        moments_columns(args, begin, end);
    } else {
        moments_rows(args, begin, end);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
