// Adagrad.
#include "tapir/optim/adagrad.h"

#include "tapir/core/fail_impl.h"
#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

void check(const AdagradOptions& o, const Loc& loc) {
    check_not_negative("Adagrad",
                       {{"lr", o.lr},
                        {"lr_decay", o.lr_decay},
                        {"weight_decay", o.weight_decay},
                        {"initial_accumulator", o.initial_accumulator},
                        {"eps", o.eps}},
                       loc);
}

}  // namespace

Adagrad::Adagrad(const std::vector<Tensor>& parameters, const AdagradOptions& options, Loc loc) {
    Adagrad::add_param_group(parameters, options, loc);
}

void Adagrad::add_param_group(const std::vector<Tensor>& parameters, const AdagradOptions& options, Loc loc) {
    check(options, loc);
    add_group(parameters, loc);
    options_.push_back(options);
}

AdagradOptions& Adagrad::options(std::size_t group, Loc loc) {
    check_group(group, loc);
    return options_[group];
}

void Adagrad::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const { names[0] = "sum"; }

double Adagrad::initial_value(std::size_t group) const { return options_[group].initial_accumulator; }

bool Adagrad::rows_suffice(std::size_t group) const {
    return options_[group].weight_decay == 0;
}

std::vector<Optimizer::Option> Adagrad::option_list(std::size_t group) {
    AdagradOptions& o = options_[group];
    return {{"lr", &o.lr, nullptr},
            {"lr_decay", &o.lr_decay, nullptr},
            {"weight_decay", &o.weight_decay, nullptr},
            {"initial_accumulator", &o.initial_accumulator, nullptr},
            {"eps", &o.eps, nullptr}};
}

void Adagrad::check_options(std::size_t group, const Loc& loc) const { check(options_[group], loc); }

void Adagrad::update(std::size_t group, Slot& slot, Update& work) {
    const AdagradOptions& o = options_[group];
    const double lr = o.lr / (1 + static_cast<double>(slot.steps - 1) * o.lr_decay);
    work.apply(kernels::AdagradStep{lr, o.weight_decay, o.eps});
}

}  // namespace tapir::optim
