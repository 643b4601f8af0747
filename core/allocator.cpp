// The caching allocator: thread-local free lists for small blocks, one shared pool for large ones.
#include "tapir/core/allocator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <unordered_set>
#include <vector>

#include <sys/mman.h>

#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/shapes_only_impl.h"

namespace tapir {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAlwaysSystem = true;
#else
constexpr bool kAlwaysSystem = false;
#endif

constexpr std::size_t kSmallLimit = 64 * 1024;
constexpr std::size_t kFineLimit = 1024;  // up to here there is a class for every 64 bytes, then four for each power of two
constexpr int kFineClasses = kFineLimit / detail::kAlignment;
constexpr int kClasses = kFineClasses + 4 * 6;  // 1 KiB * 2^6 = 64 KiB
constexpr std::size_t kSlabBytes = 64 * 1024;
constexpr std::size_t kThreadListBytes = 1024 * 1024;  // a longer free list gives half to the shared lists

// Sizes above 1 KiB are rounded up to 4, 5, 6 or 7 quarters of a power of two: at most a quarter is lost.
constexpr int class_of(std::size_t bytes) noexcept {
    if (bytes <= kFineLimit) return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / detail::kAlignment);
    const auto power = static_cast<int>(std::bit_width(bytes - 1)) - 1;  // 2^power <= bytes - 1
    const auto quarter = static_cast<int>((bytes - 1) >> (power - 2)) & 3;
    return kFineClasses + (power - 10) * 4 + quarter;
}

constexpr std::size_t class_bytes(int index) noexcept {
    if (index < kFineClasses) return (static_cast<std::size_t>(index) + 1) * detail::kAlignment;
    const int step = index - kFineClasses;
    return (std::size_t{5} + static_cast<std::size_t>(step & 3)) << (8 + step / 4);
}
static_assert(class_bytes(class_of(1)) == 64 && class_bytes(class_of(1024)) == 1024);
static_assert(class_bytes(class_of(1025)) == 1280 && class_bytes(class_of(1281)) == 1536);
static_assert(class_bytes(class_of(2048)) == 2048 && class_of(kSmallLimit) == kClasses - 1);
static_assert(class_bytes(kClasses - 1) == kSmallLimit);

struct FreeBlock {
    FreeBlock* next;
};

// Small: a thread has one for each class, in memory that is scarce (tests/core/static_tls.sh).
struct FreeList {
    FreeBlock* head = nullptr;
    std::uint32_t count = 0;
    std::uint32_t most = 0;  // a longer list gives half to the shared one; 0 until the thread is registered
};

// Only their own thread writes counters; memory_stats() reads them, hence relaxed.
struct Counter {
    std::int64_t value = 0;
    void add(std::int64_t n) noexcept { __atomic_store_n(&value, value + n, __ATOMIC_RELAXED); }
    std::int64_t get() const noexcept { return __atomic_load_n(&value, __ATOMIC_RELAXED); }
    void set(std::int64_t n) noexcept { __atomic_store_n(&value, n, __ATOMIC_RELAXED); }
};

struct ThreadCache {
    FreeList lists[kClasses];
    Counter live, peak, allocations;
    bool registered = false;
    bool finished = false;  // this thread's destructors have run: later frees go to the shared lists
    ThreadCache* next = nullptr;
};

constinit thread_local ThreadCache cache __attribute__((tls_model("initial-exec")));

// State that all threads share. Never destroyed: tensors in static variables may outlive anything.
struct Shared {
    std::mutex mutex;
    FreeList lists[kClasses];
    std::multimap<std::size_t, void*> large;      // keyed by size
    std::size_t large_bytes = 0, large_live = 0;  // kept for reuse; handed out
    std::size_t limit = std::size_t{1} << 30;     // for large_bytes
    std::unordered_set<void*> unbacked;           // large blocks that were made under ShapesOnly
    std::size_t slab_bytes = 0;                   // taken from the system for small blocks, never given back
    std::vector<void*> slabs;                     // their starts: so leak checkers see that they are reachable
    std::vector<ThreadCache*> threads;
    MemoryStats gone;  // sums of the counters of threads that have ended
    std::int64_t system_calls = 0;
    const bool system_only = [] {
        const char* wish = std::getenv("TAPIR_ALLOCATOR");
        return kAlwaysSystem || (wish && std::strcmp(wish, "system") == 0);
    }();
};

alignas(Shared) constinit std::byte shared_memory[sizeof(Shared)] = {};

Shared& shared() noexcept {
    static auto* instance = new (shared_memory) Shared;
    return *instance;
}

void move_blocks(FreeList& from, FreeList& to, std::uint32_t count) noexcept {
    for (; count > 0 && from.head; --count) {
        FreeBlock* block = from.head;
        from.head = block->next;
        --from.count;
        block->next = to.head;
        to.head = block;
        ++to.count;
    }
}

void* take(FreeList& list) noexcept {  // which has a block
    FreeBlock* block = list.head;
    list.head = block->next;
    --list.count;
    return block;
}

// Hands the thread's blocks and counters over when the thread ends.
struct ThreadEnd {
    ~ThreadEnd() {
        Shared& s = shared();
        const std::lock_guard lock(s.mutex);
        for (int i = 0; i < kClasses; ++i) move_blocks(cache.lists[i], s.lists[i], cache.lists[i].count);
        s.gone.live_bytes += cache.live.get();
        s.gone.peak_bytes += cache.live.get();
        s.gone.allocations += cache.allocations.get();
        std::erase(s.threads, &cache);
        cache.live.set(0);
        for (FreeList& list : cache.lists) list.most = 0;
        cache.finished = true;
    }
};

// A thread under ShapesOnly keeps no free blocks: each block comes from refill(), which clears it. Nor does one whose blocks the system allocates.
void keep_free_blocks(bool keeps) noexcept {
    if (shared().system_only) return;
    for (int i = 0; i < kClasses; ++i) {
        cache.lists[i].most = keeps ? static_cast<std::uint32_t>(std::max(kThreadListBytes / class_bytes(i), std::size_t{1})) : 0;
    }
}

[[gnu::noinline]] void register_thread() noexcept {
    if (cache.registered || cache.finished) return;
    keep_free_blocks(!detail::shapes_only);
    thread_local ThreadEnd end;
    static_cast<void>(end);
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    s.threads.push_back(&cache);
    cache.registered = true;
}

[[gnu::always_inline]] inline void count_allocation(std::size_t bytes) noexcept {
    cache.allocations.add(1);
    cache.live.add(static_cast<std::int64_t>(bytes));
    if (cache.live.value > cache.peak.value) cache.peak.set(cache.live.value);
}

void* system_allocate(std::size_t bytes) noexcept {
    ++shared().system_calls;
    return std::aligned_alloc(detail::kAlignment, bytes);
}

// Called with the mutex held.
bool fill_from_slab(Shared& s, FreeList& list, std::size_t bytes, std::uint32_t batch) noexcept {
    auto* slab = static_cast<std::byte*>(system_allocate(bytes * batch));
    if (!slab) return false;
    for (std::size_t i = batch; i-- > 0;) {
        auto* block = reinterpret_cast<FreeBlock*>(slab + i * bytes);
        block->next = list.head;
        list.head = block;
    }
    list.count += batch;
    s.slab_bytes += bytes * batch;
    try {
        s.slabs.push_back(slab);
    } catch (...) {  // leak checkers do not see this one
    }
    return true;
}

// Fills the thread's empty list: from the shared list if that has blocks, else from a fresh slab.
[[gnu::noinline]] bool refill(int index) noexcept {
    register_thread();
    Shared& s = shared();
    const std::size_t bytes = class_bytes(index);
    const auto batch = static_cast<std::uint32_t>(std::max<std::size_t>(1, kSlabBytes / bytes));
    FreeList& list = cache.lists[index];
    const std::lock_guard lock(s.mutex);
    if (detail::shapes_only) {
        if (!s.lists[index].head && !fill_from_slab(s, s.lists[index], bytes, batch)) return false;
        move_blocks(s.lists[index], list, 1);
        std::memset(static_cast<void*>(list.head), 0, bytes);
        return true;
    }
    move_blocks(s.lists[index], list, batch);
    return list.head || fill_from_slab(s, list, bytes, batch);
}

std::size_t round_large(std::size_t bytes) noexcept {
    const std::size_t step = std::bit_floor(bytes) / 8;  // at most an eighth is lost
    return (bytes + step - 1) / step * step;
}

void release_large(Shared& s, std::size_t keep) noexcept {
    while (s.large_bytes > keep) {
        const auto biggest = std::prev(s.large.end());
        s.large_bytes -= biggest->first;
        std::free(biggest->second);
        s.large.erase(biggest);
    }
}

// Zeros, which take memory where somebody writes to them.
void* allocate_unbacked(Shared& s, std::size_t bytes) noexcept {
    void* const block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    try {
        s.unbacked.insert(block);
        return block;
    } catch (...) {
        ::munmap(block, bytes);
        return nullptr;
    }
}

[[gnu::noinline]] void* allocate_large(std::size_t bytes) noexcept {
    if (bytes > (std::size_t{1} << 62)) return nullptr;
    register_thread();
    bytes = round_large(bytes);
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    if (detail::shapes_only) return allocate_unbacked(s, bytes);
    void* block = nullptr;
    if (const auto found = s.large.find(bytes); found != s.large.end()) {
        block = found->second;
        s.large.erase(found);
        s.large_bytes -= bytes;
    } else {
        block = system_allocate(bytes);
        if (!block) {
            release_large(s, 0);
            block = system_allocate(bytes);
        }
    }
    if (block) {
        count_allocation(bytes);
        s.large_live += bytes;
    }
    return block;
}

[[gnu::noinline]] void deallocate_large(void* block, std::size_t bytes) noexcept {
    register_thread();
    bytes = round_large(bytes);
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    if (!s.unbacked.empty() && s.unbacked.erase(block) > 0) {
        ::munmap(block, bytes);
        return;
    }
    cache.live.add(-static_cast<std::int64_t>(bytes));
    s.large_live -= bytes;
    if (s.system_only || bytes > s.limit) {
        std::free(block);
        return;
    }
    try {
        s.large.emplace_hint(s.large.lower_bound(bytes), bytes, block);  // before its equals: found first, while it is in the caches
        s.large_bytes += bytes;
    } catch (...) {
        std::free(block);
    }
    release_large(s, s.limit);
}

// Takes a block where the thread's list is empty. It always is where the system allocates each block.
[[gnu::noinline]] void* allocate_slowly(int index) noexcept {
    const std::size_t size = class_bytes(index);
    void* block = nullptr;
    if (shared().system_only) {
        register_thread();
        block = std::aligned_alloc(detail::kAlignment, size);
        if (detail::shapes_only && block) std::memset(block, 0, size);
    } else if (refill(index)) {
        block = take(cache.lists[index]);
    }
    if (block) count_allocation(size);
    return block;
}

// Called after a block was put on a full list, or on one that its thread had not used so far, or where the system allocates each block.
[[gnu::noinline]] void spill(int index) noexcept {
    register_thread();
    FreeList& list = cache.lists[index];
    Shared& s = shared();
    if (s.system_only) return std::free(take(list));
    if (list.count <= list.most) return;
    const std::lock_guard lock(s.mutex);
    move_blocks(list, s.lists[index], list.most == 0 ? list.count : list.count / 2);
}

}  // namespace

// For gdb: the data that memory_stats() sums.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no virtual bases here
extern "C" {
[[gnu::used, gnu::retain]] constexpr gdb::LayoutEntry tapir_gdb_allocator[] = {
    TAPIR_GDB_OFFSET(Shared, large_bytes),
    TAPIR_GDB_OFFSET(Shared, large_live),
    TAPIR_GDB_OFFSET(Shared, slab_bytes),
    TAPIR_GDB_OFFSET(Shared, threads),
    TAPIR_GDB_OFFSET(Shared, gone),
    TAPIR_GDB_OFFSET(Shared, system_calls),
    TAPIR_GDB_OFFSET(Shared, system_only),
    TAPIR_GDB_OFFSET(ThreadCache, live),
    TAPIR_GDB_OFFSET(ThreadCache, peak),
    TAPIR_GDB_OFFSET(ThreadCache, allocations),
    TAPIR_GDB_OFFSET(MemoryStats, live_bytes),
    TAPIR_GDB_OFFSET(MemoryStats, peak_bytes),
    TAPIR_GDB_OFFSET(MemoryStats, allocations),
    {},
};
[[gnu::used, gnu::retain]] constinit const void* tapir_gdb_allocator_memory = shared_memory;
}
#pragma GCC diagnostic pop

void* detail::allocate(std::size_t bytes) noexcept {
    if (bytes > kSmallLimit) [[unlikely]]
        return allocate_large(bytes);
    const int index = class_of(bytes);
    FreeList& list = cache.lists[index];
    if (!list.head) [[unlikely]]
        return allocate_slowly(index);
    count_allocation(class_bytes(index));
    return take(list);
}

void detail::deallocate(void* block, std::size_t bytes) noexcept {
    if (bytes > kSmallLimit) [[unlikely]]
        return deallocate_large(block, bytes);
    const int index = class_of(bytes);
    cache.live.add(-static_cast<std::int64_t>(class_bytes(index)));
    FreeList& list = cache.lists[index];
    auto* free_block = static_cast<FreeBlock*>(block);
    free_block->next = list.head;
    list.head = free_block;
    if (++list.count > list.most) [[unlikely]]
        spill(index);
}

#ifndef TAPIR_RUNTIME
constinit thread_local bool detail::shapes_only = false;

static void compute_shapes_only(bool on) noexcept {
    detail::shapes_only = on;
    register_thread();
    if (cache.finished) return;
    keep_free_blocks(!on);
    if (!on) return;
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    for (int i = 0; i < kClasses; ++i) move_blocks(cache.lists[i], s.lists[i], cache.lists[i].count);
}

detail::ShapesOnly::ShapesOnly(bool on) noexcept : before_(shapes_only) {
    if (on != before_) compute_shapes_only(on);
}
detail::ShapesOnly::~ShapesOnly() {
    if (shapes_only != before_) compute_shapes_only(before_);
}
#endif

MemoryStats memory_stats() noexcept {
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    MemoryStats sum = s.gone;
    for (const ThreadCache* t : s.threads) {
        sum.live_bytes += t->live.get();
        sum.peak_bytes += t->peak.get();
        sum.allocations += t->allocations.get();
    }
    const auto live_small = sum.live_bytes - static_cast<std::int64_t>(s.large_live);
    if (!s.system_only) sum.cached_bytes = static_cast<std::int64_t>(s.slab_bytes + s.large_bytes) - live_small;
    sum.system_calls = s.system_calls;
    return sum;
}

void reset_peak_memory() noexcept {
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    s.gone.peak_bytes = s.gone.live_bytes;
    for (ThreadCache* t : s.threads) t->peak.set(t->live.get());
}

void empty_cache() noexcept {
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    release_large(s, 0);
}

void set_cache_limit(std::size_t bytes) noexcept {
    Shared& s = shared();
    const std::lock_guard lock(s.mutex);
    s.limit = bytes;
    release_large(s, bytes);
}

}  // namespace tapir
