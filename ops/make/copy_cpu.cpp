// Copies of elements in another order.
#include <cstring>
#include <utility>

#include "tapir/ops/cpu/vector_impl.h"
#include "tapir/ops/make/copy_kernels.h"

namespace tapir::kernels {
namespace TAPIR_ISA {
namespace {

constexpr i64 kLineBytes = 64;

// --- Transposed ------------------------------------------------------------------------------------------------------

// Transposes squares of elements in registers. Wide vectors of small elements would be more rows than there are registers.
template <class T>
struct Square {
    static constexpr int side = (sizeof(T) < 4 ? 16 : kVectorBytes) / static_cast<int>(sizeof(T));
    typedef T Row __attribute__((vector_size(side * sizeof(T))));
    typedef T RowInMemory __attribute__((vector_size(side * sizeof(T)), aligned(alignof(T)), may_alias));

    // Puts the elements of a and b, of their first or second halves, in turn.
    template <int first, int... i>
    static Row shuffled(Row a, Row b, std::integer_sequence<int, i...>) {
        return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * side)...);
    }

    // y[i * row + j] = x[i + j * column]. Shuffling row i and row i + side / 2 to rows 2 i and 2 i + 1, log2(side) times, transposes.
    static void transpose(T* y, i64 row, const T* x, i64 column) {
        constexpr auto places = std::make_integer_sequence<int, side>();
        Row a[side], b[side];
#pragma GCC unroll 16
        for (int j = 0; j < side; ++j) a[j] = *reinterpret_cast<const RowInMemory*>(x + j * column);
#pragma GCC unroll 4
        for (int step = 1; step < side; step *= 2) {
#pragma GCC unroll 8
            for (int i = 0; i < side / 2; ++i) {
                b[2 * i] = shuffled<0>(a[i], a[i + side / 2], places);
                b[2 * i + 1] = shuffled<side / 2>(a[i], a[i + side / 2], places);
            }
#pragma GCC unroll 16
            for (int i = 0; i < side; ++i) a[i] = b[i];
        }
#pragma GCC unroll 16
        for (int i = 0; i < side; ++i) *reinterpret_cast<RowInMemory*>(y + i * row) = a[i];
    }
};

// Matrices of 2 to 4 dense columns, as an image's colours, to their rows, or from their rows.
template <int Columns, class T>
void join_columns(T* y, const T* x, i64 column, i64 rows) {
#pragma omp simd
    for (i64 i = 0; i < rows; ++i) {
        for (int k = 0; k < Columns; ++k) y[i * Columns + k] = x[i + k * column];
    }
}
template <int Rows, class T>
void part_rows(T* y, i64 row, const T* x, i64 columns) {
#pragma omp simd
    for (i64 k = 0; k < columns; ++k) {
        for (int i = 0; i < Rows; ++i) y[i * row + k] = x[k * Rows + i];
    }
}

// Goes through blocks that read whole lines of memory, and few pages at a time.
template <class T>
void transpose(T* y, i64 row, const T* x, i64 column, i64 rows, i64 columns) {
    if (row == columns) {
        if (columns == 2) return join_columns<2>(y, x, column, rows);
        if (columns == 3) return join_columns<3>(y, x, column, rows);
        if (columns == 4) return join_columns<4>(y, x, column, rows);
    }
    if (column == rows) {
        if (rows == 2) return part_rows<2>(y, row, x, columns);
        if (rows == 3) return part_rows<3>(y, row, x, columns);
        if (rows == 4) return part_rows<4>(y, row, x, columns);
    }
    constexpr i64 side = Square<T>::side, block_rows = kLineBytes / sizeof(T) > side ? kLineBytes / sizeof(T) : side, block_columns = 64;
    for (i64 left = 0; left < columns; left += block_columns) {
        const i64 right = smaller(left + block_columns, columns);
        for (i64 top = 0; top < rows; top += block_rows) {
            const i64 bottom = smaller(top + block_rows, rows);
            i64 j = left;
            for (; j + side <= right; j += side) {
                i64 i = top;
                for (; i + side <= bottom; i += side) Square<T>::transpose(y + i * row + j, row, x + i + j * column, column);
                for (; i < bottom; ++i) {
                    for (i64 k = j; k < j + side; ++k) y[i * row + k] = x[i + k * column];
                }
            }
            for (i64 i = top; i < bottom; ++i) {
                for (i64 k = j; k < right; ++k) y[i * row + k] = x[i + k * column];
            }
        }
    }
}

// --- Rows ------------------------------------------------------------------------------------------------------------

template <int size>
void copy_piece(std::byte* y, const std::byte* x) {
    std::byte piece[size];
    std::memcpy(piece, x, size);
    std::memcpy(y, piece, size);
}

// Copies the bytes of a short row as pieces, of which the last overlaps the one before.
template <int size>
void copy_pieces(std::byte* y, const std::byte* x, i64 bytes) {
    for (i64 i = 0; i + size < bytes; i += size) copy_piece<size>(y + i, x + i);
    copy_piece<size>(y + bytes - size, x + bytes - size);
}

// Copies one row, quickly where it is short.
void copy_row(std::byte* y, const std::byte* x, i64 bytes) {
    constexpr i64 long_row = 512;
    if (bytes >= 32 && bytes < long_row) {
        copy_pieces<32>(y, x, bytes);
    } else if (bytes >= 8 && bytes < long_row) {
        copy_pieces<8>(y, x, bytes);
    } else {
        std::memcpy(y, x, static_cast<std::size_t>(bytes));
    }
}

template <class T>
void pad(T* y, const T* x, i64 from_row, i64 rows, i64 before, i64 width, i64 after, T value) {
    for (i64 row = 0; row < rows; ++row, x += from_row) {
        for (i64 i = 0; i < before; ++i) *y++ = value;
        copy_row(reinterpret_cast<std::byte*>(y), reinterpret_cast<const std::byte*>(x), width * static_cast<i64>(sizeof(T)));
        y += width;
        for (i64 i = 0; i < after; ++i) *y++ = value;
    }
}
template <class T>
void pad(void* y, const void* x, i64 from_row, i64 rows, i64 before, i64 width, i64 after, const void* value) {
    T number;
    std::memcpy(&number, value, sizeof(T));
    pad(static_cast<T*>(y), static_cast<const T*>(x), from_row, rows, before, width, after, number);
}

}  // namespace

void transpose_copy(unsigned size, void* y, i64 row, const void* x, i64 column, i64 rows, i64 columns) {
    switch (size) {
        case 1: return transpose(static_cast<std::uint8_t*>(y), row, static_cast<const std::uint8_t*>(x), column, rows, columns);
        case 2: return transpose(static_cast<std::uint16_t*>(y), row, static_cast<const std::uint16_t*>(x), column, rows, columns);
        case 4: return transpose(static_cast<std::uint32_t*>(y), row, static_cast<const std::uint32_t*>(x), column, rows, columns);
        default: return transpose(static_cast<std::uint64_t*>(y), row, static_cast<const std::uint64_t*>(x), column, rows, columns);
    }
}

void copy_rows(void* y, i64 to_row, const void* x, i64 from_row, i64 rows, i64 bytes) {
    auto* to = static_cast<std::byte*>(y);
    const auto* from = static_cast<const std::byte*>(x);
    for (i64 i = 0; i < rows; ++i, to += to_row, from += from_row) copy_row(to, from, bytes);
}

void pad_rows(unsigned size, void* y, const void* x, i64 from_row, i64 rows, i64 before, i64 width, i64 after, const void* value) {
    switch (size) {
        case 1: return pad<std::uint8_t>(y, x, from_row, rows, before, width, after, value);
        case 2: return pad<std::uint16_t>(y, x, from_row, rows, before, width, after, value);
        case 4: return pad<std::uint32_t>(y, x, from_row, rows, before, width, after, value);
        default: return pad<std::uint64_t>(y, x, from_row, rows, before, width, after, value);
    }
}

}  // namespace TAPIR_ISA
}  // namespace tapir::kernels
