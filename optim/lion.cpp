// Lion.
#include "tapir/optim/lion.h"

#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(lion, NonDiff, "A step of Lion (Chen et al. 2023).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "", stepped<optim::Lion>(x[0], x[1], optim::LionOptions{.lr = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct LionRule : Rule<LionOptions> {
    static constexpr const char* name = "Lion";
    static constexpr const OpInfo& op = lion_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        element<&Options::betas, 0>("beta1", Domain::below_one),
        element<&Options::betas, 1>("beta2", Domain::below_one),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
    };
    static BufferNames buffers(const Options&) { return {"exp_avg"}; }
    static void update(const Options& o, Slot&, Update& work) {
        work.apply(kernels::LionStep{o.lr, o.betas[0], o.betas[1], 1 - o.lr * o.weight_decay});
    }
};

}  // namespace

constinit const OptimizerRule LionOptions::rule = rule_of<LionRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(lion, LionOptions);

}  // namespace tapir
