#include "tapir/core/parallel.h"

#include <atomic>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

constinit std::atomic<int> thread_count{0};  // 0: not asked for yet

int default_count() noexcept {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

}  // namespace

int num_threads() noexcept {
    int count = thread_count.load(std::memory_order_relaxed);
    if (count == 0) {
        const int fresh = default_count();
        // Another thread may have called set_num_threads meanwhile: its count stays.
        if (thread_count.compare_exchange_strong(count, fresh, std::memory_order_relaxed)) count = fresh;
    }
    return count;
}

void set_num_threads(int count, const Loc& loc) {
    if (count < 1) fail<ValueError>(loc, "set_num_threads: at least 1 is needed, not {}", count);
    thread_count.store(count, std::memory_order_relaxed);
}

}  // namespace tapir
