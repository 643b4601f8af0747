// Files in the safetensors format (https://huggingface.co/docs/safetensors): named tensors, readable by Python and others.
//
//     save_safetensors("weights.safetensors", {{"w", w}, {"b", b}});
//     for (const NamedTensor& t : load_safetensors("weights.safetensors")) ...
//
// A file is 8 bytes of header length (little-endian), a JSON header, and the elements of all tensors, row-major.
// Whatever is in it, reading ends in tensors or in a FileError that names the path. It takes memory for the tensors
// and, while it reads, about ten times the header's size. Files of Tapir begin with a checksum, the word "tapir.crc32c"
// of the metadata: a file whose bytes have changed since is refused. What other programs write has none, also where
// they copy the metadata of such a file.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/named_tensor.h"

namespace tapir {

/// The header's "__metadata__": words about the file, but for its checksum.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

/// Writes a new file beside `path`, flushes it to the disk and renames it: at any moment `path` is the old file or the whole
/// new one. Throws FileError when writing fails, ValueError for undefined tensors, and for names that are used twice, are
/// not UTF-8, or are "__metadata__".
void save_safetensors(const TextArg& path, const NamedTensors& tensors, const FileMetadata& metadata = {}, Loc loc = Loc::current());

/// The tensors of a file in the order of its header. Dtypes F64 F32 F16 BF16 I64 I32 U8 BOOL stay what they are; others become the next
/// one that holds their values: I8 I16 U16 int32, U32 and U64 int64, F8_E4M3 and F8_E5M2 float32. Fills `metadata` where given.
/// Throws FileError, also for other dtypes (complex ones, parts of bytes) and a U64 past int64's end.
NamedTensors load_safetensors(const TextArg& path, FileMetadata* metadata = nullptr, Loc loc = Loc::current());

}  // namespace tapir
