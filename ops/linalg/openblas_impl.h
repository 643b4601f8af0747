// What OpenBLAS, where it is the LAPACK of this machine, must be told. Other libraries are left as they are.
#pragma once

namespace tapir::openblas {

/// OpenBLAS starts threads of its own, which set_num_threads() is to reach: no more than `count`, and than the user's environment says.
void set_threads(int count);

/// The kind of processor that its kernels are for ("Haswell"), or null for another library.
const char* kernels();

}  // namespace tapir::openblas
