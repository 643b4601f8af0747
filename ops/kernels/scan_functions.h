// What scans combine, written once for the CPU and for CUDA. scan_cpu.cpp and cuda/scan.cu include it inside their namespaces, with
// TAPIR_SCALAR, the qualifiers of a function, defined. So it has no include guard and no namespace of its own.
//
// S is double, or std::uint64_t, which wraps around. A scan has
//
//     State          what a part of a line comes to
//     identity()     that of no element
//     of(x)          that of one element
//     combine(a, b)  that of a part and the one behind it
//     value(a)       the result at the last element of a

template <class S>
struct RunningSum {
    using State = S;
    TAPIR_SCALAR State identity() const { return 0; }
    TAPIR_SCALAR State of(S x) const { return x; }
    TAPIR_SCALAR State combine(State a, State b) const { return a + b; }
    TAPIR_SCALAR S value(State a) const { return a; }
};

template <class S>
struct RunningProduct {
    using State = S;
    TAPIR_SCALAR State identity() const { return 1; }
    TAPIR_SCALAR State of(S x) const { return x; }
    TAPIR_SCALAR State combine(State a, State b) const { return a * b; }
    TAPIR_SCALAR S value(State a) const { return a; }
};

// log(e^a + e^b). A nan stays, once it was met.
template <class S>
struct RunningLogSumExp {
    using State = S;
    TAPIR_SCALAR State identity() const { return -static_cast<S>(__builtin_inf()); }
    TAPIR_SCALAR State of(S x) const { return x; }
    TAPIR_SCALAR State combine(State a, State b) const {
        const S larger = b > a || b != b ? b : a, apart = a == b ? S(0) : a > b ? b - a : a - b;
        return larger + log1p(exp(apart));
    }
    TAPIR_SCALAR S value(State a) const { return a; }
};

// Calls fn with the functions of a scan.
template <class S, class Fn>
TAPIR_SCAN_HOST void with_scan(const Scan& scan, const Fn& fn) {
    switch (scan.kind) {
        case Scan::sum: return fn(RunningSum<S>{});
        case Scan::prod: return fn(RunningProduct<S>{});
        case Scan::log_of_exps:
            if constexpr (S(0.5) != S(0)) return fn(RunningLogSumExp<S>{});
    }
}
