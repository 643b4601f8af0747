// The backward loops, from elementwise.def: each gradient in one pass.
#include "tapir/ops/cpu/math_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

using i64 = std::int64_t;

#define TAPIR_SCALAR inline
#include "tapir/ops/kernels/rule_functions.h"
#undef TAPIR_SCALAR

#define ZeroGrad K(0)
// Every function takes all possible operands; those that its row does not save are 0 and unused.
#define TAPIR_FUNCTION(function, expression)                                                                                                 \
    struct function {                                                                                                                        \
        template <class K>                                                                                                                   \
        static K apply([[maybe_unused]] Flow<K> g, [[maybe_unused]] K a, [[maybe_unused]] K b, [[maybe_unused]] K c, [[maybe_unused]] K y) { \
            return expression;                                                                                                               \
        }                                                                                                                                    \
        static constexpr int params = 0;                                                                                                     \
    };
#define TAPIR_UNARY0(name, types, saves, onnx, low, high, doc, forward, backward)                      \
    struct name##_backward {                                                                           \
        template <class K>                                                                             \
        static K apply([[maybe_unused]] Flow<K> g, [[maybe_unused]] K x, K, K, [[maybe_unused]] K y) { \
            return backward;                                                                           \
        }                                                                                              \
        static constexpr int params = 0;                                                               \
    };
#define TAPIR_UNARY1(name, p0, d0, types, saves, onnx, low, high, doc, forward, backward)                                     \
    struct name##_backward {                                                                                                  \
        template <class K>                                                                                                    \
        static K apply([[maybe_unused]] Flow<K> g, [[maybe_unused]] K x, K, K, [[maybe_unused]] K y, [[maybe_unused]] K p0) { \
            return backward;                                                                                                  \
        }                                                                                                                     \
        static constexpr int params = 1;                                                                                      \
    };
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, onnx, low, high, doc, forward, backward)                                                    \
    struct name##_backward {                                                                                                                         \
        template <class K>                                                                                                                           \
        static K apply([[maybe_unused]] Flow<K> g, [[maybe_unused]] K x, K, K, [[maybe_unused]] K y, [[maybe_unused]] K p0, [[maybe_unused]] K p1) { \
            return backward;                                                                                                                         \
        }                                                                                                                                            \
        static constexpr int params = 2;                                                                                                             \
    };
#define TAPIR_BINARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b) \
    TAPIR_FUNCTION(name##_backward_a, backward_a)                                               \
    TAPIR_FUNCTION(name##_backward_b, backward_b)
#define TAPIR_TERNARY(name, types, saves, onnx, low, high, doc, forward, backward_a, backward_b, backward_c) \
    TAPIR_FUNCTION(name##_backward_a, backward_a)                                                            \
    TAPIR_FUNCTION(name##_backward_b, backward_b)                                                            \
    TAPIR_FUNCTION(name##_backward_c, backward_c)
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"

// Calls a rule with g as a Flow. A variable of that class in the loop's body would keep the loop from being vectorised.
template <class F, class T, class... P>
T applied(T g, T a, T b, T c, T y, P... params) {
    return F::apply(Flow<T>{g, g}, a, b, c, y, params...);
}

// Reads g and the operands that `saves` names, in the order a, b, c, y.
template <class F, int saves, class T>
void loop(i64 n, void* out, const void* const* in, const double* params) {
    n = n / kLanes * kLanes;
    const auto operand = [&](int bit) {
        int position = 1;
        for (int lower = 1; lower < bit; lower <<= 1) position += (saves & lower) != 0;
        return static_cast<const T*>(in[saves & bit ? position : 0]);
    };
    const T *g = static_cast<const T*>(in[0]), *a = operand(SaveA), *b = operand(SaveB), *c = operand(SaveC), *y = operand(SaveY);
    auto* dx = static_cast<T*>(out);
    [[maybe_unused]] const T p0 = F::params > 0 ? static_cast<T>(params[0]) : T(0);
    [[maybe_unused]] const T p1 = F::params > 1 ? static_cast<T>(params[1]) : T(0);
#pragma omp simd
    for (i64 i = 0; i < n; ++i) {
        const T ai = saves & SaveA ? a[i] : T(0), bi = saves & SaveB ? b[i] : T(0), ci = saves & SaveC ? c[i] : T(0),
                yi = saves & SaveY ? y[i] : T(0);
        if constexpr (F::params == 0) {
            dx[i] = applied<F>(g[i], ai, bi, ci, yi);
        } else if constexpr (F::params == 1) {
            dx[i] = applied<F>(g[i], ai, bi, ci, yi, p0);
        } else {
            dx[i] = applied<F>(g[i], ai, bi, ci, yi, p0, p1);
        }
    }
}

#define TAPIR_PAIR(function, saves) {loop<function, saves, float>, loop<function, saves, double>}

const BackwardTable table = {{
#define TAPIR_UNARY0(name, types, saves, ...) {TAPIR_PAIR(name##_backward, saves)},
#define TAPIR_UNARY1(name, p0, d0, types, saves, ...) {TAPIR_PAIR(name##_backward, saves)},
#define TAPIR_UNARY2(name, p0, d0, p1, d1, types, saves, ...) {TAPIR_PAIR(name##_backward, saves)},
#define TAPIR_PREDICATE(name, ...) {},
#define TAPIR_BINARY(name, types, saves, ...) {TAPIR_PAIR(name##_backward_a, saves), TAPIR_PAIR(name##_backward_b, saves)},
#define TAPIR_COMPARE(name, ...) {},
#define TAPIR_TERNARY(name, types, saves, ...) \
    {TAPIR_PAIR(name##_backward_a, saves), TAPIR_PAIR(name##_backward_b, saves), TAPIR_PAIR(name##_backward_c, saves)},
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
}};

}  // namespace

const BackwardTable* elementwise_backward() { return &table; }

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
