// Adam and AdamW.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct AdamOptions {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    bool amsgrad = false;  ///< divide by the largest second moment so far (Reddi et al. 2018)
};

/// d = g + weight_decay p; m += (1 - beta1) (d - m); v = beta2 v + (1 - beta2) d^2;
/// p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). Kingma and Ba 2015, "Adam: a method for stochastic
/// optimization". Throws ValueError for negative options and betas outside [0, 1).
class Adam : public Optimizer {
 public:
    explicit Adam(const std::vector<Tensor>& parameters, const AdamOptions& options = {}, Loc loc = Loc::current());
    void add_param_group(const std::vector<Tensor>& parameters, const AdamOptions& options, Loc loc = Loc::current());
    /// A group's options, to read and to change. Throws IndexError.
    AdamOptions& options(std::size_t group = 0, Loc loc = Loc::current());

 protected:
    void buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const override;
    bool rows_suffice(std::size_t) const override { return false; }
    std::vector<Option> option_list(std::size_t group) override;
    void check_options(std::size_t group, const Loc& loc) const override;
    void update(std::size_t group, Slot& slot, Update& work) override;
    /// Weight decay as a factor on p instead of an addition to the gradient.
    virtual bool decoupled() const noexcept { return false; }

 private:
    std::vector<AdamOptions> options_;
};

struct AdamWOptions {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 1e-2;
    bool amsgrad = false;
    operator AdamOptions() const { return {lr, beta1, beta2, eps, weight_decay, amsgrad}; }
};

/// Adam with p *= 1 - lr weight_decay before the step, instead of weight decay in the gradient. Loshchilov and Hutter 2019,
/// "Decoupled weight decay regularization".
class AdamW : public Adam {
 public:
    explicit AdamW(const std::vector<Tensor>& parameters, const AdamWOptions& options = {}, Loc loc = Loc::current())
        : Adam(parameters, options, loc) {}
    void add_param_group(const std::vector<Tensor>& parameters, const AdamWOptions& options, Loc loc = Loc::current()) {
        Adam::add_param_group(parameters, options, loc);
    }

 protected:
    bool decoupled() const noexcept override { return true; }
};

}  // namespace tapir::optim
