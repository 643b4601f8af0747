// Averages of weights.
#include "tapir/optim/average.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/make/make.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

DType kept_in(DType dtype) { return is_floating(dtype) ? computed_in(dtype) : dtype; }

Tensor fresh(const Tensor& t) { return t.detach().to(kept_in(t.dtype())).contiguous().clone(); }

void copy_all(const std::vector<Tensor>& to, const std::vector<Tensor>& from, const Loc& loc) {
    const detail::PauseRecording pause;
    for (std::size_t i = 0; i < to.size(); ++i) Tensor(to[i]).copy_(from[i], loc);
}

// The scopes that are alive: their parameters currently hold averages.
std::atomic<int> live_scopes = 0;  // lets an update without any scope skip the search
std::mutex scopes_mutex;
std::vector<const std::vector<Tensor>*> scopes;

bool has_averages(const Tensor& parameter) {
    const std::lock_guard lock(scopes_mutex);
    return std::any_of(scopes.begin(), scopes.end(), [&](const std::vector<Tensor>* lent) {
        return std::any_of(lent->begin(), lent->end(), [&](const Tensor& p) { return p.is_same(parameter); });
    });
}

}  // namespace

WeightAverage::WeightAverage(const char* name, const std::vector<Tensor>& parameters, const Loc& loc) : name_(name), parameters_(parameters) {
    const detail::PauseRecording pause;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!parameters[i].defined()) fail<ValueError>(loc, "{}: parameter {} is undefined", name, i);
        averages_.push_back(fresh(parameters[i]));
    }
}

void WeightAverage::update(Loc loc) {
    const CallerScope caller(loc);
    if (live_scopes > 0 && std::any_of(parameters_.begin(), parameters_.end(), has_averages)) {
        fail<ValueError>(loc,
                         "update: an AverageScope lives, in which the parameters of this {} have averages, not their own values; end the "
                         "scope before",
                         name_);
    }
    if (detail::is_tracing() && detail::is_watched()) return update_by_ops(loc);
    const detail::PauseRecording pause;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        follow(averages_[i], parameters_[i].device(), kept_in(parameters_[i].dtype()));
    }
    const kernels::AverageStep step{weight(updates_)};
    StepQueue queue;
    std::vector<Tensor> own;  // made before the first average changes, because this allocates
    for (const Tensor& p : parameters_) {
        const detail::PartsOfOp parts;
        own.push_back(is_floating(p.dtype()) && !on_gpu(p) ? p.detach().contiguous() : p.detach());
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Tensor &p = parameters_[i], &average = averages_[i];
        detail::begin_op("update", p.impl(), loc);
        const detail::PartsOfOp parts;
        if (!is_floating(p.dtype())) {
            Tensor(average).copy_(own[i], loc);
            continue;
        }
        Update work;
        work.queue = &queue;
        work.parameter = average;
        work.gradient = taken(own[i], average.dtype());
        work.apply(step);
        mark_written(average, loc);
    }
    queue.flush();
    ++updates_;
}

void WeightAverage::update_by_ops(const Loc& loc) {
    const double now = weight(updates_);
    if (now != weight(updates_ + 1)) {
        fail<TapeError>(
            loc,
            "{}: update: its weight depends on how many updates there were, and a graph has one for good: update after the step, outside of "
            "the traced function",
            name_);
    }
    const CallerScope caller(loc);
    const NoGradScope plain;
    const detail::PauseAutocast exact;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        Tensor average = averages_[i];
        const Tensor own = parameters_[i].detach().to(average.dtype()).to(average.device());
        is_floating(own.dtype()) ? average.add_((own - average) * now) : average.copy_(own);
    }
}

void WeightAverage::copy_to_parameters(Loc loc) const { copy_all(parameters_, averages_, loc); }

NamedTensors WeightAverage::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    const detail::PauseRecording pause;
    NamedTensors state = {{"updates", full({}, updates_, {int64, cpu})}};
    for (std::size_t i = 0; i < averages_.size(); ++i) state.push_back({std::to_string(i), averages_[i].clone()});
    return state;
}

void WeightAverage::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    const detail::PauseRecording pause;
    StateReader reader(name_, state, loc);
    const std::int64_t updates = reader.count("updates");
    std::vector<Tensor> averages;
    for (std::size_t i = 0; i < averages_.size(); ++i) {
        const Tensor& now = averages_[i];
        if (const Tensor* t = reader.tensor(std::to_string(i), now.shape())) {
            averages.push_back(t->to(now.dtype()).contiguous().clone().to(now.device()));
        }
    }
    reader.finish();
    averages_ = std::move(averages);
    updates_ = updates;
}

ExponentialMovingAverage::ExponentialMovingAverage(const std::vector<Tensor>& parameters, const ExponentialMovingAverageOptions& options, Loc loc)
    : WeightAverage("ExponentialMovingAverage", parameters, loc), options_(options) {
    const CallerScope caller(loc);
    if (!(options.decay >= 0 && options.decay <= 1)) {
        fail<ValueError>(loc, "ExponentialMovingAverage: decay must be in [0, 1], got {}", options.decay);
    }
}

double ExponentialMovingAverage::weight(std::int64_t updates) const {
    const auto t = static_cast<double>(updates);
    return 1 - (options_.warmup ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay);
}

AverageScope::AverageScope(const WeightAverage& average, Loc loc) : parameters_(average.parameters()), loc_(loc) {
    const CallerScope caller(loc);
    const detail::PauseRecording pause;
    for (const Tensor& p : parameters_) own_.push_back(p.detach().clone());
    // Converts first: from here on nothing fails.
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        values.push_back(average.averages()[i].to(parameters_[i].dtype()).to(parameters_[i].device()));
    }
    copy_all(parameters_, values, loc);
    const std::lock_guard lock(scopes_mutex);
    scopes.push_back(&parameters_);
    ++live_scopes;
}

AverageScope::~AverageScope() {
    copy_all(parameters_, own_, loc_);
    const std::lock_guard lock(scopes_mutex);
    std::erase(scopes, &parameters_);
    --live_scopes;
}

}  // namespace tapir::optim
