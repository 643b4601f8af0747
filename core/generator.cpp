// Philox for one counter at a time, and generators. ops/cpu/random.cpp fills arrays with the same numbers.
#include "tapir/core/generator.h"

#include <utility>

#include "tapir/core/thread_words_impl.h"

namespace tapir {

Philox philox4x32(std::uint64_t counter, std::uint64_t stream, std::uint64_t key) noexcept {
    auto c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32);
    auto c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c0, p1 = std::uint64_t{0xCD9E8D57} * c2;
        c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<std::uint32_t>(p1);
        c3 = static_cast<std::uint32_t>(p0);
        k0 += 0x9E3779B9;  // Weyl sequences: the golden ratio, and sqrt(3) - 1
        k1 += 0xBB67AE85;
    }
    return {{c0, c1, c2, c3}};
}

void Generator::manual_seed(std::uint64_t seed) noexcept { set_state({seed, 0}); }

Generator::State Generator::state() const noexcept { return {seed(), __atomic_load_n(&offset_, __ATOMIC_RELAXED)}; }

void Generator::set_state(State state) noexcept {
    __atomic_store_n(&seed_, state.seed, __ATOMIC_RELAXED);
    __atomic_store_n(&offset_, state.offset, __ATOMIC_RELAXED);
}

std::uint64_t Generator::take(std::uint64_t count) noexcept { return __atomic_fetch_add(&offset_, count, __ATOMIC_RELAXED); }

namespace {
constinit Generator g_generator;
}  // namespace

Generator& default_generator() noexcept {
    Generator* const own = detail::thread_words.generator;
    return own ? *own : g_generator;
}
void manual_seed(std::uint64_t seed) noexcept { default_generator().manual_seed(seed); }

}  // namespace tapir
