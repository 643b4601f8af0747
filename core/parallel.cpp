#include "tapir/core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "tapir/core/fail_impl.h"

namespace tapir {
namespace {

constinit std::atomic<int> thread_count{0};  // 0: not asked for yet

constinit bool is_forked = false;  // written only by the single thread of a new child process

// fork() copies only this thread: the pool has no others in the child, and oneDNN's would be waited for for ever.
void stay_alone() noexcept {
    is_forked = true;
    thread_count.store(1, std::memory_order_relaxed);
#ifdef _OPENMP
    omp_set_num_threads(1);  // for oneDNN
#endif
}

int default_count() noexcept {
    static const int followed = ::pthread_atfork(nullptr, nullptr, stay_alone);
    static_cast<void>(followed);
    if (is_forked) return 1;
    if (const char* const wish = std::getenv("OMP_NUM_THREADS")) {
        const long count = std::strtol(wish, nullptr, 10);  // "4,2" is 4 for the first level
        if (count >= 1 && count <= INT_MAX) return static_cast<int>(count);
    }
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
    return std::max(CPU_COUNT(&set), 1);
}

}  // namespace

int num_threads() noexcept {
    int count = thread_count.load(std::memory_order_relaxed);
    if (count == 0) {
        const int fresh = default_count();
        // Another thread may have called set_num_threads meanwhile: its value stays.
        if (thread_count.compare_exchange_strong(count, fresh, std::memory_order_relaxed)) count = fresh;
    }
    return count;
}

void set_num_threads(int count, const Loc& loc) {
    if (count < 1) fail<ValueError>(loc, "set_num_threads: at least 1 is needed, not {}", count);
    num_threads();  // follows forks from here on
    if (!is_forked) thread_count.store(count, std::memory_order_relaxed);
}

}  // namespace tapir
