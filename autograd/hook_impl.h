// A user's function that sees a gradient and may replace it.
#pragma once

#include <functional>
#include <utility>

#include "tapir/core/tensor.h"

namespace tapir {

/// Shared by the tensor's list of hooks and the handles that remove it.
struct HookState {
    std::uint32_t refs = 1;
    std::function<Tensor(const Tensor&)> fn;  // empty after it was removed
    Loc loc;                                  // where it was registered
};

class GradientHook {
 public:
    /// Takes over one reference of the state.
    explicit GradientHook(HookState* state) noexcept : state_(state) {}
    GradientHook(const GradientHook& other) noexcept;
    GradientHook(GradientHook&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    GradientHook& operator=(GradientHook&& other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~GradientHook();

    bool is_removed() const noexcept { return !state_->fn; }
    /// Throws ShapeError if the function returns another shape; converts another dtype.
    void apply(Tensor& grad) const;

 private:
    HookState* state_;
};

}  // namespace tapir
