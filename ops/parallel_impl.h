// Shares loops out to threads.
#pragma once

#include <cstdint>
#include <exception>

#include "tapir/core/parallel.h"
#include "tapir/core/shapes_only_impl.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace tapir {

/// Calls body(begin, end) for parts of [0, n), at least `grain` long each, on the threads of the pool. The parts begin at
/// multiples of 64, so that threads do not share cache lines. Work below 2 * grain stays on the caller's thread. More work is left out
/// under ShapesOnly.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    std::int64_t parts = grain > 0 ? n / grain : n;
    if (parts > 1 && detail::shapes_only) [[unlikely]]
        return;
#ifdef _OPENMP
    if (parts > num_threads()) parts = num_threads();
    if (parts > 1 && !omp_in_parallel()) {
        const std::int64_t step = (n / parts + 63) / 64 * 64;
        std::exception_ptr error;
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
        for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t begin = part * step;
            const std::int64_t end = part + 1 == parts ? n : (part + 1) * step < n ? (part + 1) * step : n;
            if (begin >= end) continue;
            try {
                body(begin, end);
            } catch (...) {
#pragma omp critical(tapir_parallel_for)
                error = std::current_exception();
            }
        }
        if (error) std::rethrow_exception(error);
        return;
    }
#endif
    if (n > 0) body(std::int64_t{0}, n);
}

/// While it lives, sets OpenMP's thread count of this thread, which oneDNN obeys; needed while primitives are made, too.
class OpenMPThreadsScope {
 public:
#ifdef _OPENMP
    [[nodiscard]] explicit OpenMPThreadsScope(int threads) : before_(omp_get_max_threads()) {
        if (threads != before_) omp_set_num_threads(threads);
    }
    ~OpenMPThreadsScope() { omp_set_num_threads(before_); }
    OpenMPThreadsScope(const OpenMPThreadsScope&) = delete;
    OpenMPThreadsScope& operator=(const OpenMPThreadsScope&) = delete;

 private:
    int before_;
#else
    explicit OpenMPThreadsScope(int) {}
#endif
};

}  // namespace tapir
