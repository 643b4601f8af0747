// A group of processes that compute together, each a rank: 0, 1, ..., size() - 1. All run the same program:
//
//     int main(int argc, char** argv) {
//         const parallel::Group world = parallel::init(argc, argv);        // mpirun -n 4 ./train
//         Tensor total = world.all_reduce(loss);                           // the sum over all ranks, on each
//     }
//
// Started without a launcher, a program is a group of one, and the calls below return at once. nn/parallel/README.md says how to launch.
//
// The calls are collective: every rank of the group makes the same ones in the same order, with the same shapes and dtypes where nothing else is
// said. They compare what they call, and throw CommError on all ranks where it differs. A rank that a call waits for longer than
// InitOptions::timeout ends the program, with a message that names it.
//
// Tensors lie in the host's memory on all ranks, or on CUDA devices on all. On a device a call puts its work behind that of the thread's current
// stream, and returns when the other ranks have called it, too; it does not wait for the device.
//
// What a function returns is recorded on the tape. Gradients are those of the sum of all ranks' losses: backward() is collective, too, and needs the
// same calls on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapir/core/error.h"
#include "tapir/core/tensor.h"

namespace tapir::parallel {

/// Other ranks cannot be reached, have failed, or call something else. Nothing was changed on this rank.
class CommError : public Error {
    using Error::Error;
};

/// How numbers of several ranks become one.
enum class Reduce : std::uint8_t { sum, mean, product, min, max };

class Channel;
class Engine;
struct Call;

struct SurvivorsOptions {
    /// Seconds that survivors() waits for ranks that do not come: longer than a rank computes between two calls of the group.
    double wait = 10;
    /// How many ranks must be there. 0: more than half of the group. So ranks that a broken network has cut off from the others do not go on as well.
    int least = 0;
};

/// A handle: copies are the same group.
class Group {
 public:
    /// This process alone.
    Group() = default;

    int rank() const noexcept;
    int size() const noexcept;
    /// "MPI", "Gloo", "threads", or "none" for a process alone.
    const char* engine() const noexcept;

    /// Returns the sum (or mean, ...) over the ranks. The gradient is the sum of all ranks' gradients; that of min and max goes to the elements that
    /// are it, in equal parts. Throws DTypeError for the mean of integers and sums of bools, TapeError where a product's gradient would be needed.
    Tensor all_reduce(In x, Reduce reduce = Reduce::sum, Loc loc = Loc::current()) const;
    /// The same in place: x becomes the sum. Not recorded; throws TapeError for a tensor that is.
    void all_reduce_(const Tensor& x, Reduce reduce = Reduce::sum, Loc loc = Loc::current()) const;
    /// Returns the sum (or mean, ...) over the ranks at the root, zeros at the others.
    Tensor reduce(In x, int root = 0, Reduce reduce = Reduce::sum, Loc loc = Loc::current()) const;
    /// Returns the root's x; the shapes must be alike. Its gradient is summed at the root; the other ranks' x gets zeros.
    Tensor broadcast(In x, int root = 0, Loc loc = Loc::current()) const;
    void broadcast_(const Tensor& x, int root = 0, Loc loc = Loc::current()) const;
    /// Joins the ranks' tensors along a dimension, in which their sizes may differ.
    Tensor all_gather(In x, int dim = 0, Loc loc = Loc::current()) const;
    /// Reduces over the ranks, and returns this rank's part of a dimension, whose size is divisible by size().
    Tensor reduce_scatter(In x, Reduce reduce = Reduce::sum, int dim = 0, Loc loc = Loc::current()) const;
    /// Cuts a dimension, whose size is divisible by size(), into parts: part i goes to rank i. Returns the parts that came, in the order of ranks.
    Tensor all_to_all(In x, int dim = 0, Loc loc = Loc::current()) const;

    /// Sends a tensor, whose shape and dtype go with it, and does not wait for the receiver. Returns a zero, of shape (), that stands for the other
    /// rank's part of the loss: backward() from it waits for the gradient that the receiver's backward() sends.
    Tensor send(In x, int to, Loc loc = Loc::current()) const;
    /// Waits for a tensor. It is one that gradients flow back through where the sender's was recorded.
    Tensor recv(int from, Device device, Loc loc = Loc::current()) const;
    Tensor recv(int from, Loc loc = Loc::current()) const;

    /// Waits for all ranks.
    void barrier(Loc loc = Loc::current()) const;
    /// Calls run() on one rank, while the others wait: on_rank(0, [&] { state.save(); }). If that throws, this rank throws the same, and the others
    /// CommError with its text. The group can be used afterwards.
    void on_rank(int rank, const std::function<void()>& run, Loc loc = Loc::current()) const;
    /// Returns the group of the ranks that give the same color, in the order of their keys. Collective.
    Group split(int color, int key = 0, Loc loc = Loc::current()) const;

    /// Makes a group of the ranks that are left after a call threw CommError, in the order of their ranks here, on new connections: one of them or more
    /// have ended, or cannot be reached. Gloo only. Collective for those who are left; they wait for each other as the options say. This group has
    /// ended; parts of it, and Replicas, are made again. Ranks may differ in whether they have made the last step: load a checkpoint, or give all
    /// ranks the state of one.
    /// Throws CommError if too few come, if this rank came too late and the others have gone on, if rank 0 has ended and the ranks have found each
    /// other by MASTER_ADDR (TAPIR_RENDEZVOUS does not need it), and for MPI and threads; ValueError for a part that split() has made.
    Group survivors(const SurvivorsOptions& options = {}, Loc loc = Loc::current()) const;

    /// Tells the other ranks that this one will not go on: what they call, or wait in, throws CommError with this reason. So does a group's last
    /// handle by itself when an exception ends its life.
    void abort(const std::string& reason) const;

 private:
    friend class Access;
    struct State;
    std::shared_ptr<State> state_;
};

struct InitOptions {
    /// Seconds that a call waits for the other ranks before the program ends, with code 75.
    double timeout = 600;
    /// false: the call throws CommError then. Gloo only; what MPI waits in cannot be ended.
    bool exit_on_timeout = true;
};

/// Joins the processes that mpirun, srun, or RANK, WORLD_SIZE and MASTER_ADDR with a launcher have started; without any of them returns a group of
/// one. Once in a program. Throws CommError if the others cannot be reached.
Group init(int& argc, char**& argv, const InitOptions& options = {}, Loc loc = Loc::current());
Group init(const InitOptions& options = {}, Loc loc = Loc::current());

/// Runs rank_main(group) on `ranks` threads of this process, and returns when all have ended. An exception in one ends the others' calls with
/// CommError; the first is rethrown.
void spawn(int ranks, const std::function<void(Group)>& rank_main, const InitOptions& options = {}, Loc loc = Loc::current());

}  // namespace tapir::parallel
