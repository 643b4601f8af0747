// Adam and its variants: AdamW, Adamax, NAdam, RAdam.
#include "tapir/optim/adam.h"

#include <array>
#include <cmath>

#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir {

using optim::stepped;

TAPIR_OP(adam, NonDiff, "A step of Adam (Kingma and Ba 2015).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Adam, x[0], x[1], lr=0.1)",
                         stepped<optim::Adam>(x[0], x[1], optim::AdamOptions{.lr = 0.1})),
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Adam, x[0], x[1], lr=0.1, weight_decay=0.1, amsgrad=True)",
                         stepped<optim::Adam>(x[0], x[1], optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1, .amsgrad = true})));
TAPIR_OP(adamw, NonDiff, "A step of AdamW (Loshchilov and Hutter 2019).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.AdamW, x[0], x[1], lr=0.1, weight_decay=0.1)",
                         stepped<optim::AdamW>(x[0], x[1], optim::AdamWOptions{.lr = 0.1, .weight_decay = 0.1})));
TAPIR_OP(adamax, NonDiff, "A step of Adamax (Kingma and Ba 2015).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.Adamax, x[0], x[1], lr=0.1)",
                         stepped<optim::Adamax>(x[0], x[1], optim::AdamaxOptions{.lr = 0.1})));
TAPIR_OP(nadam, NonDiff, "A step of NAdam (Dozat 2016).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.NAdam, x[0], x[1], lr=0.1, foreach=True)",
                         stepped<optim::NAdam>(x[0], x[1], optim::NAdamOptions{.lr = 0.1})));
TAPIR_OP(radam, NonDiff, "A step of RAdam (Liu et al. 2020).",
         TAPIR_SAMPLE_AS("f(3,4) f(3,4)", "stepped(torch.optim.RAdam, x[0], x[1], lr=0.1)",
                         stepped<optim::RAdam>(x[0], x[1], optim::RAdamOptions{.lr = 0.1})));

}  // namespace tapir

namespace tapir::optim {
namespace {

// The common options, followed by others.
template <class O, class... More>
constexpr std::array<OptimizerOption, 5 + sizeof...(More)> moments(More... more) {
    return {option<&O::lr>("lr", Domain::not_negative),
            element<&O::betas, 0>("beta1", Domain::below_one),
            element<&O::betas, 1>("beta2", Domain::below_one),
            option<&O::eps>("eps", Domain::not_negative),
            option<&O::weight_decay>("weight_decay", Domain::not_negative),
            more...};
}

template <class O>
struct MomentsRule : Rule<O> {
    static BufferNames buffers(const O&) { return {"exp_avg", "exp_avg_sq"}; }
};

double power(double base, const Slot& slot) { return std::pow(base, static_cast<double>(slot.steps)); }

// Decoupled: weight decay as a factor on p instead of an addition to the gradient.
template <class O, bool decoupled>
struct AdamRule : Rule<O> {
    static constexpr const char* name = decoupled ? "AdamW" : "Adam";
    static constexpr const OpInfo& op = decoupled ? adamw_op : adam_op;
    static constexpr auto options = moments<O>(option<&O::amsgrad>("amsgrad"));
    static BufferNames buffers(const O& o) { return {"exp_avg", "exp_avg_sq", o.amsgrad ? "max_exp_avg_sq" : nullptr}; }
    static void update(const O& o, Slot& slot, Update& work) {
        const double step_size = o.lr / (1 - power(o.betas[0], slot));
        const double v_scale = 1 / std::sqrt(1 - power(o.betas[1], slot));
        const double coupled = decoupled ? 0 : o.weight_decay, decay = decoupled ? 1 - o.lr * o.weight_decay : 1;
        work.apply(kernels::AdamStep{step_size, o.betas[0], o.betas[1], o.eps, coupled, decay, v_scale});
    }
};

struct AdamaxRule : Rule<AdamaxOptions> {
    static constexpr const char* name = "Adamax";
    static constexpr const OpInfo& op = adamax_op;
    static constexpr auto options = moments<Options>();
    static BufferNames buffers(const Options&) { return {"exp_avg", "exp_inf"}; }
    static void update(const Options& o, Slot& slot, Update& work) {
        const double step_size = o.lr / (1 - power(o.betas[0], slot));
        work.apply(kernels::AdamaxStep{step_size, o.betas[0], o.betas[1], o.eps, o.weight_decay});
    }
};

struct NAdamRule : MomentsRule<NAdamOptions> {
    static constexpr const char* name = "NAdam";
    static constexpr const OpInfo& op = nadam_op;
    static constexpr auto options = moments<Options>(option<&Options::momentum_decay>("momentum_decay", Domain::not_negative));
    static constexpr const char* number = "mu_product";
    static void update(const Options& o, Slot& slot, Update& work) {
        const auto t = static_cast<double>(slot.steps);
        const auto c = [&o](double step) { return o.betas[0] * (1 - 0.5 * std::pow(0.96, step * o.momentum_decay)); };
        slot.number *= c(t);
        const double g_size = o.lr * (1 - c(t)) / (1 - slot.number), m_size = o.lr * c(t + 1) / (1 - slot.number * c(t + 1));
        const double v_scale = 1 / std::sqrt(1 - power(o.betas[1], slot));
        work.apply(kernels::NAdamStep{g_size, m_size, o.betas[0], o.betas[1], o.eps, o.weight_decay, v_scale});
    }
};

struct RAdamRule : MomentsRule<RAdamOptions> {
    static constexpr const char* name = "RAdam";
    static constexpr const OpInfo& op = radam_op;
    static constexpr auto options = moments<Options>();
    static void update(const Options& o, Slot& slot, Update& work) {
        const auto t = static_cast<double>(slot.steps);
        const double rest = 1 - power(o.betas[1], slot), most = 2 / (1 - o.betas[1]) - 1, length = most - 2 * t * (1 - rest) / rest;
        double step_size = o.lr / (1 - power(o.betas[0], slot));
        const bool adaptive = length > 5;
        if (adaptive) {
            step_size *= std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) * std::sqrt(rest);
        }
        work.apply(kernels::RAdamStep{step_size, o.betas[0], o.betas[1], o.eps, o.weight_decay, adaptive});
    }
};

}  // namespace

constinit const OptimizerRule AdamOptions::rule = rule_of<AdamRule<AdamOptions, false>>;
constinit const OptimizerRule AdamWOptions::rule = rule_of<AdamRule<AdamWOptions, true>>;
constinit const OptimizerRule AdamaxOptions::rule = rule_of<AdamaxRule>;
constinit const OptimizerRule NAdamOptions::rule = rule_of<NAdamRule>;
constinit const OptimizerRule RAdamOptions::rule = rule_of<RAdamRule>;

}  // namespace tapir::optim

namespace tapir {

TAPIR_UPDATE_FORM(adam, AdamOptions);
TAPIR_UPDATE_FORM(adamw, AdamWOptions);
TAPIR_UPDATE_FORM(adamax, AdamaxOptions);
TAPIR_UPDATE_FORM(nadam, NAdamOptions);
TAPIR_UPDATE_FORM(radam, RAdamOptions);

}  // namespace tapir
