#include "log.h"

#include <cstdio>

namespace show {

TrainingLog::TrainingLog(const std::string& folder, std::int64_t first_step) {
    if (folder.empty()) return;
    writer_.emplace(folder, tapir::nn::SummaryWriterOptions{.purge_step = first_step});
    std::printf("to watch it: tensorboard --logdir %s\n", folder.c_str());
}

void TrainingLog::step(const tapir::nn::Module& model, const tapir::optim::Optimizer& optimizer, double loss, std::int64_t step, std::int64_t every) {
    if (!writer_) return;
    writer_->add_scalar("loss/train", loss, step);
    writer_->add_scalar("learning rate", optimizer.lr(), step);
    if (step % every != 0) return;
    for (const auto& [name, parameter] : model.named_parameters()) {
        writer_->add_histogram("weights/" + name, parameter, step);
        if (parameter.grad().defined()) writer_->add_histogram("gradients/" + name, parameter.grad(), step);
    }
}

}  // namespace show
