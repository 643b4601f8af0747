// Selection by a mask, the positions where a mask is true, triangles of matrices.
#include <algorithm>

#include "tapir/cuda/indexing.cuh"
#include "tapir/cuda/parts.cuh"
#include "tapir/cuda/unroll.cuh"

namespace tapir::gpu {

using kernels::ChooseArgs;
using kernels::MaskArgs;
using kernels::TriangleArgs;

namespace {

// --- mask ? a : b ----------------------------------------------------------------------------------------------------

enum class Source : u32 { array, one, number };  // elements, one element for all, a number that came with the launch

template <class T>
struct Choices {
    const T* data[2];
    Source source[2];
    T number[2];
};

// Packs of 16 bytes for each thread; bytes take a register each.
template <class T>
constexpr int kPacks = sizeof(T) == 1 ? 1 : 2;

template <class T>
__global__ void __launch_bounds__(kThreads) choose_flat_kernel(i64 n, const std::uint8_t* mask, Choices<T> from, T* out, bool aligned) {
    constexpr int V = 16 / sizeof(T), packs = kPacks<T>;
    constexpr i64 per_block = kThreads * V * packs;
    T fixed[2];
    TAPIR_UNROLL
    for (int k = 0; k < 2; ++k) fixed[k] = from.source[k] == Source::one ? *from.data[k] : from.number[k];
    const i64 first = blockIdx.x * per_block;
    if (aligned && first + per_block <= n) {
        Pack<std::uint8_t, V> holds[packs];
        Pack<T, V> x[packs][2];
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            const i64 at = first / V + p * kThreads + threadIdx.x;
            holds[p] = reinterpret_cast<const Pack<std::uint8_t, V>*>(mask)[at];
            TAPIR_UNROLL
            for (int k = 0; k < 2; ++k) {
                if (from.source[k] == Source::array) x[p][k] = reinterpret_cast<const Pack<T, V>*>(from.data[k])[at];
            }
        }
        TAPIR_UNROLL
        for (int p = 0; p < packs; ++p) {
            Pack<T, V> y;
            TAPIR_UNROLL
            for (int v = 0; v < V; ++v) {
                const T a = from.source[0] == Source::array ? x[p][0].value[v] : fixed[0];
                const T b = from.source[1] == Source::array ? x[p][1].value[v] : fixed[1];
                y.value[v] = holds[p].value[v] ? a : b;
            }
            store_pack(out + first + (p * kThreads + threadIdx.x) * V, y);
        }
        return;
    }
    const i64 end = first + per_block < n ? first + per_block : n;
    for (i64 i = first + threadIdx.x; i < end; i += kThreads) {
        if (mask[i]) {
            out[i] = from.source[0] == Source::array ? from.data[0][i] : fixed[0];
        } else {
            out[i] = from.source[1] == Source::array ? from.data[1][i] : fixed[1];
        }
    }
}

template <int V, class T>
__device__ __forceinline__ Pack<T, V> load_row(const T* p, bool repeats) {
    if (!repeats) return *reinterpret_cast<const Pack<T, V>*>(p);
    const T value = *p;
    Pack<T, V> x;
    TAPIR_UNROLL
    for (int v = 0; v < V; ++v) x.value[v] = value;
    return x;
}

// Offsets of the packs of the result, the mask and the two arrays. `repeats` marks those that repeat one element.
struct ChoicePlaces {
    Offsets<4, i32> offsets;
    bool repeats[4];
};

// n is the number of packs of V elements.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) choose_kernel(u32 n, const std::uint8_t* mask, Choices<T> from, T* out, ChoicePlaces places) {
    u32 i = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
        i32 at[4];
        places.offsets.at(i, at);
        const auto holds = load_row<V>(mask + at[1], places.repeats[1]);
        Pack<T, V> x[2], y;
        TAPIR_UNROLL
        for (int k = 0; k < 2; ++k) {
            if (from.source[k] != Source::number) x[k] = load_row<V>(from.data[k] + at[2 + k], places.repeats[2 + k]);
        }
        TAPIR_UNROLL
        for (int v = 0; v < V; ++v) {
            const T a = from.source[0] == Source::number ? from.number[0] : x[0].value[v];
            const T b = from.source[1] == Source::number ? from.number[1] : x[1].value[v];
            y.value[v] = holds.value[v] ? a : b;
        }
        store_pack(out + at[0], y);
    }
}

bool is_in_packs(const ChooseArgs& args, i64 V) {
    const int inner = args.rank - 1;
    bool are = args.sizes[inner] % V == 0;
    const void* const data[] = {args.out, args.mask, args.value[0], args.value[1]};
    for (int k = 0; k < 4; ++k) {
        if (!data[k] || (k > 0 && args.strides[k][inner] == 0)) continue;
        are = are && is_aligned(data[k], k == 1 ? static_cast<std::size_t>(V) : 16) && has_packs(args.rank, args.strides[k], V);
    }
    return are;
}

template <class T, int V>
void launch_choose_rows(const ChooseArgs& args, const Choices<T>& from) {
    ChoicePlaces places;
    places.offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        const i64 step = d + 1 == args.rank ? V : 1;
        places.offsets.sizes[d] = Divider(args.sizes[d] / step);
        for (int k = 0; k < 4; ++k) places.offsets.strides[d][k] = static_cast<i32>(args.strides[k][d] * step);
    }
    for (int k = 0; k < 4; ++k) places.repeats[k] = args.strides[k][args.rank - 1] == 0;
    const i64 packs = args.numel / V;
    launch(choose_kernel<T, V>, blocks_for(packs, kPerBlock), kThreads, static_cast<u32>(packs), args.mask, from, static_cast<T*>(args.out), places);
}

template <class F>
void in_parts(const ChooseArgs& args, const F& f) {
    const auto begin_at = [](ChooseArgs& part, int d, i64 first) {
        const auto bytes = [&](int k) { return first * part.strides[k][d] * i64{part.size}; };
        part.out = moved(part.out, bytes(0));
        part.mask += first * part.strides[1][d];
        for (int k = 0; k < 2; ++k) part.value[k] = moved(part.value[k], bytes(2 + k));
    };
    const auto dimension = [](const ChooseArgs& part) {
        int d = -1;
        for (int k = 0; k < 4 && d < 0; ++k) d = too_wide(part.rank, part.sizes, part.strides[k]);
        return d;
    };
    in_halves(args, Order::forwards, dimension, begin_at, f);
}

template <class T>
void launch_choose(const ChooseArgs& args) {
    Choices<T> from;
    const auto is_flat = [&](int k) { return args.rank == 1 && args.strides[k][0] == 1; };
    bool flat = is_flat(0) && is_flat(1), aligned = is_aligned(args.out, 16) && is_aligned(args.mask, 16 / sizeof(T));
    for (int k = 0; k < 2; ++k) {
        const bool is_one = args.rank == 1 && args.strides[2 + k][0] == 0;
        from.data[k] = static_cast<const T*>(args.value[k]);
        from.source[k] = !args.value[k] ? Source::number : is_one ? Source::one : Source::array;
        from.number[k] = static_cast<T>(args.number[k]);
        flat = flat && (from.source[k] != Source::array || is_flat(2 + k));
        aligned = aligned && (from.source[k] != Source::array || is_aligned(args.value[k], 16));
    }
    auto* out = static_cast<T*>(args.out);
    if (flat) {
        constexpr i64 per_block = kThreads * (16 / sizeof(T)) * kPacks<T>;
        return launch(choose_flat_kernel<T>, blocks_for(args.numel, per_block), kThreads, args.numel, args.mask, from, out, aligned);
    }
    in_parts(args, [&](const ChooseArgs& part) {
        for (int k = 0; k < 2; ++k) from.data[k] = static_cast<const T*>(part.value[k]);
        constexpr int V = 16 / sizeof(T);
        if (is_in_packs(part, V)) return launch_choose_rows<T, V>(part, from);
        launch_choose_rows<T, 1>(part, from);
    });
}

// --- Where a mask holds ----------------------------------------------------------------------------------------------
//
// A block processes one part of the mask, tile by tile. First each part is counted. Then one block turns the counts into the
// starts of the parts' positions. Finally the parts are walked again to write them.

constexpr int kTileBytes = 16;  // bytes of the mask for each thread
constexpr i64 kTile = kThreads * kTileBytes;
constexpr i64 kMostParts = 2048;

i64 part_size(i64 numel) {
    const i64 tiles = (numel + kTile - 1) / kTile;
    return (tiles + kMostParts - 1) / kMostParts * kTile;
}

// Bit i is set if byte i of the thread's tile is true.
__device__ __forceinline__ u32 tile_bits(const std::uint8_t* mask, i64 first, i64 end, bool aligned) {
    u32 bits = 0;
    if (aligned && first + kTileBytes <= end) {
        const auto bytes = *reinterpret_cast<const Pack<std::uint8_t, kTileBytes>*>(mask + first);
        // (Not (x ? 1 : 0) << i: with -fsanitize=bounds,shift, g++ 12 reads element 0 each time.)
        for (int i = 0; i < kTileBytes; ++i) bits |= static_cast<u32>(bytes.value[i] != 0) << i;
    } else {
        for (int i = 0; i < kTileBytes && first + i < end; ++i) bits |= static_cast<u32>(mask[first + i] != 0) << i;
    }
    return bits;
}

__global__ void __launch_bounds__(kThreads) count_kernel(i64 numel, i64 part, const std::uint8_t* mask, i64* counts, bool aligned) {
    const i64 begin = blockIdx.x * part, end = begin + part < numel ? begin + part : numel;
    i64 count = 0;
    for (i64 tile = begin; tile < end; tile += kTile) {
        count += __popc(tile_bits(mask, tile + threadIdx.x * kTileBytes, end, aligned));
    }
    count = block_reduce(count, Sum(), i64{0});
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Returns the sum of the counts of earlier threads of the block; `total` is the sum of all. All threads must call it.
template <class T>
__device__ __forceinline__ T block_prefix(T count, T& total) {
    __shared__ T of_warp[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    T sum = count;
    for (unsigned by = 1; by < 32; by *= 2) {
        const T before = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= by) sum += before;
    }
    __syncthreads();  // an earlier call's results have been read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    T before = 0;
    total = 0;
    for (unsigned w = 0; w < warps; ++w) {
        if (w < warp) before += of_warp[w];
        total += of_warp[w];
    }
    return before + sum - count;
}

// starts[i] = the sum of the counts before it; starts[n] = the sum of all. Runs as one block.
__global__ void __launch_bounds__(1024) starts_kernel(int n, i64* starts) {
    i64 before = 0;
    for (int first = 0; first < n; first += 1024) {
        const int i = first + static_cast<int>(threadIdx.x);
        i64 total;
        const i64 prefix = block_prefix(i < n ? starts[i] : i64{0}, total);
        if (i < n) starts[i] = before + prefix;
        before += total;
    }
    if (threadIdx.x == 0) starts[n] = before;
}

// Coordinates of a position in row-major order.
struct Coordinates {
    int rank;
    bool is_small;  // positions are below 2^31
    Divider dividers[8];
    i64 sizes[8], strides[8];

    __device__ __forceinline__ i64 next(int d, i64& position) const {
        const i64 rest = is_small ? static_cast<i64>(dividers[d].quotient(static_cast<u32>(position))) : position / sizes[d];
        const i64 here = position - rest * sizes[d];
        position = rest;
        return here;
    }
};

template <bool kCoordinates>
__device__ __forceinline__ void write_position(i64* out, i64 number, i64 position, const Coordinates& at) {
    if constexpr (kCoordinates) {
        for (int d = at.rank; d-- > 0;) out[number * at.rank + d] = at.next(d, position);
    } else {
        i64 offset = 0;
        for (int d = at.rank; d-- > 0;) offset += at.next(d, position) * at.strides[d];
        out[number] = offset;
    }
}

template <bool kCoordinates>
__global__ void __launch_bounds__(kThreads)
    positions_kernel(i64 numel, i64 part, const std::uint8_t* mask, const i64* starts, i64* out, Coordinates at, bool aligned) {
    const i64 begin = blockIdx.x * part, end = begin + part < numel ? begin + part : numel;
    i64 number = starts[blockIdx.x];
    if (starts[blockIdx.x + 1] == number) return;
    for (i64 tile = begin; tile < end; tile += kTile) {
        const i64 first = tile + threadIdx.x * kTileBytes;
        const u32 bits = tile_bits(mask, first, end, aligned);
        int total;
        i64 own = number + block_prefix(__popc(bits), total);
        for (int i = 0; i < kTileBytes; ++i) {
            if (bits >> i & 1) write_position<kCoordinates>(out, own++, first + i, at);
        }
        number += total;
    }
}

// --- Triangles -------------------------------------------------------------------------------------------------------

// Processes V elements of a row at once; positions and columns are counted in packs of V.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) triangle_kernel(i64 n, const T* x, T* out, RowSplit rows, RowSplit matrices, i64 first_kept, bool lower) {
    for (int e = 0; e < kPerThread; ++e) {
        const i64 i = blockIdx.x * kPerBlock + e * kThreads + threadIdx.x;
        if (i >= n) return;
        i64 row, column, matrix, row_in_matrix;
        rows.split(i, row, column);
        matrices.split(row, matrix, row_in_matrix);
        const i64 edge = row_in_matrix + first_kept;  // the first column on the other side of the diagonal
        Pack<T, V> y = reinterpret_cast<const Pack<T, V>*>(x)[i];
        for (int v = 0; v < V; ++v) {
            if ((column * V + v < edge) != lower) y.value[v] = 0;
        }
        reinterpret_cast<Pack<T, V>*>(out)[i] = y;
    }
}

template <class T, int V>
void launch_triangle(const TriangleArgs& args, i64 rows) {
    const i64 columns = args.columns / V, n = rows * columns;
    launch(triangle_kernel<T, V>, blocks_for(n, kPerBlock), kThreads, n, static_cast<const T*>(args.x), static_cast<T*>(args.out),
           RowSplit(columns, n), RowSplit(args.rows, rows), args.first, args.lower);
}

}  // namespace

void choose(const ChooseArgs& args) {
    with_size(args.size, [&]<class T>() { launch_choose<T>(args); });
}

i64 mask_parts(i64 numel) {
    const i64 size = part_size(numel);
    return (numel + size - 1) / size;
}

void count_mask(const MaskArgs& args) {
    const i64 parts = mask_parts(args.numel);
    launch(count_kernel, static_cast<unsigned>(parts), kThreads, args.numel, part_size(args.numel), args.mask, args.starts,
           is_aligned(args.mask, kTileBytes));
    launch(starts_kernel, 1, 1024, static_cast<int>(parts), args.starts);
}

void mask_positions(const MaskArgs& args) {
    Coordinates at{args.rank, args.numel <= kMostPositions, {}, {}, {}};
    for (int d = 0; d < args.rank; ++d) {
        if (at.is_small) at.dividers[d] = Divider(args.sizes[d]);
        at.sizes[d] = args.sizes[d];
        at.strides[d] = args.strides[d];
    }
    const auto kernel = args.coordinates ? positions_kernel<true> : positions_kernel<false>;
    launch(kernel, static_cast<unsigned>(mask_parts(args.numel)), kThreads, args.numel, part_size(args.numel), args.mask, args.starts, args.out, at,
           is_aligned(args.mask, kTileBytes));
}

void triangle(const TriangleArgs& args, i64 count) {
    with_size(args.size, [&]<class T>() {
        constexpr int V = 16 / sizeof(T);
        const bool packed = args.columns % V == 0 && is_aligned(args.x, 16) && is_aligned(args.out, 16);
        packed ? launch_triangle<T, V>(args, count) : launch_triangle<T, 1>(args, count);
    });
}

}  // namespace tapir::gpu
