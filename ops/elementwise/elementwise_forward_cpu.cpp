// The forward loops, from elementwise.def.
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/elementwise/half_cpu.h"
#include "tapir/ops/elementwise/quick_impl.h"
#include "tapir/ops/elementwise/vector_functions_impl.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;

// A constant parameter of a loop; integers saturate, because a bound may be infinite.
template <class T>
T parameter(double value) {
    if constexpr (__is_same(T, i32)) {
        return value >= 0x1p31 ? INT32_MAX : value <= -0x1p31 ? INT32_MIN : static_cast<T>(value);
    } else if constexpr (__is_same(T, i64)) {
        return value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : static_cast<T>(value);
    } else {
        return static_cast<T>(value);
    }
}

// The functions of the table. K makes constants of the element type.
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                  \
        template <class K>                                                   \
        static K apply(K x) {                                                \
            return K(forward);                                               \
        }                                                                    \
    };
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                          \
        template <class K>                                                           \
        static K apply(K x, K p0) {                                                  \
            return K(forward);                                                       \
        }                                                                            \
    };
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                                  \
        template <class K>                                                                   \
        static K apply(K x, K p0, K p1) {                                                    \
            return K(forward);                                                               \
        }                                                                                    \
    };
#define TAPIR_PREDICATE(name, onnx, doc, forward) \
    struct name##_forward {                       \
        template <class K>                        \
        static bool apply(K x) {                  \
            return forward;                       \
        }                                         \
    };
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                  \
        template <class K>                                                   \
        static K apply(K a, K b) {                                           \
            return K(forward);                                               \
        }                                                                    \
    };
#define TAPIR_COMPARE(name, onnx, doc, forward) \
    struct name##_forward {                     \
        template <class K>                      \
        static bool apply(K a, K b) {           \
            return forward;                     \
        }                                       \
    };
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, ...) \
    struct name##_forward {                                                   \
        template <class K>                                                    \
        static K apply(K a, K b, K c) {                                       \
            return K(forward);                                                \
        }                                                                     \
    };
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"

template <class F, class T, class R>
void unary0(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<R*>(out);
    const auto* x = static_cast<const T*>(in[0]);
    if constexpr (InVectors<F, T>::is_there) {
        for (i64 i = 0; i < n; i += kLanes) InVectors<F, T>::apply(y + i, x + i);
    } else if constexpr (Quick<F, T>::is_there) {
        in_quick_blocks<F>(n, y, x);
    } else {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) y[i] = static_cast<R>(F::apply(x[i]));
    }
}

template <class F, class T, class R>
void unary1(i64 n, void* out, const void* const* in, const double* params) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<R*>(out);
    const auto* x = static_cast<const T*>(in[0]);
    const T p0 = parameter<T>(params[0]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = F::apply(x[i], p0);
}

template <class F, class T, class R>
void unary2(i64 n, void* out, const void* const* in, const double* params) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<R*>(out);
    const auto* x = static_cast<const T*>(in[0]);
    const T p0 = parameter<T>(params[0]), p1 = parameter<T>(params[1]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = F::apply(x[i], p0, p1);
}

template <class F, class T, class R>
void binary(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<R*>(out);
    const auto* a = static_cast<const T*>(in[0]);
    const auto* b = static_cast<const T*>(in[1]);
    if constexpr (Quick<F, T>::is_there) {
        in_quick_blocks<F>(n, y, a, b);
    } else {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) y[i] = static_cast<R>(F::apply(a[i], b[i]));
    }
}

template <class F, class T, class R>
void ternary(i64 n, void* out, const void* const* in, const double*) {
    n = n / kLanes * kLanes;
    auto* y = static_cast<R*>(out);
    const auto* a = static_cast<const T*>(in[0]);
    const auto* b = static_cast<const T*>(in[1]);
    const auto* c = static_cast<const T*>(in[2]);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = F::apply(a[i], b[i], c[i]);
}

using Bool = std::uint8_t;
#define TAPIR_ROW_Float(loop, name) {nullptr, nullptr, loop<name##_forward, float, float>, loop<name##_forward, double, double>},
#define TAPIR_ROW_Number(loop, name) \
    {loop<name##_forward, i32, i32>, loop<name##_forward, i64, i64>, loop<name##_forward, float, float>, loop<name##_forward, double, double>},
#define TAPIR_ROW_Integral(loop, name) {loop<name##_forward, i32, i32>, loop<name##_forward, i64, i64>, nullptr, nullptr},
#define TAPIR_ROW_Bool(loop, name) \
    {loop<name##_forward, i32, Bool>, loop<name##_forward, i64, Bool>, loop<name##_forward, float, Bool>, loop<name##_forward, double, Bool>},

const ForwardTable table = {{
#define TAPIR_UNARY0(name, types, ...) TAPIR_ROW_##types(unary0, name)
#define TAPIR_UNARY1(name, p0, d0, types, ...) TAPIR_ROW_##types(unary1, name)
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, ...) TAPIR_ROW_##types(unary2, name)
#define TAPIR_PREDICATE(name, ...) TAPIR_ROW_Bool(unary0, name)
#define TAPIR_BINARY(name, types, ...) TAPIR_ROW_##types(binary, name)
#define TAPIR_COMPARE(name, ...) TAPIR_ROW_Bool(binary, name)
#define TAPIR_TERNARY(name, types, ...) TAPIR_ROW_##types(ternary, name)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

// --- With one number ---------------------------------------------------------------------------------------------------

template <class F, class T, bool kIsFirst>
void with_number(i64 n, void* out, const void* x, const void* number) {
    auto* y = static_cast<T*>(out);
    const auto* a = static_cast<const T*>(x);
    const T b = *static_cast<const T*>(number);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = kIsFirst ? F::apply(b, a[i]) : F::apply(a[i], b);
}

template <class F>
NumberLoop number_loop_of(DType dtype, bool is_first) {
    if (dtype == DType::float32) return is_first ? with_number<F, float, true> : with_number<F, float, false>;
    if (dtype == DType::float64) return is_first ? with_number<F, double, true> : with_number<F, double, false>;
    return nullptr;
}

// --- Of 16-bit numbers --------------------------------------------------------------------------------------------------

template <class F, class Half>
void of_halves(i64 n, void* out, const void* x, const void* y) {
    auto* to = static_cast<Half*>(out);
    const auto *a = static_cast<const Half*>(x), *b = static_cast<const Half*>(y);
    i64 done = 0;
#if defined(__F16C__)
    if constexpr (kInVectors<Half>) {
        for (; done + kFloatLanes <= n; done += kFloatLanes) store_halves(to + done, F::apply(load_halves(a + done), load_halves(b + done)));
    }
#endif
#pragma omp simd
    for (i64 i = done; i < n; ++i) to[i] = rounded_to<Half>(F::apply(to_float(a[i]), to_float(b[i])));
}

template <class F>
HalfLoop half_loop_of(DType dtype) {
    if (dtype == DType::float16) return of_halves<F, F16>;
    if (dtype == DType::bfloat16) return of_halves<F, BF16>;
    return nullptr;
}

// Calls loop_of with the function of add, sub, mul or div; null for other ops.
template <class Loop, class Fn>
Loop for_arithmetic(Elementwise op, const Fn& loop_of) {
    switch (op) {
        case Elementwise::add: return loop_of(add_forward{});
        case Elementwise::sub: return loop_of(sub_forward{});
        case Elementwise::mul: return loop_of(mul_forward{});
        case Elementwise::div: return loop_of(div_forward{});
        default: return nullptr;
    }
}

}  // namespace

const ForwardTable* elementwise_forward() { return &table; }

NumberLoop arithmetic_with_number(Elementwise op, DType dtype, bool is_first) {
    return for_arithmetic<NumberLoop>(op, [&]<class F>(F) { return number_loop_of<F>(dtype, is_first); });
}

HalfLoop arithmetic_of_halves(Elementwise op, DType dtype) {
    return for_arithmetic<HalfLoop>(op, [&]<class F>(F) { return half_loop_of<F>(dtype); });
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
