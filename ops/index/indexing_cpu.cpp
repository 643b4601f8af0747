// See indexing.h.
#include "tapir/ops/index/indexing_kernels.h"

#include "tapir/ops/reduce/reduce_simd_cpu.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

// Calls body with an element of a pointer type: an unsigned integer of that size.
template <class Body>
void by_size(unsigned size, const Body& body) {
    switch (size) {
        case 1: return body(std::uint8_t{});
        case 2: return body(std::uint16_t{});
        case 4: return body(std::uint32_t{});
        default: return body(std::uint64_t{});
    }
}

template <class Body>
void by_type(Compute type, const Body& body) {
    switch (type) {
        case Compute::i32: return body(std::uint32_t{});  // unsigned: wraps instead of overflowing
        case Compute::i64: return body(std::uint64_t{});
        case Compute::f32: return body(float{});
        case Compute::f64: return body(double{});
    }
}

template <class Body>
void by_signed_type(Compute type, const Body& body) {
    switch (type) {
        case Compute::i32: return body(std::int32_t{});
        case Compute::i64: return body(i64{});
        case Compute::f32: return body(float{});
        case Compute::f64: return body(double{});
    }
}

template <class T>
void choose(i64 n, const std::uint8_t* mask, i64 mask_step, const T* a, i64 a_step, const T* b, i64 b_step, T* to) {
    if (mask_step == 1 && a_step == 1 && b_step == 1) {
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {  // reads both sides, so that the loop has no branch
            const T x = a[i], y = b[i];
            to[i] = mask[i] ? x : y;
        }
    } else if (mask_step == 1 && a_step == 1 && b_step == 0) {
        const T y = *b;
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {
            const T x = a[i];
            to[i] = mask[i] ? x : y;
        }
    } else if (mask_step == 1 && a_step == 0 && b_step == 1) {
        const T x = *a;
#pragma omp simd
        for (i64 i = 0; i < n; ++i) {
            const T y = b[i];
            to[i] = mask[i] ? x : y;
        }
    } else {
        for (i64 i = 0; i < n; ++i) to[i] = mask[i * mask_step] ? a[i * a_step] : b[i * b_step];
    }
}

}  // namespace

void choose_run(unsigned size, i64 n, const std::uint8_t* mask, i64 mask_step, const void* a, i64 a_step, const void* b, i64 b_step, void* to) {
    by_size(size,
            [&]<class T>(T) { choose(n, mask, mask_step, static_cast<const T*>(a), a_step, static_cast<const T*>(b), b_step, static_cast<T*>(to)); });
}

void gather_run(unsigned size, i64 n, void* to, const void* from, const i64* index, i64 stride, i64 step) {
    by_size(size, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        const auto* x = static_cast<const T*>(from);
        if (stride == 1 && step == 0) {
            for (i64 i = 0; i < n; ++i) y[i] = x[index[i]];
        } else {
            for (i64 i = 0; i < n; ++i) y[i] = x[index[i] * stride + i * step];
        }
    });
}

void scatter_run(unsigned size, i64 n, void* to, const i64* index, i64 stride, i64 step, const void* from, i64 from_step) {
    by_size(size, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        const auto* x = static_cast<const T*>(from);
        for (i64 i = 0; i < n; ++i) y[index[i] * stride + i * step] = x[i * from_step];
    });
}

void take_run(unsigned size, i64 n, void* to, void* from, const i64* index, i64 stride, i64 step) {
    by_size(size, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        auto* x = static_cast<T*>(from);
        for (i64 i = n; i-- > 0;) {
            T& element = x[index[i] * stride + i * step];
            y[i] = element;
            element = 0;
        }
    });
}

void scatter_add_run(Compute type, i64 n, void* to, const i64* index, i64 stride, i64 step, const void* from, i64 from_step) {
    by_type(type, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        const auto* x = static_cast<const T*>(from);
        for (i64 i = 0; i < n; ++i) y[index[i] * stride + i * step] += x[i * from_step];
    });
}

void scatter_combine_run(Combine how, Compute type, i64 n, void* to, const i64* index, i64 stride, i64 step, const void* from, i64 from_step) {
    by_signed_type(type, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        const auto* x = static_cast<const T*>(from);
        for (i64 i = 0; i < n; ++i) {
            T& element = y[index[i] * stride + i * step];
            const T value = x[i * from_step];
            if (how == Combine::prod) {
                element = static_cast<T>(element * value);  // integers wrap: -fwrapv
            } else if (value != value || (how == Combine::max ? value > element : value < element)) {
                element = value;
            }
        }
    });
}

void add_run(Compute type, i64 n, void* to, i64 to_step, const void* from, i64 from_step) {
    by_type(type, [&]<class T>(T) {
        auto* y = static_cast<T*>(to);
        const auto* x = static_cast<const T*>(from);
        if (to_step == 1 && from_step == 1) {
#pragma omp simd
            for (i64 i = 0; i < n; ++i) y[i] += x[i];
        } else {
            for (i64 i = 0; i < n; ++i) y[i * to_step] += x[i * from_step];
        }
    });
}

void index_range(const i64* index, i64 n, i64* low, i64* high) {
    constexpr i64 run = 4 * kWidth<i64>;
    Lanes<Min, i64> least;
    Lanes<Max, i64> most;
    for (; n > run; index += run, n -= run) {  // short runs in turn, so that memory is read once
        least.take(index, run);
        most.take(index, run);
    }
    least.take(index, n);
    most.take(index, n);
    *low = across<Min, i64>(least.together());
    *high = across<Max, i64>(most.together());
}

void triangle(const TriangleArgs& args, i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
        const i64 edge = row % args.rows + args.first;  // the first column on the other side of the diagonal
        const i64 left = (edge < 0 ? 0 : edge > args.columns ? args.columns : edge) * args.size, right = args.columns * args.size - left;
        const auto* from = static_cast<const std::byte*>(args.x) + row * args.columns * args.size;
        auto* to = static_cast<std::byte*>(args.out) + row * args.columns * args.size;
        if (args.lower) {
            __builtin_memcpy(to, from, static_cast<std::size_t>(left));
            __builtin_memset(to + left, 0, static_cast<std::size_t>(right));
        } else {
            __builtin_memset(to, 0, static_cast<std::size_t>(left));
            __builtin_memcpy(to + left, from + left, static_cast<std::size_t>(right));
        }
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
