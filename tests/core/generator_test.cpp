// Philox against Random123's known answers, generators, and the fills of every instruction set against Note [The
// numbers of a draw], one number at a time.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "tapir/core/generator.h"
#include "tapir/ops/random/random_kernels.h"

using namespace tapir;

namespace {

using Words = std::array<std::uint32_t, 4>;

Words words_of(const Philox& p) { return {p.value[0], p.value[1], p.value[2], p.value[3]}; }

std::uint32_t word(kernels::Draw draw, std::int64_t i) {
    return philox4x32(draw.counter + static_cast<std::uint64_t>(i / 4), 0, draw.seed).value[i % 4];
}
std::uint64_t word64(kernels::Draw draw, std::int64_t i) { return word(draw, 2 * i) | static_cast<std::uint64_t>(word(draw, 2 * i + 1)) << 32; }

constexpr kernels::Draw draws[] = {{0, 0}, {42, 7}, {0xfedcba9876543210, 0xfffffffe}, {1, 0xfffffffffffffffd}};
constexpr std::int64_t lengths[] = {0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 100, 255, 511, 512, 513, 1500};
constexpr float kAfter = -77;  // stands behind the array and must stay

// What each instruction set that this machine has makes of it.
template <class Kernel, class Check>
void for_each_isa(const Kernel& kernel, const Check& check) {
    for (int isa = 0; isa <= static_cast<int>(kernels::chosen_isa); ++isa) {
        CAPTURE(isa);
        check(kernel.fn[isa]);
    }
}

template <class T, class Expected>
void check_fill(const kernels::PerIsa<void(kernels::Draw, DType, void*, std::int64_t)>& kernel, DType dtype, const Expected& expected,
                double tolerance = 0) {
    for_each_isa(kernel, [&](auto* fill) {
        for (const kernels::Draw draw : draws) {
            for (const std::int64_t n : lengths) {
                std::vector<T> values(static_cast<std::size_t>(n) + 1, T(kAfter));
                fill(draw, dtype, values.data(), n);
                for (std::int64_t i = 0; i < n; ++i) {
                    const double wanted = expected(draw, i);
                    const double got = static_cast<double>(values[static_cast<std::size_t>(i)]);
                    if (std::abs(got - wanted) > tolerance * (1 + std::abs(wanted))) {
                        CAPTURE(n, i);
                        REQUIRE(got == wanted);
                    }
                }
                REQUIRE(static_cast<float>(values.back()) == static_cast<float>(T(kAfter)));
            }
        }
    });
}

}  // namespace

TEST_CASE("philox4x32 gives Random123's known answers") {
    CHECK(words_of(philox4x32(0, 0, 0)) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    CHECK(words_of(philox4x32(~0ull, ~0ull, ~0ull)) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    // The digits of pi: the counter's words are 243f6a88 85a308d3 13198a2e 03707344, the key's a4093822 299f31d0.
    CHECK(words_of(philox4x32(0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822)) == Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a generator hands out counters one after the other") {
    Generator g(7);
    CHECK(g.seed() == 7);
    CHECK(g.take(3) == 0);
    CHECK(g.take(1) == 3);
    const Generator::State state = g.state();
    CHECK(state.seed == 7);
    CHECK(state.offset == 4);
    CHECK(g.take(10) == 4);
    g.set_state(state);
    CHECK(g.take(1) == 4);
    g.manual_seed(9);
    CHECK(g.seed() == 9);
    CHECK(g.take(1) == 0);
    manual_seed(11);
    CHECK(default_generator().seed() == 11);
    CHECK(default_generator().state().offset == 0);
    manual_seed(0);
}

TEST_CASE("threads never get the same counter") {
    Generator g;
    constexpr int kThreads = 4, kTakes = 2000;
    std::vector<std::vector<std::uint64_t>> taken(kThreads);
    std::vector<std::thread> threads;
    for (auto& mine : taken) {
        threads.emplace_back([&g, &mine] {
            for (int i = 0; i < kTakes; ++i) mine.push_back(g.take(3));
        });
    }
    for (std::thread& t : threads) t.join();
    std::set<std::uint64_t> all;
    for (const auto& mine : taken) all.insert(mine.begin(), mine.end());
    CHECK(all.size() == kThreads * kTakes);
    CHECK(*all.rbegin() == (kThreads * kTakes - 1) * 3);
}

TEST_CASE("words are the same in every instruction set") {
    for_each_isa(kernels::random_words, [](auto* fill) {
        for (const kernels::Draw draw : draws) {
            for (const std::int64_t n : lengths) {
                std::vector<std::uint32_t> values(static_cast<std::size_t>(n) + 1, 123);
                fill(draw, values.data(), n);
                for (std::int64_t i = 0; i < n; ++i) REQUIRE(values[static_cast<std::size_t>(i)] == word(draw, i));
                REQUIRE(values.back() == 123);
            }
        }
    });
}

TEST_CASE("uniform numbers are made of the words as documented") {
    check_fill<float>(kernels::random_uniform, float32, [](auto d, auto i) { return (word(d, i) >> 8) * 0x1p-24; });
    check_fill<double>(kernels::random_uniform, float64, [](auto d, auto i) { return static_cast<double>(word64(d, i) >> 11) * 0x1p-53; });
    check_fill<Half>(kernels::random_uniform, float16, [](auto d, auto i) { return (word(d, i) >> 21) * 0x1p-11; });
    check_fill<BFloat16>(kernels::random_uniform, bfloat16, [](auto d, auto i) { return (word(d, i) >> 24) * 0x1p-8; });
}

TEST_CASE("normal numbers are made of the words as documented") {
    const auto pair = [](double u, double t, std::int64_t i) {
        const double r = std::sqrt(-2 * std::log(u));
        return r * (i % 2 == 0 ? std::cos(t) : std::sin(t));
    };
    const double two_pi = 2 * std::acos(-1.0);
    const auto single = [&](kernels::Draw d, std::int64_t i) {
        const std::int64_t j = i / 2;
        const float u = (static_cast<float>(word(d, 2 * j) >> 1) + 1) * 0x1p-31F;
        return pair(u, two_pi * (word(d, 2 * j + 1) >> 8) * 0x1p-24, i);
    };
    check_fill<float>(kernels::random_normal, float32, single, 2e-6);
    check_fill<double>(
        kernels::random_normal, float64,
        [&](kernels::Draw d, std::int64_t i) {
            const std::int64_t j = i / 2;
            return pair((static_cast<double>(word64(d, 2 * j) >> 11) + 1) * 0x1p-53,
                        two_pi * static_cast<double>(word64(d, 2 * j + 1) >> 11) * 0x1p-53, i);
        },
        1e-14);
    check_fill<Half>(kernels::random_normal, float16, [&](auto d, auto i) { return Half(static_cast<float>(single(d, i))); }, 1e-3);
}

TEST_CASE("integers and coin flips are made of the words as documented") {
    for_each_isa(kernels::random_integers, [](auto* fill) {
        for (const std::uint64_t range : {std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{1} << 33, ~std::uint64_t{0}}) {
            std::vector<std::int64_t> values(600);
            fill(draws[2], -3, range, values.data(), 600);
            for (std::int64_t i = 0; i < 600; ++i) {
                __extension__ using Wide = unsigned __int128;
                const auto offset = static_cast<std::uint64_t>(static_cast<Wide>(word64(draws[2], i)) * range >> 64);
                REQUIRE(static_cast<std::uint64_t>(values[static_cast<std::size_t>(i)]) == offset - 3);
            }
        }
    });
    for_each_isa(kernels::random_bernoulli, [](auto* fill) {
        for (const double p : {0.0, 0.3, 0.5, 1 - 1e-12, 1.0}) {
            std::vector<std::uint8_t> values(600, 9);
            fill(draws[1], p, values.data(), 600);
            for (std::int64_t i = 0; i < 600; ++i) {
                REQUIRE(values[static_cast<std::size_t>(i)] == (word(draws[1], i) < std::floor(p * 0x1p32) ? 1 : 0));
            }
        }
    });
}
