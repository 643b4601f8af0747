// TurnBound: limits loops that are tried out on made-up numbers, on which they may not end.
#pragma once

#include <cstdint>

#include "tapir/core/error.h"

namespace tapir::detail {

inline constexpr std::int64_t kMadeUpTurns = 10'000;

/// While it lives, the while_loops of its thread may take so many turns in total, else ValueError. If several live, each counts.
class TurnBound {
 public:
    explicit TurnBound(std::int64_t turns) noexcept;
    ~TurnBound();
    TurnBound(const TurnBound&) = delete;
    TurnBound& operator=(const TurnBound&) = delete;

    bool is_spent() const noexcept { return left_ == 0; }
    /// Counts one more turn of a loop, or several.
    static void count_turn(const Loc& loc, std::int64_t turns = 1);
    /// Counts one more turn of a loop. Returns false if none is left, under ShapesOnly: results have their shapes after any turn.
    static bool take_turn(const Loc& loc);

 private:
    std::int64_t most_, left_;
    TurnBound* outer_;
};

}  // namespace tapir::detail
