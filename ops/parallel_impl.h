// Shares loops out to threads.
#pragma once

#include <cstdint>

#include "tapir/core/parallel.h"
#include "tapir/core/pool_impl.h"
#include "tapir/core/shapes_only_impl.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace tapir {

namespace detail {
template <class Body>
void parallel_in(std::int64_t multiple, std::int64_t n, std::int64_t grain, const Body& body) {
    const bool is_shared = grain > 0 ? n / 2 >= grain : n > 1;
    if (!is_shared) {
        if (n > 0) body(std::int64_t{0}, n);
        return;
    }
    if (shapes_only) [[unlikely]]
        return;
    const auto call = [](const void* of, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(of))(begin, end); };
    run_ranges(n, grain, multiple, call, &body);
}
}  // namespace detail

/// Calls body(begin, end) for parts of [0, n) on the threads of the pool, each about `grain` long or longer. The parts begin at
/// multiples of 64, so that threads do not share cache lines. Work below 2 * grain stays on the caller's thread. More work is left out
/// under ShapesOnly.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    detail::parallel_in(64, n, grain, body);
}
/// The same for items that are larger than elements, as rows and images are. The parts begin anywhere.
template <class Body>
void parallel_items(std::int64_t count, std::int64_t grain, const Body& body) {
    detail::parallel_in(1, count, grain, body);
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
