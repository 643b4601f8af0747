// A child that fork() made goes on with ops of any size.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tapir/core/parallel.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("a child of fork() runs large ops, on its one thread") {
    const int before = num_threads();
    set_num_threads(2);
    const Tensor x = arange(1 << 20, float32), image = ones({2, 8, 32, 32}), weight = ones({8, 8, 3, 3});
    const auto result = [&] { return (x * 2 + 1).to(float64).sum().item() + conv2d(image, weight).to(float64).sum().item(); };
    const double expected = result();  // 2^20 * 2^20 is the sum of the odd numbers; 72 products of ones for each of the outputs
    CHECK(expected == 0x1p40 + 2.0 * 8 * 30 * 30 * 72);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(60);  // ends a child that waits for ever
        const bool is_right = result() == expected && num_threads() == 1;
        set_num_threads(2);
        ::_exit(is_right && result() == expected ? 0 : 1);
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    CHECK(num_threads() == 2);  // of the parent
    set_num_threads(before);
}
