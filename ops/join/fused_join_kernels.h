// The kernel of fused_join.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

/// Images with their channels last: rows of `total` channels, joined from rows of each part.
struct JoinedChannels {
    struct Part {
        const float* data;
        std::int64_t channels;
    };
    const Part* parts;
    int count;
    std::int64_t total;
    const float *shift, *a, *b;  // [total]: (x - shift) * a + b; null: x
    bool has_relu;
    float* y;
};

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(joined_channels, void(const tapir::kernels::JoinedChannels& args, std::int64_t begin, std::int64_t end))  // rows
