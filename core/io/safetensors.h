// Files in the safetensors format (https://huggingface.co/docs/safetensors): named tensors, readable by Python and others.
//
//     save_safetensors("weights.safetensors", {{"w", w}, {"b", b}});
//     for (const NamedTensor& t : load_safetensors("weights.safetensors")) ...
//
// A file is 8 bytes of header length (little-endian), a JSON header, and the elements of all tensors, row-major.
// Any file, even a damaged one, gives tensors or a FileError that names the path. Reading takes memory for the tensors
// and, meanwhile, about ten times the header's size. Files of Tapir begin with a checksum, "tapir.crc32c" in the
// metadata: a file whose bytes have changed since is refused. Files of other programs have none, even if they copy
// the metadata of such a file.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/named_tensor.h"

namespace tapir {

/// The header's "__metadata__": words about the file, without its checksum.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// Writes a new file beside `path`, flushes it to the disk and renames it: at any moment `path` is the old file or the whole
/// new one. Throws FileError when writing fails, ValueError for undefined tensors, and for names that are used twice, are
/// not UTF-8, or are "__metadata__".
void save_safetensors(const TextArg& path, const NamedTensors& tensors, const FileMetadata& metadata = {}, Loc loc = Loc::current());

/// Returns the tensors of a file in the order of its header. Dtypes F64 F32 F16 BF16 I64 I32 U8 BOOL are kept. Others become the next
/// one that holds their values: I8 I16 U16 int32, U32 and U64 int64, F8_E4M3 and F8_E5M2 float32. Fills `metadata` if given.
/// Throws FileError, also for other dtypes (complex ones, parts of bytes) and for a U64 above int64's range.
NamedTensors load_safetensors(const TextArg& path, FileMetadata* metadata = nullptr, Loc loc = Loc::current());

}  // namespace tapir
