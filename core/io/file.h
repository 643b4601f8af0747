// Writing a file that is whole at any moment.
#pragma once

#include <string>
#include <string_view>

#include "tapir/core/error.h"

namespace tapir {

/// Writes a new file beside `path`, flushes it to the disk and renames it: at any moment `path` is the old file or the whole new
/// one. Throws FileError when writing fails; then the old file, if any, is still there.
void write_file(const std::string& path, std::string_view contents, Loc loc = Loc::current());

}  // namespace tapir
