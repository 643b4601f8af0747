// Element-wise ops. The functions are made from elementwise.def, where each has its row with a line of documentation:
//
//     Tensor tanh(In x)                                     Tensor leaky_relu(In x, double negative_slope = 0.01)
//     Tensor add(In a, In b)  add(In a, Scalar b)  add(Scalar a, In b)  a + b
//
// Operands broadcast (ShapeError when they cannot) and promote as in PyTorch: among dtypes of one category the widest
// tensor decides; numbers and 0-d tensors count only by category. Float ops compute integers in the default dtype.
#pragma once

#include "tapir/core/tensor.h"

namespace tapir {

#ifndef TAPIR_RUNTIME_ONLY  // tapir/runtime.h: it has the operators
#define TAPIR_UNARY0(name, ...) Tensor name(In x);
#define TAPIR_UNARY1(name, p0, d0, ...) Tensor name(In x, double p0 = d0);
#define TAPIR_UNARY2(name, p0, d0, p1, d1, ...) Tensor name(In x, double p0 = d0, double p1 = d1);
#define TAPIR_PREDICATE(name, ...) Tensor name(In x);
#define TAPIR_BINARY(name, ...)  \
    Tensor name(In a, In b);     \
    Tensor name(In a, Scalar b); \
    Tensor name(Scalar a, In b);
#define TAPIR_COMPARE(name, ...) TAPIR_BINARY(name, )
#define TAPIR_TERNARY(name, ...) Tensor name(In a, In b, In c);
#include "tapir/core/elementwise_rows.inc"

Tensor lerp(In start, In end, Scalar weight);
/// Inverts all bits; for bool this is logical_not. Throws DTypeError for floating dtypes.
Tensor bitwise_not(In x);
/// Returns the n-th derivative of digamma, n from 0 on (ValueError); nan, infinite or 0 where it is not defined.
Tensor polygamma(std::int64_t n, In x);
/// Returns x * 2^other. Integers are computed in the default dtype.
Tensor ldexp(In x, In other);
/// Returns gelu with approximate = "none" or "tanh". Throws ValueError for other words.
Tensor gelu(In x, const char* approximate);

/// Returns a / b rounded: "trunc" towards 0, "floor" down (floor_divide). Integers stay integers. Throws ValueError for another word, and for
/// integers divided by 0 (on CUDA that gives 0).
Tensor div(In a, In b, const char* rounding_mode);
Tensor div(In a, Scalar b, const char* rounding_mode);

/// Overload with tensors as bounds; all three broadcast.
Tensor clamp(In x, In min, In max);
/// Overload for Tensors: it fits better than std::clamp beside `using namespace std`.
inline Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max, Loc loc = Loc::current()) {
    return clamp(In(x, loc), In(min, loc), In(max, loc));
}
/// Another name for clamp().
inline Tensor clip(In x, double min = -__builtin_inf(), double max = __builtin_inf()) { return clamp(x, min, max); }
inline Tensor clip(In x, In min, In max) { return clamp(x, min, max); }
Tensor clamp_min(In x, Scalar min);  ///< nothing below min
Tensor clamp_max(In x, Scalar max);  ///< nothing above max
#endif

#define TAPIR_OPERATOR(symbol)              \
    Tensor operator symbol(In a, In b);     \
    Tensor operator symbol(In a, Scalar b); \
    Tensor operator symbol(Scalar a, In b);
TAPIR_OPERATOR(+)
TAPIR_OPERATOR(-)
TAPIR_OPERATOR(*)
TAPIR_OPERATOR(/)
TAPIR_OPERATOR(%)  ///< remainder
TAPIR_OPERATOR(==)
TAPIR_OPERATOR(!=)
TAPIR_OPERATOR(<)
TAPIR_OPERATOR(<=)
TAPIR_OPERATOR(>)
TAPIR_OPERATOR(>=)
// These take integers and bool; DTypeError for others.
TAPIR_OPERATOR(&)   ///< bitwise_and
TAPIR_OPERATOR(|)   ///< bitwise_or
TAPIR_OPERATOR(^)   ///< bitwise_xor
TAPIR_OPERATOR(<<)  ///< bitwise_left_shift
TAPIR_OPERATOR(>>)  ///< bitwise_right_shift
#undef TAPIR_OPERATOR
Tensor operator-(In x);
Tensor operator!(In x);  ///< logical_not
Tensor operator~(In x);  ///< bitwise_not

/// These work in place. On the result of an expression, x[0] += 1, they act as `x[0] = y` (tapir/core/tensor.h): ValueError for x[mask] += 1.
#define TAPIR_OPERATOR(symbol)                       \
    Tensor& operator symbol(Tensor & a, In b);       \
    Tensor& operator symbol(Tensor & a, NumberIn b); \
    Tensor operator symbol(Tensor&& a, In b);        \
    Tensor operator symbol(Tensor&& a, NumberIn b);
TAPIR_OPERATOR(+=)
TAPIR_OPERATOR(-=)
TAPIR_OPERATOR(*=)
TAPIR_OPERATOR(/=)
#undef TAPIR_OPERATOR

}  // namespace tapir
