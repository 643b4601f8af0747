// RMSprop and Adadelta.
#include "tapir/optim/rmsprop.h"

#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

static void check(const RMSpropOptions& o, const Loc& loc) {
    check_not_negative("RMSprop", {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"momentum", o.momentum}}, loc);
    check_fraction("RMSprop", {{"alpha", o.alpha}}, loc);
}

static void check(const AdadeltaOptions& o, const Loc& loc) {
    check_not_negative("Adadelta", {{"lr", o.lr}, {"eps", o.eps}, {"weight_decay", o.weight_decay}}, loc);
    if (!(o.rho >= 0 && o.rho <= 1)) fail<ValueError>(loc, "Adadelta: rho must be in [0, 1], got {}", o.rho);
}

template <class Visit>
static void list(RMSpropOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("alpha", o.alpha);
    visit("eps", o.eps);
    visit("weight_decay", o.weight_decay);
    visit("momentum", o.momentum);
    visit("centered", o.centered);
}

template <class Visit>
static void list(AdadeltaOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("rho", o.rho);
    visit("eps", o.eps);
    visit("weight_decay", o.weight_decay);
}

template class GroupsOf<RMSpropOptions>;
template class GroupsOf<AdadeltaOptions>;

void RMSprop::buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const {
    names[0] = "square_avg";
    if (of(group).momentum != 0) names[1] = "momentum_buffer";
    if (of(group).centered) names[2] = "grad_avg";
}

void RMSprop::update(std::size_t group, Slot&, Update& work) {
    const RMSpropOptions& o = of(group);
    work.apply(kernels::RMSpropStep{o.lr, o.alpha, o.eps, o.weight_decay, o.momentum});
}

void Adadelta::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const {
    names[0] = "square_avg";
    names[1] = "acc_delta";
}

void Adadelta::update(std::size_t group, Slot&, Update& work) {
    const AdadeltaOptions& o = of(group);
    work.apply(kernels::AdadeltaStep{o.lr, o.rho, o.eps, o.weight_decay});
}

}  // namespace tapir::optim
