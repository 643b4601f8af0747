// The default generator's state, kept.
#pragma once

#include "tapir/core/generator.h"

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

}  // namespace tapir::detail
