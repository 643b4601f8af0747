// The items of most tests of batch().
#pragma once

#include <numeric>
#include <vector>

namespace tapir::test {

/// Returns 0, 1, ... count - 1.
inline std::vector<int> numbers(int count) {
    std::vector<int> items(static_cast<std::size_t>(count));
    std::iota(items.begin(), items.end(), 0);
    return items;
}

}  // namespace tapir::test
