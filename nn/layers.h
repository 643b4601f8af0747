// Layers; Dropout is in dropout.h. Names, argument orders, initialisation and defaults are PyTorch's, except Embedding's `sparse`.
#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>

#include "tapir/nn/dropout.h"
#include "tapir/nn/module.h"
#include "tapir/ops/index/embedding_bag.h"

namespace tapir::nn {

struct LinearOptions {
    bool bias = true;
};

/// x W^T + b: (..., in) -> (..., out). weight (out, in) and bias (out,), both uniform on +-1 / sqrt(in). Throws DTypeError for
/// integers.
class Linear : public Module {
 public:
    Parameter weight, bias;

    Linear(std::int64_t in_features, std::int64_t out_features, LinearOptions options = {}, Loc loc = Loc::current());
    /// Takes PyTorch's positional bias.
    template <std::same_as<bool> Bool>
    Linear(std::int64_t in_features, std::int64_t out_features, Bool with_bias, Loc loc = Loc::current())
        : Linear(in_features, out_features, LinearOptions{with_bias}, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;
    std::string describe() const override;
};

/// y[o] = a W[o] b + bias[o]: (..., in1), (..., in2) -> (..., out). weight (out, in1, in2) and bias (out,), both uniform on
/// +-1 / sqrt(in1).
class Bilinear : public Module {
 public:
    Parameter weight, bias;

    Bilinear(std::int64_t in1_features, std::int64_t in2_features, std::int64_t out_features, LinearOptions options = {}, Loc loc = Loc::current());
    Tensor forward(In a, In b) const;
    Tensor operator()(In a, In b) const { return forward(a, b); }
    void members(Members& m) override;
    std::string describe() const override;
};

/// See prelu: weight (num_parameters,), one or one for each channel, filled with init.
class PReLU : public Module {
 public:
    Parameter weight;

    explicit PReLU(std::int64_t num_parameters = 1, double init = 0.25, Loc loc = Loc::current());
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;
    std::string describe() const override;
};

struct EmbeddingOptions {
    std::optional<std::int64_t> padding_idx = {};  ///< a row that is zero and gets no gradient; -1: the last
    bool sparse = true;                            ///< gradients hold only the rows that were used, and optimizers update only those
};

/// Looks up rows of a table by their indices: (...) -> (..., width). weight (count, width), normal. Throws IndexError unless all are in
/// [0, count).
///
/// With a sparse gradient a step costs only the rows used, not the whole table. SGD and Adagrad without momentum and weight decay
/// make the same step either way; see optim/optimizer.h for the others.
class Embedding : public Module {
 public:
    Parameter weight;

    Embedding(std::int64_t count, std::int64_t width, EmbeddingOptions options = {}, Loc loc = Loc::current());
    /// Makes an Embedding from an existing table, such as word vectors.
    static Embedding from_pretrained(const Tensor& table, bool freeze = true, EmbeddingOptions options = {}, Loc loc = Loc::current());
    Tensor forward(In indices) const;
    Tensor operator()(In indices) const { return forward(indices); }
    void members(Members& m) override;
    std::string describe() const override;

 private:
    Embedding() = default;
    EmbeddingOptions options_;
};

struct EmbeddingBagLayerOptions {
    BagMode mode = BagMode::mean;
    bool sparse = true;  ///< as in EmbeddingOptions
    bool include_last_offset = false;
    std::optional<std::int64_t> padding_idx = {};  ///< a row that is zero, is not counted and gets no gradient; -1: the last
};

/// Sum, mean or maximum over groups of a table's rows: see embedding_bag. weight (count, width), normal.
class EmbeddingBag : public Module {
 public:
    Parameter weight;

    EmbeddingBag(std::int64_t count, std::int64_t width, EmbeddingBagLayerOptions options = {}, Loc loc = Loc::current());
    /// indices (bags, size), or (n,) with offsets (bags,) -> (bags, width).
    Tensor forward(In indices, const Tensor& offsets = {}, const Tensor& per_sample_weights = {}) const;
    Tensor operator()(In indices, const Tensor& offsets = {}, const Tensor& per_sample_weights = {}) const {
        return forward(indices, offsets, per_sample_weights);
    }
    void members(Members& m) override;
    std::string describe() const override;

 private:
    EmbeddingBagLayerOptions options_;
};

struct LayerNormOptions {
    double eps = 1e-5;
    bool affine = true;  ///< has weight (ones) and bias (zeros)
    bool bias = true;
};

/// Normalizes to mean 0 and variance 1 over the last dimensions, then applies weight and bias of `normalized_shape` (Ba et al. 2016).
class LayerNorm : public Module {
 public:
    Parameter weight, bias;

    explicit LayerNorm(const Shape& normalized_shape, LayerNormOptions options = {}, Loc loc = Loc::current());
    explicit LayerNorm(std::initializer_list<std::int64_t> normalized_shape, LayerNormOptions options = {}, Loc loc = Loc::current())
        : LayerNorm(Shape(normalized_shape.begin(), static_cast<int>(normalized_shape.size()), loc), options, loc) {}
    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;
    std::string describe() const override;

 private:
    Shape shape_;
    LayerNormOptions options_;
};

}  // namespace tapir::nn
