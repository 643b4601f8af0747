// The pool of threads that large ops are shared out to.
#include "tapir/core/pool_impl.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../threads_scope.h"
#include "tapir/ops/parallel_impl.h"

using namespace tapir;
using detail::share_parts;

namespace {

std::vector<int> calls_of_parts(int parts, int threads) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(parts));
    share_parts(parts, threads, [&](std::int64_t part) { ++calls[static_cast<std::size_t>(part)]; });
    return {calls.begin(), calls.end()};
}

}  // namespace

TEST_CASE("each part of a work is called once") {
    for (const int threads : {1, 2, 3, 8, 300}) {
        for (const int parts : {0, 1, 2, 7, 64, 1000}) {
            INFO(parts << " parts, " << threads << " threads");
            CHECK(calls_of_parts(parts, threads) == std::vector<int>(static_cast<std::size_t>(parts), 1));
        }
    }
}

TEST_CASE("part 0 runs on the caller's thread, and no part waits for a thread that does not come") {
    const auto caller = std::this_thread::get_id();
    std::atomic<bool> is_right{false};
    share_parts(4, 4, [&](std::int64_t part) {
        if (part == 0) is_right = std::this_thread::get_id() == caller;
    });
    CHECK(is_right);
}

TEST_CASE("a part shares nothing out") {
    std::atomic<int> inner{0}, elsewhere{0};
    CHECK_FALSE(detail::in_part());
    share_parts(6, 3, [&](std::int64_t) {
        const auto here = std::this_thread::get_id();
        share_parts(5, 3, [&](std::int64_t) {
            ++inner;
            if (!detail::in_part() || std::this_thread::get_id() != here) ++elsewhere;
        });
    });
    CHECK(inner == 30);
    CHECK(elsewhere == 0);
    CHECK_FALSE(detail::in_part());
}

TEST_CASE("of several parts that throw the first one's exception comes, after all have ended") {
    for (int repeat = 0; repeat < 50; ++repeat) {
        std::atomic<int> ended{0};
        std::string message;
        try {
            share_parts(16, 3, [&](std::int64_t part) {
                ++ended;
                if (part % 5 == 2) throw std::runtime_error(std::to_string(part));
            });
        } catch (const std::runtime_error& error) {
            message = error.what();
        }
        CHECK(message == "2");
        CHECK(ended == 16);
    }
    CHECK(calls_of_parts(9, 3) == std::vector<int>(9, 1));
}

TEST_CASE("threads of the program share works out at the same time") {
    constexpr int callers = 20;  // more than the pool takes: the rest do all parts themselves
    std::vector<std::int64_t> sums(callers);
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; ++caller) {
        threads.emplace_back([&, caller] {
            for (int repeat = 0; repeat < 100; ++repeat) {
                std::atomic<std::int64_t> sum{0};
                share_parts(40, 4, [&](std::int64_t part) { sum += part + caller; });
                sums[static_cast<std::size_t>(caller)] += sum;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (int caller = 0; caller < callers; ++caller) CHECK(sums[static_cast<std::size_t>(caller)] == 100 * (780 + 40 * caller));
}

TEST_CASE("what a thread of the pool has written is seen after the work") {
    std::vector<int> values(64);
    for (int repeat = 1; repeat <= 2000; ++repeat) {
        share_parts(64, 4, [&](std::int64_t part) { values[static_cast<std::size_t>(part)] += repeat; });
        if (std::accumulate(values.begin(), values.end(), 0) != 64 * repeat * (repeat + 1) / 2) {
            FAIL("a value is missing after work " << repeat);
        }
    }
}

TEST_CASE("a loop is shared out in ranges that begin at multiples of 64 and are not too short") {
    for (const int threads : {1, 2, 5}) {
        const test::ThreadsScope scope(threads);
        for (const std::int64_t n : {0, 1, 63, 64, 1000, 4096, 99999}) {
            for (const std::int64_t grain : {0, 1, 100, 5000}) {
                INFO(n << " elements, grain " << grain << ", " << threads << " threads");
                std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
                std::atomic<int> wrong{0};
                parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
                    if (begin % 64 != 0 || begin >= end || (end != n && end - begin + 63 < grain)) ++wrong;
                    for (std::int64_t i = begin; i < end; ++i) ++calls[static_cast<std::size_t>(i)];
                });
                CHECK(wrong == 0);
                parallel_items(n, grain, [&](std::int64_t begin, std::int64_t end) {
                    if (begin >= end || end - begin < std::min(grain, n)) ++wrong;
                    for (std::int64_t i = begin; i < end; ++i) ++calls[static_cast<std::size_t>(i)];
                });
                CHECK(wrong == 0);
                for (const auto& count : calls) {
                    if (count != 2) FAIL("an element was visited " << count << " times by two loops");
                }
            }
        }
    }
}
