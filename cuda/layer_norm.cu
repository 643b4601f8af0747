// Layer normalisation: rows of `width` elements, each to mean 0 and variance 1.
#include "tapir/cuda/lines.cuh"
#include "tapir/ops/normalization/normalization_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::LayerNormBackwardArgs;

// --- Forward -----------------------------------------------------------------------------------------------------------------

// The columns are weight and bias. Squares are summed around the mean: sums of x^2 would lose all digits if the
// mean is large. Parts of a row are merged as by Chan, Golub & LeVeque 1983.
template <class T>
struct LayerNorm : LineOp<T, 1, 0, 2> {
    using C = Computed<T>;
    struct Stats {
        C count, mean, squares;
    };
    C eps;
    C *mean, *rstd;  // of the rows; null: not wanted

    __device__ static C missing_column(int m) { return m == 0 ? C(1) : C(0); }
    __device__ Stats identity() const { return {C(0), C(0), C(0)}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        C count = 0, sum = 0, squares = 0;
        line.each(*this, [&](i64, C(&x)[1]) {
            count += C(1);
            sum += x[0];
        });
        const C mean_of_own = count > C(0) ? sum / count : C(0);
        line.each(*this, [&](i64, C(&x)[1]) { squares += (x[0] - mean_of_own) * (x[0] - mean_of_own); });
        return {count, mean_of_own, squares};
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        const C count = team.reduce(mine.count, Sum{}, C(0));
        const C all = team.reduce(mine.count * mine.mean, Sum{}, C(0)) / count;
        const C apart = mine.mean - all;
        return {count, all, team.reduce(mine.squares + mine.count * apart * apart, Sum{}, C(0))};
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        C sum = 0, squares = 0;
        line.each(*this, [&](i64, C(&x)[1]) { sum += x[0]; });
        const C size = static_cast<C>(line.size), all = team.reduce(sum, Sum{}, C(0)) / size;
        line.each(*this, [&](i64, C(&x)[1]) { squares += (x[0] - all) * (x[0] - all); });
        return {size, all, team.reduce(squares, Sum{}, C(0))};
    }
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        const C shift = stats.mean, scale = C(1) / sqrt(stats.squares / stats.count + eps);
        if (mean && line.leads()) {
            mean[line.number] = shift;
            rstd[line.number] = scale;
        }
        line.write(*this, [&](i64, C(&x)[1], C(&affine)[2]) { return (x[0] - shift) * scale * affine[0] + affine[1]; });
    }
};

// --- The input's gradient ----------------------------------------------------------------------------------------------------

// in: x, grad. With n = (x - mean) rstd and d = grad * weight:  grad_x = rstd (d - mean(d) - n mean(d n)).
template <class T, int ReadColumns = 1>
struct LayerNormGradient : LineOp<T, 2, ReadColumns> {
    using C = Computed<T>;
    struct Stats {
        C sum, product;
    };
    const C *mean, *rstd;

    __device__ static C missing_column(int) { return C(1); }
    __device__ void loaded(C (&x)[2], const C (&weight)[1]) const { x[1] *= weight[0]; }
    __device__ Stats identity() const { return {C(0), C(0)}; }
    template <class Line>
    __device__ Stats local(Line& line) const {
        Stats stats = identity();
        if (line.is_empty()) return stats;
        const C shift = mean[line.number], scale = rstd[line.number];
        line.each(*this, [&](i64, C(&x)[2]) {
            stats.sum += x[1];
            stats.product += x[1] * (x[0] - shift) * scale;
        });
        return stats;
    }
    template <class Team>
    __device__ Stats merge(Stats mine, const Team& team) const {
        return {team.reduce(mine.sum, Sum{}, C(0)), team.reduce(mine.product, Sum{}, C(0))};
    }
    template <class Line, class Team>
    __device__ Stats held(Line& line, const Team& team) const {
        return merge(local(line), team);
    }
    template <class Line>
    __device__ void finish(Line& line, const Stats& stats) const {
        if (line.is_empty()) return;
        const C shift = mean[line.number], scale = rstd[line.number];
        const C size = static_cast<C>(width), mean_d = stats.sum / size, mean_dn = stats.product / size;
        line.write(*this, [&](i64, C(&x)[2]) { return scale * (x[1] - mean_d - (x[0] - shift) * scale * mean_dn); });
    }
    i64 width;
};

// --- All gradients in one pass -----------------------------------------------------------------------------------------------
//
// A team (a warp, or a block) takes rows in turn. Its threads have the same columns in each row, so they sum the gradients of
// weight and bias in registers as the rows go by. A second kernel adds the sums of the blocks.

template <class C>
struct ColumnSums {
    C *weight, *bias;  // (parts, width); null: not wanted
};

template <class Op, int V, int K>
struct RowGradients {
    using C = typename Op::C;
    C weight[K][V] = {}, bias[K][V] = {};

    template <class Team>
    __device__ __forceinline__ void take_row(const Op& op, HeldLine<Op, V, K>& line, const Team& team) {
        const C shift = op.mean[line.number], scale = op.rstd[line.number];
        typename Op::Stats mine = op.identity();
        TAPIR_UNROLL
        for (int k = 0; k < K; ++k) {
            if (line.first_of(k) >= line.size) continue;
            C column[V][1];
            load_columns<1>(op, line.first_of(k), column);
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) {
                const C n = (line.x[k][v][0] - shift) * scale, g = line.x[k][v][1], d = g * column[v][0];
                bias[k][v] += g;
                weight[k][v] += g * n;
                mine.sum += d;
                mine.product += d * n;
                line.x[k][v][0] = n;
                line.x[k][v][1] = d;
            }
        }
        const auto stats = op.merge(mine, team);
        const C size = static_cast<C>(line.size), mean_d = stats.sum / size, mean_dn = stats.product / size;
        line.write(op, [&](i64, C(&x)[2]) { return scale * (x[1] - mean_d - x[0] * mean_dn); });
    }
};

template <class Op, int V, int K>
__device__ __forceinline__ void set_row(HeldLine<Op, V, K>& line, i64 row, int width, int lanes, int lane) {
    line.number = row;
    line.offset = row * width;
    line.size = width;
    line.lanes = lanes;
    line.lane = lane;
}

/// Uses a warp for each row.
template <class Op, int V, int K>
__global__ void __launch_bounds__(kLaneThreads) gradients_by_warp(Op op, i64 rows, int width, ColumnSums<typename Op::C> sums) {
    using C = typename Op::C;
    constexpr int most = 32 * V * K, warps = kLaneThreads / 32;
    __shared__ C total[most];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    HeldLine<Op, V, K> line;
    RowGradients<Op, V, K> gradients;
    for (i64 row = static_cast<i64>(blockIdx.x) * warps + warp; row < rows; row += static_cast<i64>(gridDim.x) * warps) {
        set_row(line, row, width, 32, lane);
        line.load(op);
        gradients.take_row(op, line, LaneTeam{32});
    }
    set_row(line, 0, width, 32, lane);
    const auto add_up = [&](const C(&own)[K][V], C* out) {
        if (!out) return;
        for (int turn = 0; turn < warps; ++turn) {
            __syncthreads();
            if (turn != warp) continue;
            TAPIR_UNROLL
            for (int k = 0; k < K; ++k) {
                TAPIR_UNROLL
                for (int v = 0; v < V; ++v) {
                    C& place = total[line.first_of(k) + v];
                    place = turn == 0 ? own[k][v] : place + own[k][v];
                }
            }
        }
        __syncthreads();
        const i64 offset = static_cast<i64>(blockIdx.x) * width;
        for (int c = static_cast<int>(threadIdx.x); c < width; c += kLaneThreads) out[offset + c] = total[c];
        __syncthreads();
    };
    add_up(gradients.weight, sums.weight);
    add_up(gradients.bias, sums.bias);
}

/// Uses a block for each row.
template <class Op, int V, int K>
__global__ void __launch_bounds__(kBlockThreads) gradients_by_block(Op op, i64 rows, int width, ColumnSums<typename Op::C> sums) {
    HeldLine<Op, V, K> line;
    RowGradients<Op, V, K> gradients;
    const int lanes = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        set_row(line, row, width, lanes, lane);
        line.load(op);
        gradients.take_row(op, line, BlockTeam{});
    }
    set_row(line, 0, width, lanes, lane);
    const i64 offset = static_cast<i64>(blockIdx.x) * width;
    TAPIR_UNROLL
    for (int k = 0; k < K; ++k) {
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            const int c = line.first_of(k) + v;
            if (c >= width) continue;
            if (sums.weight) sums.weight[offset + c] = gradients.weight[k][v];
            if (sums.bias) sums.bias[offset + c] = gradients.bias[k][v];
        }
    }
}

// --- Sums over columns -------------------------------------------------------------------------------------------------------

/// Computes only the gradients of weight and bias: block (x, y) sums a stripe of rows. blockDim.x threads lie side by side, of V
/// columns each.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) column_gradients(const T* x, const T* g, const Computed<T>* mean, const Computed<T>* rstd, i64 rows,
                                                             i64 stripe, i64 width, ColumnSums<Computed<T>> sums) {
    using C = Computed<T>;
    constexpr int at_once = 4;
    __shared__ C total[kThreads][V];
    const i64 column = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
    const i64 last = (blockIdx.y + i64{1}) * stripe, end = last < rows ? last : rows;
    C weight[V] = {}, bias[V] = {};
    for (i64 row = blockIdx.y * stripe + threadIdx.y; column < width && row < end; row += at_once * blockDim.y) {
        Pack<T, V> a[at_once], b[at_once];
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            const i64 r = row + u * static_cast<i64>(blockDim.y);
            if (r >= end) continue;
            a[u] = *reinterpret_cast<const Pack<T, V>*>(x + r * width + column);
            b[u] = *reinterpret_cast<const Pack<T, V>*>(g + r * width + column);
        }
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            const i64 r = row + u * static_cast<i64>(blockDim.y);
            if (r >= end) continue;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) {
                const C gradient = convert<C>(b[u].value[v]);
                bias[v] += gradient;
                weight[v] += gradient * (convert<C>(a[u].value[v]) - mean[r]) * rstd[r];
            }
        }
    }
    const unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
    const auto add_up = [&](const C(&mine)[V], C* out) {
        if (!out) return;
        for (int v = 0; v < V; ++v) total[own][v] = mine[v];
        __syncthreads();
        if (threadIdx.y == 0 && column < width) {
            for (int v = 0; v < V; ++v) {
                C sum = total[threadIdx.x][v];
                for (unsigned y = 1; y < blockDim.y; ++y) sum += total[y * blockDim.x + threadIdx.x][v];
                out[blockIdx.y * width + column + v] = sum;
            }
        }
        __syncthreads();
    };
    add_up(weight, sums.weight);
    add_up(bias, sums.bias);
}

/// out[c] = the sum of the parts' column c: the weight's for blockIdx.y 0, the bias's for 1. Blocks of 32 columns, 32
/// threads for each.
template <class T>
__global__ void __launch_bounds__(1024) add_parts(ColumnSums<Computed<T>> sums, int parts, i64 width, T* grad_weight, T* grad_bias) {
    using C = Computed<T>;
    __shared__ C total[32][32];
    const C* from = blockIdx.y == 0 ? sums.weight : sums.bias;
    T* out = blockIdx.y == 0 ? grad_weight : grad_bias;
    if (!out) return;
    const i64 column = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x;
    C sum = 0;
    for (int p = static_cast<int>(threadIdx.y); p < parts && column < width; p += 32) sum += from[p * width + column];
    total[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    for (int y = 1; y < 32; ++y) sum += total[y][threadIdx.x];
    out[column] = convert<T>(sum);
}

// --- Launching ---------------------------------------------------------------------------------------------------------------

template <class Op>
Op gradient_op(const LayerNormBackwardArgs& args) {
    using T = typename Op::T;
    using C = typename Op::C;
    Op op{};
    op.in[0] = static_cast<const T*>(args.x);
    op.in[1] = static_cast<const T*>(args.grad);
    op.out = static_cast<T*>(args.grad_x);
    op.column[0] = static_cast<const T*>(args.weight);
    op.mean = static_cast<const C*>(args.mean);
    op.rstd = static_cast<const C*>(args.rstd);
    op.width = args.width;
    return op;
}

// Calls fill(sums) with room for the sums of `parts` parts, then adds them.
template <class T, class Fill>
void sum_of_parts(const LayerNormBackwardArgs& args, int parts, const Fill& fill) {
    using C = Computed<T>;
    const i64 numbers = parts * args.width;
    const Scratch scratch(static_cast<std::size_t>(2 * numbers) * sizeof(C));
    auto* first = scratch.as<C>();
    const ColumnSums<C> sums{args.grad_weight ? first : nullptr, args.grad_bias ? first + numbers : nullptr};
    fill(sums);
    launch(add_parts<T>, dim3(blocks_for(args.width, 32), 2), dim3(32, 32), sums, parts, args.width, static_cast<T*>(args.grad_weight),
           static_cast<T*>(args.grad_bias));
}

template <class T, int V>
void run_column_gradients(const LayerNormBackwardArgs& args) {
    using C = Computed<T>;
    const unsigned across = std::min(32u, power_of_two_from(args.width / V));
    const dim3 block(across, kThreads / across);
    const unsigned groups = blocks_for(args.width, across * V);
    const i64 wanted = std::max<i64>(8 * i64{multiprocessors()} / groups, 1);
    const i64 stripes = std::min({wanted, (args.rows + 4 * block.y - 1) / (4 * block.y), i64{65535}});
    const i64 stripe = (args.rows + stripes - 1) / stripes;
    const auto used = static_cast<int>((args.rows + stripe - 1) / stripe);
    const auto *x = static_cast<const T*>(args.x), *g = static_cast<const T*>(args.grad);
    const auto *mean = static_cast<const C*>(args.mean), *rstd = static_cast<const C*>(args.rstd);
    sum_of_parts<T>(args, used, [&](const ColumnSums<C>& sums) {
        const dim3 grid(groups, static_cast<unsigned>(used));
        launch(column_gradients<T, V>, grid, block, x, g, mean, rstd, args.rows, stripe, args.width, sums);
    });
}

template <class Op, int V>
void run_all_gradients(const Op& op, const LayerNormBackwardArgs& args) {
    using C = typename Op::C;
    constexpr int by_lane = sizeof(C) == 8 ? 16 : 32, by_thread = by_lane / 2, middle = by_lane / 2 / V;
    const auto width = static_cast<int>(args.width);
    const i64 resident = 2 * i64{multiprocessors()};  // as many blocks as their registers allow
    if (width > 32 * by_lane) {
        const auto parts = static_cast<unsigned>(std::min(args.rows, resident));
        const unsigned threads = blocks_for(width, 32 * by_thread) * 32;
        return sum_of_parts<typename Op::T>(args, static_cast<int>(parts), [&](const ColumnSums<C>& sums) {
            launch(gradients_by_block<Op, V, by_thread / V>, parts, threads, op, args.rows, width, sums);
        });
    }
    const auto parts = static_cast<unsigned>(std::min((args.rows + 15) / 16, resident));
    sum_of_parts<typename Op::T>(args, static_cast<int>(parts), [&](const ColumnSums<C>& sums) {
        const auto kernel = width <= 32 * V * middle ? gradients_by_warp<Op, V, middle> : gradients_by_warp<Op, V, by_lane / V>;
        launch(kernel, parts, kLaneThreads, op, args.rows, width, sums);
    });
}

template <class T>
void run_backward(const LayerNormBackwardArgs& args) {
    constexpr int V = 16 / static_cast<int>(sizeof(T)), most = static_cast<int>(kBlockThreads) * (sizeof(T) == 8 ? 8 : 16);
    const auto op = gradient_op<LayerNormGradient<T, 0>>(args);
    const bool in_packs = args.width % V == 0 && op.has_alignment(16), sums = args.grad_weight || args.grad_bias;
    if (args.grad_x && sums && args.width > 64 && args.width <= most) {
        return in_packs ? run_all_gradients<LayerNormGradient<T, 0>, V>(op, args) : run_all_gradients<LayerNormGradient<T, 0>, 1>(op, args);
    }
    if (args.grad_x) run_lines<false>(gradient_op<LayerNormGradient<T>>(args), args.rows, args.width, 1);
    if (sums) in_packs ? run_column_gradients<T, V>(args) : run_column_gradients<T, 1>(args);
}

}  // namespace

template <class T>
void layer_norm(const kernels::LayerNorm<T>& args, i64 count) {
    LayerNorm<T> op{};
    op.in[0] = args.x;
    op.out = args.y;
    op.column[0] = args.weight;
    op.column[1] = args.bias;
    op.eps = static_cast<Computed<T>>(args.eps);
    op.mean = args.mean;
    op.rstd = args.rstd;
    run_lines<false>(op, count, args.width, 1);
}
template void layer_norm(const kernels::LayerNorm<float>&, i64);
template void layer_norm(const kernels::LayerNorm<double>&, i64);
template void layer_norm(const kernels::LayerNorm<Half>&, i64);
template void layer_norm(const kernels::LayerNorm<BFloat16>&, i64);

void layer_norm_backward(const LayerNormBackwardArgs& args) {
    with_floating(args.dtype, [&]<class T>() { run_backward<T>(args); });
}

}  // namespace tapir::gpu
