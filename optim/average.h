// Averages of weights over training, which often do better than the last ones.
//
//     optim::Adam adam(model.parameters());
//     optim::ExponentialMovingAverage ema(model.parameters(), {.decay = 0.999});
//     for (...) {
//         ...
//         adam.step();
//         ema.update();
//     }
//     {
//         optim::AverageScope scope(ema);   // the model has the averages
//         evaluate(model);
//         nn::save(model, "averaged.safetensors");
//     }                                     // and its own weights again
//
// An update is one pass over the parameters, like an optimizer's step. Averages are float32 or float64, like an optimizer's
// buffers, and follow Module::to(). Tensors of integers (a buffer that counts) are copied instead of averaged. To average a
// model's buffers too, name them in the list after its parameters.
#pragma once

#include <vector>

#include "tapir/core/named_tensor.h"

namespace tapir::optim {

/// Common base of both.
class WeightAverage {
 public:
    virtual ~WeightAverage() = default;
    WeightAverage(const WeightAverage&) = delete;
    WeightAverage& operator=(const WeightAverage&) = delete;

    /// Adds the current parameters to the averages. In a traced function the graph does so in each run, which updates() does not count. It throws
    /// TapeError there if the weight of an update depends on the number of updates (StochasticWeightAverage, warmup that goes on).
    void update(Loc loc = Loc::current());
    std::int64_t updates() const noexcept { return updates_; }
    const std::vector<Tensor>& parameters() const noexcept { return parameters_; }
    /// Returns the averages in the order of the parameters; before the first update, the initial parameters.
    const std::vector<Tensor>& averages() const noexcept { return averages_; }
    /// Copies the averages to the parameters for good.
    void copy_to_parameters(Loc loc = Loc::current()) const;

    /// Returns the number of updates, and copies of the averages: "updates", "0", "1", ...
    NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Restores a state. Throws ValueError, and changes nothing, if names or shapes differ.
    void load_state_dict(const NamedTensors& state, Loc loc = Loc::current());

 protected:
    /// Throws ValueError for an undefined tensor.
    WeightAverage(const char* name, const std::vector<Tensor>& parameters, const Loc& loc);
    /// Returns the weight of the current parameters in the average: average += weight (parameter - average).
    virtual double weight(std::int64_t updates) const = 0;

 private:
    void update_by_ops(const Loc& loc);

    const char* name_;
    std::vector<Tensor> parameters_, averages_;
    std::int64_t updates_ = 0;
};

struct ExponentialMovingAverageOptions {
    double decay = 0.999;
    bool warmup = false;  ///< use a decay of at most (1 + t) / (10 + t) after t updates, as TensorFlow's num_updates
};

/// average = decay average + (1 - decay) parameter. Polyak and Juditsky 1992. Throws ValueError for a decay outside [0, 1].
class ExponentialMovingAverage : public WeightAverage {
 public:
    explicit ExponentialMovingAverage(const std::vector<Tensor>& parameters, const ExponentialMovingAverageOptions& options = {},
                                      Loc loc = Loc::current());

 protected:
    double weight(std::int64_t updates) const override;

 private:
    ExponentialMovingAverageOptions options_;
};

/// The mean of the parameters of all updates, as PyTorch's AveragedModel. Izmailov et al. 2018, "Averaging weights leads to
/// wider optima and better generalization". Batch normalisation's statistics then belong to no model: pass training data
/// through the averaged one.
class StochasticWeightAverage : public WeightAverage {
 public:
    explicit StochasticWeightAverage(const std::vector<Tensor>& parameters, Loc loc = Loc::current())
        : WeightAverage("StochasticWeightAverage", parameters, loc) {}

 protected:
    double weight(std::int64_t updates) const override { return 1 / static_cast<double>(updates + 1); }
};

/// While it lives the parameters have the values of the averages; afterwards their own again, also if an exception ends it. Updating an
/// average of any of these parameters meanwhile throws ValueError: it would take averages for weights.
class [[nodiscard]] AverageScope {
 public:
    explicit AverageScope(const WeightAverage& average, Loc loc = Loc::current());
    ~AverageScope();
    AverageScope(const AverageScope&) = delete;
    AverageScope& operator=(const AverageScope&) = delete;

 private:
    std::vector<Tensor> parameters_, own_;
    Loc loc_;
};

}  // namespace tapir::optim
