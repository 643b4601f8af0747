// RMSprop and Adadelta.
#include "tapir/optim/rmsprop.h"

#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(rmsprop, NonDiff, "A step of RMSprop.",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.RMSprop, x[0], x[1], lr=0.1, momentum=0.5, centered=True)",
                         stepped<optim::RMSprop>(x[0], x[1], optim::RMSpropOptions{.lr = 0.1, .momentum = 0.5, .centered = true})));
TAPIR_OP(adadelta, NonDiff, "A step of Adadelta (Zeiler 2012).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Adadelta, x[0], x[1], lr=1.0)",
                         stepped<optim::Adadelta>(x[0], x[1], optim::AdadeltaOptions{})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct RMSpropRule : Rule<RMSpropOptions> {
    static constexpr const char* name = "RMSprop";
    static constexpr const OpInfo& op = rmsprop_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::alpha>("alpha", Domain::below_one),
        option<&Options::eps>("eps", Domain::not_negative),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
        option<&Options::momentum>("momentum", Domain::not_negative),
        option<&Options::centered>("centered"),
    };
    static BufferNames buffers(const Options& o) {
        return {"square_avg", o.momentum != 0 ? "momentum_buffer" : nullptr, o.centered ? "grad_avg" : nullptr};
    }
    static void update(const Options& o, Slot&, Update& work) { work.apply(kernels::RMSpropStep{o.lr, o.alpha, o.eps, o.weight_decay, o.momentum}); }
};

struct AdadeltaRule : Rule<AdadeltaOptions> {
    static constexpr const char* name = "Adadelta";
    static constexpr const OpInfo& op = adadelta_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::rho>("rho", Domain::up_to_one),
        option<&Options::eps>("eps", Domain::not_negative),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
    };
    static BufferNames buffers(const Options&) { return {"square_avg", "acc_delta"}; }
    static void update(const Options& o, Slot&, Update& work) { work.apply(kernels::AdadeltaStep{o.lr, o.rho, o.eps, o.weight_decay}); }
};

}  // namespace

constinit const OptimizerRule RMSpropOptions::rule = rule_of<RMSpropRule>;
constinit const OptimizerRule AdadeltaOptions::rule = rule_of<AdadeltaRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(rmsprop, RMSpropOptions);
TAPIR_UPDATE_FORM(adadelta, AdadeltaOptions);

}  // namespace tapir
