// GradScaler: keeps float16 gradients from vanishing. See core/autocast.h.
#pragma once

#include <vector>

#include "tapir/core/named_tensor.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct GradScalerOptions {
    double init_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    int growth_interval = 2000;  ///< steps without an infinity after which the scale grows
    bool enabled = true;         ///< false: everything passes through
};

/// Multiplies the loss, and so all gradients, by a factor; divides the gradients by it before a step; leaves steps out whose
/// gradients have an infinity or nan, and lowers the factor then (Micikevicius et al. 2018, "Mixed precision training").
/// As PyTorch's torch.amp.GradScaler.
class GradScaler {
 public:
    explicit GradScaler(const GradScalerOptions& options = {}, Loc loc = Loc::current());

    /// loss * scale
    Tensor scale(In loss) const;
    /// Divides the gradients of the optimizer's parameters by the scale: to clip or look at them before step(). Throws ValueError
    /// the second time before update(). Does not wait for a device.
    void unscale_(Optimizer& optimizer, Loc loc = Loc::current());
    /// Unscales the gradients unless that was done, and steps if all are finite. Waits for the device once.
    /// Returns whether it stepped.
    bool step(Optimizer& optimizer, Loc loc = Loc::current());
    /// Lowers the scale if a step since the last update was left out, and raises it after enough that were not.
    void update();

    double get_scale() const noexcept { return options_.enabled ? scale_ : 1; }
    bool is_enabled() const noexcept { return options_.enabled; }

    NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Throws ValueError when an entry is missing.
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 private:
    struct Unscaled;
    Unscaled* find(const Optimizer& optimizer) noexcept;
    static bool are_finite(Unscaled& unscaled);

    GradScalerOptions options_;
    double scale_;
    int good_steps_ = 0;
    bool found_inf_ = false, stepped_ = false;
    // An optimizer whose gradients were unscaled since the last update.
    struct Unscaled {
        const Optimizer* optimizer;
        std::vector<Tensor> unasked;  // what each device will say of them until somebody asks: a 0-d bool, whether some are not finite
        bool not_finite;
    };
    std::vector<Unscaled> unscaled_;
};

}  // namespace tapir::optim
