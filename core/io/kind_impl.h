// Recognizes a file of another format by its first bytes, for errors that say what to call instead.
#pragma once

#include <string>

#include "tapir/core/io/file_impl.h"

namespace tapir::io {

/// Returns "; it looks like an .npz archive: call load_npz()", or "" for unknown bytes.
std::string kind_of(const InputFile& file);

}  // namespace tapir::io
