// Sets how many threads one large op may use; small ops use only the caller's. In gradients of convolutions and large products,
// the last digits of oneDNN's sums depend on that number.
#pragma once

#include "tapir/core/error.h"

namespace tapir {

/// Starts as the environment variable OMP_NUM_THREADS, or the number of processors that this process may use.
int num_threads() noexcept;
inline int get_num_threads() noexcept { return num_threads(); }  ///< num_threads() by PyTorch's name

/// Applies to the whole process, from the next op on. Throws ValueError below 1.
void set_num_threads(int count, const Loc& loc = Loc::current());

}  // namespace tapir
