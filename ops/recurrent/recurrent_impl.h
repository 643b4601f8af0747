// The LSTM step with its pre-activations in any layout.
#pragma once

#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/into_impl.h"
#include "tapir/ops/kernels/gpu.h"
#include "tapir/ops/recurrent/lstm_gates.h"

namespace tapir {

/// Returns x as gate kernels need it: contiguous and of that dtype.
inline Tensor ready(const Tensor& x, DType dtype, const Loc& loc = {}) {
    if (x.dtype() == dtype && x.is_contiguous()) [[likely]]
        return x;
    const detail::UnrecordedPartsOf parts(loc);
    return x.to(dtype).contiguous();
}

/// Under an AutocastScope gates come out of products in 16 bits: a state of another dtype, zeros at first, is converted.
inline bool follows_gates(const Tensor& state, const Tensor& gates) {
    return detail::thread.autocast && state.defined() && gates.defined() && state.dtype() != gates.dtype() && is_floating(state.dtype()) &&
        is_floating(gates.dtype()) && state.dtype() != float64 && gates.dtype() != float64;
}

/// The work of a gate on one element, for TAPIR_LAUNCH: a sigmoid or a tanh takes as long as quick work on four elements, its gradient as on two.
inline constexpr int64_t kGateWork = 4, kGateGradientWork = 2;

/// Whether kernels can take t as it is: it is on the CPU, contiguous, of that dtype and size.
inline bool is_plain(const Tensor& t, DType dtype, int64_t numel) { return detail::is_plain(t.impl(), dtype) && t.impl()->numel == numel; }

/// Positions of the gates in a tensor of pre-activations (..., blocks, h): a block's number, or -1 if it has none. Child k's
/// forget gate is block forget + k * forget_step: a step of 0 is one pre-activation that all children's gates share.
struct GateLayout {
    std::int32_t blocks;
    std::int8_t input, forget, forget_step, output, update;
    bool operator==(const GateLayout&) const = default;
};
inline constexpr GateLayout kLstmLayout{4, 0, 1, 0, 3, 2};           // i f g o
inline constexpr GateLayout kSharedForgetLayout{4, 0, 1, 0, 2, 3};   // i f o u
inline constexpr GateLayout kNoForgetLayout{3, 0, -1, 0, 1, 2};      // i o u
inline constexpr GateLayout kOnlyForgetLayout{0, -1, 0, 1, -1, -1};  // f_1 ... f_n
/// i f_1 ... f_n o u, n at most kMaxFusedChildren
constexpr GateLayout tree_layout(int n) noexcept { return {3 + n, 0, 1, 1, static_cast<std::int8_t>(1 + n), static_cast<std::int8_t>(2 + n)}; }

/// Ops of their own sum up more children than this.
inline constexpr int kMaxFusedChildren = 100;

struct GateSource {
    const Tensor* tensor = nullptr;
    GateLayout layout{};
};

/// Computes one LSTM step from one to three sources. Each of i, o, u and f_k must be in one or two of them;
/// a source whose forget gate is shared comes first.
LSTMState lstm_step(const char* op, const GateSource* sources, int source_count, const Tensor* const* children_c, int children, const Loc& loc);

}  // namespace tapir
