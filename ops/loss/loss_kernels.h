// The kernels of the losses. Each takes float32 or float64 arrays without gaps.
#pragma once

#include <cstdint>

#include "tapir/core/dtype.h"
#include "tapir/ops/cpu/isa.h"
#include "tapir/ops/kernels/gpu.h"

namespace tapir::kernels {

/// With hard(i) = (1 - smoothing) weight[target] and soft(c) = smoothing weight[c] / classes, loss i is
/// -hard log_softmax(x)[target] - sum_c soft(c) log_softmax(x)[c], and 0 where the target is ignore_index.
struct CrossEntropyArgs {
    DType dtype;
    const void* logits;           // (outer, classes, inner)
    const std::int64_t* targets;  // (outer, inner), in [0, classes) or ignore_index
    const void* weight;           // (classes,) or null: ones
    std::int64_t classes, inner, ignore_index;
    double smoothing;
    double scale;  // of grad
    void* losses;  // (outer, inner)
    void* grad;    // scale * d losses / d logits, of logits' shape; or null
};

/// The losses are  -sum_c q[c] log_softmax(x)[c]  with constants q, and mass = sum_c q[c]. float32 or float64.
struct DistributionArgs {
    DType dtype;
    const std::int64_t* targets;  // (outer, inner)
    const void* weight;           // (classes,) or null
    std::int64_t outer, classes, inner, ignore_index;
    double smoothing;
    const double* scale;  // of both, on the device; null: 1
    void* q;              // (outer, classes, inner)
    void* mass;           // (outer, 1, inner)
};

/// Connectionist temporal classification. A target of S labels is extended to 2 S + 1: blank, label, blank, ..., blank.
struct CtcArgs {
    DType dtype;                  // float32 or float64
    const void* log_probs;        // (time, n, classes)
    const std::int64_t* targets;  // of all examples
    const std::int64_t* lengths;  // (3, n): of the inputs, of the targets, and where each target begins
    std::int64_t time, n, classes, longest, blank;
    bool zero_infinity;
    void* alpha;   // (n, time, 2 longest + 1): log-probabilities of all prefixes that end there
    void* beta;    // (n, 2, 2 longest + 1), of suffixes; null without grad
    void* losses;  // (n,)
    void* grad;    // d losses / d log_probs; or null
};

/// Losses of pairs (x, t) of float32 or float64 without gaps. With d = x - t:
///   huber      d^2 / 2 within beta, beta (|d| - beta / 2) beyond
///   smooth_l1  the same divided by beta
///   logits     binary cross-entropy of sigmoid(x) and t
enum class PairLoss : std::uint8_t { huber, smooth_l1, logits };
struct PairLossArgs {
    PairLoss kind;
    DType dtype;
    double beta;
    const void *x, *t;
    std::int64_t n;
};

}  // namespace tapir::kernels

/// Computes the losses [begin, end) of outer * inner.
TAPIR_CPU_KERNEL(cross_entropy, void(const tapir::kernels::CrossEntropyArgs& args, std::int64_t begin, std::int64_t end))
/// out[o][c][i] = d[o][c][i] * g * scale, with one g, or one of each (o, i); o is counted. scale: null for 1. out may be d. On a GPU for
/// any floating dtype.
TAPIR_KERNEL(scale_classes, tapir::DType dtype, const void* d, const void* g, bool of_lines, const double* scale, void* out, std::int64_t classes,
             std::int64_t inner)

/// sum (a - b)^2 of n elements, as double.
TAPIR_CPU_KERNEL(squared_distance, double(tapir::DType dtype, const void* a, const void* b, std::int64_t n))
/// out = (a - b) * g[0] * factor; on a GPU for any floating dtype.
TAPIR_KERNEL(scaled_difference, tapir::DType dtype, const void* a, const void* b, const void* g, double factor, void* out)

/// Compute the losses' sum, the losses, and their gradients by x (input 0) or t (1), times `scale` and g, of n elements (null: 1).
TAPIR_CPU_KERNEL(pair_loss_sum, double(const tapir::kernels::PairLossArgs& args))
TAPIR_CPU_KERNEL(pair_losses, void(const tapir::kernels::PairLossArgs& args, void* out))
TAPIR_CPU_KERNEL(pair_loss_grad, void(const tapir::kernels::PairLossArgs& args, int input, const void* g, double scale, void* out))

/// y = -(t max(log(x), -100) + (1 - t) max(log(1 - x), -100)). False when an x is not in [0, 1].
TAPIR_CPU_KERNEL(binary_cross_entropy, bool(tapir::DType dtype, const void* x, const void* t, void* y, std::int64_t n))
/// Its derivative by x, times g: g (x - t) / max(x (1 - x), 1e-12); on a GPU for any floating dtype.
TAPIR_KERNEL(binary_cross_entropy_grad, tapir::DType dtype, const void* g, const void* x, const void* t, void* out)

// On a GPU: any floating dtype. Only there the summed weights of the targets, and so args.scale, are known: `grad` is computed
// for a scale of 1. Losses are in the dtype that is computed in, float32 for 16-bit floats. There is at least one position.

/// Targets out of range give IndexError later, with dim and shape in its message.
TAPIR_GPU_KERNEL(cross_entropy, void(const tapir::kernels::CrossEntropyArgs& args, std::int64_t positions, int dim, const tapir::Shape& shape))
/// Computes these losses from log-probabilities, without `grad`.
TAPIR_GPU_KERNEL(nll_loss, void(const tapir::kernels::CrossEntropyArgs& args, std::int64_t positions, int dim, const tapir::Shape& shape))
/// out (of args.dtype) = the sum of args.losses, or their mean: divided by the summed weights. scale: one over these, 0
/// where they are 0; or null.
TAPIR_GPU_KERNEL(total_loss, void(const tapir::kernels::CrossEntropyArgs& args, std::int64_t positions, bool is_mean, void* out, double* scale))
TAPIR_GPU_KERNEL(distribution, void(const tapir::kernels::DistributionArgs& args))

/// out[0] = scale * sum (a - b)^2. n may be 0.
TAPIR_GPU_KERNEL(squared_distance, void(tapir::DType dtype, const void* a, const void* b, std::int64_t n, double scale, void* out))
/// As on the CPU; an x that is not in [0, 1] gives ValueError later.
TAPIR_GPU_KERNEL(binary_cross_entropy, void(tapir::DType dtype, const void* x, const void* t, void* y, std::int64_t n))
/// One block for each example. Targets out of range or blank give IndexError later.
TAPIR_GPU_KERNEL(ctc_loss, void(const tapir::kernels::CtcArgs& args, const tapir::Shape& shape))
