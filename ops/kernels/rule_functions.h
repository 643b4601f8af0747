// The functions on numbers that the backward expressions of elementwise.def use beside those of scalar_functions.h. Included in the same
// way: inside a namespace, with TAPIR_SCALAR defined.

// Products and quotients that are 0 where a is 0, or where one of both is: the last rows of elementwise.def.
template <class T>
TAPIR_SCALAR T gated_mul(T a, T b) {
    return where(a == T(0), T(0), a * b);
}
template <class T>
TAPIR_SCALAR T gated_div(T a, T b) {
    return where(a == T(0), T(0), a / b);
}
template <class T>
TAPIR_SCALAR T absorbing_mul(T a, T b) {
    return where(a == T(0), T(0), where(b == T(0), T(0), a * b));  // gcc does not vectorise one condition of both
}

// A result's gradient, as the backward expressions see it: products and quotients of it are 0 where it is 0, even
// beside an infinite or undefined factor. So the branch that a where did not take has no effect. Numbers before it (K(2) * g) are finite.
template <class K, bool is_gated = false>
struct Flow {
    K value, g;
    TAPIR_SCALAR operator K() const {  // NOLINT: implicit by design
        if constexpr (is_gated) {
            return where(g == K(0), K(0), value);
        } else {
            return value;
        }
    }
};
template <class K, bool A>
TAPIR_SCALAR Flow<K, true> operator*(Flow<K, A> g, K factor) {
    return {g.value * factor, g.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, true> operator/(Flow<K, A> g, K divisor) {
    return {g.value / divisor, g.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, A> operator*(K number, Flow<K, A> g) {
    return {number * g.value, g.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, A> operator-(Flow<K, A> g) {
    return {-g.value, g.g};
}
template <class K>
TAPIR_SCALAR Flow<K> absorbing_mul(Flow<K> g, K factor) {
    return {absorbing_mul(g.value, factor), g.g};
}
template <class K, bool A, bool B>
TAPIR_SCALAR Flow<K, A || B> where(bool condition, Flow<K, A> a, Flow<K, B> b) {
    return {where(condition, a.value, b.value), a.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, A> where(bool condition, Flow<K, A> a, Flow<K, A> b) {
    return {where(condition, a.value, b.value), a.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, A> where(bool condition, Flow<K, A> a, K b) {
    return {where(condition, a.value, b), a.g};
}
template <class K, bool A>
TAPIR_SCALAR Flow<K, A> where(bool condition, K a, Flow<K, A> b) {
    return {where(condition, a, b.value), b.g};
}

// Returns part / (a^2 + b^2), part one of a and b, without overflow: the slope of an angle. 0 at the origin.
template <class K>
TAPIR_SCALAR K over_squares(K part, K other) {
    const K length = hypot(part, other);
    return absorbing_mul(K(1) / length, gated_div(part, length));
}
// Returns the derivative of y = a^b by b, y log(a). It can be a number even if y overflows, for a below e.
template <class K>
TAPIR_SCALAR K slope_of_exponent(K a, K b, K y) {
    const bool is_beyond = (y == K(__builtin_inf())) & (a > K(1)) & (a < K(3));
    return where(is_beyond, pow(a, b - K(1)) * (a * log(a)), gated_mul(y, log(a)));
}
