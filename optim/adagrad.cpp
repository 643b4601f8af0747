// Adagrad and its dual averaging.
#include "tapir/optim/adagrad.h"

#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(adagrad, NonDiff, "A step of Adagrad (Duchi et al. 2011).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Adagrad, x[0], x[1], lr=0.1)",
                         stepped<optim::Adagrad>(x[0], x[1], optim::AdagradOptions{.lr = 0.1})));
TAPIR_OP(adagrad_da, NonDiff, "A step of Adagrad by dual averaging (Duchi et al. 2011).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "", stepped<optim::AdagradDA>(x[0], x[1], optim::AdagradDAOptions{.lr = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct AdagradRule : Rule<AdagradOptions> {
    static constexpr const char* name = "Adagrad";
    static constexpr const OpInfo& op = adagrad_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::lr_decay>("lr_decay", Domain::not_negative),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
        option<&Options::initial_accumulator_value>("initial_accumulator_value", Domain::not_negative),
        option<&Options::eps>("eps", Domain::not_negative),
    };
    static BufferNames buffers(const Options&) { return {"sum"}; }
    static double initial_value(const Options& o, int) { return o.initial_accumulator_value; }
    static bool rows_suffice(const Options& o) { return o.weight_decay == 0; }
    static void update(const Options& o, Slot& slot, Update& work) {
        const double lr = o.lr / (1 + static_cast<double>(slot.steps - 1) * o.lr_decay);
        work.apply(kernels::AdagradStep{lr, o.weight_decay, o.eps});
    }
};

struct AdagradDARule : Rule<AdagradDAOptions> {
    static constexpr const char* name = "AdagradDA";
    static constexpr const OpInfo& op = adagrad_da_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::l1>("l1", Domain::not_negative),
        option<&Options::l2>("l2", Domain::not_negative),
        option<&Options::initial_accumulator_value>("initial_accumulator_value", Domain::not_negative),
    };
    static BufferNames buffers(const Options&) { return {"sum", "squares"}; }
    static double initial_value(const Options& o, int buffer) { return buffer == 1 ? o.initial_accumulator_value : 0; }
    static void update(const Options& o, Slot& slot, Update& work) {
        const auto t = static_cast<double>(slot.steps);
        work.apply(kernels::AdagradDAStep{o.lr, o.l1 * t, o.l2 * t});
    }
};

}  // namespace

constinit const OptimizerRule AdagradOptions::rule = rule_of<AdagradRule>;
constinit const OptimizerRule AdagradDAOptions::rule = rule_of<AdagradDARule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(adagrad, AdagradOptions);
TAPIR_UPDATE_FORM(adagrad_da, AdagradDAOptions);

}  // namespace tapir
