// Maps element types of files to dtypes. Types that tapir lacks become the next one that holds all their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tapir/core/dtype.h"
#include "tapir/core/shape.h"

namespace tapir::io {

struct StoredType {
    const char* npy;          // the code after the byte order; null if NumPy lacks the type
    const char* safetensors;  // null if safetensors lacks the type
    std::size_t size;         // of an element in the file
    DType dtype;
    // Converts elements in a file, of this machine's byte order, to the dtype. Returns false if one does not fit. Null: no conversion.
    bool (*convert)(const std::byte* from, void* to, std::int64_t count);
};

/// Returns the bytes in the file; -1 if there are too many, in the file or as the (possibly wider) dtype; for a shape with a 0, too.
std::int64_t bytes_in_file(const Shape& shape, const StoredType& type) noexcept;

/// Returns all types that can be read. A dtype's own type stands before those that are converted to it.
std::span<const StoredType> stored_types() noexcept;

}  // namespace tapir::io
