// The test program's own malloc: it counts calls, and lets one fail.
#pragma once

#include <cstdint>

namespace tapir::test {

/// Calls of malloc, calloc, realloc and the aligned ones by this thread so far.
std::int64_t malloc_calls() noexcept;
/// The nth of this thread's calls from now on finds no memory, and, with `all_after`, none after it does. 0: all find
/// some.
void fail_malloc(std::int64_t n, bool all_after = false) noexcept;
/// Whether that call has come.
bool has_malloc_failed() noexcept;

}  // namespace tapir::test
