// Optimizer: common base of all optimizers. Each follows PyTorch's formulas and defaults.
//
//     optim::SGD sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
//     for (...) {
//         Tape tape;
//         tape.backward(loss(model, batch));
//         sgd.step();
//         sgd.zero_grad();
//     }
//
// Parameters come in groups with options of their own: sgd.add_param_group(others, {.lr = 0.01}), and options can change at
// any time: sgd.options(1).lr *= 0.1.
//
// Parameters may be frozen, now or later: call requires_grad_(false), and zero_grad() if there is a gradient. A step skips
// parameters without a gradient; their buffers stay and are used again when they are unfrozen. A list in which no tensor has ever
// required a gradient is refused, unless another group has one: requires_grad_() or nn::Parameter was forgotten.
//
// Between backward and step gradients can be read, changed in place (p.grad().mul_(0.5)) or replaced (p.set_grad(...)); see also
// optim/clip.h.
//
// The result of an op on a leaf outside a tape, such as `Tensor v = w * 2`, is a constant like any other: an optimizer takes it as
// frozen, and v.requires_grad_() makes it a leaf. PyTorch refuses it ("can't optimize a non-leaf Tensor"). Here only to() marks its
// result, because an op that nothing records should cost nothing extra.
//
// A step is one pass over each parameter that has a gradient, in place, without temporaries; it raises the storage's version.
//
// Note [Row-sparse gradients]
// An embedding's gradient is kept as the rows that were used. A step then reads and writes only those rows, after summing repeated
// ones. For SGD without momentum and Adagrad, without weight decay, that is exactly the step that the dense gradient
// would make: zeros change nothing there. The others do so only for a table that asks for it (nn::EmbeddingOptions::sparse,
// the default there), and are lazy then: momentum, the moments of Adam and weight decay advance for a row only when it is
// used, as in PyTorch's SparseAdam. Make the embedding with {.sparse = false} to avoid that. Reading grad() returns the
// dense gradient and does not change this: the step takes the rows from it, as modified (grad().mul_(0.5)). The step is
// dense if other rows are no longer zero (noise was added), and after set_grad(). A traced step does the same.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "tapir/core/named_tensor.h"
#include "tapir/core/std_function.h"

namespace tapir::optim {

/// Decay rates of the moving averages of gradients and of their squares: {beta1, beta2}.
using Betas = std::array<double, 2>;

struct OptimizerRule;  // rule_impl.h
struct Slot;
class StepSharing;
class StepQueue;  // update_impl.h

/// Common base of all optimizers. The optimizers themselves derive from OptimizerOf their options.
class Optimizer {
 public:
    virtual ~Optimizer();
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    /// Updates every parameter that has a gradient. If a watcher of ops throws, such as CheckFiniteScope, it is rethrown after all updates.
    void step(Loc loc = Loc::current());
    /// Drops the gradients of all parameters.
    void zero_grad();

    /// Returns the parameters of all groups.
    std::vector<Tensor> parameters() const;
    std::size_t group_count() const noexcept { return groups_.size(); }
    /// Get or set the learning rate: get that of one group, set that of all or of one. Throw IndexError, and ValueError below 0.
    double lr(std::size_t group = 0, Loc loc = Loc::current()) const;
    void set_lr(double lr, Loc loc = Loc::current());
    void set_lr(double lr, std::size_t group, Loc loc = Loc::current());

    /// Returns options, step counts and buffers, named "group.option" and "group.parameter.buffer", as save_safetensors() takes them. The
    /// tensors are copies.
    virtual NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Restores a state. Throws ValueError, and changes nothing, if it is not of this optimizer and these parameters.
    virtual void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 protected:
    /// `options` must have the options type of the rule.
    Optimizer(const OptimizerRule& rule, const std::vector<Tensor>& parameters, const void* options, const Loc& loc);
    void add_group(const std::vector<Tensor>& parameters, const void* options, const Loc& loc);
    /// Returns the group's options; their address never changes.
    void* options_of(std::size_t group, const Loc& loc);
    /// Throws ValueError.
    void check_options(std::size_t group, const Loc& loc) const;
    /// Divides the steps among processes, while `sharing` lives. Before the first step. Throws ValueError for an optimizer whose step needs a closure.
    void share(StepSharing& sharing, const Loc& loc);
    /// Calls fn for each parameter's state, in the order of parameters(): of a copy. Returns the copy's state_dict().
    NamedTensors state_with(const std::function<void(Slot&)>& fn) const;

 private:
    using Groups = std::vector<std::vector<Slot>>;
    bool takes_rows(std::size_t group, const Slot& slot) const;
    void make_buffers(std::size_t group, const Loc& loc);
    void update_all(StepQueue& queue, const Loc& loc);

    NamedTensors state_of(const Groups& groups) const;

    const OptimizerRule& rule_;
    Groups groups_;
    std::vector<std::vector<std::byte>> options_;  // one entry for each group

    friend class Schedule;
    friend struct OptimizerLayout;    // for gdb's printer
    std::vector<double> initial_lr_;  // by group, set when the first schedule sees the group
    StepSharing* sharing_ = nullptr;  // null: this process makes all steps
};

/// An optimizer whose groups have options of one type.
template <class OptionsOfGroup>
class OptimizerOf : public Optimizer {
 public:
    using Options = OptionsOfGroup;
    /// Throws ValueError for options out of their domain; for undefined tensors, for non-leaves (also for the result of
    /// `w.requires_grad_().to(cuda)`), for parameters that are in a group already, and if no parameter of any group ever
    /// required a gradient.
    explicit OptimizerOf(const std::vector<Tensor>& parameters, const Options& options = {}, Loc loc = Loc::current())
        : Optimizer(Options::rule, parameters, &options, loc) {}
    /// Throws ValueError as the constructor.
    void add_param_group(const std::vector<Tensor>& parameters, const Options& options, Loc loc = Loc::current()) {
        add_group(parameters, &options, loc);
    }
    /// Returns a group's options, to read and to change: step() refuses values out of their domain before it does anything. Throws IndexError.
    Options& options(std::size_t group = 0, Loc loc = Loc::current()) { return *static_cast<Options*>(options_of(group, loc)); }
};

}  // namespace tapir::optim
