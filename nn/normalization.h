// Normalisation layers; LayerNorm is in layers.h. Names, initialisation (weights 1, biases 0) and defaults are PyTorch's.
#pragma once

#include <initializer_list>
#include <optional>
#include <utility>

#include "tapir/core/std_function.h"
#include "tapir/nn/module.h"
#include "tapir/ops/normalization/batch_norm.h"
#include "tapir/ops/normalization/group_norm.h"
#include "tapir/ops/normalization/rms_norm.h"

namespace tapir::nn {

struct BatchNormLayerOptions {
    double eps = 1e-5;
    std::optional<double> momentum = 0.1;  ///< none: running statistics are the mean of all batches so far
    bool affine = true;                    ///< has weight and bias
    bool track_running_stats = true;       ///< else evaluation uses the batch's own statistics, too
};

/// Common base of the three: see batch_norm. Parameters weight and bias (channels,), buffers running_mean, running_var and
/// num_batches_tracked. Throws ShapeError for another number of channels.
class BatchNorm : public Module {
 public:
    Parameter weight, bias;
    Tensor running_mean, running_var, num_batches_tracked;

    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;
    std::string describe() const override;

    /// What forward() computes in training in place of batch_norm(), as parallel::convert_sync_batchnorm() sets it. Copies have it, too.
    using InTraining = std::function<Tensor(In x, const BatchNorm& layer, const BatchNormOptions& options)>;
    void set_in_training(InTraining function) { in_training_ = std::move(function); }

 protected:
    BatchNorm(const char* name, int least_dims, int most_dims, std::int64_t channels, const BatchNormLayerOptions& options, const Loc& loc);

 private:
    const char* name_;
    int least_dims_, most_dims_;
    std::int64_t channels_;
    BatchNormLayerOptions options_;
    InTraining in_training_;
};

/// Takes x (n, channels) or (n, channels, length). Throws ShapeError for other numbers of dimensions.
class BatchNorm1d : public BatchNorm {
 public:
    explicit BatchNorm1d(std::int64_t channels, const BatchNormLayerOptions& options = {}, Loc loc = Loc::current())
        : BatchNorm("BatchNorm1d", 2, 3, channels, options, loc) {}
};
/// x (n, channels, height, width)
class BatchNorm2d : public BatchNorm {
 public:
    explicit BatchNorm2d(std::int64_t channels, const BatchNormLayerOptions& options = {}, Loc loc = Loc::current())
        : BatchNorm("BatchNorm2d", 4, 4, channels, options, loc) {}
};
/// x (n, channels, depth, height, width)
class BatchNorm3d : public BatchNorm {
 public:
    explicit BatchNorm3d(std::int64_t channels, const BatchNormLayerOptions& options = {}, Loc loc = Loc::current())
        : BatchNorm("BatchNorm3d", 5, 5, channels, options, loc) {}
};

struct NormOptions {
    double eps = 1e-5;
    bool affine = true;  ///< has weight and bias
};

/// Normalizes groups of channels of each example: see group_norm.
class GroupNorm : public Module {
 public:
    Parameter weight, bias;

    /// Throws ValueError unless the groups divide the channels.
    GroupNorm(std::int64_t groups, std::int64_t channels, const NormOptions& options = {}, Loc loc = Loc::current());
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return group_norm(x, groups_, weight, bias, eps_);
    }
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override { m("weight", weight)("bias", bias); }
    std::string describe() const override;

 private:
    std::int64_t groups_, channels_;
    double eps_;
};

struct InstanceNormOptions {
    double eps = 1e-5;
    bool affine = false;  ///< has weight and bias
};

/// Common base of the three: normalizes each channel of each example, see instance_norm. Evaluation uses the input's own statistics, too
/// (PyTorch's track_running_stats = false). An example may come without a batch: (channels, ...) gives (channels, ...). Throws
/// ShapeError for other numbers of dimensions and, if it is affine, for another number of channels.
class InstanceNorm : public Module {
 public:
    Parameter weight, bias;

    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override { m("weight", weight)("bias", bias); }
    std::string describe() const override;

 protected:
    InstanceNorm(const char* name, int batched_dims, std::int64_t channels, const InstanceNormOptions& options, const Loc& loc);

 private:
    const char* name_;
    int batched_dims_;
    std::int64_t channels_;
    double eps_;
};

/// x (n, channels, length) or (channels, length)
class InstanceNorm1d : public InstanceNorm {
 public:
    explicit InstanceNorm1d(std::int64_t channels, const InstanceNormOptions& options = {}, Loc loc = Loc::current())
        : InstanceNorm("InstanceNorm1d", 3, channels, options, loc) {}
};
/// x (n, channels, height, width) or (channels, height, width)
class InstanceNorm2d : public InstanceNorm {
 public:
    explicit InstanceNorm2d(std::int64_t channels, const InstanceNormOptions& options = {}, Loc loc = Loc::current())
        : InstanceNorm("InstanceNorm2d", 4, channels, options, loc) {}
};
/// x (n, channels, depth, height, width) or (channels, depth, height, width)
class InstanceNorm3d : public InstanceNorm {
 public:
    explicit InstanceNorm3d(std::int64_t channels, const InstanceNormOptions& options = {}, Loc loc = Loc::current())
        : InstanceNorm("InstanceNorm3d", 5, channels, options, loc) {}
};

/// See rms_norm. eps below 0: the dtype's epsilon.
class RMSNorm : public Module {
 public:
    Parameter weight;

    explicit RMSNorm(const Shape& normalized_shape, double eps = -1, bool affine = true, Loc loc = Loc::current());
    explicit RMSNorm(std::initializer_list<std::int64_t> normalized_shape, double eps = -1, bool affine = true, Loc loc = Loc::current())
        : RMSNorm(Shape(normalized_shape.begin(), static_cast<int>(normalized_shape.size()), loc), eps, affine, loc) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return rms_norm(x, shape_, weight, eps_);
    }
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override { m("weight", weight); }
    std::string describe() const override { return shape_.str(); }

 private:
    Shape shape_;
    double eps_;
};

/// See local_response_norm.
class LocalResponseNorm : public Module {
 public:
    explicit LocalResponseNorm(std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1)
        : size_(size), alpha_(alpha), beta_(beta), k_(k) {}
    Tensor forward(In x) const {
        const ModuleScope scope(*this);
        return local_response_norm(x, size_, alpha_, beta_, k_);
    }
    Tensor operator()(In x) const { return forward(x); }

 private:
    std::int64_t size_;
    double alpha_, beta_, k_;
};

}  // namespace tapir::nn
