// Writes lists of addresses to device memory, for batched routines of libraries.
#pragma once

#include <cstdint>

namespace tapir::gpu {

/// Sets to[k] = first + k * bytes, for k < count, on the current stream.
void list_addresses(void** to, void* first, std::int64_t bytes, std::int64_t count);

}  // namespace tapir::gpu
