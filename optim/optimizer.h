// Optimizer: what all of them share. Each follows PyTorch's formulas and defaults.
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
// Parameters may be frozen, now or later: requires_grad_(false), and zero_grad() for the gradient that is there. A step passes
// over those without a gradient; what it keeps for them goes on when they are thawed. Between backward and step gradients can be
// read, changed in place (p.grad().mul_(0.5)) or replaced (p.set_grad(...)); see also optim/clip.h.
//
// A step is one pass over each parameter that has a gradient, in place, without temporaries; it raises the storage's version.
//
// Note [Row-sparse gradients]
// An embedding's gradient is kept as the rows that were used. A step then reads and writes those rows alone, repeated ones
// summed up first. For SGD without momentum and Adagrad, without weight decay, that is the very step that the dense gradient
// would make: zeros change nothing there. The others do so only for a table that asks for it (nn::EmbeddingOptions::sparse,
// the default there), and are lazy then: momentum, the moments of Adam and weight decay advance for a row only when it is
// used, as in PyTorch's SparseAdam; make the embedding with {.sparse = false} where that is not wanted.
#pragma once

#include <variant>
#include <vector>

#include "tapir/core/named_tensor.h"

namespace tapir::optim {

enum class LineSearch : std::uint8_t;  // lbfgs.h
struct Update;
class StepQueue;  // update_impl.h

class Optimizer {
 public:
    virtual ~Optimizer() = default;
    Optimizer(const Optimizer&) = delete;
    Optimizer& operator=(const Optimizer&) = delete;

    /// Updates every parameter that has a gradient.
    void step(Loc loc = Loc::current());
    /// Drops the gradients of all parameters.
    void zero_grad();

    /// The parameters of all groups.
    std::vector<Tensor> parameters() const;
    std::size_t group_count() const noexcept { return groups_.size(); }
    /// The learning rate of one group; a new one for all of them, or for one. Throws IndexError, ValueError below 0.
    double lr(std::size_t group = 0, Loc loc = Loc::current()) const;
    void set_lr(double lr, Loc loc = Loc::current());
    void set_lr(double lr, std::size_t group, Loc loc = Loc::current());

    /// Options, step counts and buffers, named "group.option" and "group.parameter.buffer": what save_safetensors() takes. The
    /// tensors are copies.
    virtual NamedTensors state_dict() const;
    /// Takes them back. Throws ValueError, and changes nothing, when they are not of this optimizer and these parameters.
    virtual void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 protected:
    static constexpr int kMaxBuffers = 3;
    struct Slot {
        Tensor parameter;
        Tensor buffers[kMaxBuffers];  // undefined until the first step
        std::int64_t steps = 0;
        double number = 1;  // what else the optimizer keeps, see number_name()
        bool has_new_buffers = false;  // they have not been used in a step
    };
    struct Option {
        const char* name;
        std::variant<double*, bool*, int*, LineSearch*> value;
        double get() const {
            return std::visit([](auto* v) { return static_cast<double>(*v); }, value);
        }
        void set(double number) const {
            std::visit([number]<class T>(T* v) { *v = static_cast<T>(number); }, value);
        }
    };

    Optimizer() = default;
    /// Throws ValueError for undefined tensors, for non-leaves (also what `w.requires_grad_().to(cuda)` gives), and for parameters
    /// that are in a group already.
    void add_group(const std::vector<Tensor>& parameters, const Loc& loc);
    void check_group(std::size_t group, const Loc& loc) const;

    /// What the optimizer keeps for each parameter: names[i] is null where group `group` does not use buffer i.
    virtual void buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const = 0;
    virtual double initial_value(std::size_t group, int buffer) const;
    /// The name of Slot::number in a state; null where it is not used.
    virtual const char* number_name() const { return nullptr; }
    /// Whether a row whose gradient is zero stays as it is, buffers too.
    virtual bool rows_suffice(std::size_t group) const = 0;
    virtual std::vector<Option> option_list(std::size_t group) = 0;
    virtual void check_options(std::size_t group, const Loc& loc) const = 0;
    /// Updates one parameter, whose step count is raised already.
    virtual void update(std::size_t group, Slot& slot, Update& work) = 0;

 private:
    bool takes_rows(std::size_t group, const Slot& slot) const;
    void make_buffers(std::size_t group, const Loc& loc);
    void update_all(StepQueue& queue, const Loc& loc);

    std::vector<std::vector<Slot>> groups_;

    friend class Schedule;
    std::vector<double> initial_lr_;  // by group, from when the first schedule saw it
};

/// An optimizer whose groups have options of one type. What it calls, check() and list() of the options, stands in the
/// optimizer's file, with `template class GroupsOf<Options>`.
template <class Options>
class GroupsOf : public Optimizer {
 public:
    /// Throws ValueError as the constructor.
    void add_param_group(const std::vector<Tensor>& parameters, const Options& options, Loc loc = Loc::current());
    /// A group's options, to read and to change. Throws IndexError.
    Options& options(std::size_t group = 0, Loc loc = Loc::current());

 protected:
    GroupsOf(const std::vector<Tensor>& parameters, const Options& options, const Loc& loc);
    const Options& of(std::size_t group) const { return options_[group]; }
    std::vector<Option> option_list(std::size_t group) override;
    void check_options(std::size_t group, const Loc& loc) const override;

 private:
    std::vector<Options> options_;
};

}  // namespace tapir::optim
