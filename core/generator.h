// Random numbers: Philox4x32-10, a counter-based generator (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3"). Number i of a draw depends on the seed and its counter only, so a draw is the same at any thread count and
// on every device.
//
// Note [The numbers of a draw]
// A draw begins at counter `first = generator.take(...)`; the key is the seed, the stream 0. Its 32-bit words are
// word i = philox4x32(first + i / 4, 0, seed).value[i % 4], its 64-bit words are w64 i = word 2i + 2^32 word 2i+1.
// Element i, in row-major order, is made of
//   uniform      float32: (word i >> 8) / 2^24;  float64: (w64 i >> 11) / 2^53;  float16: (word i >> 21) / 2^11;
//                bfloat16: (word i >> 24) / 2^8. All are below 1 and exact in their dtype.
//   normal       Box & Muller 1958: elements 2j and 2j+1 are r cos(t) and r sin(t), r = sqrt(-2 log(u)).
//                float32: u = ((word 2j >> 1) + 1) / 2^31, t = 2 pi (word 2j+1 >> 8) / 2^24;
//                float64: u = ((w64 2j >> 11) + 1) / 2^53, t = 2 pi (w64 2j+1 >> 11) / 2^53;
//                float16 and bfloat16: float32's, rounded. (The functions' last bits vary among devices.)
//   integers     low + floor(w64 i * (high - low) / 2^64)
//   bernoulli    1 where word i < p 2^32; dropout keeps where word i < (1 - p) 2^32
//   randperm     the indices sorted by w64 i (ties: the smaller index first)
//   multinomial  float64 uniforms: one a sample when replacing, else one a weight
// It takes the number of counters that hold the words of its elements, rounded up.
#pragma once

#include <cstdint>

#include "tapir/core/error.h"

namespace tapir {

/// Four random 32-bit numbers, computed from a counter and a key.
struct Philox {
    std::uint32_t value[4];
};
/// Computes the numbers of a counter and a key. The counter is the 128-bit number counter + 2^64 stream.
Philox philox4x32(std::uint64_t counter, std::uint64_t stream, std::uint64_t key) noexcept;

/// A seed and a position. Draws take consecutive stretches of counters. Safe to use from several threads; which thread
/// gets which stretch is then up to chance.
class Generator {
 public:
    constexpr explicit Generator(std::uint64_t seed = 0) noexcept : seed_(seed) {}

    std::uint64_t seed() const noexcept { return __atomic_load_n(&seed_, __ATOMIC_RELAXED); }
    /// Restarts with this seed.
    void manual_seed(std::uint64_t seed) noexcept;

    /// State from which the same numbers can be drawn again.
    struct State {
        std::uint64_t seed = 0;
        std::uint64_t offset = 0;
    };
    State state() const noexcept;
    void set_state(State state) noexcept;

    /// Takes `count` counters and returns the first; each gives four 32-bit numbers.
    std::uint64_t take(std::uint64_t count) noexcept;

 private:
    std::uint64_t seed_;  // both are read and written atomically, each for itself
    std::uint64_t offset_ = 0;
};

/// The generator of the random functions. Seeded with 0 at start. The program has one, an item of batch() its own, and a rank of
/// parallel::spawn().
Generator& default_generator() noexcept;
/// Seeds the default generator.
void manual_seed(std::uint64_t seed) noexcept;

}  // namespace tapir
