// Reads and writes at computed positions: single elements (gather and its kin), and regions, whose rows are moved as
// wholes.
#include <bit>

#include "tapir/core/deterministic.h"
#include "tapir/cuda/allocator.h"
#include "tapir/cuda/indexing.cuh"
#include "tapir/cuda/parts.cuh"

namespace tapir::gpu {

using kernels::AddRowsArgs;
using kernels::ElementArgs;
using kernels::IndexSource;
using kernels::RegionArgs;

namespace {

__global__ void __launch_bounds__(kThreads) check_kernel(i64 n, Indices index) {
    const i64 first = blockIdx.x * kPerBlock + threadIdx.x;
    for (int e = 0; e < kPerThread; ++e) {
        if (const i64 i = first + e * kThreads; i < n) index.at(i, true);
    }
}

// --- The last of equal positions -------------------------------------------------------------------------------------
//
// Note [Equal positions]
// If several items are written to one position, the last wins, as on the CPU. Threads run in any order, so each
// item first claims its key: it leaves its number in a table, where the largest stays, and then only the items that
// find their own number there are written. The table has an entry for each key if there are not many more keys than
// items; otherwise it is a hash table with linear probing. Few items are compared each with each.

// Tells if an item is the last of its key.
struct Last {
    const std::uint8_t* flags = nullptr;  // by item; or
    const u32* order = nullptr;           // by key, or by slot: one more than the number of the last item
    const u32* slots = nullptr;           // by item; null: the key itself

    __device__ __forceinline__ bool is(u32 item, i64 key) const {
        if (flags) return flags[item] != 0;
        return !order || order[slots ? static_cast<i64>(slots[item]) : key] == item + 1;
    }
};

constexpr u32 kFewItems = 1024;

template <class Keys>
__global__ void __launch_bounds__(kFewItems) compare_kernel(u32 n, Keys keys, std::uint8_t* flags) {
    __shared__ i64 all[kFewItems];
    const u32 i = threadIdx.x;
    if (i < n) all[i] = keys.at(i);
    __syncthreads();
    if (i >= n) return;
    bool is_last = true;
    for (u32 later = n; --later > i;) is_last &= all[later] != all[i];
    flags[i] = is_last;
}

__device__ __forceinline__ void claim(u32* place, u32 item) {
    if (*place <= item) atomicMax(place, item + 1);
}

template <class Keys>
__global__ void __launch_bounds__(kThreads) claim_key_kernel(u32 n, Keys keys, u32* order) {
    const u32 i = static_cast<u32>(global_index());
    if (i < n) claim(order + keys.at(i), i);
}

template <class Keys>
__global__ void __launch_bounds__(kThreads) claim_slot_kernel(u32 n, Keys keys, u64* taken, u32* order, u32 mask, u32* slots) {
    const u32 i = static_cast<u32>(global_index());
    if (i >= n) return;
    const u64 key = static_cast<u64>(keys.at(i)) + 1;  // 0: a free slot
    auto slot = static_cast<u32>(key * 0x9e3779b97f4a7c15u >> 32) & mask;
    for (;; slot = (slot + 1) & mask) {
        u64 found = taken[slot];
        if (found == 0) found = atomicCAS(reinterpret_cast<unsigned long long*>(taken + slot), 0ull, static_cast<unsigned long long>(key));
        if (found == 0 || found == key) break;
    }
    claim(order + slot, i);
    slots[i] = slot;
}

// Finds the last of equal keys among n items. Keys are not negative; they are below `extent` unless that is 0.
class LastWriters {
 public:
    template <class Keys>
    LastWriters(const Keys& keys, i64 n, i64 extent)
        : is_direct_(n > kFewItems && extent > 0 && extent <= 8 * n),
          capacity_(n <= kFewItems || is_direct_ ? 0 : std::bit_ceil(static_cast<u64>(2 * n))),
          table_(n <= 1               ? 0
                     : n <= kFewItems ? static_cast<std::size_t>(n)
                                      : table_bytes(extent)),
          slots_(capacity_ ? static_cast<std::size_t>(n) * sizeof(u32) : 0) {
        const u32 count = static_cast<u32>(n);
        if (n <= 1) return;
        if (n <= kFewItems) {
            last.flags = table_.as<std::uint8_t>();
            launch(compare_kernel<Keys>, 1, (count + 31) / 32 * 32, count, keys, table_.as<std::uint8_t>());
            return;
        }
        set_bytes(table_.as(), 0, table_bytes(extent));
        auto* taken = table_.as<u64>();
        auto* order = is_direct_ ? table_.as<u32>() : reinterpret_cast<u32*>(taken + capacity_);
        last.order = order;
        if (is_direct_) {
            launch(claim_key_kernel<Keys>, blocks_for(n, kThreads), kThreads, count, keys, order);
        } else {
            auto* slots = slots_.as<u32>();
            last.slots = slots;
            launch(claim_slot_kernel<Keys>, blocks_for(n, kThreads), kThreads, count, keys, taken, order, static_cast<u32>(capacity_ - 1), slots);
        }
    }
    Last last{};

 private:
    std::size_t table_bytes(i64 extent) const {
        return is_direct_ ? static_cast<std::size_t>(extent) * sizeof(u32) : capacity_ * (sizeof(u64) + sizeof(u32));
    }
    bool is_direct_;
    u64 capacity_;
    Scratch table_, slots_;
};

// --- Single elements -------------------------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kThreads) gather_kernel(u32 n, const T* x, T* out, ElementPlaces places) {
    const u32 first = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    T value[kPerThread];
    for (int e = 0; e < kPerThread; ++e) {
        if (const u32 i = first + e * kThreads; i < n) value[e] = x[places.in_x(i, true)];
    }
    for (int e = 0; e < kPerThread; ++e) {
        if (const u32 i = first + e * kThreads; i < n) out[i] = value[e];
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) scatter_kernel(u32 n, T* x, const T* other, T number, ElementPlaces places, Last last) {
    u32 i = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
        i64 in_x, in_other;
        places.find(i, in_x, in_other);
        if (last.is(i, in_x)) x[in_x] = other ? other[in_other] : number;
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) take_kernel(u32 n, T* x, T* out, ElementPlaces places, Last last) {
    u32 i = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
        const i64 in_x = places.in_x(i, false);
        T value = 0;
        if (last.is(i, in_x)) {
            value = x[in_x];
            x[in_x] = 0;
        }
        out[i] = value;
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) scatter_add_kernel(u32 n, T* x, const T* other, ElementPlaces places) {
    u32 i = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
        i64 in_x, in_other;
        places.find(i, in_x, in_other);
        atomic_add(x + in_x, other[in_other]);
    }
}

struct Multiply {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        if constexpr (std::is_integral_v<T>) {
            using U = std::make_unsigned_t<T>;
            return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));  // wraps
        } else {
            return a * b;
        }
    }
};

// *to = op(*to, x) while other threads may do so too. Does not write if nothing would change.
template <class T, class Op>
__device__ __forceinline__ void atomic_combine(T* to, T x, Op op) {
    using Bits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
    auto* place = reinterpret_cast<Bits*>(to);
    Bits seen = *place;
    for (;;) {
        T old;
        memcpy(&old, &seen, sizeof(T));
        const T combined = op(old, x);
        Bits wanted;
        memcpy(&wanted, &combined, sizeof(T));
        if (wanted == seen) return;
        const Bits found = atomicCAS(place, seen, wanted);
        if (found == seen) return;
        seen = found;
    }
}

template <class T, class Op>
__global__ void __launch_bounds__(kThreads) scatter_combine_kernel(u32 n, T* x, const T* other, ElementPlaces places, Op op) {
    u32 i = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
        i64 in_x, in_other;
        places.find(i, in_x, in_other);
        atomic_combine(x + in_x, other[in_other], op);
    }
}

void skip(IndexSource& index, i64 count) {
    index.data = static_cast<const std::byte*>(index.data) + count * static_cast<i64>(itemsize(index.dtype));
    if (index.checked) index.checked += count;
}

// Calls f with args, or with parts of them that have at most kMostPositions elements.
template <class F>
void in_parts(const ElementArgs& args, Order order, const F& f) {
    const auto begin_at = [](ElementArgs& part, int d, i64 first) {
        part.x = moved(part.x, first * part.x_strides[d] * part.size);
        part.other = moved(part.other, first * part.other_strides[d] * part.size);
        skip(part.index, first * (part.numel / part.sizes[d]));
    };
    in_halves(args, order, [](const ElementArgs& part) { return too_many(part, part.numel); }, begin_at, f);
}

// --- Regions ---------------------------------------------------------------------------------------------------------

enum class Move { read, write, take, add, add_apart };  // add_apart: no position comes twice

template <class T>
struct RegionOperands {
    T* x;
    T* other;  // null: the number
    i64 other_step;
    T number;
    Last last;
};

template <Move kMove, class T>
__device__ __forceinline__ void move_one(T* x, T* other, T number, bool is_last) {
    if constexpr (kMove == Move::read) {
        *other = *x;
    } else if constexpr (kMove == Move::write) {
        if (is_last) *x = other ? *other : number;
    } else if constexpr (kMove == Move::take) {
        *other = is_last ? *x : T(0);
        if (is_last) *x = 0;
    } else if constexpr (kMove == Move::add) {
        atomic_add(x, *other);
    } else {
        *x = added(*x, *other);
    }
}

// Like move_one(), for 16 bytes at once.
template <Move kMove, class T, int V>
__device__ __forceinline__ void move_pack(Pack<T, V>* x, Pack<T, V>* other, bool is_last) {
    if constexpr (kMove == Move::read) {
        *other = *x;
    } else if constexpr (kMove == Move::write) {
        if (is_last) *x = *other;
    } else if constexpr (kMove == Move::take) {
        Pack<T, V> zero{};
        *other = is_last ? *x : zero;
        if (is_last) *x = zero;
    } else if constexpr (kMove == Move::add) {
        atomic_add(x, *other);
    } else {
        Pack<T, V> sum = *x;
        const Pack<T, V> more = *other;
        for (int v = 0; v < V; ++v) sum.value[v] = added(sum.value[v], more.value[v]);
        *x = sum;
    }
}

template <Move kMove>
constexpr bool kNeedsLast = kMove == Move::write || kMove == Move::take;

template <Move kMove, class T>
__global__ void __launch_bounds__(kThreads) region_kernel(u32 n, RegionOperands<T> r, RegionPlaces places) {
    const u32 first = blockIdx.x * static_cast<u32>(kPerBlock) + threadIdx.x;
    if constexpr (kMove == Move::read) {
        T value[kPerThread];
        for (int e = 0; e < kPerThread; ++e) {
            const u32 i = first + e * kThreads;
            if (i >= n) break;
            i64 at[2];
            places.offsets.at(i, at);
            value[e] = r.x[at[0] + places.positions.at(at[1], true) * places.scale];
        }
        for (int e = 0; e < kPerThread; ++e) {
            if (const u32 i = first + e * kThreads; i < n) r.other[i] = value[e];
        }
    } else {
        u32 i = first;
        for (int e = 0; e < kPerThread && i < n; ++e, i += kThreads) {
            i64 at[2];
            places.offsets.at(i, at);
            const i64 position = places.positions.at(at[1], false);
            const bool is_last = kNeedsLast<kMove> && r.last.is(static_cast<u32>(at[1]), position);
            T* other = r.other ? r.other + i * r.other_step : nullptr;
            move_one<kMove>(r.x + at[0] + position * places.scale, other, r.number, is_last);
        }
    }
}

__device__ __forceinline__ bool are_aligned(const void* x, const void* y, i64 bytes) {
    const auto low_bits = reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y) | static_cast<std::uintptr_t>(bytes);
    return low_bits % 16 == 0;
}

template <Move kMove, class T>
__device__ __forceinline__ void move_row(T* x, T* other, const RegionOperands<T>& r, const RowGroups& groups, i64 begin, i64 end, bool is_last) {
    constexpr int V = 16 / sizeof(T);
    const bool is_array = r.other && r.other_step == 1;
    if (is_array && are_aligned(x + begin, other + begin, (end - begin) * static_cast<i64>(sizeof(T)))) {
        auto* packs = reinterpret_cast<Pack<T, V>*>(x + begin);
        auto* others = reinterpret_cast<Pack<T, V>*>(other + begin);
        const i64 count = (end - begin) / V;
        for (i64 i = groups.lane(); i < count; i += groups.lanes) move_pack<kMove>(packs + i, others + i, is_last);
    } else {
        for (i64 i = begin + groups.lane(); i < end; i += groups.lanes) {
            move_one<kMove>(x + i, r.other ? other + i * r.other_step : nullptr, r.number, is_last);
        }
    }
}

template <Move kMove, class T>
__global__ void __launch_bounds__(kThreads) region_rows_kernel(RowGroups groups, RegionOperands<T> r, RegionPlaces places) {
    for (int e = 0; e < groups.each; ++e) {
        i64 row, begin, end, at[2];
        if (!groups.item(e, row, begin, end)) return;
        places.offsets.at(static_cast<u32>(row), at);
        const i64 position = places.positions.at(at[1], groups.lane() == 0 && begin == 0);
        const bool is_last = kNeedsLast<kMove> && r.last.is(static_cast<u32>(at[1]), position);
        T* other = r.other ? r.other + row * groups.run * r.other_step : nullptr;
        move_row<kMove>(r.x + at[0] + position * places.scale, other, r, groups, begin, end, is_last);
    }
}

// Returns how many elements at the end of a region are contiguous, if it is worth moving them as a row; else 1.
i64 run_of(const RegionArgs& args) {
    const int last = args.rank - 1;
    if (last < 0 || last == args.place || args.strides[last] != 1) return 1;
    constexpr i64 least_bytes = 32;
    return args.sizes[last] * args.size >= least_bytes ? args.sizes[last] : 1;
}

// Calls f with args, or with parts of them that have at most kMostPositions rows, or elements.
template <class F>
void in_parts(const RegionArgs& args, Order order, bool by_rows, const F& f) {
    const auto dimension = [by_rows](const RegionArgs& part) { return too_many(part, part.numel / (by_rows ? run_of(part) : 1)); };
    const auto begin_at = [](RegionArgs& part, int d, i64 first) {
        part.x = moved(part.x, first * part.strides[d] * part.size);
        part.other = moved(part.other, first * (part.numel / part.sizes[d]) * part.other_step * part.size);
        if (d != part.place) return;
        part.count = part.sizes[d];
        skip(part.positions, first);
    };
    in_halves(args, order, dimension, begin_at, f);
}

template <Move kMove, class T>
void launch_region(const RegionArgs& args, const Last& last) {
    RegionOperands<T> r{static_cast<T*>(args.x), static_cast<T*>(args.other), args.other_step, {}, last};
    if constexpr (kMove == Move::write) r.number = static_cast<T>(args.number);
    const i64 run = run_of(args);
    const OpenFault fault = fault_of(args.positions);
    const RegionPlaces places = places_of(args, run > 1 ? args.rank - 1 : args.rank, fault);
    if (run == 1) {
        return launch(region_kernel<kMove, T>, blocks_for(args.numel, kPerBlock), kThreads, static_cast<u32>(args.numel), r, places);
    }
    const bool aligned = is_aligned(args.x, 16) && is_aligned(args.other, 16) && run * args.size % 16 == 0;
    const RowGroups groups(args.numel / run, run, sizeof(T), aligned);
    launch(region_rows_kernel<kMove, T>, groups.blocks(), kThreads, groups, r, places);
}

template <Move kMove>
void write_or_take(const RegionArgs& args) {
    const Order order = kMove == Move::take ? Order::backwards : Order::forwards;
    in_parts(args, order, /*by_rows=*/true, [](const RegionArgs& part) {
        const PositionKeys keys{static_cast<const i64*>(part.positions.data)};
        const LastWriters writers(keys, part.distinct ? 1 : part.count, 0);
        with_size(part.size, [&]<class T>() { launch_region<kMove, T>(part, writers.last); });
    });
}

// --- Rows of a matrix ------------------------------------------------------------------------------------------------

template <class T>
struct RowParts {
    int count;
    struct {
        const i64* index;
        const T* values;
        i64 first;  // row
    } part[AddRowsArgs::kMaxParts];
};

template <Move kMove, class T>
__global__ void __launch_bounds__(kThreads) add_rows_kernel(RowGroups groups, T* x, i64 rows, RowParts<T> parts) {
    const RegionOperands<T> r{x, x, 1, {}, {}};
    for (int e = 0; e < groups.each; ++e) {
        i64 row, begin, end;
        if (!groups.item(e, row, begin, end)) return;
        int p = 0;
        while (p + 1 < parts.count && row >= parts.part[p + 1].first) ++p;
        row -= parts.part[p].first;
        const i64 index = parts.part[p].index[row];
        T* to = x + (index < 0 ? index + rows : index) * groups.run;
        move_row<kMove>(to, const_cast<T*>(parts.part[p].values) + row * groups.run, r, groups, begin, end, true);
    }
}

template <class T>
void launch_add_rows(const AddRowsArgs& args) {
    RowParts<T> parts;
    parts.count = args.parts;
    i64 rows = 0;
    bool aligned = is_aligned(args.x, 16) && args.width * static_cast<i64>(sizeof(T)) % 16 == 0;
    for (int p = 0; p < args.parts; ++p) {
        parts.part[p] = {args.part[p].index, static_cast<const T*>(args.part[p].values), rows};
        rows += args.part[p].rows;
        aligned = aligned && is_aligned(args.part[p].values, 16);
    }
    if (rows == 0 || args.width == 0) return;
    const RowGroups groups(rows, args.width, sizeof(T), aligned);
    const auto kernel = rows == 1 ? add_rows_kernel<Move::add_apart, T> : add_rows_kernel<Move::add, T>;
    launch(kernel, groups.blocks(), kThreads, groups, static_cast<T*>(args.x), args.rows, parts);
}

}  // namespace

void check_index(const IndexSource& index, i64 count) {
    const OpenFault fault = fault_of(index);
    launch(check_kernel, blocks_for(count, kPerBlock), kThreads, count, indices_of(index, fault));
}

void gather(const ElementArgs& args) {
    in_parts(args, Order::forwards, [](const ElementArgs& part) {
        const OpenFault fault = fault_of(part.index);
        with_size(part.size, [&]<class T>() {
            launch(gather_kernel<T>, blocks_for(part.numel, kPerBlock), kThreads, static_cast<u32>(part.numel), static_cast<const T*>(part.x),
                   static_cast<T*>(part.other), places_of(part, fault));
        });
    });
}

void scatter(const ElementArgs& args) {
    in_parts(args, Order::forwards, [](const ElementArgs& part) {
        const OpenFault fault = fault_of(part.index);
        const ElementPlaces places = places_of(part, fault);
        const LastWriters writers(ElementKeys{places}, part.numel, part.extent);
        with_size(part.size, [&]<class T>() {
            launch(scatter_kernel<T>, blocks_for(part.numel, kPerBlock), kThreads, static_cast<u32>(part.numel), static_cast<T*>(part.x),
                   static_cast<const T*>(part.other), static_cast<T>(part.number), places, writers.last);
        });
    });
}

void take(const ElementArgs& args) {
    in_parts(args, Order::backwards, [](const ElementArgs& part) {
        const OpenFault fault = fault_of(part.index);
        const ElementPlaces places = places_of(part, fault);
        const LastWriters writers(ElementKeys{places}, part.numel, part.extent);
        with_size(part.size, [&]<class T>() {
            launch(take_kernel<T>, blocks_for(part.numel, kPerBlock), kThreads, static_cast<u32>(part.numel), static_cast<T*>(part.x),
                   static_cast<T*>(part.other), places, writers.last);
        });
    });
}

void scatter_add(const ElementArgs& args, DType dtype) {
    in_parts(args, Order::forwards, [dtype](const ElementArgs& part) {
        if (is_floating(dtype) && is_deterministic()) return scatter_add_in_order(part, dtype);
        const OpenFault fault = fault_of(part.index);
        with_added(dtype, [&]<class T>() {
            launch(scatter_add_kernel<T>, blocks_for(part.numel, kPerBlock), kThreads, static_cast<u32>(part.numel), static_cast<T*>(part.x),
                   static_cast<const T*>(part.other), places_of(part, fault));
        });
    });
}

void scatter_combine(const ElementArgs& args, kernels::Combine how, DType dtype) {
    in_parts(args, Order::forwards, [how, dtype](const ElementArgs& part) {
        const OpenFault fault = fault_of(part.index);
        with_added(dtype, [&]<class T>() {
            if constexpr (sizeof(T) >= 4) {
                const auto start = [&]<class Op>(Op op) {
                    launch(scatter_combine_kernel<T, Op>, blocks_for(part.numel, kPerBlock), kThreads, static_cast<u32>(part.numel),
                           static_cast<T*>(part.x), static_cast<const T*>(part.other), places_of(part, fault), op);
                };
                how == kernels::Combine::prod ? start(Multiply{}) : how == kernels::Combine::max ? start(Max{}) : start(Min{});
            }
        });
    });
}

void read_region(const RegionArgs& args) {
    in_parts(args, Order::forwards, /*by_rows=*/true,
             [](const RegionArgs& part) { with_size(part.size, [&]<class T>() { launch_region<Move::read, T>(part, {}); }); });
}

void write_region(const RegionArgs& args) { write_or_take<Move::write>(args); }
void take_region(const RegionArgs& args) { write_or_take<Move::take>(args); }

void add_region(const RegionArgs& args, DType dtype) {
    const bool apart = args.distinct || args.count == 1;
    if (!apart && is_floating(dtype) && is_deterministic()) {
        return in_parts(args, Order::forwards, /*by_rows=*/false, [dtype](const RegionArgs& part) { add_region_in_order(part, dtype); });
    }
    in_parts(args, Order::forwards, /*by_rows=*/true, [=](const RegionArgs& part) {
        with_added(dtype, [&]<class T>() { apart ? launch_region<Move::add_apart, T>(part, {}) : launch_region<Move::add, T>(part, {}); });
    });
}

void add_rows(const AddRowsArgs& args) {
    with_floating(args.dtype, [&]<class T>() { launch_add_rows<T>(args); });
}

}  // namespace tapir::gpu
