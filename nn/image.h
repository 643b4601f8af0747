// Layers that change the sizes and arrangement of images. Names and argument orders are PyTorch's; see ops/image.h for the formulas.
//
//     nn::Upsample up({.scale_factor = 2, .mode = "bilinear"});
//     nn::PixelShuffle shuffle(3);
#pragma once

#include <string>

#include "tapir/nn/module.h"
#include "tapir/ops/image/interpolate.h"
#include "tapir/ops/view/unfold.h"

namespace tapir::nn {

/// Resamples (batch, channels, spatial...): see interpolate.
class Upsample : public Module {
 public:
    explicit Upsample(const InterpolateOptions& options) : options_(options), mode_(options.mode) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        InterpolateOptions options = options_;
        options.mode = mode_.c_str();
        return interpolate(x, options);
    }
    Tensor operator()(In x) const { return forward(x); }
    std::string describe() const override { return mode_; }

 private:
    InterpolateOptions options_;
    std::string mode_;
};

/// (batch, channels, height, width) -> (batch, channels * kernel, windows): see unfold.
class Unfold : public Module {
 public:
    explicit Unfold(const Shape& kernel_size, const FoldOptions& options = {}) : kernel_size_(kernel_size), options_(options) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return unfold(x, kernel_size_, options_);
    }
    Tensor operator()(In x) const { return forward(x); }
    std::string describe() const override { return kernel_size_.str(); }

 private:
    Shape kernel_size_;
    FoldOptions options_;
};

/// (batch, channels * kernel, windows) -> (batch, channels, height, width): see fold.
class Fold : public Module {
 public:
    Fold(const Shape& output_size, const Shape& kernel_size, const FoldOptions& options = {})
        : output_size_(output_size), kernel_size_(kernel_size), options_(options) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return fold(x, output_size_, kernel_size_, options_);
    }
    Tensor operator()(In x) const { return forward(x); }
    std::string describe() const override { return output_size_.str() + ", kernel " + kernel_size_.str(); }

 private:
    Shape output_size_, kernel_size_;
    FoldOptions options_;
};

// A layer that calls op(x, number).
#define TAPIR_SHUFFLE_LAYER(Name, op)                                             \
    class Name : public Module {                                                  \
     public:                                                                      \
        explicit Name(std::int64_t number) : number_(number) {}                   \
        Tensor forward(In x) const {                                              \
            const ModuleScope scope(*this);                                       \
            return op(x, number_);                                                \
        }                                                                         \
        Tensor operator()(In x) const { return forward(x); }                      \
        std::string describe() const override { return std::to_string(number_); } \
                                                                                  \
     private:                                                                     \
        std::int64_t number_;                                                     \
    };
TAPIR_SHUFFLE_LAYER(PixelShuffle, pixel_shuffle)
TAPIR_SHUFFLE_LAYER(PixelUnshuffle, pixel_unshuffle)
TAPIR_SHUFFLE_LAYER(ChannelShuffle, channel_shuffle)
#undef TAPIR_SHUFFLE_LAYER

}  // namespace tapir::nn
