// Writes safetensors files with a callback before the rename, inside the library.
#pragma once

#include <functional>
#include <string>

#include "tapir/core/io/safetensors.h"

namespace tapir::io {

/// save_safetensors(), called `op` in messages. `before_rename` runs when the new file is complete and on the disk, while the old one is
/// still in its place.
void save_safetensors(const char* op, const std::string& path, const NamedTensors& tensors, const FileMetadata& metadata,
                      const std::function<void()>& before_rename, const Loc& loc);
NamedTensors load_safetensors(const char* op, const std::string& path, FileMetadata* metadata, const Loc& loc);

}  // namespace tapir::io
