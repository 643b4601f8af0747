// Kernels that move elements without a change.
#pragma once

#include <cstdint>

#include "tapir/ops/cpu/isa.h"

/// y[i * row + j] = x[i + j * column] for i < rows and j < columns: a transposed copy of elements of 1, 2, 4 or 8 bytes.
TAPIR_CPU_KERNEL(transpose_copy,
                 void(unsigned size, void* y, std::int64_t row, const void* x, std::int64_t column, std::int64_t rows, std::int64_t columns))
/// y[i * to_row + j] = x[i * from_row + j] for i < rows and j < bytes: rows of bytes.
TAPIR_CPU_KERNEL(copy_rows, void(void* y, std::int64_t to_row, const void* x, std::int64_t from_row, std::int64_t rows, std::int64_t bytes))
/// Rows of y behind each other: `before` elements of value, `width` of x, `after` of value; x's rows are from_row apart. Numbers count
/// elements of 1, 2, 4 or 8 bytes.
TAPIR_CPU_KERNEL(pad_rows,
                 void(unsigned size, void* y, const void* x, std::int64_t from_row, std::int64_t rows, std::int64_t before, std::int64_t width,
                      std::int64_t after, const void* value))
