// Batch normalisation: each channel of an array (outer, channels, inner) to mean 0 and variance 1.
//
// Two steps, forwards and backwards: a few numbers about each channel (ChannelOp), then every element by these (ChannelMap).
// With inner > 1 a channel consists of planes: a block processes those of one channel, or a part of them. With inner 1
// (channels last) neighbouring threads have neighbouring channels, and each goes down some rows. Another kernel merges the results of
// several blocks for a channel, in an order that depends only on the sizes, so that results repeat to the bit.
#include <algorithm>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/device.cuh"
#include "tapir/cuda/math.cuh"
#include "tapir/cuda/wide_divider.cuh"
#include "tapir/ops/normalization/batch_norm_kernels.h"

namespace tapir::gpu {
namespace {

using kernels::BatchNormArgs;
using kernels::BatchNormBackwardArgs;
using kernels::ChannelArray;

struct Layout {
    i64 outer, channels, inner;
    i64 per_channel() const { return outer * inner; }
};

template <class C>
__device__ __forceinline__ C channel_value(const ChannelArray& array, i64 channel, C missing) {
    return array.data ? load_as<C>(array.data, array.dtype, channel * array.stride) : missing;
}
template <class C>
__device__ __forceinline__ void set_channel_value(const ChannelArray& array, i64 channel, C value) {
    if (array.data) store_as(array.data, array.dtype, channel * array.stride, value);
}

// --- Numbers about a channel -------------------------------------------------------------------------------------------------
//
// A thread takes its elements in chunks of a few that are in registers.

template <class C>
struct Chunk {
    int size;
    C seen, total;  // elements before it, and with it
};

/// Mean and variance. Sums of x^2 would lose all digits if the mean is large. So a chunk's mean and distances come from two
/// passes over it, and chunks, threads and blocks are merged as by Chan, Golub & LeVeque 1983.
template <class Type>
struct ChannelMoments {
    using T = Type;
    using C = Computed<T>;
    static constexpr int operands = 1;
    struct State {
        C count, mean, squares;  // squares: summed squares of the distances from the mean
    };
    struct Own {};

    const T* in[1];
    C per_channel, eps, momentum;
    i64 channels;
    C* stats;
    ChannelArray running_mean, running_var;

    __device__ State identity() const { return {C(0), C(0), C(0)}; }
    __device__ Own own(i64) const { return {}; }
    template <int N>
    __device__ __forceinline__ void add(State& state, const Own&, const C (&x)[N][1], const Chunk<C>& chunk) const {
        const C size = static_cast<C>(chunk.size);
        C sum = 0, squares = 0;
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) sum += k < chunk.size ? x[k][0] : C(0);
        const C mean = sum / size;
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) squares += k < chunk.size ? (x[k][0] - mean) * (x[k][0] - mean) : C(0);
        const C share = size / chunk.total, delta = mean - state.mean;
        state.mean += delta * share;
        state.squares += squares + delta * delta * (chunk.seen * share);
        state.count = chunk.total;
    }
    __device__ __forceinline__ State merged(const State& a, const State& b) const {
        const C count = a.count + b.count, share = count > C(0) ? b.count / count : C(0), delta = b.mean - a.mean;
        return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * (a.count * share)};
    }
    __device__ void follow(const ChannelArray& running, i64 channel, C fresh) const {
        set_channel_value(running, channel, channel_value(running, channel, C(0)) * (C(1) - momentum) + fresh * momentum);
    }
    __device__ void finish(i64 channel, const State& state) const {
        const C variance = state.squares / per_channel;
        stats[channel] = state.mean;
        stats[channels + channel] = C(1) / sqrt(variance + eps);
        follow(running_mean, channel, state.mean);
        follow(running_var, channel, per_channel > C(1) ? state.squares / (per_channel - C(1)) : variance);
    }
};

/// The gradients of weight and bias, and the terms of x's gradient; in: x, grad. With n = (x - mean) rstd and the sums over a
/// channel: grad_x = weight rstd (grad - mean(grad) - n mean(grad n)) = grad factor + (x - mean) slope + offset.
template <class Type>
struct ChannelGradients {
    using T = Type;
    using C = Computed<T>;
    static constexpr int operands = 2;
    struct State {
        C sum, product;  // of grad, and of grad * (x - mean)
    };
    struct Own {
        C mean;
    };

    const T* in[2];
    C per_channel;
    i64 channels;
    const C* stats;
    ChannelArray weight, grad_weight, grad_bias;
    C* terms;  // [2 * channels]: slope and offset; null: not wanted

    __device__ State identity() const { return {C(0), C(0)}; }
    __device__ Own own(i64 channel) const { return {stats[channel]}; }
    template <int N>
    __device__ __forceinline__ void add(State& state, const Own& own, const C (&x)[N][2], const Chunk<C>& chunk) const {
        TAPIR_UNROLL
        for (int k = 0; k < N; ++k) {
            if (k >= chunk.size) continue;
            state.sum += x[k][1];
            state.product += x[k][1] * (x[k][0] - own.mean);
        }
    }
    __device__ __forceinline__ State merged(const State& a, const State& b) const { return {a.sum + b.sum, a.product + b.product}; }
    __device__ void finish(i64 channel, const State& state) const {
        const C rstd = stats[channels + channel], of_weight = state.product * rstd;
        set_channel_value(grad_weight, channel, of_weight);
        set_channel_value(grad_bias, channel, state.sum);
        if (!terms) return;
        const C factor = rstd * channel_value(weight, channel, C(1));
        terms[channel] = -factor * rstd * of_weight / per_channel;
        terms[channels + channel] = -factor * state.sum / per_channel;
    }
};

/// Merges the states of the threads with equal threadIdx.x % across into those with threadIdx.x < across. At most kThreads threads;
/// the number for each is a power of two.
template <int V, class Op>
__device__ __forceinline__ void merge_down(const Op& op, typename Op::State (&mine)[V], unsigned across) {
    __shared__ typename Op::State given[kThreads / 2][V];
    const unsigned row = threadIdx.x / across;
    for (unsigned half = blockDim.x / across / 2; half > 0; half /= 2) {
        __syncthreads();
        if (row >= half && row < 2 * half) {
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) given[threadIdx.x - half * across][v] = mine[v];
        }
        __syncthreads();
        if (row < half) {
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) mine[v] = op.merged(mine[v], given[threadIdx.x][v]);
        }
    }
}

// Delivers a block's state of a channel: finishes the channel if there are no other parts (of_parts is null).
template <class Op>
__device__ __forceinline__ void give(const Op& op, i64 channel, const typename Op::State& state, typename Op::State* of_parts) {
    if (!of_parts) return op.finish(channel, state);
    of_parts[blockIdx.y * op.channels + channel] = state;
}

/// Packs that a thread has in flight, so that it loads 16 elements or 64 bytes at once.
template <class Op, int V>
constexpr int packs_at_once() {
    constexpr int packs = 16 / V / Op::operands;
    return packs > 4 ? 4 : packs < 1 ? 1 : packs;
}

/// Block (x, y): part y of the planes of channel x, in packs. A plane has `packs`; a part has `part` of the channel's outer * packs.
/// Threads step by blockDim.x packs, which is step_outer planes and step_inner packs.
template <class Op, int V>
__global__ void __launch_bounds__(kThreads)
    reduce_planes(Op op, i64 outer, i64 packs, i64 part, i64 step_outer, i64 step_inner, typename Op::State* of_parts) {
    using T = typename Op::T;
    using C = typename Op::C;
    constexpr int at_once = packs_at_once<Op, V>();
    const i64 channel = blockIdx.x, total = outer * packs, last = (blockIdx.y + i64{1}) * part, end = last < total ? last : total;
    i64 position = blockIdx.y * part + threadIdx.x, o = position / packs, i = position % packs;
    const auto own = op.own(channel);
    typename Op::State mine[1] = {op.identity()};
    C seen = 0;
    while (position < end) {
        Pack<T, V> loaded[at_once][Op::operands];
        Chunk<C> chunk{0, seen, seen};
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            if (position < end) {
                const i64 offset = ((o * op.channels + channel) * packs + i) * V;
                TAPIR_UNROLL
                for (int k = 0; k < Op::operands; ++k) loaded[u][k] = *reinterpret_cast<const Pack<T, V>*>(op.in[k] + offset);
                chunk.size += V;
            }
            position += blockDim.x;
            o += step_outer;
            i += step_inner;
            if (i >= packs) {
                i -= packs;
                ++o;
            }
        }
        C x[at_once * V][Op::operands];
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            if (u * V >= chunk.size) continue;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) {
                TAPIR_UNROLL
                for (int k = 0; k < Op::operands; ++k) x[u * V + v][k] = convert<C>(loaded[u][k].value[v]);
            }
        }
        seen = chunk.total = seen + static_cast<C>(chunk.size);
        op.add(mine[0], own, x, chunk);
    }
    merge_down<1>(op, mine, 1);
    if (threadIdx.x == 0) give(op, channel, mine[0], of_parts);
}

/// inner is 1. Block (x, y): rows [y * part, (y + 1) * part) of channels x * across * V ...; `across` threads lie side by side,
/// of V channels each.
template <class Op, int V>
__global__ void __launch_bounds__(kThreads) reduce_rows(Op op, i64 rows, i64 part, unsigned across, typename Op::State* of_parts) {
    using T = typename Op::T;
    using C = typename Op::C;
    constexpr int at_once = 4;
    const i64 channel = (static_cast<i64>(blockIdx.x) * across + threadIdx.x % across) * V, step = blockDim.x / across;
    const i64 last = (blockIdx.y + i64{1}) * part, end = last < rows ? last : rows;
    typename Op::State mine[V];
    typename Op::Own own[V];
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        mine[v] = op.identity();
        if (channel < op.channels) own[v] = op.own(channel + v);
    }
    C seen = 0;
    for (i64 row = blockIdx.y * part + threadIdx.x / across; channel < op.channels && row < end; row += at_once * step) {
        Pack<T, V> loaded[at_once][Op::operands];
        Chunk<C> chunk{0, seen, seen};
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            const i64 r = row + u * step;
            if (r >= end) continue;
            TAPIR_UNROLL
            for (int k = 0; k < Op::operands; ++k) {
                loaded[u][k] = *reinterpret_cast<const Pack<T, V>*>(op.in[k] + r * op.channels + channel);
            }
            ++chunk.size;
        }
        seen = chunk.total = seen + static_cast<C>(chunk.size);
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            C x[at_once][Op::operands];
            TAPIR_UNROLL
            for (int u = 0; u < at_once; ++u) {
                if (u >= chunk.size) continue;
                TAPIR_UNROLL
                for (int k = 0; k < Op::operands; ++k) x[u][k] = convert<C>(loaded[u][k].value[v]);
            }
            op.add(mine[v], own[v], x, chunk);
        }
    }
    merge_down<V>(op, mine, across);
    if (threadIdx.x >= across || channel >= op.channels) return;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) give(op, channel + v, mine[v], of_parts);
}

/// Merges the parts of 32 channels.
template <class Op>
__global__ void __launch_bounds__(kThreads) merge_parts(Op op, int parts, const typename Op::State* of_parts) {
    const i64 channel = static_cast<i64>(blockIdx.x) * 32 + threadIdx.x % 32;
    typename Op::State mine[1] = {op.identity()};
    for (int p = static_cast<int>(threadIdx.x / 32); p < parts && channel < op.channels; p += kThreads / 32) {
        mine[0] = op.merged(mine[0], of_parts[p * op.channels + channel]);
    }
    merge_down<1>(op, mine, 32);
    if (threadIdx.x < 32 && channel < op.channels) op.finish(channel, mine[0]);
}

/// Uses given statistics.
template <class C>
__global__ void __launch_bounds__(kThreads) take_running(ChannelArray running_mean, ChannelArray running_var, i64 channels, C eps, C* stats) {
    const i64 channel = global_index();
    if (channel >= channels) return;
    stats[channel] = channel_value(running_mean, channel, C(0));
    stats[channels + channel] = C(1) / sqrt(channel_value(running_var, channel, C(0)) + eps);
}

// --- Every element -----------------------------------------------------------------------------------------------------------

/// (x - shift) * scale + offset. Without a mean it is the gradient of x if the statistics do not depend on it.
template <class Type>
struct Normalize {
    using T = Type;
    using C = Computed<T>;
    static constexpr int operands = 1;
    struct Own {
        C shift, scale, offset;
    };
    const T* in[1];
    T* out;
    i64 channels;
    const C *mean, *rstd;
    ChannelArray weight, bias;

    __device__ __forceinline__ Own own(i64 c) const {
        return {mean ? mean[c] : C(0), rstd[c] * channel_value(weight, c, C(1)), channel_value(bias, c, C(0))};
    }
    __device__ __forceinline__ C value(const Own& own, const C (&x)[1]) const { return (x[0] - own.shift) * own.scale + own.offset; }
};

/// The gradient of x in training; in: x, grad. See ChannelGradients.
template <class Type>
struct GradientOfInput {
    using T = Type;
    using C = Computed<T>;
    static constexpr int operands = 2;
    struct Own {
        C mean, factor, slope, offset;
    };
    const T* in[2];
    T* out;
    i64 channels;
    const C *stats, *terms;
    ChannelArray weight;

    __device__ __forceinline__ Own own(i64 c) const {
        return {stats[c], stats[channels + c] * channel_value(weight, c, C(1)), terms[c], terms[channels + c]};
    }
    __device__ __forceinline__ C value(const Own& own, const C (&x)[2]) const {
        return x[1] * own.factor + (x[0] - own.mean) * own.slope + own.offset;
    }
};

template <class Map, int V>
__device__ __forceinline__ void write_pack(const Map& map, i64 offset, const typename Map::Own (&own)[V],
                                           const Pack<typename Map::T, V> (&loaded)[Map::operands]) {
    using C = typename Map::C;
    Pack<typename Map::T, V> result;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) {
        C x[Map::operands];
        TAPIR_UNROLL
        for (int k = 0; k < Map::operands; ++k) x[k] = convert<C>(loaded[k].value[v]);
        result.value[v] = convert<typename Map::T>(map.value(own[v], x));
    }
    store_pack(map.out + offset, result);
}

/// `count` packs from pack `first` on; first: of a plane, of which `planes` come before it, unless all are of one plane.
template <class Map, int V>
__global__ void __launch_bounds__(kThreads) map_planes(Map map, i64 first, i64 planes, i64 count, Divider packs, WideDivider channels) {
    constexpr int at_once = 4 / Map::operands;
    const u32 begin = blockIdx.x * (at_once * kThreads) + threadIdx.x;
    Pack<typename Map::T, V> loaded[at_once][Map::operands];
    TAPIR_UNROLL
    for (int u = 0; u < at_once; ++u) {
        const u32 position = begin + u * kThreads;
        TAPIR_UNROLL
        for (int k = 0; k < Map::operands; ++k) {
            if (position < count) {
                loaded[u][k] = *reinterpret_cast<const Pack<typename Map::T, V>*>(map.in[k] + (first + position) * V);
            }
        }
    }
    TAPIR_UNROLL
    for (int u = 0; u < at_once; ++u) {
        const u32 position = begin + u * kThreads;
        if (position >= count) continue;
        const u64 plane = static_cast<u64>(planes) + packs.quotient(position);
        const i64 channel = static_cast<i64>(plane - channels.quotient(plane) * channels.divisor);
        typename Map::Own own[V];
        own[0] = map.own(channel);
        TAPIR_UNROLL
        for (int v = 1; v < V; ++v) own[v] = own[0];
        write_pack<Map, V>(map, (first + position) * V, own, loaded[u]);
    }
}

/// inner is 1; blocks as those of reduce_rows.
template <class Map, int V>
__global__ void __launch_bounds__(kThreads) map_rows(Map map, i64 rows, i64 part, unsigned across) {
    using T = typename Map::T;
    constexpr int at_once = 4 / Map::operands;
    const i64 channel = (static_cast<i64>(blockIdx.x) * across + threadIdx.x % across) * V, step = blockDim.x / across;
    if (channel >= map.channels) return;
    const i64 last = (blockIdx.y + i64{1}) * part, end = last < rows ? last : rows;
    typename Map::Own own[V];
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) own[v] = map.own(channel + v);
    for (i64 row = blockIdx.y * part + threadIdx.x / across; row < end; row += at_once * step) {
        Pack<T, V> loaded[at_once][Map::operands];
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            const i64 offset = (row + u * step) * map.channels + channel;
            TAPIR_UNROLL
            for (int k = 0; k < Map::operands; ++k) {
                if (row + u * step < end) loaded[u][k] = *reinterpret_cast<const Pack<T, V>*>(map.in[k] + offset);
            }
        }
        TAPIR_UNROLL
        for (int u = 0; u < at_once; ++u) {
            if (row + u * step < end) write_pack<Map, V>(map, (row + u * step) * map.channels + channel, own, loaded[u]);
        }
    }
}

// --- Launching ---------------------------------------------------------------------------------------------------------------

// Number and length of the parts: enough to fill the device, and long enough to keep each part's threads busy for a while.
struct Parts {
    i64 count, size;
    Parts(i64 total, i64 least, i64 side_by_side, int blocks_of_multiprocessor) {
        const i64 wanted = std::max<i64>(blocks_of_multiprocessor * i64{multiprocessors()} / side_by_side, 1);
        const i64 most = std::min({wanted, (total + least - 1) / least, i64{65535}});
        size = (total + most - 1) / most;
        count = (total + size - 1) / size;
    }
};

// Calls reduce(parts, of_parts), and makes another launch if there are several parts.
template <class Op, class Reduce>
void in_parts(const Op& op, const Parts& parts, const Reduce& reduce) {
    if (parts.count == 1) return reduce(nullptr);
    const Scratch scratch(static_cast<std::size_t>(parts.count * op.channels) * sizeof(typename Op::State));
    auto* of_parts = scratch.as<typename Op::State>();
    reduce(of_parts);
    launch(merge_parts<Op>, blocks_for(op.channels, 32), kThreads, op, static_cast<int>(parts.count), of_parts);
}

template <int V>
unsigned threads_across(i64 channels) {
    return std::min(32u, power_of_two_from((channels + V - 1) / V));
}

template <class Op, int V>
void reduce_in_packs(const Op& op, const Layout& l) {
    if (l.inner == 1) {
        const unsigned across = threads_across<V>(l.channels), groups = blocks_for(l.channels, across * V);
        const Parts parts(l.outer, 16 * (kThreads / across), groups, 4);
        return in_parts(op, parts, [&](typename Op::State* of_parts) {
            launch(reduce_rows<Op, V>, dim3(groups, static_cast<unsigned>(parts.count)), kThreads, op, l.outer, parts.size, across, of_parts);
        });
    }
    const i64 packs = l.inner / V;
    const unsigned threads = std::clamp(power_of_two_from(l.outer * packs), 32u, kThreads);
    const Parts parts(l.outer * packs, 16 * threads, l.channels, 4);
    in_parts(op, parts, [&](typename Op::State* of_parts) {
        const dim3 grid(static_cast<unsigned>(l.channels), static_cast<unsigned>(parts.count));
        launch(reduce_planes<Op, V>, grid, threads, op, l.outer, packs, parts.size, threads / packs, threads % packs, of_parts);
    });
}

template <class Map, int V>
void map_in_packs(const Map& map, const Layout& l) {
    if (l.inner == 1) {
        const unsigned across = threads_across<V>(l.channels), groups = blocks_for(l.channels, across * V);
        const Parts parts(l.outer, 4 * (kThreads / across), groups, 16);
        const dim3 grid(groups, static_cast<unsigned>(parts.count));
        return launch(map_rows<Map, V>, grid, kThreads, map, l.outer, parts.size, across);
    }
    // Launches as many whole planes at a time as a launch counts packs, or a part of one.
    const i64 packs = l.inner / V, planes = l.outer * l.channels, most = kMostPositions / 2;
    const i64 planes_at_once = std::clamp<i64>(most / packs, 1, planes);
    for (i64 plane = 0; plane < planes; plane += planes_at_once) {
        const i64 begin = plane * packs, end = std::min(planes, plane + planes_at_once) * packs;
        for (i64 first = begin; first < end; first += most) {
            const i64 count = std::min(most, end - first);
            launch(map_planes<Map, V>, blocks_for(count, 4 / Map::operands * i64{kThreads}), kThreads, map, first, plane, count,
                   Divider(std::min(packs, kMostPositions)), WideDivider(l.channels));
        }
    }
}

template <class Op>
constexpr i64 pack_size = 16 / static_cast<i64>(sizeof(typename Op::T));

template <class Op>
bool has_whole_packs(const Op& op, const Layout& l) {
    bool result = (l.inner == 1 ? l.channels : l.inner) % pack_size<Op> == 0;
    for (const auto* in : op.in) result = result && is_aligned(in, 16);
    return result;
}

template <class Op>
void reduce(const Op& op, const Layout& l) {
    has_whole_packs(op, l) ? reduce_in_packs<Op, pack_size<Op>>(op, l) : reduce_in_packs<Op, 1>(op, l);
}

template <class Map>
void map_elements(const Map& map, const Layout& l) {
    has_whole_packs(map, l) && is_aligned(map.out, 16) ? map_in_packs<Map, pack_size<Map>>(map, l) : map_in_packs<Map, 1>(map, l);
}

template <class T>
void run_forward(const BatchNormArgs& args) {
    using C = Computed<T>;
    const Layout l{args.outer, args.channels, args.inner};
    auto* stats = static_cast<C*>(args.stats);
    if (args.training) {
        const ChannelMoments<T> op{{static_cast<const T*>(args.x)},
                                   static_cast<C>(l.per_channel()),
                                   static_cast<C>(args.eps),
                                   static_cast<C>(args.momentum),
                                   l.channels,
                                   stats,
                                   args.running_mean,
                                   args.running_var};
        reduce(op, l);
    } else {
        launch(take_running<C>, blocks_for(l.channels, kThreads), kThreads, args.running_mean, args.running_var, l.channels, static_cast<C>(args.eps),
               stats);
    }
    map_elements(
        Normalize<T>{{static_cast<const T*>(args.x)}, static_cast<T*>(args.y), l.channels, stats, stats + l.channels, args.weight, args.bias}, l);
}

template <class T>
void run_backward(const BatchNormBackwardArgs& args) {
    using C = Computed<T>;
    const Layout l{args.outer, args.channels, args.inner};
    const auto *x = static_cast<const T*>(args.x), *grad = static_cast<const T*>(args.grad);
    const auto* stats = static_cast<const C*>(args.stats);
    auto* grad_x = static_cast<T*>(args.grad_x);
    const bool mixes = args.training && grad_x;  // an element's gradient depends on those of the others
    const Scratch terms(mixes ? static_cast<std::size_t>(2 * l.channels) * sizeof(C) : 0);
    if (mixes || args.grad_weight.data || args.grad_bias.data) {
        reduce(ChannelGradients<T>{{x, grad},
                                   static_cast<C>(l.per_channel()),
                                   l.channels,
                                   stats,
                                   args.weight,
                                   args.grad_weight,
                                   args.grad_bias,
                                   mixes ? terms.as<C>() : nullptr},
               l);
    }
    if (mixes) {
        map_elements(GradientOfInput<T>{{x, grad}, grad_x, l.channels, stats, terms.as<C>(), args.weight}, l);
    } else if (grad_x) {
        map_elements(Normalize<T>{{grad}, grad_x, l.channels, nullptr, stats + l.channels, args.weight, {}}, l);
    }
}

}  // namespace

void batch_norm(const BatchNormArgs& args) {
    with_floating(args.dtype, [&]<class T>() { run_forward<T>(args); });
}

void batch_norm_backward(const BatchNormBackwardArgs& args) {
    with_floating(args.dtype, [&]<class T>() { run_backward<T>(args); });
}

}  // namespace tapir::gpu
