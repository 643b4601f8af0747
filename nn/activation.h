// Activations and reshapings as layers, for Sequential and for names in a printed model. Code that calls them itself can use the functions:
// relu(x), x.flatten(1). A Sequential takes functions as well: nn::Sequential(nn::Linear(3, 4), relu).
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/elementwise/activation.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/reduce/softmax.h"
#include "tapir/ops/view/view.h"

namespace tapir::nn {

#define TAPIR_ACTIVATION(Name, call)                         \
    class Name : public Module {                             \
     public:                                                 \
        Tensor forward(In x) const {                         \
            const ModuleScope scope(*this);                  \
            return call;                                     \
        }                                                    \
        Tensor operator()(In x) const { return forward(x); } \
    };
TAPIR_ACTIVATION(Identity, x.tensor)
TAPIR_ACTIVATION(ReLU, relu(x))
TAPIR_ACTIVATION(ReLU6, relu6(x))
TAPIR_ACTIVATION(SELU, selu(x))
TAPIR_ACTIVATION(SiLU, silu(x))
TAPIR_ACTIVATION(Mish, mish(x))
TAPIR_ACTIVATION(Sigmoid, sigmoid(x))
TAPIR_ACTIVATION(LogSigmoid, logsigmoid(x))
TAPIR_ACTIVATION(Tanh, tanh(x))
TAPIR_ACTIVATION(Tanhshrink, tanhshrink(x))
TAPIR_ACTIVATION(Softsign, softsign(x))
TAPIR_ACTIVATION(Hardsigmoid, hardsigmoid(x))
TAPIR_ACTIVATION(Hardswish, hardswish(x))
#undef TAPIR_ACTIVATION

// Activations with one number.
#define TAPIR_ACTIVATION_OF_NUMBER(Name, number, value, call)       \
    class Name : public Module {                                    \
     public:                                                        \
        explicit Name(double number = value) : number##_(number) {} \
        Tensor forward(In x) const {                                \
            const ModuleScope scope(*this);                         \
            return call;                                            \
        }                                                           \
        Tensor operator()(In x) const { return forward(x); }        \
                                                                    \
     private:                                                       \
        double number##_;                                           \
    };
TAPIR_ACTIVATION_OF_NUMBER(LeakyReLU, negative_slope, 0.01, leaky_relu(x, negative_slope_))
TAPIR_ACTIVATION_OF_NUMBER(ELU, alpha, 1, elu(x, alpha_))
TAPIR_ACTIVATION_OF_NUMBER(CELU, alpha, 1, celu(x, alpha_))
TAPIR_ACTIVATION_OF_NUMBER(Hardshrink, lambd, 0.5, hardshrink(x, lambd_))
TAPIR_ACTIVATION_OF_NUMBER(Softshrink, lambd, 0.5, softshrink(x, lambd_))
#undef TAPIR_ACTIVATION_OF_NUMBER

class GELU : public Module {
 public:
    explicit GELU(bool tanh_approximation = false) : is_tanh_(tanh_approximation) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return is_tanh_ ? gelu_tanh(x) : gelu(x);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    bool is_tanh_;
};

class Softplus : public Module {
 public:
    explicit Softplus(double beta = 1, double threshold = 20) : beta_(beta), threshold_(threshold) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return softplus(x, beta_, threshold_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    double beta_, threshold_;
};

class Hardtanh : public Module {
 public:
    explicit Hardtanh(double min_val = -1, double max_val = 1) : min_(min_val), max_(max_val) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return hardtanh(x, min_, max_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    double min_, max_;
};

class Threshold : public Module {
 public:
    Threshold(double threshold, double value) : threshold_(threshold), value_(value) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return threshold(x, threshold_, value_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    double threshold_, value_;
};

// Activations along one dimension. PyTorch deprecates its default dimension; here it must be given.
#define TAPIR_ACTIVATION_ALONG(Name, call, ...)              \
    class Name : public Module {                             \
     public:                                                 \
        explicit Name(int dim __VA_ARGS__) : dim_(dim) {}    \
        Tensor forward(In x) const {                         \
            const ModuleScope scope(*this);                  \
            return call(x, dim_);                            \
        }                                                    \
        Tensor operator()(In x) const { return forward(x); } \
                                                             \
     private:                                                \
        int dim_;                                            \
    };
TAPIR_ACTIVATION_ALONG(Softmax, softmax)
TAPIR_ACTIVATION_ALONG(LogSoftmax, log_softmax)
TAPIR_ACTIVATION_ALONG(Softmin, softmin)
TAPIR_ACTIVATION_ALONG(GLU, glu, = -1)
#undef TAPIR_ACTIVATION_ALONG

/// Merges the dimensions [start_dim, end_dim] into one.
class Flatten : public Module {
 public:
    explicit Flatten(int start_dim = 1, int end_dim = -1) : start_(start_dim), end_(end_dim) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return flatten(x, start_, end_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    int start_, end_;
};

/// Splits one dimension into several.
class Unflatten : public Module {
 public:
    Unflatten(int dim, const Shape& sizes) : dim_(dim), sizes_(sizes) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return unflatten(x, dim_, sizes_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    int dim_;
    Shape sizes_;
};

}  // namespace tapir::nn
