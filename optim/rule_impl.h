// Describes an optimizer in one struct beside its update: its options, its buffers for each parameter, and how it changes one.
//
//     struct LionRule : Rule<LionOptions> {
//         static constexpr const char* name = "Lion";
//         static constexpr const OpInfo& op = lion_op;  // of TAPIR_OP: the op that watchers see for an update
//         static constexpr OptimizerOption options[] = {option<&Options::lr>("lr", Domain::not_negative), ...};
//         static BufferNames buffers(const Options&) { return {"exp_avg"}; }
//         static void update(const Options& o, Slot& slot, Update& work) { work.apply(kernels::LionStep{o.lr, ...}); }
//     };
//     constinit const OptimizerRule LionOptions::rule = rule_of<LionRule>;
//
// The arithmetic of a Step is in ops/kernels/optimizer_rules.def.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/tensor.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"

namespace tapir::optim {

struct Update;  // update_impl.h

/// Throws ValueError, "set_lr: the learning rate must ...", for an invalid learning rate.
void check_rate(const char* name, const char* what, double rate, const Loc& loc);

inline constexpr int kMaxBuffers = 3;

/// State kept for one parameter.
struct Slot {
    Tensor parameter;
    Tensor buffers[kMaxBuffers];  // undefined until the first step
    std::int64_t steps = 0;
    double number = 1;             // see Rule::number
    Tensor progress;               // set if the step was traced: steps and number, which graphs advance, too
    bool has_new_buffers = false;  // no step has used them yet
    bool is_elsewhere = false;     // another process makes its steps, and has its buffers
};

/// A parameter that a step changes: all of it, or these rows.
struct StepPart {
    std::size_t place;  // in Optimizer::parameters()
    Tensor parameter, rows;
};

/// Divides the parameters among processes, as parallel::Sharded does. Each makes the steps of its own ones, and gets the others' values.
class StepSharing {
 public:
    virtual ~StepSharing() = default;
    /// Parameters that follow those of the calls before. Returns whether the steps of each are another process's.
    virtual std::vector<bool> divide(const std::vector<Tensor>& parameters) = 0;
    /// Before anything changes. Throws where the processes' steps differ.
    virtual void begin(const std::vector<StepPart>& parts, const Loc& loc) = 0;
    /// Gives the others what this process has changed, and writes to the parameters what they have.
    virtual void end(const std::vector<StepPart>& parts, const Loc& loc) = 0;
};

/// Entries are null for buffers that are not used.
struct BufferNames {
    const char* of[kMaxBuffers] = {};
};

/// Allowed values: all; finite ones from 0 on; [0, 1); [0, 1]; 1 and above; finite ones; from 0 on, also infinity.
enum class Domain : std::uint8_t { any, not_negative, below_one, up_to_one, at_least_one, finite, limit };

struct OptimizerOption {
    const char* name;
    double (*get)(const void* options);
    bool (*set)(void* options, double value);  // false, without effect, if the member's type cannot hold it
    Domain domain;
    bool is_flag;
};

template <class Options, class T>
Options owner_of(T Options::*);

/// Option that a Get reads: get(options) is a reference to a number, a flag or an enum with two values.
template <class Options, class Get>
constexpr OptimizerOption option_of(const char* name, Domain domain) {
    using T = std::remove_reference_t<decltype(Get()(std::declval<Options&>()))>;
    return {name, [](const void* options) { return static_cast<double>(Get()(*static_cast<const Options*>(options))); },
            [](void* options, double value) {
                if constexpr (!std::is_same_v<T, double>) {
                    constexpr double most = std::is_same_v<T, int> ? std::numeric_limits<int>::max() : 1;  // else bool, or an enum with two values
                    if (!(value >= (std::is_same_v<T, int> ? -1 : 0) && value <= most)) return false;
                }
                Get()(*static_cast<Options*>(options)) = static_cast<T>(value);
                return true;
            },
            domain, std::is_same_v<T, bool>};
}

template <auto Member>
constexpr OptimizerOption option(const char* name, Domain domain = Domain::any) {
    const auto get = [](auto& options) -> auto& { return options.*Member; };
    return option_of<decltype(owner_of(Member)), decltype(get)>(name, domain);
}

/// Option that is an element of an array: element<&Options::betas, 0>("beta1").
template <auto Member, std::size_t I>
constexpr OptimizerOption element(const char* name, Domain domain = Domain::any) {
    const auto get = [](auto& options) -> auto& { return (options.*Member)[I]; };
    return option_of<decltype(owner_of(Member)), decltype(get)>(name, domain);
}

/// Facts about the update of one parameter, for watchers. The inputs are the parameter, as it is afterwards, and its gradient; if
/// is_sparse, the gradient's rows and their indices replace the gradient. The outputs are the parameter and its buffers, in
/// the rule's order. While a graph is traced, the inputs are the parameter, the dense gradient, the buffers, and the progress (Slot); the
/// outputs the parameter, the buffers and the progress.
struct UpdateFacts {
    std::int64_t steps;  // of this parameter, including this one
    double number;       // Slot::number before
    bool is_first;       // the buffers were new
    bool is_sparse;
};
/// RecordArgs::attrs of an update.
template <class Options>
struct UpdateAttrs : UpdateFacts {
    Options options;
};

/// The rule of any options type, as entry of a table.
struct OptimizerRule {
    const char* name;
    const OpInfo* op;  // null: it has no step without a closure
    const OptimizerOption* options;
    std::size_t option_count, options_size;
    void (*check)(const void* options, const Loc& loc);
    BufferNames (*buffers)(const void* options);
    double (*initial_value)(const void* options, int buffer);
    bool (*rows_suffice)(const void* options);
    bool (*starts_alike)(const void* options);
    const char* number;
    void (*update)(const void* options, Slot& slot, Update& work);  // null: see op
    void (*tell)(const void* options, const UpdateFacts& facts, RecordArgs ran);
};

/// Defaults of a rule.
template <class O>
struct Rule {
    using Options = O;
    /// Checks what the domains of single options cannot express. Throws ValueError.
    static void check(const Options&, const Loc&) {}
    static BufferNames buffers(const Options&) { return {}; }
    static double initial_value(const Options&, int) { return 0; }
    /// True if a row whose gradient is zero does not change, nor its buffers.
    static bool rows_suffice(const Options&) { return false; }
    /// True if the first step is like the others, starting from initial buffers.
    static bool starts_alike(const Options&) { return true; }
    /// Name of Slot::number in a state; null if it is not used.
    static constexpr const char* number = nullptr;
};

template <class R, class Options = typename R::Options>
inline constexpr OptimizerRule rule_of = [] {
    static_assert(std::is_trivially_copyable_v<Options> && alignof(Options) <= alignof(std::max_align_t));
    static_assert(offsetof(Options, lr) == 0, "gdb's printer looks there");
    OptimizerRule rule{R::name,
                       nullptr,
                       std::data(R::options),
                       std::size(R::options),
                       sizeof(Options),
                       [](const void* o, const Loc& loc) { R::check(*static_cast<const Options*>(o), loc); },
                       [](const void* o) { return R::buffers(*static_cast<const Options*>(o)); },
                       [](const void* o, int buffer) { return R::initial_value(*static_cast<const Options*>(o), buffer); },
                       [](const void* o) { return R::rows_suffice(*static_cast<const Options*>(o)); },
                       [](const void* o) { return R::starts_alike(*static_cast<const Options*>(o)); },
                       R::number,
                       nullptr,
                       nullptr};
    if constexpr (requires { &R::update; }) {
        rule.op = &R::op;
        rule.tell = [](const void* o, const UpdateFacts& facts, RecordArgs ran) {
            const UpdateAttrs<Options> attrs{facts, *static_cast<const Options*>(o)};
            ran.attrs = &attrs;
            ran.attr_bytes = sizeof(attrs);
            tell_watchers(ran);
        };
        rule.update = [](const void* o, Slot& slot, Update& work) { R::update(*static_cast<const Options*>(o), slot, work); };
    }
    return rule;
}();

/// Runs an update in a graph: computes the new values of the inputs that a trace has named.
std::vector<Tensor> run_update(const OptimizerRule& rule, const void* options, const FormCall& x);
/// Like run_update(), but writes to `out`, a tensor for each result, which may be the operand whose next value it is. Returns false,
/// without effect, if it cannot do so.
bool update_into(const OptimizerRule& rule, const void* options, const FormCall& x, const Tensor* out);
/// Lists the options by their names.
void update_fields(Fields& f, const OptimizerRule& rule, void* options);

/// Form of an optimizer's row, which comes after its rule. It must begin the line, as TAPIR_OP must.
#define TAPIR_UPDATE_FORM(op, Options)                                                                                                               \
    extern const OpForm op##_form;                                                                                                                   \
    constexpr OpForm op##_form = detail::update_form(                                                                                                \
        TAPIR_FORM_OF(op, Operands::from(2), optim::UpdateAttrs<optim::Options>, updated(t), optim::run_update(optim::Options::rule, &a.options, x), \
                      optim::update_fields(f, optim::Options::rule, &a.options)),                                                                    \
        [](const FormCall& x, const Tensor& out) {                                                                                                   \
            const auto& a = *static_cast<const optim::UpdateAttrs<optim::Options>*>(x.attrs);                                                        \
            return optim::update_into(optim::Options::rule, &a.options, x, &out);                                                                    \
        })

/// A number of a state.
inline Tensor number(double value) { return full({}, value, {float64, cpu}); }

/// Returns p after two steps with the gradient g, for the samples of the rows.
template <class Optimizer, class Options>
Tensor stepped(const Tensor& p, const Tensor& g, const Options& options) {
    Tensor parameter = p.detach().clone();
    parameter.requires_grad_().set_grad(g.detach());
    Optimizer optimizer({parameter}, options);
    optimizer.step();
    optimizer.step();
    return parameter.detach();
}

}  // namespace tapir::optim
