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

/// Multiplies the loss, and so all gradients, by a factor, and divides the gradients by it before a step. Skips steps whose
/// gradients have an infinity or nan, and then lowers the factor (Micikevicius et al. 2018, "Mixed precision training").
/// As PyTorch's torch.amp.GradScaler.
class GradScaler {
 public:
    explicit GradScaler(const GradScalerOptions& options = {}, Loc loc = Loc::current());

    /// Returns loss * scale.
    Tensor scale(In loss) const;
    /// Divides the gradients of the optimizer's parameters by the scale, to clip or read them before step(). Throws ValueError
    /// if called twice before update(). Does not wait for a device.
    void unscale_(Optimizer& optimizer, Loc loc = Loc::current());
    /// Unscales the gradients unless unscale_() did, and steps if all are finite. Waits for the device once.
    /// Returns true if it stepped.
    bool step(Optimizer& optimizer, Loc loc = Loc::current());
    /// Lowers the scale if a step since the last update was skipped; raises it after enough steps that were not.
    void update();

    double get_scale() const noexcept { return options_.enabled ? scale_ : 1; }
    bool is_enabled() const noexcept { return options_.enabled; }

    NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Throws ValueError if an entry is missing.
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
        std::vector<Tensor> unasked;  // for each device a 0-d bool, true if some gradients are not finite; not read until somebody asks
        bool not_finite;
    };
    std::vector<Unscaled> unscaled_;
};

}  // namespace tapir::optim
