// The pool of threads that large ops are shared out to.
#pragma once

#include <cstdint>

namespace tapir::detail {

using RunPart = void (*)(const void* of, std::int64_t part);
using RunRange = void (*)(const void* of, std::int64_t begin, std::int64_t end);

/// Calls part 0, 1 ... of a work, each once, on this thread, part 0 first, and on up to threads - 1 of the pool. Returns when all have ended, and
/// rethrows the exception of the first part that has one. Each thread has a range of parts, the same for the same numbers, so that its core's
/// cache may still hold what it needs. A thread that is done takes parts from the ends of the others' ranges. So no part waits for a thread that
/// has not come yet.
void run_parts(std::int64_t parts, int threads, RunPart call, const void* of);
/// The same for parts of [0, n) that begin at multiples of a number, on num_threads(): see parallel_for().
void run_ranges(std::int64_t n, std::int64_t grain, std::int64_t multiple, RunRange call, const void* of);

/// True while this thread runs a part: then it shares nothing out.
bool in_part() noexcept;

/// Calls work(0) ... work(parts - 1) as run_parts() does.
template <class Work>
void share_parts(std::int64_t parts, int threads, const Work& work) {
    run_parts(parts, threads, [](const void* of, std::int64_t part) { (*static_cast<const Work*>(of))(part); }, &work);
}

}  // namespace tapir::detail
