// Kernels of winograd.cpp: images with their channels last, cut into tiles of 2 x 2 results, which need 4 x 4 elements.
//
// A tile's 16 transformed numbers lie in 16 planes, each (tiles, channels), `plane` elements apart.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

namespace tapir::kernels {

/// g: planes of a 3 x 3 kernel, each `count` elements, the first one last if it is `flipped`. Writes G g G^T for elements [begin, end) of the
/// planes. Returns false if a number is not finite.
struct WinogradWeight {
    const float* g;
    std::int64_t count;
    bool flipped;
    float* u;
    std::int64_t plane;
};
/// Images and their tiles: tile t is row `t / across % down` and column `t % across` of image `t / (down * across)`.
struct WinogradImages {
    std::int64_t height, width, channels, down, across;
};
/// Writes B^T d B for tiles [begin, begin + count). Elements outside of the image are 0. Returns false if a number is not finite.
struct WinogradInput {
    WinogradImages images;
    std::int64_t before[2];  // how far the first tile begins before the image
    const float* x;
    const float* zeros;  // [channels]
    float* v;
    std::int64_t plane;
};
/// Writes A^T m A + bias + addend, or relu of that, for tiles [begin, begin + count) to `channels` of the images' channels, from channel `first` on.
/// Returns false if a number is not finite.
struct WinogradOutput {
    WinogradImages images;
    std::int64_t first, channels;
    const float* m;
    std::int64_t plane;
    const float* bias;    // of all channels; null for none
    const float* addend;  // images as y; null for none
    bool has_relu;
    float* y;
};
/// For the gradient of the weight. Writes A d A^T for tiles [begin, begin + count) of the gradient d. Returns false if a number is not finite.
struct WinogradGradient {
    WinogradImages images;
    const float* d;
    float* v;
    std::int64_t plane;
};
/// Writes G^T m G: nine planes of `count` elements each. Returns false if a number is not finite.
struct WinogradWeightGradient {
    const float* m;
    std::int64_t plane;
    std::int64_t count;
    float* g;
};

}  // namespace tapir::kernels

TAPIR_CPU_KERNEL(winograd_weight, bool(const tapir::kernels::WinogradWeight& args, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(winograd_input, bool(const tapir::kernels::WinogradInput& args, std::int64_t begin, std::int64_t count))
TAPIR_CPU_KERNEL(winograd_output, bool(const tapir::kernels::WinogradOutput& args, std::int64_t begin, std::int64_t count))
TAPIR_CPU_KERNEL(winograd_gradient, bool(const tapir::kernels::WinogradGradient& args, std::int64_t begin, std::int64_t count))
TAPIR_CPU_KERNEL(winograd_weight_gradient, bool(const tapir::kernels::WinogradWeightGradient& args, std::int64_t begin, std::int64_t end))
