// Divides an optimizer's work and memory among ranks. Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models",
// stage 1.
//
//     parallel::Replicas replicas(model, world);
//     parallel::Sharded<optim::Adam> adam(model.parameters(), world, {.lr = 1e-3});
//     ...
//     adam.step();                                 // each rank moves its part, and sends it to the others
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "tapir/nn/parallel/group.h"
#include "tapir/optim/optimizer.h"

namespace tapir::parallel {

class Shards;  // what Sharded does for any optimizer

/// An optimizer each of whose parameters belongs to one rank: it alone has the buffers (Adam's moments), makes the step, and sends the new values, or
/// the new rows of an embedding. Parameters are dealt out by size; one is never cut. A step is that of the optimizer in one process, to the bit. All
/// ranks must have the same gradients, as Replicas gives them. step() is collective; schedules, clipping and GradScaler are used as ever.
///
/// The state does not depend on the number of ranks: any optimizer of this type loads it, sharded or not.
template <class Base>
    requires std::is_base_of_v<optim::OptimizerOf<typename Base::Options>, Base>
class Sharded final : public Base {
 public:
    /// Throws what the optimizer throws, and ValueError for one that needs all parameters at once (LBFGS).
    Sharded(const std::vector<Tensor>& parameters, const Group& group, const typename Base::Options& options = {}, Loc loc = Loc::current());

    /// Sends the parts of the state to one rank, where state_dict() returns them until the next step. Collective.
    ///
    ///     adam.consolidate_state_dict();
    ///     if (world.rank() == 0) run.save();
    void consolidate_state_dict(int to = 0, Loc loc = Loc::current());
    /// Throws ValueError unless the state was sent here since the last step, or there is one rank.
    NamedTensors state_dict(Loc loc = Loc::current()) const override;
    /// Takes this rank's part of a whole state. Not collective; each rank loads the same.
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current()) override;

 private:
    std::shared_ptr<Shards> shards_;
};

std::shared_ptr<Shards> make_shards(const Group& group);
optim::StepSharing& sharing_of(Shards& shards);
/// state_with: Optimizer::state_with().
using StateWith = std::function<NamedTensors(const std::function<void(optim::Slot&)>& fn)>;
void collect_state(Shards& shards, const StateWith& state_with, int to, const Loc& loc);
void forget_state(Shards& shards);
/// Null: this rank has all of it.
const NamedTensors* collected_state(const Shards& shards, const Loc& loc);

template <class Base>
    requires std::is_base_of_v<optim::OptimizerOf<typename Base::Options>, Base>
Sharded<Base>::Sharded(const std::vector<Tensor>& parameters, const Group& group, const typename Base::Options& options, Loc loc)
    : Base(parameters, options, loc), shards_(make_shards(group)) {
    this->share(sharing_of(*shards_), loc);
}

template <class Base>
    requires std::is_base_of_v<optim::OptimizerOf<typename Base::Options>, Base>
void Sharded<Base>::consolidate_state_dict(int to, Loc loc) {
    collect_state(*shards_, [this](const std::function<void(optim::Slot&)>& fn) { return this->state_with(fn); }, to, loc);
}

template <class Base>
    requires std::is_base_of_v<optim::OptimizerOf<typename Base::Options>, Base>
NamedTensors Sharded<Base>::state_dict(Loc loc) const {
    const NamedTensors* const collected = collected_state(*shards_, loc);
    return collected ? *collected : Base::state_dict(loc);
}

template <class Base>
    requires std::is_base_of_v<optim::OptimizerOf<typename Base::Options>, Base>
void Sharded<Base>::load_state_dict(const NamedTensors& state, Loc loc) {
    Base::load_state_dict(state, loc);
    forget_state(*shards_);
}

}  // namespace tapir::parallel
