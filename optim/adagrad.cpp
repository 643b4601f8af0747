// Adagrad and its dual averaging.
#include "tapir/optim/adagrad.h"

#include "tapir/optim/options_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {

static void check(const AdagradOptions& o, const Loc& loc) {
    check_not_negative("Adagrad",
                       {{"lr", o.lr},
                        {"lr_decay", o.lr_decay},
                        {"weight_decay", o.weight_decay},
                        {"initial_accumulator_value", o.initial_accumulator_value},
                        {"eps", o.eps}},
                       loc);
}

static void check(const AdagradDAOptions& o, const Loc& loc) {
    check_not_negative("AdagradDA",
                       {{"lr", o.lr}, {"l1", o.l1}, {"l2", o.l2}, {"initial_accumulator_value", o.initial_accumulator_value}}, loc);
}

template <class Visit>
static void list(AdagradOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("lr_decay", o.lr_decay);
    visit("weight_decay", o.weight_decay);
    visit("initial_accumulator_value", o.initial_accumulator_value);
    visit("eps", o.eps);
}

template <class Visit>
static void list(AdagradDAOptions& o, const Visit& visit) {
    visit("lr", o.lr);
    visit("l1", o.l1);
    visit("l2", o.l2);
    visit("initial_accumulator_value", o.initial_accumulator_value);
}

template class GroupsOf<AdagradOptions>;
template class GroupsOf<AdagradDAOptions>;

void Adagrad::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const { names[0] = "sum"; }

double Adagrad::initial_value(std::size_t group, int) const { return of(group).initial_accumulator_value; }

bool Adagrad::rows_suffice(std::size_t group) const { return of(group).weight_decay == 0; }

void Adagrad::update(std::size_t group, Slot& slot, Update& work) {
    const AdagradOptions& o = of(group);
    const double lr = o.lr / (1 + static_cast<double>(slot.steps - 1) * o.lr_decay);
    work.apply(kernels::AdagradStep{lr, o.weight_decay, o.eps});
}

void AdagradDA::buffer_names(std::size_t, const char* (&names)[kMaxBuffers]) const {
    names[0] = "sum";
    names[1] = "squares";
}

double AdagradDA::initial_value(std::size_t group, int buffer) const {
    return buffer == 1 ? of(group).initial_accumulator_value : 0;
}

void AdagradDA::update(std::size_t group, Slot& slot, Update& work) {
    const AdagradDAOptions& o = of(group);
    const auto t = static_cast<double>(slot.steps);
    work.apply(kernels::AdagradDAStep{o.lr, o.l1 * t, o.l2 * t});
}

}  // namespace tapir::optim
