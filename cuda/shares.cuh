// Processes several arrays in one launch: each gets as many blocks as its elements need.
#pragma once

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

/// Assigns elements of the arrays to blocks; Most: the number of arrays that fit.
template <int Most>
class Shares {
 public:
    static constexpr i64 kOfBlock = kThreads * 8;  // elements

    /// Adds the next array.
    void add(i64 n) {
        const u32 before = blocks();
        end_[count_++] = before + blocks_for(n, kOfBlock);
    }
    int count() const { return count_; }
    u32 blocks() const { return count_ == 0 ? 0 : end_[count_ - 1]; }

    /// Returns the array of this block, and the first of its elements.
    __device__ __forceinline__ int array(i64& first) const {
        int low = 0, high = count_ - 1;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (blockIdx.x < end_[middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        first = static_cast<i64>(blockIdx.x - (low > 0 ? end_[low - 1] : 0)) * kOfBlock;
        return low;
    }

 private:
    int count_ = 0;
    u32 end_[Most];  // after the blocks of each array
};

}  // namespace tapir::gpu
