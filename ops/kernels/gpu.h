// The kernels of the CUDA device, as ops call them where the CPU has no kernel of the same arguments (else see launch.h):
//
//     if (on_gpu(x)) return gpu::sort(args);
//
// A call puts the kernel on the thread's current stream of the device that was selected (begin_op, make_empty) and returns.
// They are declared beside the CPU's, with TAPIR_GPU_KERNEL, and defined in cuda/NAME.cu. Pointers in their arguments are
// device memory. In a build without CUDA they are never called, as no tensor can be on a CUDA device.
#pragma once

#include <type_traits>

#include "tapir/core/tensor.h"
#include "tapir/ops/cpu/isa.h"

namespace tapir {

#ifdef TAPIR_WITH_CUDA
inline bool on_gpu(const TensorImpl* x) noexcept { return x->device.type == DeviceType::cuda; }
#else
constexpr bool on_gpu(const TensorImpl*) noexcept { return false; }
#endif
inline bool on_gpu(const Tensor& x) noexcept { return on_gpu(x.impl()); }

/// Returns the dtype that kernels for floating elements read x in: a GPU's read 16-bit floats as they are, for the CPU they are converted
/// first.
inline DType read_in(const TensorImpl* x) noexcept { return on_gpu(x) ? x->dtype : computed_in(x->dtype); }
inline DType read_in(const Tensor& x) noexcept { return read_in(x.impl()); }

/// Calls f.operator()<T>() with the element type of a dtype that read_in() returns.
template <class F>
void with_element_type(DType dtype, const F& f) {
    switch (dtype) {
        case DType::float64: return f.template operator()<double>();
        case DType::float16: return f.template operator()<Half>();
        case DType::bfloat16: return f.template operator()<BFloat16>();
        default: return f.template operator()<float>();
    }
}

namespace kernels {
/// The type of what a kernel keeps beside arrays of T, such as statistics: float for 16-bit floats, as computed_in() says.
template <class T>
using Kept = std::conditional_t<sizeof(T) == 2, float, T>;
}  // namespace kernels

namespace gpu {

template <class Fn>
using Declare = Fn;  // a function type, so that `Declare<void(int)> f;` declares f

template <class Fn>
struct NotBuilt;
template <class R, class... Args>
struct NotBuilt<R(Args...)> {
    [[noreturn]] R operator()(Args...) const { __builtin_unreachable(); }
};

}  // namespace gpu
}  // namespace tapir

/// Declares the kernel `tapir::gpu::name` of type `R(args)`. Use at global scope.
#ifdef TAPIR_WITH_CUDA
#define TAPIR_GPU_KERNEL(name, ...)        \
    namespace tapir::gpu {                 \
    tapir::gpu::Declare<__VA_ARGS__> name; \
    }
#else
#define TAPIR_GPU_KERNEL(name, ...)                            \
    namespace tapir::gpu {                                     \
    inline constexpr tapir::gpu::NotBuilt<__VA_ARGS__> name{}; \
    }
#endif

/// Declares the kernel `tapir::gpu::name(const Args<T>&, count)` for every T that cuda/NAME.cu instantiates it for.
#ifdef TAPIR_WITH_CUDA
#define TAPIR_TYPED_GPU_KERNEL(name, Args)                       \
    namespace tapir::gpu {                                       \
    template <class T>                                           \
    void name(const kernels::Args<T>& args, std::int64_t count); \
    }
#else
#define TAPIR_TYPED_GPU_KERNEL(name, Args)                          \
    namespace tapir::gpu {                                          \
    template <class T>                                              \
    [[noreturn]] void name(const kernels::Args<T>&, std::int64_t) { \
        __builtin_unreachable();                                    \
    }                                                               \
    }
#endif

/// Declares a kernel that both devices have, for TAPIR_LAUNCH (launch.h): `tapir::kernels::name(args..., begin, end)` does items
/// [begin, end), `tapir::gpu::name(args..., count)` all of them in one launch. Use at global scope.
#define TAPIR_KERNEL(name, ...)                                                     \
    TAPIR_CPU_KERNEL(name, void(__VA_ARGS__, std::int64_t begin, std::int64_t end)) \
    TAPIR_GPU_KERNEL(name, void(__VA_ARGS__, std::int64_t count))

/// The same for a kernel of arguments Args<T>. The CPU's kernels are name_f32 and name_f64. For 16-bit T, which read_in() does not give
/// there, it has none, and none is called.
#define TAPIR_TYPED_KERNEL(name, Args)                                                                                 \
    TAPIR_CPU_KERNEL(name##_f32, void(const tapir::kernels::Args<float>& args, std::int64_t begin, std::int64_t end))  \
    TAPIR_CPU_KERNEL(name##_f64, void(const tapir::kernels::Args<double>& args, std::int64_t begin, std::int64_t end)) \
    namespace tapir::kernels {                                                                                         \
    inline void name(const Args<float>& args, std::int64_t begin, std::int64_t end) { name##_f32(args, begin, end); }  \
    inline void name(const Args<double>& args, std::int64_t begin, std::int64_t end) { name##_f64(args, begin, end); } \
    template <class T>                                                                                                 \
    [[noreturn]] void name(const Args<T>&, std::int64_t, std::int64_t) {                                               \
        __builtin_unreachable();                                                                                       \
    }                                                                                                                  \
    }                                                                                                                  \
    TAPIR_TYPED_GPU_KERNEL(name, Args)
