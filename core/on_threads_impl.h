// Whole parts of a program on several threads, as against loops: see parallel_for() for these.
#pragma once

#include "tapir/core/pool_impl.h"

namespace tapir::detail {

/// Calls work(0) ... work(parts - 1), each on a thread of its own if there are as many: work(0) on this one. Ops in them share nothing out to
/// further threads. Rethrows the exception of the first part that has one, when all have ended.
template <class Work>
void on_threads(int parts, const Work& work) {
    share_parts(parts, parts, [&](std::int64_t part) { work(static_cast<int>(part)); });
}

}  // namespace tapir::detail
