// Records custom functions.
#include "tapir/autograd/function.h"

#include <string_view>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/autograd/users_function_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/thread_words_impl.h"

namespace tapir {
namespace detail {
void trace_custom_function(const Tensor& result);  // autograd/trace/tracer.cpp
}  // namespace detail
namespace {

class InForward {
 public:
    explicit InForward(const char* name) noexcept : outer_(detail::thread_words.in_forward) { detail::thread_words.in_forward = name; }
    ~InForward() { detail::thread_words.in_forward = outer_; }
    InForward(const InForward&) = delete;
    InForward& operator=(const InForward&) = delete;

 private:
    const char* outer_;
};

struct FunctionRecord : RecordObject {
    CustomFunction::BackwardFn backward = nullptr;
    FunctionContext context;
};

// "... [with Self = (anonymous namespace)::Clip<ns::A>]" -> "Clip<ns::A>"
std::string_view type_in(std::string_view signature) {
    constexpr std::string_view kBefore = "Self = ";
    const std::size_t at = signature.find(kBefore);
    if (at == std::string_view::npos) return "custom";
    std::string_view type = signature.substr(at + kBefore.size());
    type = type.substr(0, type.rfind(']'));
    int depth = 0;  // nesting of brackets; a function that the type is local to has them, too
    std::size_t first = 0, i = 0;
    for (; i < type.size(); ++i) {
        const char c = type[i];
        if (depth == 0 && c == ';') break;
        depth += c == '<' || c == '(' || c == '[' || c == '{';
        depth -= c == '>' || c == ')' || c == ']' || c == '}';
        if (depth == 0 && c == ':') first = i + 1;
    }
    if (depth != 0) first = type.rfind(':') + 1;  // local to an operator<
    return type.substr(first, i - first);
}

}  // namespace

const char* function_in_forward() noexcept { return detail::thread_words.in_forward; }

const OpInfo& CustomFunction::row_named(const char* name) {
    // Lives as long as the program, since records name it.
    return *new OpInfo{name, CustomFunction::rule, "A function of the user's own."};
}

const OpInfo& CustomFunction::row_of(const char* signature) { return row_named(detail::interned(type_in(signature))); }

bool CustomFunction::is_traced() noexcept { return detail::is_tracing(); }

Tensor FunctionContext::saved(int i, Loc loc) const {
    if (i < 0 || i >= static_cast<int>(saved_.size())) {
        fail<IndexError>(loc, "FunctionContext::saved: there is no tensor {} of {}", i, saved_.size());
    }
    return saved_[static_cast<std::size_t>(i)];
}

bool FunctionContext::needs(int i, Loc loc) const {
    if (i < 0 || i >= static_cast<int>(needs_.size())) {
        fail<IndexError>(loc, "FunctionContext::needs: there is no input {} of {}; it is known in backward only", i, needs_.size());
    }
    return needs_[static_cast<std::size_t>(i)];
}

void CustomFunction::check_count(const OpInfo& op, const char* what, std::size_t takes, std::size_t given, const Loc& loc) {
    if (takes == given) return;
    fail<ValueError>(loc, "{}: {} takes {} tensor{}, and is given {}", op.name, what, takes, takes == 1 ? "" : "s", given);
}

std::vector<Tensor> CustomFunction::apply(const OpInfo& op, Forward forward, BackwardFn backward, std::size_t gradients,
                                          const std::vector<Tensor>& inputs, const Loc& loc, std::any state) {
    for (const Tensor& x : inputs) {
        if (!x.defined()) detail::fail_undefined(op.name, loc);
        detail::begin_op("Function::apply", x.impl(), loc);  // watchers see the ops that its forward calls
    }
    auto object = detail::at_line(loc, [] { return std::make_unique<FunctionRecord>(); });
    object->backward = backward;
    object->context.state = std::move(state);
    std::vector<Tensor> outputs;
    {
        const NoGradScope pause;
        const InForward told(op.name);
        outputs = forward(object->context, inputs);
    }
    if (outputs.empty()) fail<ValueError>(loc, "{}: forward returned no tensor", op.name);
    for (Tensor& y : outputs) {
        if (!y.defined()) fail<ValueError>(loc, "{}: forward returned an undefined tensor", op.name);
    }
    if (gradients != 0) check_count(op, "backward", gradients, outputs.size(), loc);
    Log* log = recording(loc, inputs);
    const bool is_elsewhere = detail::thread.observed.elsewhere();
    if (!log && !detail::is_tracing() && !is_elsewhere) return outputs;
    const CallerScope caller(loc);
    // An input that is passed through becomes a value of its own, since otherwise its record would be overwritten.
    for (Tensor& y : outputs) {
        for (const Tensor& x : inputs) {
            if (y.is_same(x)) y = y.detach();
        }
    }
    if (detail::is_tracing()) {
        for (const Tensor& y : outputs) detail::trace_custom_function(y);
    }
    if (!log && !is_elsewhere) return outputs;
    // The record saves the context's tensors, so that their versions are checked; the rule gives them back to the
    // context. The context must not hold them itself: the record releases saved tensors.
    std::vector<const Tensor*> ins, keeps;
    std::vector<TensorImpl*> outs;
    for (const Tensor& x : inputs) ins.push_back(&x);
    for (const Tensor& y : outputs) outs.push_back(y.impl());
    if (!log) {
        note_elsewhere({op, loc, ins.data(), static_cast<int>(ins.size()), outs.data(), static_cast<int>(outs.size()), nullptr, 0});
        return outputs;
    }
    const std::vector<Tensor> saved = std::exchange(object->context.saved_, {});
    for (const Tensor& s : saved) {
        detail::check_defined(In(s, loc), "FunctionContext::save");
        keeps.push_back(&s);
    }
    RecordObject* raw = object.get();
    append_record(*log,
                  {op, loc, ins.data(), static_cast<int>(ins.size()), outs.data(), static_cast<int>(outs.size()), keeps.data(),
                   static_cast<int>(keeps.size()), &raw, sizeof(raw),
                   /*is_object=*/true});
    static_cast<void>(object.release());
    return outputs;
}

void CustomFunction::rule(Backward& b) {
    auto& object = *static_cast<FunctionRecord*>(b.object());
    FunctionContext context;
    context.numbers = object.context.numbers;
    context.state = object.context.state;
    for (int i = 0; i < b.record().saved_count; ++i) context.saved_.push_back(b.saved(i));
    for (int i = 0; i < b.input_count(); ++i) context.needs_.push_back(b.needs(i));
    std::vector<Tensor> grads;
    for (int k = 0; k < b.output_count(); ++k) grads.push_back(b.grad_or_zeros(k));
    std::vector<Tensor> result;
    {
        const detail::OwnLines own;
        const UsersFunction told(b.walk());
        result = object.backward(context, grads);
    }
    if (static_cast<int>(result.size()) != b.input_count()) {
        const detail::OwnLines own;  // the line of apply() tells which use of the function it is; that of the walk does not
        fail<TapeError>(b.record().loc, "{}: backward returned {} gradient{} for {} input{}", b.record().op->name, result.size(),
                        result.size() == 1 ? "" : "s", b.input_count(), b.input_count() == 1 ? "" : "s");
    }
    for (int i = 0; i < b.input_count(); ++i) {
        Tensor& g = result[static_cast<std::size_t>(i)];
        if (!g.defined() || !b.needs(i)) continue;
        if (!detail::broadcasts_to(b.input_shape(i), g.shape())) {
            const detail::OwnLines own;
            fail<ShapeError>(b.record().loc, "{}: backward returned a gradient of shape {} for an input of shape {}", b.record().op->name, g.shape(),
                             b.input_shape(i));
        }
        b.give(i, std::move(g));
    }
}

}  // namespace tapir
