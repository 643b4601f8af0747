// Makes ops give the same numbers each time, to the last bit.
//
// On the CPU they always do. On CUDA, the ops that add to computed positions (scatter_add, index_add, the gradients of gather,
// index_select, x[index] and embedding) by default add floats in the order in which threads arrive. With this
// setting they sort the items first and add them in order, which takes several times as long. Convolutions and their
// gradients then use only deterministic algorithms of cuDNN; scatter_reduce of "prod" throws DeviceError for floats. Same as PyTorch's
// torch.use_deterministic_algorithms.
//
// With this setting, ops in batch() also give the same values as one by one: see ops/batch/README.md. Convolutions on the CPU are direct sums: see
// ops/convolution/convolution.h.
#pragma once

namespace tapir {

bool is_deterministic() noexcept;
/// Sets it for the whole process, from the next op on.
void set_deterministic(bool on) noexcept;

/// Turns it on, or off, while it lives; for the whole process.
class DeterministicScope {
 public:
    [[nodiscard]] explicit DeterministicScope(bool on = true) noexcept : before_(is_deterministic()) { set_deterministic(on); }
    ~DeterministicScope() { set_deterministic(before_); }
    DeterministicScope(const DeterministicScope&) = delete;
    DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
    bool before_;
};

}  // namespace tapir
