// Pooling layers. Names and defaults are PyTorch's; what they compute: ops/pooling.h.
//
//     nn::MaxPool2d pool(2);
//     nn::AvgPool2d mean(3, {.stride = 1, .padding = 1});
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/pooling.h"

namespace tapir::nn {

// A layer that calls op(x, kernel_size, options).
#define TAPIR_POOL_LAYER(Name, op, Options)                                                                 \
    class Name : public Module {                                                                            \
     public:                                                                                                \
        explicit Name(const Shape& kernel_size, const Options& options = {})                                \
            : kernel_size_(kernel_size), options_(options) {}                                               \
        Tensor forward(In x) const { return op(x, kernel_size_, options_); }                                \
        Tensor operator()(In x) const { return forward(x); }                                                \
        std::string describe() const override { return kernel_size_.str(); }                                \
                                                                                                            \
     private:                                                                                               \
        Shape kernel_size_;                                                                                 \
        Options options_;                                                                                   \
    };
TAPIR_POOL_LAYER(MaxPool1d, max_pool1d, MaxPoolOptions)
TAPIR_POOL_LAYER(MaxPool2d, max_pool2d, MaxPoolOptions)
TAPIR_POOL_LAYER(MaxPool3d, max_pool3d, MaxPoolOptions)
TAPIR_POOL_LAYER(AvgPool1d, avg_pool1d, AvgPoolOptions)
TAPIR_POOL_LAYER(AvgPool2d, avg_pool2d, AvgPoolOptions)
TAPIR_POOL_LAYER(AvgPool3d, avg_pool3d, AvgPoolOptions)
#undef TAPIR_POOL_LAYER

// A layer that calls op(x, output_size).
#define TAPIR_ADAPTIVE_LAYER(Name, op)                                                    \
    class Name : public Module {                                                          \
     public:                                                                              \
        explicit Name(const Shape& output_size) : output_size_(output_size) {}            \
        Tensor forward(In x) const { return op(x, output_size_); }                        \
        Tensor operator()(In x) const { return forward(x); }                              \
        std::string describe() const override { return output_size_.str(); }              \
                                                                                          \
     private:                                                                             \
        Shape output_size_;                                                               \
    };
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool1d, adaptive_max_pool1d)
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool2d, adaptive_max_pool2d)
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool3d, adaptive_max_pool3d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool1d, adaptive_avg_pool1d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool2d, adaptive_avg_pool2d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool3d, adaptive_avg_pool3d)
#undef TAPIR_ADAPTIVE_LAYER

class LPPool1d : public Module {
 public:
    LPPool1d(double norm_type, const Shape& kernel_size, const LpPoolOptions& options = {})
        : norm_type_(norm_type), kernel_size_(kernel_size), options_(options) {}
    Tensor forward(In x) const { return lp_pool1d(x, norm_type_, kernel_size_, options_); }
    Tensor operator()(In x) const { return forward(x); }

 private:
    double norm_type_;
    Shape kernel_size_;
    LpPoolOptions options_;
};

class LPPool2d : public Module {
 public:
    LPPool2d(double norm_type, const Shape& kernel_size, const LpPoolOptions& options = {})
        : norm_type_(norm_type), kernel_size_(kernel_size), options_(options) {}
    Tensor forward(In x) const { return lp_pool2d(x, norm_type_, kernel_size_, options_); }
    Tensor operator()(In x) const { return forward(x); }

 private:
    double norm_type_;
    Shape kernel_size_;
    LpPoolOptions options_;
};

}  // namespace tapir::nn
