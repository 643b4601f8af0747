// Adam and its variants: AdamW, Adamax, NAdam, RAdam.
#pragma once

#include "tapir/optim/optimizer.h"

namespace tapir::optim {

struct AdamOptions {
    double lr = 1e-3;
    Betas betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    bool amsgrad = false;  ///< divide by the largest second moment so far (Reddi et al. 2018)
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; m += (1 - beta1) (d - m); v = beta2 v + (1 - beta2) d^2;
/// p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). Kingma and Ba 2015, "Adam: a method for stochastic
/// optimization". Throws ValueError for negative options and betas outside [0, 1).
class Adam : public OptimizerOf<AdamOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct AdamWOptions {
    double lr = 1e-3;
    Betas betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 1e-2;
    bool amsgrad = false;
    static const OptimizerRule rule;
};

/// Adam with p *= 1 - lr weight_decay before the step, instead of weight decay in the gradient. Loshchilov and Hutter 2019,
/// "Decoupled weight decay regularization".
class AdamW : public OptimizerOf<AdamWOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct AdamaxOptions {
    double lr = 2e-3;
    Betas betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    static const OptimizerRule rule;
};

/// d = g + weight_decay p; m = beta1 m + (1 - beta1) d; u = max(beta2 u, |d| + eps); p -= lr / (1 - beta1^t) m / u. Kingma and
/// Ba 2015, section 7.1. Throws ValueError as Adam.
class Adamax : public OptimizerOf<AdamaxOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct NAdamOptions {
    double lr = 2e-3;
    Betas betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    double momentum_decay = 4e-3;
    static const OptimizerRule rule;
};

/// Adam's m and v; with c(t) = beta1 (1 - 0.96^(t momentum_decay) / 2) and the product C(t) of c(1) to c(t),
/// p -= lr ((1 - c(t)) / (1 - C(t)) d + c(t + 1) / (1 - C(t + 1)) m) / (sqrt(v / (1 - beta2^t)) + eps). Dozat 2016, "Incorporating
/// Nesterov momentum into Adam". Throws ValueError as Adam.
class NAdam : public OptimizerOf<NAdamOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

struct RAdamOptions {
    double lr = 1e-3;
    Betas betas = {0.9, 0.999};
    double eps = 1e-8;
    double weight_decay = 0;
    static const OptimizerRule rule;
};

/// Adam's m and v; with R = 2 / (1 - beta2) - 1 and r = R - 2 t beta2^t / (1 - beta2^t), p -= lr m / (1 - beta1^t) while r <= 5,
/// and then that times sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r)) sqrt(1 - beta2^t) / (sqrt(v) + eps). Liu et al. 2020, "On the
/// variance of the adaptive learning rate and beyond". Throws ValueError as Adam.
class RAdam : public OptimizerOf<RAdamOptions> {
 public:
    using OptimizerOf::OptimizerOf;
};

}  // namespace tapir::optim
