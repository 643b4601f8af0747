// Whether ops give the same numbers each time, to the last bit.
//
// On the CPU they do. On CUDA, the ops that add to computed positions (scatter_add, index_add, the gradients of gather,
// index_select, x[index] and embedding) by default add floats in the order in which threads come to it. Where
// this is on, they sort the items first and add them in order, which takes several times as long. Convolutions and their
// gradients then use only those of cuDNN's algorithms that do so; scatter_reduce of "prod" throws DeviceError for floats. PyTorch's
// torch.use_deterministic_algorithms.
#pragma once

namespace tapir {

bool is_deterministic() noexcept;
/// For the whole process, from the next op on.
void set_deterministic(bool on) noexcept;

/// On, or off, while it lives; for the whole process.
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
