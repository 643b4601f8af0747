// Adds at computed positions with the same result each time (DeterministicScope): the items are sorted by their
// targets, and each target's are added in their order, as on the CPU.
#include <cub/device/device_radix_sort.cuh>

#include "tapir/cuda/allocator.h"
#include "tapir/cuda/indexing.cuh"

namespace tapir::gpu {
namespace {

template <class Keys>
__global__ void __launch_bounds__(kThreads) number_kernel(u32 n, Keys keys, u64* key, u32* item) {
    const u32 i = static_cast<u32>(global_index());
    if (i >= n) return;
    key[i] = static_cast<u64>(keys.at(i));
    item[i] = i;
}

// n items in the order of their keys; items with equal keys keep their order.
struct SortedItems {
    u32 n;
    const u64* keys;
    const u32* items;

    __device__ __forceinline__ bool is_first(u32 i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

class Sort {
 public:
    template <class Keys>
    Sort(const Keys& keys, i64 n) : count_(static_cast<std::size_t>(n)), keys_(2 * count_ * sizeof(u64)), items_(2 * count_ * sizeof(u32)) {
        auto *key = keys_.as<u64>(), *sorted_key = key + n;
        auto *item = items_.as<u32>(), *sorted_item = item + n;
        sorted = {static_cast<u32>(n), sorted_key, sorted_item};
        launch(number_kernel<Keys>, blocks_for(n, kThreads), kThreads, sorted.n, keys, key, item);
        const auto sort = [&](void* memory, std::size_t& bytes) {
            return cub::DeviceRadixSort::SortPairs(memory, bytes, key, sorted_key, item, sorted_item, static_cast<int>(n), 0, 64, current().handle);
        };
        std::size_t bytes = 0;
        TAPIR_CUDA_CHECK(sort(nullptr, bytes));
        const Scratch memory(bytes);
        launched(current(), sort(memory.as<void*>(), bytes));
    }
    SortedItems sorted;

 private:
    std::size_t count_;
    Scratch keys_, items_;
};

// The thread of a key's first item adds all of them.
template <class T>
__global__ void __launch_bounds__(kThreads) add_elements_kernel(SortedItems sorted, T* x, const T* other, ElementPlaces places) {
    const u32 first = static_cast<u32>(global_index());
    if (first >= sorted.n || !sorted.is_first(first)) return;
    const u64 key = sorted.keys[first];
    auto sum = convert<Computed<T>>(x[key]);
    for (u32 i = first; i < sorted.n && sorted.keys[i] == key; ++i) {
        i64 at[2];
        places.offsets.at(sorted.items[i], at);
        sum += convert<Computed<T>>(other[at[1]]);
    }
    x[key] = convert<T>(sum);
}

// Like add_elements_kernel, for the elements of a region; `inner` consecutive ones belong to one position.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_region_kernel(i64 n, SortedItems sorted, T* x, const T* other, i64 other_step, RegionPlaces places, i64 inner) {
    const i64 element = global_index();
    if (element >= n) return;
    i64 at[2];
    places.offsets.at(static_cast<u32>(element), at);
    const auto first = static_cast<u32>(at[1]);
    if (!sorted.is_first(first)) return;
    const u64 key = sorted.keys[first];
    T* to = x + at[0] + static_cast<i64>(key) * places.scale;
    auto sum = convert<Computed<T>>(*to);
    for (u32 i = first; i < sorted.n && sorted.keys[i] == key; ++i) {
        const i64 from = element + (static_cast<i64>(sorted.items[i]) - static_cast<i64>(first)) * inner;
        sum += convert<Computed<T>>(other[from * other_step]);
    }
    *to = convert<T>(sum);
}

}  // namespace

void scatter_add_in_order(const kernels::ElementArgs& args, DType dtype) {
    const OpenFault fault = fault_of(args.index);
    const ElementPlaces places = places_of(args, fault);
    const Sort sort(ElementKeys{places}, args.numel);
    with_floating(dtype, [&]<class T>() {
        launch(add_elements_kernel<T>, blocks_for(args.numel, kThreads), kThreads, sort.sorted, static_cast<T*>(args.x),
               static_cast<const T*>(args.other), places);
    });
}

void add_region_in_order(const kernels::RegionArgs& args, DType dtype) {
    i64 inner = 1;
    for (int d = args.place + 1; d < args.rank; ++d) inner *= args.sizes[d];
    const Sort sort(PositionKeys{static_cast<const i64*>(args.positions.data)}, args.count);
    const OpenFault fault = fault_of(args.positions);
    const RegionPlaces places = places_of(args, args.rank, fault);
    with_floating(dtype, [&]<class T>() {
        launch(add_region_kernel<T>, blocks_for(args.numel, kThreads), kThreads, args.numel, sort.sorted, static_cast<T*>(args.x),
               static_cast<const T*>(args.other), args.other_step, places, inner);
    });
}

}  // namespace tapir::gpu
