// Pooling layers. Names and defaults are PyTorch's; see ops/pooling.h for the formulas.
//
//     nn::MaxPool2d pool(2);
//     nn::AvgPool2d mean(3, {.stride = 1, .padding = 1});
//     nn::AvgPool2d same(3, 1, 1);
#pragma once

#include "tapir/nn/module.h"
#include "tapir/ops/pooling/pooling.h"

namespace tapir::nn {

// A layer that calls op(x, kernel_size, options), whose numbers may come by position.
#define TAPIR_POOL_LAYER(Name, op, Options)                                                                                    \
    class Name : public Module {                                                                                               \
     public:                                                                                                                   \
        explicit Name(const Shape& kernel_size, const Options& options = {}) : kernel_size_(kernel_size), options_(options) {} \
        template <ShapeArg S>                                                                                                  \
        Name(const Shape& kernel_size, const S& stride) : Name(kernel_size, Options{ByName(), stride}) {}                      \
        TAPIR_##Options(Name) Tensor forward(In x) const {                                                                     \
            const ModuleScope scope(*this);                                                                                    \
            return op(x, kernel_size_, options_);                                                                              \
        }                                                                                                                      \
        Tensor operator()(In x) const { return forward(x); }                                                                   \
        std::string describe() const override { return kernel_size_.str(); }                                                   \
                                                                                                                               \
     private:                                                                                                                  \
        Shape kernel_size_;                                                                                                    \
        Options options_;                                                                                                      \
    };
#define TAPIR_MaxPoolOptions(Name)                                                                                               \
    Name(const Shape& kernel_size, const Shape& stride, const Shape& padding, const Shape& dilation = 1, Flag ceil_mode = false) \
        : Name(kernel_size, MaxPoolOptions{ByName(), stride, padding, dilation, ceil_mode}) {}
#define TAPIR_AvgPoolOptions(Name)                                                                                                   \
    Name(const Shape& kernel_size, const Shape& stride, const Shape& padding, Flag ceil_mode = false, Flag count_include_pad = true, \
         std::int64_t divisor_override = 0)                                                                                          \
        : Name(kernel_size, AvgPoolOptions{ByName(), stride, padding, ceil_mode, count_include_pad, divisor_override}) {}
TAPIR_POOL_LAYER(MaxPool1d, max_pool1d, MaxPoolOptions)
TAPIR_POOL_LAYER(MaxPool2d, max_pool2d, MaxPoolOptions)
TAPIR_POOL_LAYER(MaxPool3d, max_pool3d, MaxPoolOptions)
TAPIR_POOL_LAYER(AvgPool1d, avg_pool1d, AvgPoolOptions)
TAPIR_POOL_LAYER(AvgPool2d, avg_pool2d, AvgPoolOptions)
TAPIR_POOL_LAYER(AvgPool3d, avg_pool3d, AvgPoolOptions)
#undef TAPIR_MaxPoolOptions
#undef TAPIR_AvgPoolOptions
#undef TAPIR_POOL_LAYER

// A layer that calls op(x, output_size).
#define TAPIR_ADAPTIVE_LAYER(Name, op)                                         \
    class Name : public Module {                                               \
     public:                                                                   \
        explicit Name(const Shape& output_size) : output_size_(output_size) {} \
        Tensor forward(In x) const {                                           \
            const ModuleScope scope(*this);                                    \
            return op(x, output_size_);                                        \
        }                                                                      \
        Tensor operator()(In x) const { return forward(x); }                   \
        std::string describe() const override { return output_size_.str(); }   \
                                                                               \
     private:                                                                  \
        Shape output_size_;                                                    \
    };
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool1d, adaptive_max_pool1d)
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool2d, adaptive_max_pool2d)
TAPIR_ADAPTIVE_LAYER(AdaptiveMaxPool3d, adaptive_max_pool3d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool1d, adaptive_avg_pool1d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool2d, adaptive_avg_pool2d)
TAPIR_ADAPTIVE_LAYER(AdaptiveAvgPool3d, adaptive_avg_pool3d)
#undef TAPIR_ADAPTIVE_LAYER

// A layer that calls op(x, norm_type, kernel_size, options), whose numbers may come by position.
#define TAPIR_LP_POOL_LAYER(Name, op)                                                                                                        \
    class Name : public Module {                                                                                                             \
     public:                                                                                                                                 \
        Name(double norm_type, const Shape& kernel_size, const LpPoolOptions& options = {})                                                  \
            : norm_type_(norm_type), kernel_size_(kernel_size), options_(options) {}                                                         \
        template <ShapeArg S>                                                                                                                \
        Name(double norm_type, const Shape& kernel_size, const S& stride) : Name(norm_type, kernel_size, LpPoolOptions{ByName(), stride}) {} \
        Name(double norm_type, const Shape& kernel_size, const Shape& stride, Flag ceil_mode)                                                \
            : Name(norm_type, kernel_size, LpPoolOptions{ByName(), stride, ceil_mode}) {}                                                    \
        Tensor forward(In x) const {                                                                                                         \
            const ModuleScope scope(*this);                                                                                                  \
            return op(x, norm_type_, kernel_size_, options_);                                                                                \
        }                                                                                                                                    \
        Tensor operator()(In x) const { return forward(x); }                                                                                 \
                                                                                                                                             \
     private:                                                                                                                                \
        double norm_type_;                                                                                                                   \
        Shape kernel_size_;                                                                                                                  \
        LpPoolOptions options_;                                                                                                              \
    };
TAPIR_LP_POOL_LAYER(LPPool1d, lp_pool1d)
TAPIR_LP_POOL_LAYER(LPPool2d, lp_pool2d)
#undef TAPIR_LP_POOL_LAYER

}  // namespace tapir::nn
