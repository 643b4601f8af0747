// Stochastic gradient descent.
#include "tapir/optim/sgd.h"

#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

static void check(const SGDOptions& o, const Loc& loc) {
    check_not_negative("SGD", {{"lr", o.lr}, {"momentum", o.momentum}, {"weight_decay", o.weight_decay}}, loc);
    if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
        fail<ValueError>(loc, "SGD: nesterov needs momentum above 0 and no dampening, got {} and {}", o.momentum, o.dampening);
    }
}

template <class Visit>
static void list(SGDOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("momentum", o.momentum);
    visit("dampening", o.dampening);
    visit("weight_decay", o.weight_decay);
    visit("nesterov", o.nesterov);
}

template class GroupsOf<SGDOptions>;

void SGD::buffer_names(std::size_t group, const char* (&names)[kMaxBuffers]) const {
    if (of(group).momentum != 0) names[0] = "momentum_buffer";
}

bool SGD::rows_suffice(std::size_t group) const { return of(group).momentum == 0 && of(group).weight_decay == 0; }

void SGD::update(std::size_t group, Slot&, Update& work) {
    const SGDOptions& o = of(group);
    // A row that is met for the first time later finds zeros in its buffer.
    const bool first = work.first && work.gradient.defined();
    work.apply(kernels::SgdStep{o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, first});
}

}  // namespace tapir::optim
