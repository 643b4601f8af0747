// Threads that train one model without locks: each reads and writes the parameters while the others do, and steps get lost now and then. Niu et al.
// 2011, "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent".
//
//     Model model;
//     const parallel::UncheckedWrites unchecked(model.parameters());
//     const auto work = [&](int worker) {
//         Model mine = nn::alias(model);                              // the same parameters, gradients of its own
//         optim::SGD sgd(mine.parameters(), {.lr = 0.1});
//         for (const Batch& batch : batches_of(worker)) {
//             Tape tape;
//             tape.backward(loss(mine, batch));
//             sgd.step();
//             sgd.zero_grad();
//         }
//     };
//     std::thread first(work, 0), second(work, 1);
//     first.join();
//     second.join();
//
// Two threads that write to one element at a time are a data race by the rules of C++. Machines with aligned words, as all that Tapir runs on, keep one
// of the two values.
#pragma once

#include <vector>

#include "tapir/core/error.h"
#include "tapir/core/tensor.h"

namespace tapir::parallel {

/// While it lives, a tape does not refuse to go back through tensors that were modified in place after they were used: these, and all that share their
/// elements. Gradients are then those of a mixture of old and new values. Make it before the threads, and end it after them. Throws ValueError for an
/// undefined tensor.
class UncheckedWrites {
 public:
    explicit UncheckedWrites(const std::vector<Tensor>& tensors, Loc loc = Loc::current());
    ~UncheckedWrites();
    UncheckedWrites(const UncheckedWrites&) = delete;
    UncheckedWrites& operator=(const UncheckedWrites&) = delete;

 private:
    std::vector<Tensor> marked_;
};

}  // namespace tapir::parallel
