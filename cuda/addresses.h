// Lists of addresses in device memory, as batched routines of libraries take them.
#pragma once

#include <cstdint>

namespace tapir::gpu {

/// to[k] = first + k * bytes, for k < count; on the current stream.
void list_addresses(void** to, void* first, std::int64_t bytes, std::int64_t count);

}  // namespace tapir::gpu
