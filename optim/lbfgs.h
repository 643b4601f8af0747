// L-BFGS.
#pragma once

#include "tapir/core/std_function.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

enum class LineSearch : std::uint8_t { none, strong_wolfe };

struct LBFGSOptions {
    double lr = 1;
    int max_iter = 20;               ///< iterations in one step
    int max_eval = -1;               ///< calls of the closure in one step; -1: max_iter * 5 / 4
    double tolerance_grad = 1e-7;    ///< a step ends when no element of the gradient exceeds it
    double tolerance_change = 1e-9;  ///< a step ends when the loss, and every parameter, changes by less
    int history_size = 100;
    LineSearch line_search_fn = LineSearch::none;  ///< none: each iteration moves by lr
    static const OptimizerRule rule;
};

/// Quasi-Newton steps. The inverse Hessian is estimated from the last history_size changes of parameters and gradients.
/// Nocedal 1980, "Updating quasi-Newton matrices with limited storage"; the line search is algorithms 3.5 and 3.6 of Nocedal
/// and Wright 2006, "Numerical optimization".
///
///     optim::LBFGS lbfgs(model.parameters(), {.line_search_fn = optim::LineSearch::strong_wolfe});
///     lbfgs.step([&] {
///         lbfgs.zero_grad();
///         Tape tape;
///         Tensor loss = mse_loss(model(x), y);
///         tape.backward(loss);
///         return loss;
///     });
///
/// One group, on one device; a step keeps 2 history_size + 4 tensors of the parameters' size, float32 or float64. Parameters
/// without a gradient stay as they are. Throws ValueError for negative options.
class LBFGS : public OptimizerOf<LBFGSOptions> {
 public:
    using OptimizerOf::OptimizerOf;

    /// Runs up to max_iter iterations. The closure returns the loss and sets the parameters' gradients. Returns the first loss.
    /// If the closure throws, the parameters are those of the last finished iteration.
    Tensor step(const std::function<Tensor()>& closure, Loc loc = Loc::current());

    NamedTensors state_dict(Loc loc = Loc::current()) const override;
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current()) override;

 private:
    using OptimizerOf::add_param_group;  // there is one group

    struct Change {
        Tensor gradient, position;  // their changes in one iteration
        double rho;                 // 1 / their product
    };
    struct Point;
    class Line;

    Tensor direction(const Tensor& gradient);
    Tensor flat_gradient() const;
    Tensor flat_position() const;
    void move_to(const Tensor& position, const Loc& loc) const;

    // State from the last iteration; tensors are flat, all parameters in one.
    std::int64_t iterations_ = 0, evaluations_ = 0;
    double step_size_ = 0, scale_ = 1;  // scale_: of the first estimate of the inverse Hessian
    Tensor direction_, gradient_;
    std::vector<Change> history_;
};

}  // namespace tapir::optim
