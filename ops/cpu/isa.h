// Kernels that exist once per instruction set, and the choice among them.
//
// Every file ops/cpu/*.cpp is compiled three times, with TAPIR_ISA defined as baseline, avx2 or avx512 and the
// matching compiler flags. It puts its kernels into `namespace tapir::kernels::TAPIR_ISA`, keeps every helper inside that
// namespace too (an inline function shared between the three compilations would be merged by the linker into the one
// that an older machine cannot run), and is declared with TAPIR_CPU_KERNEL in a header beside it.
#pragma once

namespace tapir::kernels {

enum class Isa : int { baseline, avx2, avx512 };

/// The best instruction set of this machine; the environment variable TAPIR_ISA=baseline|avx2|avx512 may lower it.
/// It is chosen once, before the first global object is made, and does not change afterwards.
extern Isa chosen_isa;

/// Holds one kernel's three compilations; a call runs the one for this machine.
template <class Fn>
struct PerIsa;

template <class R, class... Args>
struct PerIsa<R(Args...)> {
    using Function = R (*)(Args...);
    Function fn[3];
    // A conversion, not operator(): a call operator would add a frame between a user's op and its kernel in a debugger.
    operator Function() const { return fn[static_cast<int>(chosen_isa)]; }
};

}  // namespace tapir::kernels

/// Declares the kernel `name` of type `R(args)` for each instruction set, and `tapir::kernels::name(...)` that picks one.
/// Use at global scope:  TAPIR_CPU_KERNEL(sum_rows, void(const float* x, float* y, int64_t n))
#if defined(__x86_64__) && defined(TAPIR_WITHOUT_AVX512)  // the runtime, which is small, and builds under sanitizers
#define TAPIR_CPU_KERNEL(name, ...)                                                      \
    namespace tapir::kernels {                                                           \
    namespace baseline {                                                                 \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                   \
    }                                                                                    \
    namespace avx2 {                                                                     \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                   \
    }                                                                                    \
    inline constexpr PerIsa<__VA_ARGS__> name{{baseline::name, avx2::name, avx2::name}}; \
    }
#elif defined(__x86_64__)
#define TAPIR_CPU_KERNEL(name, ...)                                                        \
    namespace tapir::kernels {                                                             \
    namespace baseline {                                                                   \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                     \
    }                                                                                      \
    namespace avx2 {                                                                       \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                     \
    }                                                                                      \
    namespace avx512 {                                                                     \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                     \
    }                                                                                      \
    inline constexpr PerIsa<__VA_ARGS__> name{{baseline::name, avx2::name, avx512::name}}; \
    }
#else
#define TAPIR_CPU_KERNEL(name, ...)                                                              \
    namespace tapir::kernels {                                                                   \
    namespace baseline {                                                                         \
    tapir::kernels::detail::Declare<__VA_ARGS__> name;                                           \
    }                                                                                            \
    inline constexpr PerIsa<__VA_ARGS__> name{{baseline::name, baseline::name, baseline::name}}; \
    }
#endif

namespace tapir::kernels::detail {
template <class Fn>
using Declare = Fn;  // a function type, so that `Declare<void(int)> f;` declares f
}
