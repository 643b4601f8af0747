// Writes files that are complete at any moment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tapir/core/arguments.h"
#include "tapir/core/error.h"

namespace tapir {

/// Writes a new file beside `path`, flushes it to the disk and renames it: at any moment `path` is the old file or the whole new
/// one. Throws FileError when writing fails; then the old file, if any, is still there.
void write_file(const TextArg& path, TextViewArg contents, Loc loc = Loc::current());

/// Returns how many bytes a packed file may unpack to: gzip can pack a thousand times as many bytes as it takes. Readers of gzipped files
/// (read_csv(), read_idx(), mnist(), the CIFAR-10 ones) and load_npz(), for all compressed arrays of an archive together, throw
/// FileError beyond it. Starts as a quarter of the machine's memory.
std::uint64_t max_unpacked_bytes() noexcept;
/// Applies to the whole process, for files that are opened from then on.
void set_max_unpacked_bytes(std::uint64_t bytes) noexcept;

}  // namespace tapir
