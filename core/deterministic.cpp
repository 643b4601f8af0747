#include "tapir/core/deterministic.h"

#include <atomic>

namespace tapir {
namespace {
constinit std::atomic<bool> deterministic{false};
}

bool is_deterministic() noexcept { return deterministic.load(std::memory_order_relaxed); }
void set_deterministic(bool on) noexcept { deterministic.store(on, std::memory_order_relaxed); }

}  // namespace tapir
