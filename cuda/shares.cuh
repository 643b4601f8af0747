// Work on several arrays in one launch: each gets the blocks that its elements make.
#pragma once

#include "tapir/cuda/device.cuh"

namespace tapir::gpu {

/// Which elements of which array a block does; Most: arrays that there is room for.
template <int Most>
class Shares {
 public:
    static constexpr i64 kOfBlock = kThreads * 8;  // elements

    /// The next array.
    void add(i64 n) {
        const u32 before = blocks();
        end_[count_++] = before + blocks_for(n, kOfBlock);
    }
    int count() const { return count_; }
    u32 blocks() const { return count_ == 0 ? 0 : end_[count_ - 1]; }

    /// Whose elements this block does, and the first of them.
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
