// per_example_gradients: one walk whose contributions to parameters are told apart by the items of batch() that they come from.
//
// The log notes which records of batch() belong to which item (Log::ItemSpan). The rule of a group's record gives a parameter one contribution
// for all rows, and Walk::by_rows asks for one in which rows can be told apart. Where they cannot, the gradients are computed loss by loss.
#include <algorithm>
#include <map>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {
namespace {

// Puts the contributions to parameters into the rows of their losses.
class ExampleWatcher : public OpWatcher {
 public:
    // end: records from here on add up the losses.
    ExampleWatcher(Log& log, std::uint32_t call, std::size_t end, std::map<std::uint32_t, std::int64_t> rows, const std::vector<Tensor>& parameters,
                   const Loc& loc)
        : log_(log), call_(call), end_(end), row_of_(std::move(rows)) {
        for (const Tensor& x : parameters) {
            Shape shape = x.shape();
            shape.insert(0, static_cast<std::int64_t>(row_of_.size()));
            const auto [place, is_new] = parameter_of_.emplace(log.value_of(x.impl(), loc), gradients.size());
            gradients.push_back(is_new ? gradient_ops::zeros(shape, x.dtype(), x.device()) : gradients[place->second]);  // or named twice
        }
    }

    bool wants_rows() const noexcept override { return true; }

    void give(Walk& walk, std::uint32_t index, int i, const Tensor& g, const Tensor* product, const Tensor* rows) override {
        if (is_mixed || &walk.log != &log_) return;
        const Record& record = *log_.records[index];
        const std::uint32_t value = record.inputs()[i];
        const auto parameter = parameter_of_.find(value);
        const bool is_parameter = parameter != parameter_of_.end();
        const Contribution all{g, product ? *product : Tensor(), rows ? *rows : Tensor()};
        const Log::ItemSpan* const span = log_.span_of(index);
        if (!span || span->call != call_) {
            is_mixed |= is_parameter || (index < end_ && made_by_items(value));
        } else if (span->count == 1 || index < span->rule) {
            const std::uint32_t calls = span->count, of = static_cast<std::uint32_t>(i) / std::max(record.input_count / calls, 1u);
            const std::uint32_t item = log_.span_items[span->items + (calls == 1 ? 0 : of)];
            if (is_parameter) return add(parameter->second, item, all, log_.records[value]->shape());
            is_mixed |= !belongs_to(value, item);
        } else {
            give_in_group(*span, record, value, all);
        }
    }

    std::vector<Tensor> gradients;
    bool is_mixed = false;  // some contribution cannot be told apart

 private:
    // The span that made a value; null for one from outside, as leaves are wherever they are first used.
    const Log::ItemSpan* made_by_items(std::uint32_t value) const noexcept {
        return log_.records[value]->flags & Record::kLeaf ? nullptr : log_.span_of(value);
    }
    bool belongs_to(std::uint32_t value, std::uint32_t item) const noexcept {
        const Log::ItemSpan* const span = made_by_items(value);
        return !span || (span->call == call_ && log_.item_of(*span, value) == item);
    }

    static bool is_reshape(const Record& record) noexcept {
        const OpForm* const form = find_form(record.op->name);
        return form && form->operands.are_in_order;
    }

    // A rule may give a shared value another shape, as weights of channels get one. Rows are told apart in what comes to that.
    void give_in_group(const Log::ItemSpan& span, const Record& record, std::uint32_t value, const Contribution& all) {
        std::uint32_t shared = value;
        while (!is_shared_by(log_, span, shared) && is_reshape(*log_.records[shared])) shared = log_.records[shared]->inputs()[0];
        if (!is_shared_by(log_, span, shared)) return;
        const auto parameter = parameter_of_.find(shared);
        if (parameter == parameter_of_.end()) {
            is_mixed |= made_by_items(shared) != nullptr;  // one item's value, used by others
            return;
        }
        if (is_reshape(record)) return;
        const std::vector<Contribution> parts = contributions_of_rows(log_, span, value, all);
        is_mixed |= parts.empty();
        for (std::size_t r = 0; r < parts.size(); ++r) {
            add(parameter->second, log_.span_items[span.items + r], parts[r], log_.records[value]->shape());
        }
    }

    // shape: that of the part, of as many elements as the parameter has.
    void add(std::size_t parameter, std::uint32_t item, const Contribution& part, const Shape& shape) {
        const auto row = row_of_.find(item);
        if (row == row_of_.end()) return;  // its loss is not asked for
        const Tensor& all = gradients[parameter];
        part.add_to(detail::make_view(all.impl(), shape.rank(), shape.data(), /*strides=*/nullptr, row->second * all.strides().raw(0)));
    }

    Log& log_;
    std::uint32_t call_;
    std::size_t end_;
    std::map<std::uint32_t, std::int64_t> row_of_;  // of items
    std::map<std::uint32_t, std::size_t> parameter_of_;
};

// The items of one batch() that the losses come from, each once, with their rows; empty if they come from elsewhere.
std::map<std::uint32_t, std::int64_t> items_of(const Log& log, const std::vector<std::uint32_t>& losses, std::uint32_t& call) {
    std::map<std::uint32_t, std::int64_t> rows;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const Log::ItemSpan* const span = log.span_of(losses[i]);
        if (!span || (i > 0 && span->call != call)) return {};
        call = span->call;
        if (!rows.emplace(log.item_of(*span, losses[i]), static_cast<std::int64_t>(i)).second) return {};
    }
    return rows;
}

// Drops what it has put on the tape.
class TapeEnd {
 public:
    explicit TapeEnd(Log& log) noexcept : log_(log), count_(log.records.size()) {}
    ~TapeEnd() { log_.truncate(count_); }
    TapeEnd(const TapeEnd&) = delete;
    TapeEnd& operator=(const TapeEnd&) = delete;

 private:
    Log& log_;
    std::size_t count_;
};

}  // namespace

std::vector<Tensor> Tape::per_example_gradients(const std::vector<Tensor>& losses, const std::vector<Tensor>& parameters, Loc loc) {
    const detail::CallLine call_line(loc);
    constexpr const char* what = "per_example_gradients";
    Log& log = *log_;
    if (losses.empty()) fail<ValueError>(loc, "{}: there is no loss", what);
    std::vector<std::uint32_t> values;
    for (const Tensor& loss : losses) {
        if (!loss.defined()) detail::fail_undefined(what, loc);
        if (loss.numel() != 1) fail<ShapeError>(loc, "{}: a loss must have one element, got shape {}", what, loss.shape());
        if (loss.shape() != losses[0].shape()) {
            fail<ShapeError>(loc, "{}: the losses have shapes {} and {}", what, losses[0].shape(), loss.shape());
        }
        values.push_back(tracked(loss.impl(), log, loc) ? log.value_of(loss.impl(), loc) : kNoValue);
    }
    std::uint32_t call = 0;
    std::map<std::uint32_t, std::int64_t> rows;
    if (std::find(values.begin(), values.end(), kNoValue) == values.end()) rows = items_of(log, values, call);
    if (!rows.empty()) {
        const TapeEnd end(log);
        const std::size_t count = log.records.size();
        const Tensor total = losses.size() == 1 ? losses[0] : gradient_ops::sum_of(losses);
        ExampleWatcher watcher(log, call, count, std::move(rows), parameters, loc);
        {
            const WatchScope scope(watcher);
            const detail::Muted told(false);
            static_cast<void>(gradient_as(what, *this, total, parameters, {.retain_graph = true}, loc));
        }
        if (!watcher.is_mixed) return std::move(watcher.gradients);
    }
    std::vector<std::vector<Tensor>> each(parameters.size());
    for (const Tensor& loss : losses) {
        const std::vector<Tensor> of_loss = gradient_as(what, *this, loss, parameters, {.retain_graph = true}, loc);
        for (std::size_t k = 0; k < parameters.size(); ++k) each[k].push_back(of_loss[k]);
    }
    std::vector<Tensor> stacked;
    for (const std::vector<Tensor>& of_parameter : each) stacked.push_back(gradient_ops::stacked(of_parameter));
    return stacked;
}

std::vector<Tensor> per_example_gradients(const std::vector<Tensor>& losses, const std::vector<Tensor>& parameters, Loc loc) {
    Tape* const tape = Tape::current();
    if (!tape) fail_without_tape("per_example_gradients", losses.empty() ? Tensor() : losses[0], loc);
    return tape->per_example_gradients(losses, parameters, loc);
}

}  // namespace tapir
