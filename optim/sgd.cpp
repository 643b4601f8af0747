// Stochastic gradient descent.
#include "tapir/optim/sgd.h"

#include "tapir/core/fail_impl.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(sgd, NonDiff, "A step of stochastic gradient descent.",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.SGD, x[0], x[1], lr=0.1)",
                         stepped<optim::SGD>(x[0], x[1], optim::SGDOptions{.lr = 0.1})),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.SGD, x[0], x[1], lr=0.1, momentum=0.9, nesterov=True)",
                         stepped<optim::SGD>(x[0], x[1], optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true})),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.SGD, x[0], x[1], lr=0.1, weight_decay=0.1)",
                         stepped<optim::SGD>(x[0], x[1], optim::SGDOptions{.lr = 0.1, .weight_decay = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct SGDRule : Rule<SGDOptions> {
    static constexpr const char* name = "SGD";
    static constexpr const OpInfo& op = sgd_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::momentum>("momentum", Domain::not_negative),
        option<&Options::dampening>("dampening", Domain::finite),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
        option<&Options::nesterov>("nesterov"),
    };
    static void check(const Options& o, const Loc& loc) {
        if (o.nesterov && (o.momentum <= 0 || o.dampening != 0)) {
            fail<ValueError>(loc, "SGD: nesterov needs momentum above 0 and no dampening, got {} and {}", o.momentum, o.dampening);
        }
    }
    static BufferNames buffers(const Options& o) { return {o.momentum != 0 ? "momentum_buffer" : nullptr}; }
    static bool rows_suffice(const Options& o) { return o.momentum == 0 && o.weight_decay == 0; }
    static bool starts_alike(const Options& o) { return o.momentum == 0 || o.dampening == 0; }
    static void update(const Options& o, Slot&, Update& work) {
        // A row that is used for the first time later starts with zeros in its buffer.
        const bool first = work.first && work.gradient.defined();
        work.apply(kernels::SgdStep{o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, first});
    }
};

}  // namespace

constinit const OptimizerRule SGDOptions::rule = rule_of<SGDRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(sgd, SGDOptions);

}  // namespace tapir
