// Scalar functions for the rows of elementwise.def, for float, double and integers, written once for the CPU and for CUDA.
//
// ops/cpu/math_impl.h and cuda/math.cuh include it inside their namespaces, after their functions of a maths library (exp, log,
// pow, erf, lgamma, fmod, copysign, ...) and with TAPIR_SCALAR, the qualifiers of a function, defined. So it has no include guard and no
// namespace of its own.

template <class T>
concept Int = __is_same(T, std::int32_t) || __is_same(T, std::int64_t);

template <class T>
TAPIR_SCALAR T where(bool condition, T a, T b) {
    return condition ? a : b;
}
template <class T>
TAPIR_SCALAR T abs(T x) {
    return where(x < T(0), static_cast<T>(-x), static_cast<T>(x + T(0)));
}
template <class T>
TAPIR_SCALAR T sign(T x) {
    return where(x > T(0), T(1), where(x < T(0), T(-1), T(0)));
}
template <class T>
TAPIR_SCALAR T square(T x) {
    return static_cast<T>(x * x);
}
template <class T>
TAPIR_SCALAR T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}
template <class T>
TAPIR_SCALAR T softplus(T x) {
    return where(x > T(20), x, log1p(exp(x)));
}

template <class T>
TAPIR_SCALAR bool is_infinite(T x) {
    if constexpr (Int<T>) {
        return false;
    } else {
        return abs(x) == static_cast<T>(__builtin_inf());
    }
}
template <class T>
TAPIR_SCALAR bool is_finite(T x) {
    if constexpr (Int<T>) {
        return true;
    } else {
        return abs(x) < static_cast<T>(__builtin_inf());
    }
}

// --- Integers --------------------------------------------------------------------------------------------------------

template <Int T>
TAPIR_SCALAR T floor(T x) {
    return x;
}
template <Int T>
TAPIR_SCALAR T ceil(T x) {
    return x;
}
template <Int T>
TAPIR_SCALAR T trunc(T x) {
    return x;
}
template <Int T>
TAPIR_SCALAR T round(T x) {
    return x;
}
// Division by zero gives 0 (and -1 is kept from trapping on the smallest integer).
template <Int T>
TAPIR_SCALAR T fmod(T a, T b) {
    return b == 0 || b == T(-1) ? T(0) : static_cast<T>(a % b);
}
template <Int T>
TAPIR_SCALAR T pow(T base, T exponent) {  // negative exponents: 1, -1 or 0, as the truncated result
    if (exponent < 0) return base == 1 ? T(1) : base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(0);
    T result = 1;
    for (; exponent; exponent = static_cast<T>(exponent >> 1)) {
        if (exponent & 1) result = static_cast<T>(result * base);
        base = static_cast<T>(base * base);
    }
    return result;
}

// --- Division --------------------------------------------------------------------------------------------------------

// Python's % and //, of rest = fmod(a, b).
template <class T>
TAPIR_SCALAR T remainder_of(T rest, T b) {
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
}
template <class T>
TAPIR_SCALAR T floor_of_quotient(T a, T b, T rest) {
    const T whole = (a - rest) / b;  // nearly
    const T quotient = rest != 0 && (rest < 0) != (b < 0) ? whole - 1 : whole, down = floor(quotient);
    return quotient - down > T(0.5) ? down + 1 : down;
}

// Python's %: the result has the sign of b. Unlike a - b * floor(a / b) it is right for large quotients.
template <class T>
TAPIR_SCALAR T remainder(T a, T b) {
    return remainder_of(fmod(a, b), b);
}
// Python's //. It uses the remainder, because the rounded quotient can be a whole number too large.
template <class T>
TAPIR_SCALAR T floor_divide(T a, T b) {
    if constexpr (Int<T>) {
        if (b == 0) return 0;
        if (b == T(-1)) return static_cast<T>(-a);  // this wraps, where the division would trap
        return static_cast<T>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    } else {
        return b == 0 ? a / b : floor_of_quotient(a, b, fmod(a, b));
    }
}

// --- Special functions -----------------------------------------------------------------------------------------------
// These compute in double for every type, because their sums cancel.

TAPIR_SCALAR double whole_power(double base, int q) {
    double power = 1;
    for (; q > 0; q >>= 1, base *= base) {
        if (q & 1) power *= base;
    }
    return power;
}

// Returns x^(q - 1) times the sum of (x + k)^-q over k = 0, 1, ..., for q > 1 and x > 0: ten terms, and Euler-Maclaurin's formula for the
// others (NIST Digital Library of Mathematical Functions, 2.10.1), with Bernoulli's numbers B_2k / (2k)!. The factor keeps it from
// 0: it is 1 / (q - 1) for large x.
TAPIR_SCALAR double scaled_zeta(double q, double x) {
    constexpr double bernoulli[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368e3, 1.0 / 74724249600};
    const int n = static_cast<int>(q);
    double sum = 0;
    for (int k = 0; k < 10; ++k) sum += whole_power(x / (x + k), n);
    const double a = x + 10, power = whole_power(x / a, n - 1);
    sum = sum / x + power * (1 / (q - 1) + 0.5 / a);
    double term = power / a * (q / a);
    for (int k = 0; k < 7; ++k) {
        sum += bernoulli[k] * term;
        term *= (q + 2 * k + 1) / a * ((q + 2 * k + 2) / a);
    }
    return sum;
}

// What log(x) - 1 / (2 x) is above digamma(x), for s = 1 / x^2 and x of 10 or more: Stirling's series (5.11.2 in the same).
TAPIR_SCALAR double digamma_series(double s) {
    return s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s / 12))))));
}

// The derivative of lgamma. It reflects x to x > 0, moves it up to 10 or more, and uses Stirling's series there.
TAPIR_SCALAR double digamma(double x) {
    if (x == 0) return copysign(__builtin_inf(), -x);
    double sum = 0;
    if (x < 0) {
        if (x == floor(x)) return __builtin_nan("");
        constexpr double pi = 3.14159265358979323846;
        sum = -pi / tan(pi * (x - trunc(x)));
        x = 1 - x;
    }
    for (; x < 10; x += 1) sum -= 1 / x;
    return sum + log(x) - 0.5 / x - digamma_series(1 / (x * x));
}
TAPIR_SCALAR float digamma(float x) { return static_cast<float>(digamma(static_cast<double>(x))); }

// n! times the sum of (x + k)^-(n + 1) over k = 0, 1, ..., for n > 0 and x > 0. n! and x^-n may each be out of double's range.
TAPIR_SCALAR double factorial_zeta(double n, double x) {
    if (is_infinite(x)) return 0;
    const double zeta = scaled_zeta(n < 1e9 ? n + 1 : 1e9, x);
    if (n > 170) return exp(lgamma(n + 1) - n * log(x) + log(zeta));
    double factor = 1;
    for (int k = 1; k <= n; ++k) factor *= k / x;
    return factor * zeta;
}

// The n-th derivative of digamma: (-1)^(n+1) n! zeta(n + 1, x), Hurwitz's; below 0 that sum is one over the terms below 0, which is the
// difference of two sums, and the sum over the others. nan for n that is not a whole number from 0 on.
TAPIR_SCALAR double polygamma(double x, double n) {
    if (!(n >= 0) || n != floor(n) || x != x) return __builtin_nan("");
    if (n == 0) return digamma(x);
    const bool is_odd = n != 2 * floor(n / 2);
    double sum;
    if (x > 0) {
        sum = factorial_zeta(n, x);
    } else if (x == floor(x)) {
        sum = __builtin_inf();
    } else {
        const double low = x - floor(x), high = ceil(x) - x;
        const double from_low = factorial_zeta(n, low), from_high = factorial_zeta(n, high), beyond = factorial_zeta(n, 1 - x);
        sum = is_odd ? from_low + from_high - beyond : from_low - from_high + beyond;
        if (sum != sum) {  // if sums are infinite, the nearest pole decides
            sum = is_odd || low < high ? __builtin_inf() : low == high ? beyond : -__builtin_inf();
        }
    }
    return is_odd ? sum : -sum;
}
TAPIR_SCALAR float polygamma(float x, float n) { return static_cast<float>(polygamma(static_cast<double>(x), static_cast<double>(n))); }

// Winitzki's approximation (2008), then three of Halley's steps; the upper half uses erfc, because erf rounds to 1 there.
TAPIR_SCALAR double erfinv(double y) {
    const double a = abs(y), l = log1p(-a * a), t = 4.33074675079 + 0.5 * l;
    double x = sqrt(sqrt(t * t - l * (1 / 0.147)) - t);
    for (int step = 0; step < 3; ++step) {
        const double difference = where(a > 0.5, (1 - a) - erfc(x), erf(x) - a);
        const double newton = difference * 0.88622692545275801365 * exp(x * x);
        x -= newton / (1 + x * newton);
    }
    return where(a < 1, copysign(x, y), where(a == 1, copysign(__builtin_inf(), y), __builtin_nan("")));
}
TAPIR_SCALAR float erfinv(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }
