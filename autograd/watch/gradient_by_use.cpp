// gradient_by_use: a watcher that keeps the contributions of rules to one leaf.
#include "tapir/autograd/watch/gradient_by_use.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/listing_impl.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {
namespace {

// It sees every edge that a gradient flows along, those of an op after those of all ops that used its results: so depths are known in time.
class UseWatcher : public OpWatcher {
 public:
    UseWatcher(std::size_t begin, const Tensor& x, const Loc& loc) : begin_(begin), x_(x), loc_(loc) {}

    void begin_walk(Walk& walk) override {
        if (walk_) return;  // nested in that walk, from a hook
        walk_ = &walk;
        value_ = walk.log.value_of(x_.impl(), loc_);
        end_ = walk.log.records.size();
    }

    void begin_rule(Walk& walk, std::uint32_t index) override {
        if (&walk != walk_) return;
        const Record& record = *walk.log.records[index];
        int depth = -1;  // for records of a checkpoint's second run: the depth of the checkpoint, whose rule is running
        for (std::uint32_t k = 0; k < record.output_count; ++k) {
            const auto found = depths_.find(index + k);
            if (found == depths_.end()) continue;
            depth = std::max(depth, found->second);
            depths_.erase(found);  // a checkpoint's records are removed, and others get their numbers
        }
        if (depth >= 0) depth_ = depth;
        ++rules_;
        if (index < end_) outer_ = index;
        uses_x_ = std::any_of(record.inputs(), record.inputs() + record.input_count, [&](std::uint32_t input) { return is_x(walk.log, input); });
    }

    bool wants_rows() const noexcept override { return true; }

    void give(Walk& walk, std::uint32_t index, int i, const Tensor& g, const Tensor* product, const Tensor* rows) override {
        if (&walk != walk_) return;
        const Record& record = *walk.log.records[index];
        int& depth = depths_[record.inputs()[i]];
        depth = std::max(depth, depth_ + (uses_x_ && !is_x(walk.log, record.inputs()[i])));
        if (record.inputs()[i] != value_) return;
        const Contribution all{g, product ? *product : Tensor(), rows ? *rows : Tensor()};
        if (const Log::ItemSpan* const group = walk.log.span_of(index); group && group->count > 1 && index >= group->rule) {
            const std::vector<Contribution> parts = contributions_of_rows(walk.log, *group, value_, all);
            const std::size_t count = parts.size();
            const bool again = rule_of_last_ == rules_ && uses.size() >= count;
            for (std::size_t k = count; k-- > 0;) {  // uses come from the last to the first
                const Record& row = *walk.log.records[group->rows < group->end ? group->rows + k : index];
                note(record, row, parts[k], again ? uses.size() - 1 - k : uses.size());
            }
            if (count > 0) {
                rule_of_last_ = rules_;
                return;
            }
        }
        note(record, record, all, rule_of_last_ == rules_ && !uses.empty() ? uses.size() - 1 : uses.size());
        rule_of_last_ = rules_;
    }

    std::vector<GradientUse> uses;

 private:
    // True if the value is x, or is made of x by views, copies and conversions alone: ops on it use x.
    bool is_x(const Log& log, std::uint32_t value) const {
        while (value != value_) {
            if (value == kNoValue) return false;
            const Record& record = *log.records[log.maker_of(value)];
            const OpForm* form = find_form(record.op->name);
            if (record.input_count == 0 || !form || !form->moves_elements()) return false;
            value = record.inputs()[0];
        }
        return true;
    }

    // Adds a contribution to use number `at`, or makes it. `called`: the record that has the line of the call.
    void note(const Record& record, const Record& called, const Contribution& part, std::size_t at) {
        Tensor gradient = part.summed(x_.shape(), x_.dtype());
        if (at < uses.size()) {  // w * w
            uses[at].gradient = gradient_ops::add(uses[at].gradient, gradient);
            return;
        }
        if (gradient.is_same(part.g) || gradient.shares_storage(part.g)) gradient = gradient.clone();  // the walk may write into it
        uses.push_back({outer_ - begin_, record.op->name, called.loc, called.module ? called.module->shown() : "", gradient, 0, depth_});
    }

    const Walk* walk_ = nullptr;
    std::uint32_t value_ = kNoValue;
    std::size_t begin_;
    const Tensor& x_;
    const Loc& loc_;
    std::unordered_map<std::uint32_t, int> depths_;  // for values whose rules have not run
    int depth_ = 0;                                  // for the record whose rule runs
    bool uses_x_ = false;
    std::size_t end_ = 0;                         // records from here on are those of a checkpoint's second run, and go with it
    std::uint32_t outer_ = 0;                     // the record whose rule runs, or the checkpoint that it is in
    std::uint64_t rules_ = 0, rule_of_last_ = 0;  // the number of rules that have begun, and that number at the last use
};

}  // namespace

std::vector<GradientUse> Tape::gradient_by_use(const Tensor& y, const Tensor& x, const BackwardOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    if (!x.defined()) fail<ValueError>(loc, "gradient_by_use: the tensor whose uses are asked for is undefined");
    if (options.create_graph) fail<ValueError>(loc, "gradient_by_use: create_graph is not supported; use gradient()");
    UseWatcher watcher(begin_, x, loc);
    {
        const WatchScope scope(watcher);
        const detail::Muted told(false);  // also in a hook or a rule
        static_cast<void>(gradient_as("gradient_by_use", *this, y, {x}, options, loc));
    }
    for (GradientUse& use : watcher.uses) {
        const detail::PauseRecording pause;
        use.norm = use.gradient.to(float64).norm().item<double>();
    }
    std::reverse(watcher.uses.begin(), watcher.uses.end());  // in the order of the forward pass
    return std::move(watcher.uses);
}

// True if the uses can be compared: one op on one line.
static bool are_alike(const std::vector<GradientUse>& uses) {
    return std::all_of(uses.begin(), uses.end(), [&](const GradientUse& use) {
        return use.loc.line() == uses[0].loc.line() && std::string_view(use.op) == uses[0].op &&
            std::string_view(use.loc.file_name()) == uses[0].loc.file_name();
    });
}

// Describes the change of the norms on the way back. A use that adds nothing, like the first one of a state of zeros, does not count.
static std::string verdict(const std::vector<GradientUse>& uses) {
    std::map<int, double> largest;  // by depth
    for (std::size_t i = 0; i < uses.size(); ++i) {
        const auto& [norm, depth] = std::pair(uses[i].norm, uses[i].depth);
        if (!std::isfinite(norm)) return fmt::format("the gradient of use {} is not finite\n", i);
        if (norm > 0) largest[depth] = std::max(largest[depth], norm);
    }
    if (largest.empty()) return "all of them are 0\n";
    const auto [near, late] = *largest.begin();
    const auto [deep, early] = *largest.rbegin();
    if (near == deep || !are_alike(uses)) return "";
    const char* what = early < late * 1e-3 ? "vanishes" : early > late * 1e3 ? "explodes" : "keeps its order";
    return fmt::format("from depth {} to depth {} the gradient {}: {:.3e} to {:.3e}, {:.3g} times a use\n", near, deep, what, late, early,
                       std::pow(early / late, 1.0 / (deep - near)));
}

std::string gradient_report(const std::vector<GradientUse>& uses) {
    if (uses.empty()) return "no use of the tensor leads to the result\n";
    double low = HUGE_VAL, high = 0;
    for (const GradientUse& use : uses) {
        if (use.norm > 0 && std::isfinite(use.norm)) {
            low = std::min(low, use.norm);
            high = std::max(high, use.norm);
        }
    }
    constexpr int kBar = 32;
    std::string text = fmt::format("{:>5}  {:>7}  {:<16}  {:<24}  {:>5}  {:>10}\n", "use", "record", "op", "line", "depth", "norm");
    for (std::size_t i = 0; i < uses.size(); ++i) {
        const GradientUse& use = uses[i];
        int length = 0;
        if (use.norm > 0 && std::isfinite(use.norm)) {
            length = high > low ? 1 + static_cast<int>((kBar - 1) * std::log(use.norm / low) / std::log(high / low)) : kBar;
        }
        text += fmt::format("{:>5}  {:>7}  {:<16}  {:<24}  {:>5}  {:>10.3e}", i, use.record, use.op,
                            listing::place(use.loc) + (use.module.empty() ? "" : " " + use.module), use.depth,
                            std::isnan(use.norm) ? NAN : use.norm);  // not -nan
        text += (length > 0 ? "  " + std::string(static_cast<std::size_t>(length), '#') : "") + "\n";
    }
    return text + verdict(uses);
}

}  // namespace tapir
