// NumPy's files: .npy, one array, and .npz, a zip archive of them.
//
//     save_npy("x.npy", x);                               // x = numpy.load("x.npy")
//     save_npz("run.npz", {{"w", w}, {"b", b}});          // numpy.load("run.npz")["w"]
//     Tensor x = load_npy("x.npy");
//
// Any file, even a damaged one, gives tensors or a FileError that names the path. Reading stays within the file, and allocates no
// more than the file could hold.
#pragma once

#include <string>

#include "tapir/core/arguments.h"
#include "tapir/core/named_tensor.h"

namespace tapir {

/// Writes an array in row-major order, atomically as save_safetensors() does. Throws FileError when writing fails, ValueError for an
/// undefined tensor, DTypeError for bfloat16, which NumPy does not have: save x.to(float32).
void save_npy(const TextArg& path, const Tensor& x, Loc loc = Loc::current());

/// Reads an array in format 1, 2 or 3, of either byte order, row- or column-major: float16, float32, float64, int32, int64, uint8, bool;
/// int8, int16 and uint16 become int32; uint32 and uint64 become int64. Throws FileError, also for other types and for a uint64 above
/// int64's range. For a file of another format the error names the function that reads it.
Tensor load_npy(const TextArg& path, Loc loc = Loc::current());

/// Writes NAME.npy for each tensor into an archive; `compressed` uses zlib. Throws as save_npy(), ValueError for a name that is used
/// twice, and FileError for compression in a build without zlib.
void save_npz(const TextArg& path, const NamedTensors& tensors, bool compressed = false, Loc loc = Loc::current());

/// Returns the arrays of an archive, compressed or not, in the order of its directory. Throws FileError.
NamedTensors load_npz(const TextArg& path, Loc loc = Loc::current());

}  // namespace tapir
