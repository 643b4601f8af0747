// ShapesOnly: ops that give results of the right shapes and dtypes, and leave out the work.
#pragma once

namespace tapir::detail {

/// True while the calling thread's ops leave out large loops: see ShapesOnly. Tapir::runtime reads no models and has no such mode.
#ifdef TAPIR_RUNTIME
inline constexpr bool shapes_only = false;
#else
extern constinit thread_local bool shapes_only __attribute__((tls_model("initial-exec")));
#endif

/// While it lives, ops of this thread leave out every loop that is large enough for several threads, on the CPU, and new tensors are
/// zeros that take no memory. Small loops run as ever, so numbers that count and choose stay right. load_onnx() reads models so.
/// ShapesOnly(false) inside of it computes again.
class ShapesOnly {
 public:
#ifdef TAPIR_RUNTIME
    explicit ShapesOnly(bool) noexcept {}
#else
    explicit ShapesOnly(bool on = true) noexcept;
    ~ShapesOnly();
#endif
    ShapesOnly(const ShapesOnly&) = delete;
    ShapesOnly& operator=(const ShapesOnly&) = delete;

#ifndef TAPIR_RUNTIME
 private:
    bool before_;
#endif
};

}  // namespace tapir::detail
