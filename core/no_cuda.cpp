// Interface of the CUDA device in a build without CUDA. Only count() and problem() are ever called, since
// check_device() refuses every device first.
#include <cstdlib>

#include "tapir/core/device_impl.h"
#include "tapir/core/stream.h"

namespace tapir {
namespace device_api {

int count() noexcept { return 0; }
const char* problem() noexcept { return "this build of tapir has no CUDA (configure with -DTAPIR_CUDA=ON; `make gpu` builds and tests it)"; }

std::string name(int) { std::abort(); }
void allocate(Storage&, const Loc&) { std::abort(); }
void select(Device) { std::abort(); }
void used_here(Storage&) { std::abort(); }
void after_other_streams(const Storage&, bool, const Loc&) { std::abort(); }
void allocate_pinned(Storage&, const Loc&) { std::abort(); }
bool is_pinned(const Storage&) noexcept { return false; }
void pinned_used(Storage&, Device) { std::abort(); }
void copy(void*, Device, const void*, Device, std::size_t, bool) { std::abort(); }
bool can_use(Device, const void*) { std::abort(); }
void zero(void*, Device, std::size_t) { std::abort(); }
void launch_empty(Device, int) { std::abort(); }
void* new_stream(int) { std::abort(); }
void* default_stream(int) { std::abort(); }
void* current_stream(int) noexcept { std::abort(); }
void set_current_stream(void*) noexcept { std::abort(); }
Device device_of(void*) noexcept { std::abort(); }
void* native(void*) noexcept { std::abort(); }
bool is_done(void*) { std::abort(); }
void wait(void*, const Loc&) { std::abort(); }
void wait_for_all(int, const Loc&) { std::abort(); }
void order_after(void*, void*) { std::abort(); }
void* new_event(int, bool) { std::abort(); }
void free_event(void*) noexcept { std::abort(); }
void record_event(void*, void*) { std::abort(); }
void order_after_event(void*, void*) { std::abort(); }
bool is_event_done(void*) { std::abort(); }
void wait_event(void*, const Loc&) { std::abort(); }
double milliseconds(void*, void*) { std::abort(); }
void begin_range(const char*) noexcept {}
void end_range() noexcept {}
MemoryStats memory_stats(int) { std::abort(); }
void reset_peak_memory(int) { std::abort(); }
void empty_cache(int) { std::abort(); }
void set_memory_limit(std::size_t, int) { std::abort(); }

}  // namespace device_api

SyncScope::SyncScope() noexcept = default;
SyncScope::~SyncScope() = default;

}  // namespace tapir
