// What the CUDA tests share.
#pragma once

#include <catch2/catch.hpp>

#include "tapir/tapir.h"

/// Ends the test case, saying so, where there is no CUDA device.
#define NEEDS_CUDA                          \
    if (!tapir::cuda_is_available()) {      \
        WARN("no CUDA device: not tested"); \
        return;                             \
    }                                       \
    static_assert(true)
