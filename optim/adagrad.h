// Adagrad.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct AdagradOptions {
    double lr = 1e-2;
    double lr_decay = 0;
    double weight_decay = 0;
    double initial_accumulator = 0;
    double eps = 1e-10;
};

/// d = g + weight_decay p; sum += d^2; p -= lr / (1 + (t - 1) lr_decay) d / (sqrt(sum) + eps). Duchi et al. 2011, "Adaptive
/// subgradient methods for online learning and stochastic optimization". Throws ValueError for negative options.
class Adagrad : public Optimizer {
 public:
    explicit Adagrad(const std::vector<Tensor>& parameters, const AdagradOptions& options = {}, Loc loc = Loc::current());
    void add_param_group(const std::vector<Tensor>& parameters, const AdagradOptions& options, Loc loc = Loc::current());
    /// A group's options, to read and to change. Throws IndexError.
    AdagradOptions& options(std::size_t group = 0, Loc loc = Loc::current());

 protected:
    void buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const override;
    double initial_value(std::size_t group) const override;
    bool rows_suffice(std::size_t group) const override;
    std::vector<Option> option_list(std::size_t group) override;
    void check_options(std::size_t group, const Loc& loc) const override;
    void update(std::size_t group, Slot& slot, Update& work) override;

 private:
    std::vector<AdagradOptions> options_;
};

}  // namespace tapir::optim
