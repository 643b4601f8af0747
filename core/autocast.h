// Mixed precision: matrix products in 16 bits, ops that need range or digits in float32, the others in the dtype of their inputs.
//
//     optim::GradScaler scaler;                       // float16 only; bfloat16 has float32's range
//     {
//         AutocastScope autocast(float16);
//         Tape tape;
//         Tensor loss = model.loss(batch);            // parameters stay float32
//         tape.backward(scaler.scale(loss));          // gradients have the dtype of what they belong to
//     }
//     scaler.step(adam);
//     scaler.update();
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

/// While it lives, on this thread and on every device, ops take floating inputs as PyTorch's autocast lists say:
///   converted to `dtype`    matmul, mm, bmm, mv, linear, addmm, einsum, and the layers and cells made of them
///   converted to float32    acos, asin, cosh, exp, expm1, log, log10, log1p, log2, pow, reciprocal, rsqrt, sinh, softplus, tan;
///                           softmax, log_softmax, logsumexp, layer_norm, norm, sum, prod, cumsum, cumprod, the losses
///   of the widest dtype     all others
/// float64 is left alone. Weights are converted once and kept for as long as the scope and the tape live.
/// binary_cross_entropy refuses 16-bit inputs (ValueError): use binary_cross_entropy_with_logits.
/// Throws DTypeError unless the dtype is float16 or bfloat16.
class AutocastScope {
 public:
    [[nodiscard]] explicit AutocastScope(DType dtype, bool enabled = true, Loc loc = Loc::current());
    ~AutocastScope();
    AutocastScope(const AutocastScope&) = delete;
    AutocastScope& operator=(const AutocastScope&) = delete;

 private:
    struct Cache;
    friend struct AutocastAccess;  // autocast_impl.h
    AutocastScope* outer_;
    DType dtype_;
    bool enabled_;
    Cache* cache_ = nullptr;
};

}  // namespace tapir
