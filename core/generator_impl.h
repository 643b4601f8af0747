// Saves and restores the default generator's state.
#pragma once

#include <exception>

#include "tapir/core/generator.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Restores the default generator at its end, so that draws while it lives do not count.
class KeptGenerator {
 public:
    KeptGenerator() noexcept : state_(default_generator().state()) {}
    /// Meanwhile the generator continues from `state`.
    explicit KeptGenerator(const Generator::State& state) noexcept : KeptGenerator() { default_generator().set_state(state); }
    ~KeptGenerator() { default_generator().set_state(state_); }
    KeptGenerator(const KeptGenerator&) = delete;
    KeptGenerator& operator=(const KeptGenerator&) = delete;

    const Generator::State& state() const noexcept { return state_; }

 private:
    const Generator::State state_;
};

/// Undoes draws if an error leaves its scope: a call that throws must change nothing.
class UndoneByError {
 public:
    explicit UndoneByError(Generator& generator) noexcept : generator_(generator), state_(generator.state()), errors_(std::uncaught_exceptions()) {}
    ~UndoneByError() {
        if (std::uncaught_exceptions() > errors_) generator_.set_state(state_);
    }
    UndoneByError(const UndoneByError&) = delete;
    UndoneByError& operator=(const UndoneByError&) = delete;

 private:
    Generator& generator_;
    const Generator::State state_;
    const int errors_;
};

[[noreturn]] void fail_own_generator();

/// Called by an op that has begun and is about to draw: a traced graph draws from the default generator only.
inline void check_traced(const Generator& generator) {
    if (is_tracing() && &generator != &default_generator()) [[unlikely]]
        fail_own_generator();
}

}  // namespace tapir::detail
