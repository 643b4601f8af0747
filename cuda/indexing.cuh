// Common parts of the indexing kernels: indices that are checked as they are read, rows and columns of long positions.
#pragma once

#include "tapir/cuda/device.cuh"
#include "tapir/ops/index/indexing_kernels.h"

namespace tapir::gpu {

/// Indices as a kernel reads them. Indices out of range are reported, and replaced by valid ones.
struct Indices {
    const void* data;
    bool is_int32;
    i64* checked;      // null: not written
    i64 size;          // of the dimension; not 0
    bool from_end;     // negative ones count from the end
    FaultSlot* fault;  // null: the indices were checked before

    /// `write` is true for the thread that writes the checked form of number i.
    __device__ __forceinline__ i64 at(i64 i, bool write) const {
        if (!fault) return static_cast<const i64*>(data)[i];
        const i64 given = is_int32 ? static_cast<const i32*>(data)[i] : static_cast<const i64*>(data)[i];
        i64 index = given < 0 && from_end ? given + size : given;
        if (index < 0 || index >= size) {
            report(fault, given);
            index = index < 0 ? 0 : size - 1;
        }
        if (write && checked) checked[i] = index;
        return index;
    }
};

/// Returns the slot for faults; keep it until the last kernel that reads the indices is launched.
inline OpenFault fault_of(const kernels::IndexSource& source) { return source.is_checked ? OpenFault() : OpenFault(source.dim, source.shape); }
inline Indices indices_of(const kernels::IndexSource& source, const OpenFault& fault) {
    const i64 size = source.is_checked ? 0 : source.shape[source.dim];
    return {source.data, source.dtype == DType::int32, source.checked, size, source.from_end, fault.slot()};
}

inline constexpr int kPerThread = 4;
inline constexpr i64 kPerBlock = kThreads * kPerThread;

/// Positions of the elements of gather and its kin.
struct ElementPlaces {
    Offsets<2> offsets;  // in x, without the index's part; in the other tensor
    i64 stride;
    Indices index;

    __device__ __forceinline__ void find(u32 i, i64& in_x, i64& in_other) const {
        i64 at[2];
        offsets.at(i, at);
        in_x = at[0] + index.at(i, false) * stride;
        in_other = at[1];
    }
    __device__ __forceinline__ i64 in_x(u32 i, bool write_checked) const {
        i64 at[2];
        offsets.at(i, at);
        return at[0] + index.at(i, write_checked) * stride;
    }
};

inline ElementPlaces places_of(const kernels::ElementArgs& args, const OpenFault& fault) {
    ElementPlaces places{{}, args.stride, indices_of(args.index, fault)};
    places.offsets.rank = args.rank;
    for (int d = 0; d < args.rank; ++d) {
        places.offsets.sizes[d] = Divider(args.sizes[d]);
        places.offsets.strides[d][0] = args.x_strides[d];
        places.offsets.strides[d][1] = args.other_strides[d];
    }
    return places;
}

/// Positions of the elements of a region.
struct RegionPlaces {
    Offsets<2> offsets;  // in x, without the position's part; the number of the position
    i64 scale;
    Indices positions;
};

/// Uses only the first `rank` dimensions.
inline RegionPlaces places_of(const kernels::RegionArgs& args, int rank, const OpenFault& fault) {
    RegionPlaces places{{}, args.scale, indices_of(args.positions, fault)};
    places.offsets.rank = rank;
    for (int d = 0; d < rank; ++d) {
        places.offsets.sizes[d] = Divider(args.sizes[d]);
        places.offsets.strides[d][0] = args.strides[d];
        places.offsets.strides[d][1] = d == args.place ? 1 : 0;
    }
    return places;
}

/// Keys of items that are written to different places: by number, the offset in x, or the position.
struct ElementKeys {
    ElementPlaces places;
    __device__ __forceinline__ i64 at(u32 i) const { return places.in_x(i, false); }
};
struct PositionKeys {
    const i64* positions;
    __device__ __forceinline__ i64 at(u32 i) const { return positions[i]; }
};

/// scatter_add and add_region that sum in the order of the items; for floating dtypes.
void scatter_add_in_order(const kernels::ElementArgs& args, DType dtype);
void add_region_in_order(const kernels::RegionArgs& args, DType dtype);

/// Splits positions of any size into (row, column).
struct RowSplit {
    i64 width = 1;
    Divider divider;
    bool is_small = false;  // the positions are below 2^31

    RowSplit() = default;
    RowSplit(i64 columns, i64 positions) : width(columns), is_small(positions <= kMostPositions) {
        if (is_small) divider = Divider(columns);
    }
    __device__ __forceinline__ i64 row(i64 position) const {
        return is_small ? static_cast<i64>(divider.quotient(static_cast<u32>(position))) : position / width;
    }
    __device__ __forceinline__ void split(i64 position, i64& row_number, i64& column) const {
        row_number = row(position);
        column = position - row_number * width;
    }
};

// --- Rows of elements ------------------------------------------------------------------------------------------------

/// Rows that groups of a block's threads process: `lanes` threads for each row, a power of two; long rows in several
/// chunks.
struct RowGroups {
    i64 items;  // rows * chunks
    i64 run;    // elements of a row
    i64 chunk;  // elements of a chunk
    i64 chunks = 1;
    int lanes;
    int each = 1;  // items that a group processes one after the other

    /// size is that of an element. aligned: most rows allow moving 16 bytes at once.
    RowGroups(i64 rows, i64 row, std::size_t size, bool aligned) : items(rows), run(row), chunk(row) {
        const i64 per_unit = aligned ? static_cast<i64>(16 / size) : 1, units = (row + per_unit - 1) / per_unit;
        constexpr i64 units_a_thread = 4;
        lanes = 1;
        while (lanes < static_cast<int>(kThreads) && lanes < units) lanes *= 2;
        if (units > kThreads * units_a_thread) {
            chunk = kThreads * units_a_thread * per_unit;
            chunks = (row + chunk - 1) / chunk;
            items *= chunks;
        }
        if (items / (groups() * 4) >= 8 * multiprocessors()) each = 4;
    }
    __host__ __device__ __forceinline__ int groups() const { return static_cast<int>(kThreads) / lanes; }
    unsigned blocks() const { return blocks_for(items, static_cast<i64>(groups()) * each); }

    __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) & (lanes - 1); }
    /// Finds number `i` of the thread's group. Returns false if there is none.
    __device__ __forceinline__ bool item(int i, i64& row, i64& begin, i64& end) const {
        const i64 number = (static_cast<i64>(blockIdx.x) * each + i) * groups() + static_cast<int>(threadIdx.x) / lanes;
        if (number >= items) return false;
        row = chunks == 1 ? number : number / chunks;
        begin = chunks == 1 ? 0 : (number - row * chunks) * chunk;
        end = begin + chunk < run ? begin + chunk : run;
        return true;
    }
};

/// Sets bytes on the current stream.
inline void set_bytes(void* to, int value, std::size_t bytes) {
    Stream& stream = current();
    launched(stream, cudaMemsetAsync(to, value, bytes, stream.handle));
}

// --- Adding where others may add too ---------------------------------------------------------------------------------

__device__ __forceinline__ void atomic_add(float* to, float x) { atomicAdd(to, x); }
__device__ __forceinline__ void atomic_add(double* to, double x) { atomicAdd(to, x); }
__device__ __forceinline__ void atomic_add(i32* to, i32 x) {  // unsigned: wraps
    atomicAdd(reinterpret_cast<u32*>(to), static_cast<u32>(x));
}
__device__ __forceinline__ void atomic_add(i64* to, i64 x) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
}

// Rounds the sum at each addition.
template <class T>
__device__ __forceinline__ void atomic_add_16_bit(T* to, T x) {
    const auto address = reinterpret_cast<std::uintptr_t>(to);
    auto* word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
    const unsigned shift = address & 2 ? 16 : 0;
    unsigned seen = *word, expected;
    do {
        expected = seen;
        T old;
        old.bits = static_cast<std::uint16_t>(seen >> shift);
        const u32 bits = convert<T>(to_float(old) + to_float(x)).bits;
        seen = atomicCAS(word, expected, (expected & ~(0xffffu << shift)) | bits << shift);
    } while (seen != expected);
}
__device__ __forceinline__ void atomic_add(Half* to, Half x) {
#ifdef __CUDA_ARCH__
    atomicAdd(reinterpret_cast<__half*>(to), __ushort_as_half(x.bits));
#else
    atomic_add_16_bit(to, x);
#endif
}
__device__ __forceinline__ void atomic_add(BFloat16* to, BFloat16 x) {
#ifdef __CUDA_ARCH__
    atomicAdd(reinterpret_cast<__nv_bfloat16*>(to), __ushort_as_bfloat16(x.bits));
#else
    atomic_add_16_bit(to, x);
#endif
}

/// Adds 16 bytes at once, in fewer transactions if the device can.
template <class T, int V>
__device__ __forceinline__ void atomic_add(Pack<T, V>* to, const Pack<T, V>& x) {
    for (int v = 0; v < V; ++v) atomic_add(to->value + v, x.value[v]);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void atomic_add(Pack<float, 4>* to, const Pack<float, 4>& x) {
    atomicAdd(reinterpret_cast<float4*>(to), make_float4(x.value[0], x.value[1], x.value[2], x.value[3]));
}
__device__ __forceinline__ void atomic_add(Pack<Half, 8>* to, const Pack<Half, 8>& x) {
    for (int v = 0; v < 8; v += 2) {
        const __half2 pair = __halves2half2(__ushort_as_half(x.value[v].bits), __ushort_as_half(x.value[v + 1].bits));
        atomicAdd(reinterpret_cast<__half2*>(to->value + v), pair);
    }
}
__device__ __forceinline__ void atomic_add(Pack<BFloat16, 8>* to, const Pack<BFloat16, 8>& x) {
    for (int v = 0; v < 8; v += 2) {
        const __nv_bfloat162 pair = __halves2bfloat162(__ushort_as_bfloat16(x.value[v].bits), __ushort_as_bfloat16(x.value[v + 1].bits));
        atomicAdd(reinterpret_cast<__nv_bfloat162*>(to->value + v), pair);
    }
}
#endif

/// Calls f.template operator()<T>() with the element type of a dtype that supports addition.
template <class F>
void with_added(DType dtype, F&& f) {
    switch (dtype) {
        case DType::int32: return f.template operator()<i32>();
        case DType::int64: return f.template operator()<i64>();
        default: return with_floating(dtype, f);
    }
}

/// Integers wrap.
template <class T>
__device__ __forceinline__ T added(T a, T b) {
    if constexpr (std::is_same_v<T, i32> || std::is_same_v<T, i64>) {
        using U = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        return convert<T>(to_float(a) + to_float(b));
    } else {
        return a + b;
    }
}

}  // namespace tapir::gpu
