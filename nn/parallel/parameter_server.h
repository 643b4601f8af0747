// Asynchronous training: no rank waits for the gradients of the others. Each takes the parameters as they are, makes a step, and gives back what it has
// changed. Dean et al. 2012, "Large scale distributed deep networks" (Downpour SGD); Li et al. 2014, "Scaling distributed machine learning with the
// parameter server".
//
//     parallel::ParameterServer server(model.parameters(), world, {.staleness = 4});
//     optim::SGD sgd(model.parameters(), {.lr = 0.1});
//     for (const Batch& batch : batches_of(world.rank())) {
//         server.pull();                                   // the newest parameters
//         Tape tape;
//         tape.backward(loss(model, batch));
//         sgd.step();
//         sgd.zero_grad();
//         server.push();                                   // adds what this step has changed
//     }
//     server.finish();                                     // all ranks have the same parameters
//
// The parameters lie in the memory of all ranks, a part in each. Others read them and add to them without help of that rank: by one-sided access of MPI,
// or in the memory that threads share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tapir/core/error.h"
#include "tapir/core/tensor.h"
#include "tapir/nn/parallel/group.h"

namespace tapir::parallel {

struct ParameterServerOptions {
    /// How many steps a rank may be ahead of the slowest that still works: pull() waits for that one. Ho et al. 2013, "More effective distributed ML via
    /// a stale synchronous parallel parameter server". Without it, any number.
    std::optional<std::int64_t> staleness = {};
};

class ParameterServer {
 public:
    /// The server begins with rank 0's parameters, and so do all ranks. Collective. Throws ValueError for a negative staleness, no or undefined tensors, and an engine without
    /// one-sided access (Gloo); DTypeError for other than floating dtypes; CommError where the ranks' tensors differ.
    ParameterServer(const std::vector<Tensor>& parameters, const Group& group, const ParameterServerOptions& options = {}, Loc loc = Loc::current());
    /// Nobody waits for this rank any more. Waits until all ranks are here, unless an exception is on its way.
    ~ParameterServer();
    ParameterServer(const ParameterServer&) = delete;
    ParameterServer& operator=(const ParameterServer&) = delete;

    /// Writes the server's parameters to this rank's. Waits while this rank is further ahead than the options allow. Throws CommError if a rank has
    /// failed.
    void pull(Loc loc = Loc::current());
    /// Adds to the server's parameters what this rank's have changed by since the last pull() or push(), and counts a step. Sums are in float32, or
    /// float64 for parameters of it.
    void push(Loc loc = Loc::current());
    /// This rank makes no more steps: nobody waits for it. push() throws ValueError from here on.
    void leave(Loc loc = Loc::current());
    /// leave(), and pull() when all ranks have left. Collective.
    void finish(Loc loc = Loc::current());

    /// Returns the number of push() calls of each rank so far.
    std::vector<std::int64_t> steps(Loc loc = Loc::current()) const;

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace tapir::parallel
