// Which block the allocator hands out next.
#include "tapir/core/allocator.h"

#include <catch2/catch.hpp>

using namespace tapir;

TEST_CASE("the block that was freed last is handed out first, as it is still in the caches") {
    for (const std::size_t bytes : {std::size_t{256}, std::size_t{8} << 20}) {
        void *const first = detail::allocate(bytes), *const second = detail::allocate(bytes);
        detail::deallocate(first, bytes);
        void* const again = detail::allocate(bytes);
        const bool keeps_blocks = again == first;  // not where the system allocates each, as under a sanitizer
        detail::deallocate(again, bytes);
        detail::deallocate(second, bytes);
        void* const last = detail::allocate(bytes);
        if (keeps_blocks) CHECK(last == second);
        detail::deallocate(last, bytes);
    }
}
