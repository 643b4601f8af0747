// A user's function that sees, and may replace, a gradient.
#pragma once

#include <functional>
#include <utility>

#include "tapir/core/tensor.h"

namespace tapir {

/// Shared by the tensor's list of hooks and the handles that take it away.
struct HookState {
    std::uint32_t refs = 1;
    std::function<Tensor(const Tensor&)> fn;  // none: it was removed
    Loc loc;                                  // where it was registered
};

class GradientHook {
 public:
    /// Takes over one reference.
    explicit GradientHook(HookState* state) noexcept : state_(state) {}
    GradientHook(const GradientHook& other) noexcept;
    GradientHook(GradientHook&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    GradientHook& operator=(GradientHook&& other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~GradientHook();

    bool is_removed() const noexcept { return !state_->fn; }
    /// Throws ShapeError when the function gives another shape; another dtype is converted.
    void apply(Tensor& grad) const;

 private:
    HookState* state_;
};

}  // namespace tapir
