// Whoever makes one gradient of those of several processes, while backward() still runs: Replicas in nn/parallel. A leaf's AutogradMeta names it.
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"

namespace tapir {

class GradientReducer {
 public:
    /// The gradient that a leaf shall have. Without any, the leaf keeps what it has.
    struct Reduced {
        AutogradMeta* meta;
        Tensor grad;
        std::vector<SparseRows> rows;
        bool adds;  // to the gradient that the leaf has; else it replaces that
    };

    /// False: backward() adds to gradients as usual, and calls accumulated() of the leaves that it reached.
    virtual bool reduces() const noexcept = 0;
    /// Before a walk that does not reduce, once.
    virtual void begin_alone(const Loc& loc) = 0;
    /// Then, for each leaf that the walk reaches. Throws if the leaf's gradient must not be added to.
    virtual void check_accumulation(std::uint32_t place, const Loc& loc) const = 0;
    virtual void accumulated(std::uint32_t place) noexcept = 0;

    virtual void begin(const Loc& loc) = 0;
    /// Nothing more comes to the gradient of a leaf, which is in `slot`: dense, rows, or both. used_rows: see AutogradMeta, of slot.grad.
    virtual void ready(std::uint32_t place, GradientSlot& slot, const Tensor& used_rows) = 0;
    /// After the walk. Of leaves for which ready() was not called, the walk has no gradient.
    virtual std::vector<Reduced> finish() = 0;
    /// After the gradients were written.
    virtual void written() noexcept = 0;
    /// Instead of finish(), or after it threw.
    virtual void cancel(const std::string& reason) noexcept = 0;

 protected:
    ~GradientReducer() = default;
};

/// What backward() does for the reducer, of a tape without any of its leaves.
void reduce_without_walk(GradientReducer& reducer, const Loc& loc);

}  // namespace tapir
