// A stand-in for CUB's radix sort, see cuda_runtime.h. Only what cuda/ uses; names and meanings are those of CUB's API
// reference. Sorts on the stream's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <cuda_runtime.h>

namespace cub {

template <class T>
struct DoubleBuffer {
    T* d_buffers[2];
    int selector = 0;
    DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
    T* Current() const { return d_buffers[selector]; }
    T* Alternate() const { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
    /// The same from one pair of arrays to another.
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void* temporary, std::size_t& bytes, const Key* keys_in, Key* keys_out, const Value* values_in, Value* values_out,
                                 Count count, int begin_bit, int end_bit, cudaStream_t stream) {
        if (!temporary) {
            bytes = 1024;
            return cudaSuccess;
        }
        emulator::enqueue(stream, [=] {
            std::copy(keys_in, keys_in + count, keys_out);
            std::copy(values_in, values_in + count, values_out);
            sort_bits(keys_out, values_out, count, begin_bit, end_bit);
        });
        return cudaSuccess;
    }

    /// Without temporary memory: says how much it takes. The buffers that are not current afterwards hold anything.
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void* temporary, std::size_t& bytes, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values, Count count,
                                 int begin_bit, int end_bit, cudaStream_t stream) {
        if (!temporary) {
            bytes = 1024;
            return cudaSuccess;
        }
        if (bytes < 1024 || begin_bit < 0 || begin_bit > end_bit || end_bit > static_cast<int>(sizeof(Key) * 8)) {
            return cudaErrorInvalidValue;
        }
        Key *const from = keys.Current(), *const to = keys.Alternate();
        Value *const value_from = values.Current(), *const value_to = values.Alternate();
        emulator::enqueue(stream, [=] {
            std::memset(temporary, 0x5a, 1024);
            std::copy(from, from + count, to);
            std::copy(value_from, value_from + count, value_to);
            sort_bits(to, value_to, count, begin_bit, end_bit);
            std::memset(from, 0x5a, static_cast<std::size_t>(count) * sizeof(Key));
            std::memset(value_from, 0x5a, static_cast<std::size_t>(count) * sizeof(Value));
        });
        keys.selector ^= 1;
        values.selector ^= 1;
        return cudaSuccess;
    }

 private:
    template <class Key, class Value, class Count>
    static void sort_bits(Key* keys, Value* values, Count count, int begin_bit, int end_bit) {
        const auto bits = [=](Key key) {
            const int unused = static_cast<int>(sizeof(Key) * 8) - end_bit;
            return end_bit == begin_bit ? Key{0} : static_cast<Key>(static_cast<Key>(key << unused) >> unused >> begin_bit);
        };
        const std::vector<Key> own_keys(keys, keys + count);
        const std::vector<Value> own_values(values, values + count);
        std::vector<std::size_t> order(own_keys.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bits(own_keys[a]) < bits(own_keys[b]); });
        for (std::size_t i = 0; i < order.size(); ++i) {
            keys[i] = own_keys[order[i]];
            values[i] = own_values[order[i]];
        }
    }
};

}  // namespace cub
