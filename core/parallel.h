// How many threads one large op may use. Small ops never use more than the caller's.
#pragma once

#include "tapir/core/error.h"

namespace tapir {

/// At first OpenMP's default: OMP_NUM_THREADS, or the processors this process may use. 1 without OpenMP.
int num_threads() noexcept;
inline int get_num_threads() noexcept { return num_threads(); }  ///< num_threads() by PyTorch's name

/// For the whole process, from the next op on. Throws ValueError below 1.
void set_num_threads(int count, const Loc& loc = Loc::current());

}  // namespace tapir
