// Rprop.
#include "tapir/optim/rprop.h"

#include "tapir/core/fail_impl.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(rprop, NonDiff, "A step of Rprop (Riedmiller and Braun 1993).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Rprop, x[0], x[1], lr=0.1)",
                         stepped<optim::Rprop>(x[0], x[1], optim::RpropOptions{.lr = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct RpropRule : Rule<RpropOptions> {
    static constexpr const char* name = "Rprop";
    static constexpr const OpInfo& op = rprop_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::eta_minus>("eta_minus"),
        option<&Options::eta_plus>("eta_plus", Domain::finite),
        option<&Options::step_size_min>("step_size_min", Domain::not_negative),
        option<&Options::step_size_max>("step_size_max", Domain::limit),
    };
    static void check(const Options& o, const Loc& loc) {
        if (!(0 < o.eta_minus && o.eta_minus < 1 && 1 < o.eta_plus)) {
            fail<ValueError>(loc, "Rprop: eta_minus must be in (0, 1) and eta_plus above 1, got {} and {}", o.eta_minus, o.eta_plus);
        }
    }
    static BufferNames buffers(const Options&) { return {"prev", "step_size"}; }
    static double initial_value(const Options& o, int buffer) { return buffer == 1 ? o.lr : 0; }
    static void update(const Options& o, Slot&, Update& work) {
        work.apply(kernels::RpropStep{o.eta_minus, o.eta_plus, o.step_size_min, o.step_size_max});
    }
};

}  // namespace

constinit const OptimizerRule RpropOptions::rule = rule_of<RpropRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(rprop, RpropOptions);

}  // namespace tapir
