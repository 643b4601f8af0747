// Shape: a short list of sizes (or of dimension numbers), at most 8 long, held in place.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/error.h"

namespace tapir {

/// Tensors have at most this many dimensions.
inline constexpr int kMaxRank = 8;

/// Argument that is the number of a dimension; negative ones count from the end.
class Dim {
 public:
    template <class I>
        requires(std::is_integral_v<I> && !std::is_same_v<I, bool>)
    constexpr Dim(I number) noexcept  // NOLINT: implicit by design
        : number_(std::cmp_less(number, -kBeyond)         ? -kBeyond
                      : std::cmp_greater(number, kBeyond) ? kBeyond
                                                          : static_cast<int>(number)) {}
    template <class Bool>
        requires(std::is_same_v<Bool, bool>)
    Dim(Bool) = delete;  // a bool is not a dimension: write argmax(x, 0, /*keepdim=*/true), sort(x, -1, /*descending=*/true)
    constexpr operator int() const noexcept { return number_; }

 private:
    static constexpr int kBeyond = 1 << 30;  // larger numbers become this; no tensor has that dimension
    int number_;
};

/// Integer argument with the caller's line. It is the position of an element between brackets, where negative ones count from
/// the end, or one of several sizes without braces, x.view(2, 3).
struct IndexArg {
    template <class I>
        requires(std::is_integral_v<I> && !std::is_same_v<I, bool>)
    constexpr IndexArg(I i, Loc line = Loc::current()) noexcept : value(static_cast<std::int64_t>(i)), loc(line) {}  // NOLINT: implicit
    std::int64_t value;
    Loc loc;
};

/// Argument that is true or false. Numbers do not convert to it, so that sum(x, 0, 1) is not read as sum(x, 0, /*keepdim=*/true).
class Flag {
 public:
    template <class Bool>
        requires(std::is_same_v<Bool, bool>)
    constexpr Flag(Bool on) noexcept : on_(on) {}  // NOLINT: implicit by design
    template <class Number>
        requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>)
    Flag(Number) = delete;  // a number is not true or false: for several dimensions write sum(x, {0, 1})
    constexpr operator bool() const noexcept { return on_; }

 private:
    bool on_;
};

/// First member of a struct of options whose numbers may also come one by one, in PyTorch's order. It forces such a struct to be made by
/// names, {.stride = 2}. {2, 1} does not compile, since in PyTorch that would be a stride of two numbers.
struct ByName {
    explicit constexpr ByName() = default;
};

template <class... I>
concept SizesOnly = ((std::is_integral_v<I> && !std::is_same_v<I, bool>) && ...);

/// The sizes of a tensor: `Shape{2, 3}`, `{batch, width}`. Also used for lists of dimension numbers (Dims).
class Shape {
 public:
    Shape() = default;
    // Copies only the sizes in use: copying all 72 bytes at once right after a size was stored would wait for that store.
    Shape(const Shape& other) noexcept : rank_(other.rank_) { copy_sizes(other); }
    Shape& operator=(const Shape& other) noexcept {
        rank_ = other.rank_;
        copy_sizes(other);
        return *this;
    }

    template <class... I>
        requires(sizeof...(I) > 0 && sizeof...(I) <= kMaxRank && ((std::is_integral_v<I> && !std::is_same_v<I, bool>) && ...))
    Shape(I... sizes) noexcept : rank_(sizeof...(I)), sizes_{static_cast<std::int64_t>(sizes)...} {}  // NOLINT
    template <class... I>
        requires((std::is_integral_v<I> && ...) && (std::is_same_v<I, bool> || ...))
    Shape(I...) = delete;  // a bool is neither a size nor a dimension: write sum(x, 0, /*keepdim=*/true), or sum(x, {}, true)

    /// Throws ShapeError when there are more than 8.
    template <class V>
        requires std::is_same_v<V, std::vector<std::int64_t>>  // so that Shape({2, 3}) is not one
    Shape(const V& sizes, Loc loc = Loc::current())            // NOLINT
        : Shape(sizes.data(), static_cast<int>(sizes.size()), loc) {}
    Shape(const std::int64_t* sizes, int rank, Loc loc = Loc::current()) : rank_(rank) {
        if (rank > kMaxRank) fail_rank(rank, loc);
        for (int i = 0; i < rank; ++i) sizes_[i] = sizes[i];
    }

    int rank() const noexcept { return rank_; }
    std::size_t size() const noexcept { return static_cast<std::size_t>(rank_); }
    bool empty() const noexcept { return rank_ == 0; }
    /// Negative positions count from the end. Throws IndexError.
    std::int64_t operator[](IndexArg i) const& { return sizes_[place(i)]; }
    std::int64_t& operator[](IndexArg i) & { return sizes_[place(i)]; }
    /// Internal: unchecked access; i must be below rank().
    std::int64_t raw(int i) const noexcept { return sizes_[i]; }
    std::int64_t& raw(int i) noexcept { return sizes_[i]; }
    const std::int64_t* begin() const& noexcept { return sizes_; }
    const std::int64_t* end() const& noexcept { return sizes_ + rank_; }
    std::int64_t* begin() & noexcept { return sizes_; }
    std::int64_t* end() & noexcept { return sizes_ + rank_; }
    const std::int64_t* data() const& noexcept { return sizes_; }
    // Deleted for temporaries, where they would dangle: name the shape first, or use to_vector().
    const std::int64_t* begin() const&& = delete;
    const std::int64_t* end() const&& = delete;
    const std::int64_t* data() const&& = delete;
    /// Returns the last size. Throws IndexError if there is none.
    std::int64_t back(Loc loc = Loc::current()) const& { return (*this)[{-1, loc}]; }
    std::int64_t& back(Loc loc = Loc::current()) & { return (*this)[{-1, loc}]; }

    /// Returns the number of elements: the product of the sizes, 1 for the empty shape. Wraps for sizes beyond any tensor.
    std::int64_t numel() const noexcept {
        std::uint64_t n = 1;
        for (std::int64_t size : *this) n *= static_cast<std::uint64_t>(size);
        return static_cast<std::int64_t>(n);
    }

    /// Appends a size. Throws ShapeError beyond rank 8.
    void push_back(std::int64_t size, Loc loc = Loc::current());
    void insert(int position, std::int64_t size, Loc loc = Loc::current());
    void erase(int position) noexcept;

    bool operator==(const Shape& other) const noexcept {
        if (rank_ != other.rank_) return false;
        for (int i = 0; i < rank_; ++i) {
            if (sizes_[i] != other.sizes_[i]) return false;
        }
        return true;
    }

    std::vector<std::int64_t> to_vector() const { return {begin(), end()}; }
    /// "(2, 3)", "(4,)", "()"
    std::string str() const;

 private:
    [[noreturn]] static void fail_rank(int rank, const Loc& loc);
    [[noreturn]] void fail_position(const IndexArg& i) const;
    int place(const IndexArg& i) const {
        const std::int64_t at = i.value < 0 ? i.value + rank_ : i.value;
        if (at < 0 || at >= rank_) [[unlikely]]
            fail_position(i);
        return static_cast<int>(at);
    }
    void copy_sizes(const Shape& other) noexcept {
        for (int i = 0; i < rank_; ++i) sizes_[i] = other.sizes_[i];
    }

    int rank_ = 0;
    std::int64_t sizes_[kMaxRank];
};

/// A list of dimension numbers; negative ones count from the end.
using Dims = Shape;

/// Argument that can be a Shape and nothing else. Used for a stride by position where a struct of options, made by braces, may stand too.
template <class S>
concept ShapeArg = SizesOnly<S> || std::is_same_v<S, Shape>;

/// Returns the shape that both broadcast to, by NumPy's rules. Throws ShapeError if there is none; `op` names the op in the error.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op = "broadcast_shapes", Loc loc = Loc::current());

}  // namespace tapir
