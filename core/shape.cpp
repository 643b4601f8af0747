// Shape's less frequent members, and broadcasting.
#include "tapir/core/shape.h"

#include <algorithm>

#include "tapir/core/fail_impl.h"

namespace tapir {

void Shape::fail_rank(int rank, const Loc& loc) { fail<ShapeError>(loc, "a tensor has at most {} dimensions, got {}", kMaxRank, rank); }

void Shape::fail_position(const IndexArg& i) const {
    fail<IndexError>(i.loc, "shape[{}]: {} has {} dimension{}", i.value, *this, rank_, rank_ == 1 ? "" : "s");
}

void Shape::push_back(std::int64_t size, Loc loc) { insert(rank_, size, loc); }

void Shape::insert(int position, std::int64_t size, Loc loc) {
    if (rank_ == kMaxRank) fail_rank(rank_ + 1, loc);
    std::copy_backward(sizes_ + position, sizes_ + rank_, sizes_ + rank_ + 1);
    sizes_[position] = size;
    ++rank_;
}

void Shape::erase(int position) noexcept {
    std::copy(sizes_ + position + 1, sizes_ + rank_, sizes_ + position);
    --rank_;
}

std::string Shape::str() const {
    std::string text = "(";
    for (int i = 0; i < rank_; ++i) {
        if (i > 0) text += ", ";
        text += std::to_string(sizes_[i]);
    }
    return text + (rank_ == 1 ? ",)" : ")");
}

// Ends the message about shapes of which one may lack its last dimension, not its first.
static std::string broadcast_hint(const Shape& longer, const Shape& shorter, bool is_second) {
    if (shorter.rank() == 0 || longer.rank() != shorter.rank() + 1) return "";
    for (int d = 0; d < shorter.rank(); ++d) {
        if (longer.raw(d) != shorter.raw(d)) return "";
    }
    return fmt::format("; the {} would with a dimension more, by unsqueeze(-1)", is_second ? "second" : "first");
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op, Loc loc) {
    if (!op) fail<ValueError>(loc, "broadcast_shapes: the name of the op is a null pointer");
    const Shape& longer = a.rank() >= b.rank() ? a : b;
    const Shape& shorter = a.rank() >= b.rank() ? b : a;
    Shape result = longer;
    const int skip = longer.rank() - shorter.rank();
    for (int i = 0; i < shorter.rank(); ++i) {
        std::int64_t& size = result.raw(i + skip);
        if (size == shorter.raw(i) || shorter.raw(i) == 1) continue;
        if (size != 1) {
            fail<ShapeError>(loc, "{}: shapes {} and {} do not broadcast{}", op, a, b, broadcast_hint(longer, shorter, a.rank() >= b.rank()));
        }
        size = shorter.raw(i);
    }
    return result;
}

}  // namespace tapir
