// The peak performance of this machine, with the library's own kernels and threads.
#pragma once

namespace tapir::detail {

struct Peak {
    double flops = 0, bytes = 0;  // per second
    bool was_busy = false;        // all threads together were slower than one: others wanted the cores
};
/// Measured at the first call. device: a CUDA device's number, or -1.
Peak peak(int device);

}  // namespace tapir::detail
