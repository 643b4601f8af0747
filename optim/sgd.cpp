// Stochastic gradient descent.
#include "tapir/optim/sgd.h"

#include "tapir/core/fail_impl.h"
#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

void check(const SGDOptions& o, const Loc& loc) {
    check_not_negative("SGD", {{"lr", o.lr}, {"momentum", o.momentum}, {"weight_decay", o.weight_decay}}, loc);
    if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
        fail<ValueError>(loc, "SGD: nesterov needs momentum above 0 and no dampening, got {} and {}", o.momentum, o.dampening);
    }
}

}  // namespace

SGD::SGD(const std::vector<Tensor>& parameters, const SGDOptions& options, Loc loc) {
    SGD::add_param_group(parameters, options, loc);
}

void SGD::add_param_group(const std::vector<Tensor>& parameters, const SGDOptions& options, Loc loc) {
    check(options, loc);
    add_group(parameters, loc);
    options_.push_back(options);
}

SGDOptions& SGD::options(std::size_t group, Loc loc) {
    check_group(group, loc);
    return options_[group];
}

void SGD::buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const {
    if (options_[group].momentum != 0) names[0] = "momentum_buffer";
}

bool SGD::rows_suffice(std::size_t group) const {
    return options_[group].momentum == 0 && options_[group].weight_decay == 0;
}

std::vector<Optimizer::Option> SGD::option_list(std::size_t group) {
    SGDOptions& o = options_[group];
    return {{"lr", &o.lr, nullptr},
            {"momentum", &o.momentum, nullptr},
            {"dampening", &o.dampening, nullptr},
            {"weight_decay", &o.weight_decay, nullptr},
            {"nesterov", nullptr, &o.nesterov}};
}

void SGD::check_options(std::size_t group, const Loc& loc) const { check(options_[group], loc); }

void SGD::update(std::size_t group, Slot&, Update& work) {
    const SGDOptions& o = options_[group];
    // A row that is met for the first time later finds zeros in its buffer.
    const bool first = work.first && work.gradient.defined();
    work.apply(kernels::SgdStep{o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, first});
}

}  // namespace tapir::optim
