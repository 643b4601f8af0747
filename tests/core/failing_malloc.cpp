#include "failing_malloc.h"

#include <cerrno>
#include <cstddef>

namespace {

thread_local std::int64_t calls = 0;
thread_local std::int64_t calls_left = 0;  // at 1 the next call fails
thread_local bool has_failed = false, fails_on = false;

bool fails_now() noexcept {
    ++calls;
    if (has_failed) return fails_on;
    has_failed = calls_left > 0 && --calls_left == 0;
    return has_failed;
}

}  // namespace

namespace tapir::test {

std::int64_t malloc_calls() noexcept { return calls; }
void fail_malloc(std::int64_t n, bool all_after) noexcept {
    calls_left = n;
    has_failed = false;
    fails_on = all_after;
}
bool has_malloc_failed() noexcept { return has_failed; }

}  // namespace tapir::test

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

static void* none() {
    errno = ENOMEM;
    return nullptr;
}

void* malloc(std::size_t n) { return fails_now() ? none() : __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) { return fails_now() ? none() : __libc_calloc(n, size); }
void* realloc(void* p, std::size_t n) { return fails_now() ? none() : __libc_realloc(p, n); }
void* aligned_alloc(std::size_t alignment, std::size_t n) { return fails_now() ? none() : __libc_memalign(alignment, n); }
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
    if (fails_now()) return ENOMEM;
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}
}
