// Element types of files, and what they become here: those that tapir lacks become the next one that holds all their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tapir/core/dtype.h"
#include "tapir/core/shape.h"

namespace tapir::io {

struct StoredType {
    const char* npy;          // behind the byte order; null where NumPy does not have it
    const char* safetensors;  // null where safetensors does not have it
    std::size_t size;         // of an element in the file
    DType dtype;
    // From elements in a file, of this machine's byte order, to the dtype's. False where one does not fit. Null: as they are.
    bool (*convert)(const std::byte* from, void* to, std::int64_t count);
};

/// In the file; -1: too many, there or as the dtype, whose elements may be wider (of a shape with a 0, too).
std::int64_t bytes_in_file(const Shape& shape, const StoredType& type) noexcept;

/// All that can be read. A dtype's own type stands before those that are converted to it.
std::span<const StoredType> stored_types() noexcept;

}  // namespace tapir::io
