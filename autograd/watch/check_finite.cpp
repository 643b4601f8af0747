// CheckFiniteScope: a watcher that looks for the first nan or inf.
#include "tapir/autograd/watch/check_finite.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/values_impl.h"

namespace tapir {
namespace {

using detail::largest_of;
using detail::Values;

// Returns the values if some are nan or inf; nullopt if all are finite, or not floating.
std::optional<Values> bad_values(const Tensor& x) {
    if (!x.defined() || !is_floating(x.dtype())) return std::nullopt;
    if (x.isfinite().all().item<bool>()) return std::nullopt;
    return detail::values_of(x);
}

// The kinds of values in all operands of an op or a rule.
struct Seen {
    bool nan = false, inf = false;
    void add(const std::optional<Values>& bad) {
        if (!bad) return;
        nan |= bad->nan > 0;
        inf |= bad->inf > 0;
    }
    void add(const Tensor& x) { add(bad_values(x)); }
    void add(const Seen& more) {
        nan |= more.nan;
        inf |= more.inf;
    }
    // Adds a number that meets elements of this dtype, for which it may be too large.
    void add(double number, DType dtype) {
        nan |= std::isnan(number);
        inf |= std::abs(number) > (is_floating(dtype) ? largest_of(dtype) : largest_of(float64));
    }
    // True if the operands explain these values, which are not the first of their kind then.
    bool explains(const Values& bad) const { return nan || (inf && bad.nan == 0); }
};

// The number arguments of an element-wise op, which its record keeps.
std::pair<const double*, int> numbers_of(const Record& record) {
    if (record.op->params == 0 || record.flags & Record::kReleased) return {nullptr, 0};
    return {static_cast<const double*>(record.attrs()), record.op->params};
}

// The value that a record stands for, as messages name it.
std::string text_of(const Log& log, std::size_t index) {
    const Record& record = *log.records[index];
    const std::string what = listing::output(record);
    if (!(record.flags & Record::kLeaf)) {
        return fmt::format("the {} that {} made at {}", what, listing::op(log, index), listing::place(record.loc));
    }
    const char* name = listing::parameter_name(record);
    return *name ? fmt::format("{}, {}", name, what) : fmt::format("a leaf, {}", what);
}

double magnitude(const Values& v) { return std::max(std::abs(v.min), std::abs(v.max)); }

// The reason why an op makes nan of infinities.
std::string cause_of_infinite(const OpInfo& op, const std::vector<Values>& in) {
    std::size_t i = 0;
    while (in[i].inf == 0) ++i;
    if (op.hazards & hazard::rows_of_exponentials) {
        return fmt::format("a row of input {} is -inf throughout, or holds inf: where a mask leaves nothing there is no softmax", i);
    }
    const char* how = op.hazards & hazard::differences ? "inf - inf"
        : op.hazards & hazard::products                ? "0 * inf, or inf - inf in a sum"
                                                       : "it computes inf - inf, 0 * inf or inf / inf";
    return fmt::format("{}: input {} holds inf already", how, i);
}

// The reason why a forward op makes nan or inf from inputs without any, as far as they tell. `ran`: the same op.
std::string forward_cause(const OpInfo& op, const std::vector<Values>& in, DType result, const RecordArgs& ran) {
    if (in.empty()) return "";
    if (std::any_of(in.begin(), in.end(), [](const Values& v) { return v.inf > 0; })) return cause_of_infinite(op, in);
    const Values& x = in[0];
    const Values& last = in.back();
    if (op.hazards & hazard::division && last.zeros > 0) {
        if (in.size() == 1) return "division by zero: add a small number to the input";
        return fmt::format(
            "division by zero: the divisor has {} zero{}: add a small number to it, or choose with where() before "
            "dividing",
            last.zeros, last.zeros == 1 ? "" : "s");
    }
    if (op.hazards & (hazard::logarithm | hazard::logarithm_of_1p)) {
        if (op.hazards & hazard::logarithm_of_1p ? x.min < -1 : last.negatives > 0) return "log of a negative number";
        return "log of zero: add a small number, or compute the logarithm from logits (log_softmax, logsigmoid)";
    }
    if (op.hazards & hazard::root && x.negatives > 0) return "root of a negative number: clamp the input at 0";
    if (op.hazards & hazard::domain) return "the input lies outside the function's domain";
    if (op.hazards & hazard::hyperbolic) {
        return fmt::format("overflow in {}: {} holds at most {:.3g}, the inputs go up to {:.6g}", op.name, name(result), largest_of(result),
                           magnitude(x));
    }
    if (op.hazards & hazard::exponential) {
        return fmt::format(
            "overflow in {}: {} holds at most {:.3g}, the input goes up to {:.6g}: subtract the maximum first "
            "(softmax and logsumexp do)",
            op.name, name(result), largest_of(result), magnitude(x));
    }
    if (op.hazards & hazard::power) {
        if (x.zeros > 0 && last.negatives > 0) return "zero to a negative power";
        if (x.negatives > 0) return "a negative number to a power that is no integer";
    }
    if (op.hazards & hazard::average && x.numel == 0) return "there are no elements";
    if (op.hazards & hazard::correction && ran.number_count == 1 && ran.outputs[0]->numel > 0) {
        const std::int64_t count = x.numel / ran.outputs[0]->numel;
        if (count == 1 && ran.numbers[0] == 1) return "there is a single element: give correction 0";
        if (static_cast<double>(count) <= ran.numbers[0]) {
            return fmt::format("correction {} leaves nothing to divide by of {} element{}: give correction 0", ran.numbers[0], count,
                               count == 1 ? "" : "s");
        }
    }
    if (op.hazards & hazard::targets) return "the mean of no targets: each of them is ignore_index";
    double most = 1;
    for (const Values& v : in) most = std::max(most, magnitude(v));
    if (most > std::sqrt(largest_of(result)) / 16) {
        return fmt::format("overflow: {} holds at most {:.3g}, the inputs go up to {:.6g}", name(result), largest_of(result), most);
    }
    return "";
}

// The reason for a rule. `saved`: the tensors that it computes with.
std::string backward_cause(const OpInfo& op, const Values& g, const std::vector<Values>& saved, const Values& made) {
    const auto any = [&](auto&& holds) { return std::any_of(saved.begin(), saved.end(), holds); };
    const bool has_zero = any([](const Values& v) { return v.zeros > 0; });
    const char* advice = "the input: where(x > 0, x, 1) before the op";
    if (made.nan > 0 && g.zeros > 0 && has_zero) {
        return fmt::format(
            "0 * inf in the rule: the derivative of {} is infinite where the gradient that comes in is 0: choose "
            "{}, not the result",
            op.name, advice);
    }
    if (op.hazards & hazard::steep_at_zero && has_zero) {
        return fmt::format("the derivative of {} at 0 is infinite: add a small number before it", op.name);
    }
    if (op.hazards & hazard::steep_at_ends) {
        return fmt::format("the derivative of {} is infinite at the end of its domain", op.name);
    }
    if (any([](const Values& v) { return v.inf > 0; })) return "0 * inf in a rule: what the op has saved is infinite in places";
    return "";
}

// "the result", or, for an optimizer's update, "exp_avg of encoder.bias".
template <class Name>
std::string result_name(const RecordArgs& ran, int k, const Name& name) {
    if (!OperandNames::of_output(k)) return k == 0 ? "the result" : name(k);
    const AutogradMeta* meta = ran.outputs[0]->meta;
    const char* parameter = meta ? meta->name_now() : nullptr;
    const std::string what = (k == 0 ? "the " : "") + name(k);
    return parameter ? fmt::format("{}{}{}", what, k == 0 ? " " : " of ", parameter) : what;
}

// The receiver of findings: the user, or gdb (`tapir break-nonfinite`).
enum class Found { throws, stops };

class FiniteWatcher : public OpWatcher {
 public:
    explicit FiniteWatcher(Found found) : found_(found) {}

    void before_write(const Tensor& self) override {
        if (is_off()) return;
        written_.push_back({self.impl(), {}, detail::values_of(self)});
        written_.back().seen.add(self);
    }

    void failed() noexcept override { written_.clear(); }

    void end(const RecordArgs& ran) override {
        const std::vector<Written> written = std::exchange(written_, {});
        const auto input_name = [](int i) {
            const char* said = OperandNames::of_input(i);
            return said ? said : fmt::format("input {}", i);
        };
        const auto output_name = [](int o) {
            const char* said = OperandNames::of_output(o);
            return said ? said : fmt::format("result {}", o);
        };
        const auto before = [&](const TensorImpl* tensor) {
            const auto found = std::find_if(written.begin(), written.end(), [&](const Written& w) { return w.tensor == tensor; });
            return found == written.end() ? nullptr : &*found;
        };
        if (is_off() || ran.op.is_given_numbers()) return;  // full(inf), tensor({nan}), empty()
        for (int k = 0; k < ran.output_count; ++k) {
            const Tensor y = detail::handle_of(ran.outputs[k]);
            const std::optional<Values> bad = bad_values(y);
            if (!bad) continue;
            Seen in;
            std::vector<Values> values;
            std::string inputs;
            for (int i = 0; i < ran.input_count; ++i) {
                const Tensor& x = *ran.inputs[i];
                if (!x.defined()) continue;
                const Written* self = before(x.impl());
                if (self) {
                    in.add(self->seen);
                } else {
                    in.add(x);
                }
                values.push_back(self ? self->values : detail::values_of(x));
                inputs += fmt::format("\n  {}: {}", input_name(i), describe(x, values.back()));
            }
            // An optimizer changes its state for a parameter together with the parameter.
            for (int o = 1; o < ran.output_count; ++o) {
                const Written* self = before(ran.outputs[o]);
                if (!self) continue;
                in.add(self->seen);
                const Tensor result = detail::handle_of(ran.outputs[o]);
                inputs += fmt::format("\n  {} before: {}", output_name(o), describe(result, self->values));
            }
            for (int i = 0; i < ran.number_count; ++i) in.add(ran.numbers[i], y.dtype());
            if (in.explains(*bad)) continue;
            const std::string cause = forward_cause(ran.op, values, y.dtype(), ran);
            tell(ran.op.name, ran.loc,
                 fmt::format("{}: makes {} of {}: {} is {}{}{}{}", ran.op.name, bad->nan > 0 ? "nan" : "inf",
                             in.inf ? "inputs without nan" : "finite inputs", result_name(ran, k, output_name), describe(y, *bad), inputs,
                             cause.empty() ? "" : "\n  likely cause: ", cause));
        }
    }

    void begin_walk(Walk& walk) override {
        // Drops entries of an earlier walk, which had the same address.
        std::erase_if(given_, [&](const auto& entry) { return entry.first.first == &walk; });
        const auto ended = std::find_if(outer_.begin(), outer_.end(), [&](const Outer& outer) { return outer.walk == &walk; });
        if (ended == outer_.end()) return;
        restore(*ended);
        outer_.erase(ended, outer_.end());
    }

    void begin_rule(Walk& walk, std::uint32_t index) override {
        if (is_off()) return;
        const Record& record = *walk.log.records[index];
        outer_.push_back({&walk, in_, std::exchange(g_, Tensor()), std::exchange(saved_, {})});
        in_ = Seen{};
        for (std::uint32_t k = 0; k < record.output_count; ++k) {
            given_.erase({&walk, index + k});
            const Tensor& g = walk.slots[index + k].grad;
            if (!g.defined()) continue;
            in_.add(g);
            if (!g_.defined()) g_ = g.clone();  // the rule may write into it
        }
        const auto [numbers, number_count] = numbers_of(record);
        for (int i = 0; i < number_count; ++i) in_.add(numbers[i], record.dtype);
        for (int i = 0; i < record.saved_count; ++i) {
            saved_.push_back(detail::handle_of(record.saved()[i].impl));
            in_.add(saved_.back());
        }
    }

    void give(Walk& walk, std::uint32_t index, int i, const Tensor& g, const Tensor* product, const Tensor*) override {
        if (is_off()) return;
        const Record& record = *walk.log.records[index];
        const Tensor given = product ? gradient_ops::product(g, *product) : g;
        const std::optional<Values> bad = bad_values(given);
        Given& sum = given_[{&walk, record.inputs()[i]}];
        if (sum.count == 0) sum.seen.add(walk.slots[record.inputs()[i]].grad);  // it dates from before gdb asked for this check
        ++sum.count;
        sum.last = &record;
        sum.input = i;
        sum.seen.add(bad);
        if (!bad || in_.explains(*bad)) return;
        const Values incoming = g_.defined() ? detail::values_of(g_) : Values{};
        std::string text;
        if (g_.defined()) text += fmt::format("\n  gradient that came in: {}", describe(g_, incoming));
        std::vector<Values> values;
        for (const Tensor& s : saved_) {
            if (!is_floating(s.dtype())) continue;
            values.push_back(detail::values_of(s));
            text += fmt::format("\n  saved by the op: {}", describe(s, values.back()));
        }
        const std::string cause = backward_cause(*record.op, incoming, values, *bad);
        const Record& called = record_of_bad_row(walk.log, index, product ? g : given);
        const detail::ModuleRestore restore;
        const detail::OwnLines own;
        detail::thread.module = called.module;
        tell(record.op->name, called.loc,
             fmt::format("{}: its backward rule makes {} of {}: the gradient of input {} is {}{}{}{}", record.op->name, bad->nan > 0 ? "nan" : "inf",
                         in_.inf ? "values without nan" : "finite values", i, describe(given, *bad), text,
                         cause.empty() ? "" : "\n  likely cause: ", cause));
    }

    void end_rule(Walk&, std::uint32_t) override {
        if (outer_.empty()) return;  // it began before this watcher lived
        restore(outer_.back());
        outer_.pop_back();
    }

    void summed(Walk& walk, std::uint32_t value) override {
        if (is_off()) return;
        const auto found = given_.find({&walk, value});
        const std::optional<Values> bad = bad_values(walk.slots[value].grad);
        if (!bad || found == given_.end()) return;
        Seen in = found->second.seen;
        in.add(in_);  // a checkpoint passes its gradient on to the results of its function
        found->second.seen.add(bad);
        if (!in.explains(*bad)) tell_sum(walk, value, found->second, walk.slots[value].grad, *bad, "");
    }

    void accumulate(Walk& walk, std::uint32_t leaf) override {
        const auto found = given_.find({&walk, leaf});
        if (is_off() || found == given_.end()) return;
        const GradientSlot& slot = walk.slots[leaf];
        const TensorImpl* x = walk.log.records[leaf]->saved()[0].impl;
        if (!slot.pending && !x->meta->has_gradient()) return;  // it has been checked
        const Tensor sum = sum_of_gradients(*x->meta, slot, Shape(x->sizes, x->rank));
        const std::optional<Values> bad = bad_values(sum);
        if (!bad) return;
        Seen in;
        if (slot.pending) in = found->second.seen;
        in.add(slot.grad);
        in.add(x->meta->grad);
        for (const SparseRows& rows : x->meta->rows) in.add(rows.values);
        if (x->meta->products.rows > 0) {
            in.add(x->meta->products.filled().first);
            in.add(x->meta->products.filled().second);
        }
        if (in.explains(*bad)) return;
        std::string on_top = x->meta->has_gradient() ? " on top of what its grad() holds" : "";
        if (!x->meta->hooks.empty()) on_top += ", after its hooks";
        tell_sum(walk, leaf, found->second, sum, *bad, on_top);
    }

 private:
    // The contributions that a value has got in a walk.
    struct Given {
        Seen seen;
        int count = 0;
        const Record* last = nullptr;  // the one whose rule gave the last contribution, to this input
        int input = 0;
    };

    void tell_sum(Walk& walk, std::uint32_t value, const Given& given, const Tensor& sum, const Values& bad, const std::string& on_top) const {
        const Record& record = *given.last;
        const char* what = bad.nan > 0 ? "becomes nan" : "overflows";
        const detail::ModuleRestore restore;
        const detail::OwnLines own;
        detail::thread.module = record.module;
        const std::string who = text_of(walk.log, value), is = describe(sum, bad);
        if (given.count == 1 && on_top.empty()) {
            tell(record.op->name, record.loc,
                 fmt::format("{}: the gradient of {} {} as what its backward rule gives to input {}, which is finite, is summed up "
                             "or converted: it is {}",
                             record.op->name, who, what, given.input, is));
        } else {
            tell(record.op->name, record.loc,
                 fmt::format("{}: the sum of contributions to the gradient of {} {}{}: with number {}, which its backward rule "
                             "gives to input {}, it is {}",
                             record.op->name, who, what, on_top, given.count, given.input, is));
        }
    }

    // The record that has the line of the call: of a group in batch(), that of the first row of g that is not finite.
    static const Record& record_of_bad_row(const Log& log, std::uint32_t index, const Tensor& g) {
        const Log::ItemSpan* const group = log.span_of(index);
        if (!group || group->rows == group->end || g.dim() == 0 || g.size(0) % group->count != 0) return *log.records[index];
        const std::int64_t each = g.size(0) / group->count;
        for (std::uint32_t r = 0; r < group->count; ++r) {
            if (bad_values(rows_from(g, r * each, each))) return *log.records[group->rows + r];
        }
        return *log.records[index];
    }

    struct Outer;
    void restore(Outer& outer) {
        in_ = outer.in;
        g_ = std::move(outer.g);
        saved_ = std::move(outer.saved);
    }

    // gdb's breakpoint was deleted.
    bool is_off() const noexcept { return found_ == Found::stops && tapir_gdb_state.checking == 0; }
    void tell(const char* op, const Loc& loc, const std::string& text) const {
        if (found_ == Found::throws) throw NonFiniteError(text, loc);
        gdb::nonfinite(op, detail::error_text(text, loc).c_str(), detail::error_place(loc));  // the op goes on: no Error is made
    }

    // A tensor that the current op writes into, as it was before.
    struct Written {
        const TensorImpl* tensor;
        Seen seen;
        Values values;
    };

    WatchScope scope_{*this};
    Found found_;
    std::vector<Written> written_;
    // For the rule that runs: its operands, its first gradient, the op's saved tensors.
    Seen in_;
    Tensor g_;
    std::vector<Tensor> saved_;
    // For the rules around it, which have called a user's function or run a checkpoint's.
    struct Outer {
        const Walk* walk = nullptr;  // the walk of the inner rule
        Seen in;
        Tensor g;
        std::vector<Tensor> saved;
    };
    std::vector<Outer> outer_;
    std::map<std::pair<const Walk*, std::uint32_t>, Given> given_;
};

}  // namespace

class CheckFiniteScope::Watcher : public FiniteWatcher {
    using FiniteWatcher::FiniteWatcher;
};

CheckFiniteScope::CheckFiniteScope(bool on) : watcher_(on ? new Watcher(Found::throws) : nullptr) {}

CheckFiniteScope::~CheckFiniteScope() { delete watcher_; }

void detail::check_finite_of_thread() {
    thread_local std::unique_ptr<FiniteWatcher> watcher;
    if (!watcher) watcher = std::make_unique<FiniteWatcher>(Found::stops);
}

}  // namespace tapir
