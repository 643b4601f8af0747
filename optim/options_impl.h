// Checking an optimizer's options.
#pragma once

#include <initializer_list>
#include <utility>

#include "tapir/core/fail_impl.h"

namespace tapir::optim {

/// Throws ValueError for a number that is negative or nan.
inline void check_not_negative(const char* op, std::initializer_list<std::pair<const char*, double>> numbers, const Loc& loc) {
    for (const auto& [name, value] : numbers) {
        if (!(value >= 0)) fail<ValueError>(loc, "{}: {} must not be negative, got {}", op, name, value);
    }
}

}  // namespace tapir::optim
