// A stand-in for CUB's sort, see cuda_runtime.h. Only what cuda/ uses; names and meanings are those of CUB's API
// reference.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
    /// Sorts by the bits [begin_bit, end_bit) of unsigned keys; equal keys stay in their order. Without memory it only
    /// sets how many bytes it needs.
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void* memory, std::size_t& bytes, const Key* keys_in, Key* keys_out,
                                 const Value* values_in, Value* values_out, Count count, int begin_bit, int end_bit,
                                 cudaStream_t stream) {
        if (!memory) {
            bytes = 1;
            return cudaSuccess;
        }
        const int width = end_bit - begin_bit;
        const Key mask = width >= static_cast<int>(8 * sizeof(Key)) ? ~Key{0} : (Key{1} << width) - 1;
        emulator::enqueue(stream, [=] {
            std::vector<std::size_t> order(static_cast<std::size_t>(count));
            std::iota(order.begin(), order.end(), std::size_t{0});
            const auto key = [=](std::size_t i) { return keys_in[i] >> begin_bit & mask; };
            std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
            for (std::size_t i = 0; i < order.size(); ++i) {
                keys_out[i] = keys_in[order[i]];
                values_out[i] = values_in[order[i]];
            }
        });
        return cudaSuccess;
    }
};

}  // namespace cub
