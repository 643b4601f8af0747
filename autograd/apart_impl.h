// A part of the program that is hidden from the thread's tapes.
#pragma once

#include "tapir/autograd/tape.h"

namespace tapir {

/// While it lives, the thread has no tape. A tape that begins inside of it has records of its own, none of which reach the tapes outside.
/// Values that the outer tapes have recorded are constants to it.
class ApartScope {
 public:
    [[nodiscard]] ApartScope() noexcept;
    ~ApartScope();
    ApartScope(const ApartScope&) = delete;
    ApartScope& operator=(const ApartScope&) = delete;

 private:
    friend bool is_outside(std::uint32_t tape) noexcept;
    friend struct ThreadTapes;
    NoGradScope pause_;
    Tape* hidden_;
    ApartScope* outer_;
};

}  // namespace tapir
