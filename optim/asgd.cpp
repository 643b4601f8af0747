// Averaged stochastic gradient descent.
#include "tapir/optim/asgd.h"

#include <algorithm>
#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(asgd, NonDiff, "A step of averaged stochastic gradient descent (Polyak and Juditsky 1992).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.ASGD, x[0], x[1], lr=0.1)",
                         stepped<optim::ASGD>(x[0], x[1], optim::ASGDOptions{.lr = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

struct ASGDRule : Rule<ASGDOptions> {
    static constexpr const char* name = "ASGD";
    static constexpr const OpInfo& op = asgd_op;
    static constexpr OptimizerOption options[] = {
        option<&Options::lr>("lr", Domain::not_negative),
        option<&Options::lambd>("lambd", Domain::not_negative),
        option<&Options::alpha>("alpha", Domain::finite),
        option<&Options::t0>("t0"),
        option<&Options::weight_decay>("weight_decay", Domain::not_negative),
    };
    static void check(const Options& o, const Loc& loc) {
        if (std::isnan(o.t0)) fail<ValueError>(loc, "ASGD: t0 is nan");
    }
    static constexpr const char* number = "eta";
    static BufferNames buffers(const Options&) { return {"ax"}; }
    static bool starts_alike(const Options&) { return false; }
    static void update(const Options& o, Slot& slot, Update& work) {
        const auto t = static_cast<double>(slot.steps);
        if (work.first) work.buffers[0].copy_(work.parameter);  // rows that no gradient names need averages too
        if (slot.steps == 1) slot.number = o.lr;
        const double eta = slot.number;
        slot.number = o.lr / std::pow(1 + o.lambd * o.lr * t, o.alpha);
        const double mu = slot.steps == 1 ? 1 : 1 / std::max(1.0, t - 1 - o.t0);
        work.apply(kernels::ASGDStep{eta, 1 - o.lambd * eta, o.weight_decay, mu});
    }
};

}  // namespace

constinit const OptimizerRule ASGDOptions::rule = rule_of<ASGDRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(asgd, ASGDOptions);

}  // namespace tapir
