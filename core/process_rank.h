// Which process of a program this is.
#pragma once

namespace tapir {

/// The rank of this process among those that a launcher has started, as parallel::init() found it; on a thread of parallel::spawn(), that of the
/// thread. 0 in all other programs. What is for one reader, like a line of progress, is left to rank 0.
int process_rank() noexcept;

namespace detail {
/// Of the process; of this thread alone, where -1 means: that of the process.
void set_process_rank(int rank) noexcept;
void set_thread_rank(int rank) noexcept;
}  // namespace detail

}  // namespace tapir
