// Ops of 16-bit floats that are made of others: computed in float32 and rounded once, at the end.
#pragma once

#include <initializer_list>

#include "tapir/core/tensor.h"
#include "tapir/ops/make/copy.h"

namespace tapir {

///     if (const RoundedOnce once({&a.tensor, &b.tensor}); once.is_needed()) return once.result(cross(once.wide(a), once.wide(b), dim));
/// Needed if all operands that are defined have one 16-bit dtype.
class RoundedOnce {
 public:
    RoundedOnce(std::initializer_list<const Tensor*> operands) {
        dtype_ = (*operands.begin())->dtype();
        for (const Tensor* t : operands) {
            if (t->defined() && t->dtype() != dtype_) dtype_ = float32;
        }
    }
    bool is_needed() const noexcept { return dtype_ == float16 || dtype_ == bfloat16; }
    /// Converts to float32.
    Tensor wide(const Tensor& x) const { return x.defined() ? to(x, float32) : x; }
    Tensor result(const Tensor& y) const { return to(y, dtype_); }

 private:
    DType dtype_;
};

}  // namespace tapir
