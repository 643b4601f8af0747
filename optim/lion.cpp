// Lion.
#include "tapir/optim/lion.h"

#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

static void check(const LionOptions& o, const Loc& loc) {
    check_not_negative("Lion", {{"lr", o.lr}, {"weight_decay", o.weight_decay}}, loc);
    check_fraction("Lion", {{"beta1", o.beta1}, {"beta2", o.beta2}}, loc);
}

template <class Visit>
static void list(LionOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("beta1", o.beta1);
    visit("beta2", o.beta2);
    visit("weight_decay", o.weight_decay);
}

template class GroupsOf<LionOptions>;

void Lion::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const { names[0] = "exp_avg"; }

void Lion::update(std::size_t group, Slot&, Update& work) {
    const LionOptions& o = of(group);
    work.apply(kernels::LionStep{o.lr, o.beta1, o.beta2, 1 - o.lr * o.weight_decay});
}

}  // namespace tapir::optim
