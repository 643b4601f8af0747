#include "tapir/core/process_rank.h"

#include <atomic>

namespace tapir {

namespace {
std::atomic<int> of_process{0};
thread_local int of_thread = -1;
}  // namespace

int process_rank() noexcept { return of_thread >= 0 ? of_thread : of_process.load(std::memory_order_relaxed); }

void detail::set_process_rank(int rank) noexcept { of_process.store(rank, std::memory_order_relaxed); }
void detail::set_thread_rank(int rank) noexcept { of_thread = rank; }

}  // namespace tapir
