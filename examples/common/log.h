// A run that TensorBoard shows: --log-dir of the examples.
#pragma once

#include <tapir/nn/summary/summary_writer.h>
#include <tapir/optim/optimizer.h>

#include <optional>
#include <string>

namespace show {

/// Nothing without a folder.
///     TrainingLog log(options.log_dir);
///     ... log.step(model, optimizer, loss.item(), step);      // between backward() and optimizer.step()
///     if (log) log->add_scalar("accuracy/test", accuracy, step);
class TrainingLog {
 public:
    /// `first_step`: what an earlier run logged of it and of later ones is forgotten.
    explicit TrainingLog(const std::string& folder, std::int64_t first_step = 0);

    /// Loss and learning rate; each `every` steps histograms of all weights and gradients.
    void step(const tapir::nn::Module& model, const tapir::optim::Optimizer& optimizer, double loss, std::int64_t step, std::int64_t every = 100);

    explicit operator bool() const { return writer_.has_value(); }
    tapir::nn::SummaryWriter& operator*() { return *writer_; }
    tapir::nn::SummaryWriter* operator->() { return &*writer_; }

 private:
    std::optional<tapir::nn::SummaryWriter> writer_;
};

}  // namespace show
