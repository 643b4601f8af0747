// The default generator's state, kept.
#pragma once

#include <exception>

#include "tapir/core/generator.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// What is drawn from the default generator while this lives does not count afterwards.
class KeptGenerator {
 public:
    KeptGenerator() noexcept : state_(default_generator().state()) {}
    /// Meanwhile it goes on from `state`.
    explicit KeptGenerator(const Generator::State& state) noexcept : KeptGenerator() { default_generator().set_state(state); }
    ~KeptGenerator() { default_generator().set_state(state_); }
    KeptGenerator(const KeptGenerator&) = delete;
    KeptGenerator& operator=(const KeptGenerator&) = delete;

    const Generator::State& state() const noexcept { return state_; }

 private:
    const Generator::State state_;
};

/// Where an error leaves its scope, what was drawn while it lived does not count: a call that throws has changed nothing.
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

/// For an op that has begun and is about to draw: the graph that is traced draws from the default generator only.
inline void check_traced(const Generator& generator) {
    if (is_tracing() && &generator != &default_generator()) [[unlikely]]
        fail_own_generator();
}

}  // namespace tapir::detail
