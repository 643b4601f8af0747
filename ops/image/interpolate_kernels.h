// Kernels of resampling: along each of three dimensions a result element is a weighted sum of a few neighbouring elements.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

#ifdef __CUDACC__
#define TAPIR_BOTH __host__ __device__ __forceinline__
#else
#define TAPIR_BOTH [[gnu::always_inline]] inline  // none is left for the linker to merge between instruction sets
#endif

namespace tapir::kernels {

enum class Resampling : std::uint8_t { nearest, nearest_exact, linear, cubic };

/// Resamples one dimension, from `in` to `out` elements.
struct ResampleDim {
    std::int64_t in = 1, out = 1;
    double scale = 1;  // elements of the input for one of the result
    Resampling mode = Resampling::nearest;
    bool align_corners = false;

    /// Finds the elements that element o of the result is made of: returns their number, from `first` on, and their weights.
    TAPIR_BOTH int taps(std::int64_t o, std::int64_t& first, double (&weights)[4]) const {
        weights[0] = 1;
        if (in == out && mode != Resampling::cubic) {
            first = o;
            return 1;
        }
        if (mode == Resampling::nearest || mode == Resampling::nearest_exact) {  // in float32, as PyTorch
            const float shift = mode == Resampling::nearest ? 0.0f : 0.5f;
            first = static_cast<std::int64_t>((static_cast<float>(o) + shift) * static_cast<float>(scale));
            if (first > in - 1) first = in - 1;
            return 1;
        }
        double at = align_corners ? scale * static_cast<double>(o) : scale * (static_cast<double>(o) + 0.5) - 0.5;
        if (mode == Resampling::linear) {
            if (at < 0) at = 0;
            first = static_cast<std::int64_t>(at);
            const double t = at - static_cast<double>(first);
            if (first >= in - 1 || t == 0) {
                if (first > in - 1) first = in - 1;
                return 1;
            }
            weights[0] = 1 - t;
            weights[1] = t;
            return 2;
        }
        auto below = static_cast<std::int64_t>(at);
        if (static_cast<double>(below) > at) --below;
        const double t = at - static_cast<double>(below);
        const double own[4] = {far(1 + t), near(t), near(1 - t), far(2 - t)};
        first = inside(below - 1);
        const std::int64_t last = inside(below + 2);
        for (int k = 0; k < 4; ++k) weights[k] = 0;
        for (int k = 0; k < 4; ++k) weights[inside(below - 1 + k) - first] += own[k];  // the edge stands for elements beyond it
        return static_cast<int>(last - first + 1);
    }

    /// Finds the result's elements that element i contributes to: [begin, end). Both ends of taps() only grow with o.
    TAPIR_BOTH void made_of(std::int64_t i, std::int64_t& begin, std::int64_t& end) const {
        double weights[4];
        std::int64_t first;
        const double guess = scale > 0 ? (static_cast<double>(i) - 2) / scale : 0;
        begin = guess <= 0 ? 0 : guess >= static_cast<double>(out) ? out : static_cast<std::int64_t>(guess);
        for (; begin > 0; --begin) {
            const int count = taps(begin - 1, first, weights);
            if (first + count - 1 < i) break;
        }
        for (; begin < out; ++begin) {
            const int count = taps(begin, first, weights);
            if (first + count - 1 >= i) break;
        }
        for (end = begin; end < out; ++end) {
            taps(end, first, weights);
            if (first > i) break;
        }
    }
    /// Returns the weight of element i in element o, which is made of it.
    TAPIR_BOTH double weight_of(std::int64_t i, std::int64_t o) const {
        double weights[4];
        std::int64_t first;
        const int count = taps(o, first, weights);
        return i >= first && i < first + count ? weights[i - first] : 0;
    }

 private:
    TAPIR_BOTH std::int64_t inside(std::int64_t i) const { return i < 0 ? 0 : i > in - 1 ? in - 1 : i; }
    // Keys' cubic convolution with a = -0.75, at distances below 1, and from 1 to 2.
    TAPIR_BOTH static double near(double d) { return ((-0.75 + 2) * d - (-0.75 + 3)) * d * d + 1; }
    TAPIR_BOTH static double far(double d) { return ((-0.75 * d - 5 * -0.75) * d + 8 * -0.75) * d - 4 * -0.75; }
};

/// Arrays of (outer, dims..., inner). Transposed: maps the result's gradient to the input's.
struct ResampleShape {
    std::int64_t outer = 1, inner = 1;
    ResampleDim dims[3];
    bool is_transposed = false;

    TAPIR_BOTH std::int64_t from(int d) const { return is_transposed ? dims[d].out : dims[d].in; }
    TAPIR_BOTH std::int64_t to(int d) const { return is_transposed ? dims[d].in : dims[d].out; }
};

/// Holds for each written element the elements read, from first[i] on, and their weights, weights[begin[i]] to
/// weights[begin[i + 1] - 1].
template <class T>
struct Taps {
    const std::int64_t *first, *begin;
    const T* weights;
    int alike = 0;  // all elements have as many taps: 1 (whose weights are 1) or 2; 0: they differ
};
template <class T>
struct Resample {
    std::int64_t from_sizes[3], to_sizes[3], inner;
    const T* from;
    T* to;
    Taps<T> taps[3];
};
struct ResampleArgs {
    ResampleShape shape;
    DType dtype;
    const void* from;
    void* to;
};

}  // namespace tapir::kernels

// Writes the rows [begin, end), which are (outer, dims 0 and 1). line: room for a row of what is read.
TAPIR_CPU_KERNEL(resample_f32, void(const tapir::kernels::Resample<float>& args, float* line, std::int64_t begin, std::int64_t end))
TAPIR_CPU_KERNEL(resample_f64, void(const tapir::kernels::Resample<double>& args, double* line, std::int64_t begin, std::int64_t end))
TAPIR_GPU_KERNEL(resample, void(const tapir::kernels::ResampleArgs& args))
