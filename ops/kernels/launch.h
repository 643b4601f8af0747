// One call for a kernel that the CPU and the CUDA device have under one name: the tensor's device chooses.
//
//     TAPIR_KERNEL(scan, const tapir::kernels::LineArgs& args, tapir::kernels::Scan kind)        in NAME_kernels.h
//     TAPIR_LAUNCH(x, lines, line_size, scan, args, kind);                                        in NAME.cpp
//
// kernels::scan(args, kind, begin, end) does items [begin, end) on the CPU, gpu::scan(args, kind, count) all of them in one launch.
// kernel_data() in on_stream_impl.h gives the addresses of tensors for both.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tapir/ops/kernels/gpu.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {

constexpr std::int64_t kParallelWork = 32 * 1024;  // elements; below, waking threads costs more than it gains

/// Calls body(begin, end) for parts of [0, count), on several threads if there is enough work. Parts of small items begin at multiples of
/// 64, so that threads do not share cache lines.
template <class Body>
void share_out(std::int64_t count, std::int64_t work_per_item, const Body& body) {
    const bool is_small = count * work_per_item < 2 * kParallelWork;
    if (is_small) {
        if (count > 0) body(std::int64_t{0}, count);
        return;
    }
    if (detail::shapes_only) [[unlikely]]
        return;
    const std::int64_t work = std::max<std::int64_t>(work_per_item, 1), grain = std::max<std::int64_t>(1, kParallelWork / work);
    const bool are_small = work < 16;
    are_small ? parallel_for(count, grain, body) : parallel_items(count, grain, body);
}

}  // namespace tapir

/// Runs a kernel that TAPIR_KERNEL or TAPIR_TYPED_KERNEL declares over `count` items, each of `work` elements, where x is. Does nothing if
/// there are none.
#define TAPIR_LAUNCH(x, count, work, name, ...)                            \
    (::tapir::on_gpu(x)                                                    \
         ? ((count) > 0 ? ::tapir::gpu::name(__VA_ARGS__, count) : void()) \
         : ::tapir::share_out(count, work, [&](std::int64_t begin, std::int64_t end) { ::tapir::kernels::name(__VA_ARGS__, begin, end); }))
