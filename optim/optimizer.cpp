// Common part of the optimizers: groups, gradients in the form that kernels need, state.
#include "tapir/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/layout_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/core/state_reader_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/arrange/counting.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/arrange/unique.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/coalesce_impl.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/optim/rule_impl.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

Tensor scalar(double value) {
    Tensor t = detail::make_empty({}, float64, cpu, Loc{});
    *static_cast<double*>(t.raw_data()) = value;
    return t;
}

}  // namespace

// Returns the rows of a gradient that was made dense when somebody read it, and was not written to since. Does not wait for the device: a
// row that was used several times has its values at the first place, and zeros at the others.
static SparseRows rows_unchanged(const Tensor& gradient, const Tensor& used_rows, const Loc& loc) {
    const std::int64_t row_count = gradient.shape()[0], count = used_rows.numel();
    const Tensor given = used_rows.reshape({count});
    const Tensor indices = sort(In(where(given < 0, given + row_count, given), loc)).values;
    const Tensor values = index_select(In(gradient, loc), 0, indices);
    if (count < 2) return {indices, values};
    Shape per_row = values.shape();
    for (int d = 1; d < per_row.rank(); ++d) per_row[d] = 1;
    per_row[0] = count - 1;
    const Tensor repeats = (indices[Slice(1)] == indices[Slice(None, -1)]).reshape(per_row);
    Tensor later = values[Slice(1)];
    later.masked_fill_(repeats, 0);
    return {indices, values};
}

// Like rows_unchanged(), but somebody may have written to the gradient; undefined if other rows were written to.
static SparseRows rows_again(const Tensor& gradient, const Tensor& used_rows, const Loc& loc) {
    const std::int64_t row_count = gradient.shape()[0];
    std::vector<std::int64_t> index = used_rows.to_vector<std::int64_t>(loc);
    for (std::int64_t& i : index) i += i < 0 ? row_count : 0;
    std::sort(index.begin(), index.end());
    index.erase(std::unique(index.begin(), index.end()), index.end());
    const Tensor indices = tensor(index, {int64, gradient.device()});
    const Tensor values = index_select(In(gradient, loc), 0, indices);
    const auto nonzero = [&](const Tensor& t) { return count_nonzero(In(t, loc)).item<std::int64_t>(loc); };
    return nonzero(values) == nonzero(gradient) ? SparseRows{indices, values} : SparseRows{};
}

// --- Groups and their options -------------------------------------------------------------------------------------------

static void check_domain(const char* optimizer, const OptimizerOption& option, double value, const Loc& loc) {
    const auto demand = [&](bool holds, const char* what) {
        if (!holds) fail<ValueError>(loc, "{}: {} must {}, got {}", optimizer, option.name, what, value);
    };
    switch (option.domain) {
        case Domain::any: return;
        case Domain::finite: return demand(std::isfinite(value), "be finite");
        case Domain::not_negative: demand(value >= 0, "not be negative"); return demand(std::isfinite(value), "be finite");
        case Domain::limit: return demand(value >= 0, "not be negative");
        case Domain::below_one: return demand(value >= 0 && value < 1, "be in [0, 1)");
        case Domain::up_to_one: return demand(value >= 0 && value <= 1, "be in [0, 1]");
        case Domain::at_least_one: return demand(value >= 1, "be at least 1");
    }
}

static void check(const OptimizerRule& rule, const void* options, const Loc& loc) {
    for (std::size_t i = 0; i < rule.option_count; ++i) check_domain(rule.name, rule.options[i], rule.options[i].get(options), loc);
    rule.check(options, loc);
}

static void check_group(std::size_t group, std::size_t count, const Loc& loc) {
    if (group >= count) fail<IndexError>(loc, "optimizer: there is no group {} of {}", group, count);
}

static const OptimizerOption& lr_of(const OptimizerRule& rule) {
    const auto* end = rule.options + rule.option_count;
    return *std::find_if(rule.options, end, [](const OptimizerOption& o) { return std::strcmp(o.name, "lr") == 0; });
}

Optimizer::Optimizer(const OptimizerRule& rule, const std::vector<Tensor>& parameters, const void* options, const Loc& loc) : rule_(rule) {
    Optimizer::add_group(parameters, options, loc);
}

Optimizer::~Optimizer() = default;

void Optimizer::check_options(std::size_t group, const Loc& loc) const { check(rule_, options_[group].data(), loc); }

void* Optimizer::options_of(std::size_t group, const Loc& loc) {
    check_group(group, groups_.size(), loc);
    return options_[group].data();
}

static void divide(StepSharing& sharing, std::vector<Slot>& slots) {
    std::vector<Tensor> parameters;
    for (const Slot& slot : slots) parameters.push_back(slot.parameter);
    const std::vector<bool> is_elsewhere = sharing.divide(parameters);
    for (std::size_t i = 0; i < slots.size(); ++i) slots[i].is_elsewhere = is_elsewhere[i];
}

void Optimizer::share(StepSharing& sharing, const Loc& loc) {
    if (!rule_.update) fail<ValueError>(loc, "{}: its step needs all parameters at once, and cannot be divided", rule_.name);
    for (auto& group : groups_) divide(sharing, group);
    sharing_ = &sharing;
}

void Optimizer::add_group(const std::vector<Tensor>& parameters, const void* options, const Loc& loc) {
    const CallerScope caller(loc);
    check(rule_, options, loc);
    if (parameters.empty()) fail<ValueError>(loc, "optimizer: a group without parameters (a module has those that its members() names)");
    std::unordered_set<const TensorImpl*> known;
    for (const auto& group : groups_) {
        for (const Slot& slot : group) known.insert(slot.parameter.impl());
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& p = parameters[i];
        if (!p.defined()) fail<ValueError>(loc, "optimizer: parameter {} is undefined", i);
        if (!is_floating(p.dtype())) fail<DTypeError>(loc, "optimizer: parameter {} must be floating, got {}", i, name(p.dtype()));
        if (!p.is_leaf()) fail<ValueError>(loc, "optimizer: parameter {} of shape {} was computed; it must be a leaf", i, p.shape());
        if (p.impl()->flags & TensorImpl::kConverted) {
            fail<ValueError>(loc,
                             "optimizer: parameter {} of shape {} was made by to() from the leaf that gets the gradients; call "
                             "requires_grad_() after to()",
                             i, p.shape());
        }
        if (!known.insert(p.impl()).second) {
            fail<ValueError>(loc, "optimizer: parameter {} of shape {} is in a group already", i, p.shape());
        }
    }
    const auto is_trainable = [](const TensorImpl* t) { return t->meta != nullptr; };  // or was, and is frozen
    if (std::none_of(known.begin(), known.end(), is_trainable)) {
        fail<ValueError>(loc,
                         "optimizer: none of the {} parameters requires a gradient (parameter 0 has shape {}), so no step would "
                         "change anything: make them with requires_grad_() or nn::Parameter(tensor)",
                         parameters.size(), parameters[0].shape());
    }
    std::vector<Slot> slots;
    for (const Tensor& p : parameters) slots.push_back({p, {}, 0, 1, {}, false, false});
    if (sharing_) divide(*sharing_, slots);
    const auto* bytes = static_cast<const std::byte*>(options);
    std::vector<std::byte> copy(bytes, bytes + rule_.options_size);
    groups_.reserve(groups_.size() + 1);
    options_.reserve(groups_.size() + 1);
    groups_.push_back(std::move(slots));
    options_.push_back(std::move(copy));
}

// --- A step --------------------------------------------------------------------------------------------------------------

// Makes a graph take `state` for state of the program: it existed before the trace, and has the parameter's name.
static void make_state(const Tensor& state, const Slot& slot, const char* what) {
    state.impl()->trace = 0;
    const AutogradMeta* meta = slot.parameter.impl()->meta;
    const char* name = meta ? meta->name_now() : nullptr;
    if (name) detail::meta_of(state).name = detail::interned(fmt::format("{}.{}", name, what));
}

// From the first traced step on, steps are counted in a tensor.
static void read_progress(Slot& slot) {
    if (!slot.progress.defined()) return;
    const double* progress = static_cast<const double*>(slot.progress.raw_data());
    slot.steps = static_cast<std::int64_t>(progress[0]);
    slot.number = progress[1];
}

static void write_progress(const Slot& slot, const Loc& loc) {
    if (!slot.progress.defined()) return;
    auto* progress = static_cast<double*>(slot.progress.raw_data());
    progress[0] = static_cast<double>(slot.steps);
    progress[1] = slot.number;
    mark_written(slot.progress, loc);
}

// True if the trace itself has made the parameter: then its state starts anew in each run of the graph.
static bool is_of_trace(const Slot& slot) { return detail::is_tracing() && slot.parameter.impl()->trace == detail::thread.trace; }

static void make_progress(Slot& slot, const Loc& loc) {
    if (slot.progress.defined()) return;
    if (is_of_trace(slot)) {
        const detail::Muted told(false);
        slot.progress = tensor({static_cast<double>(slot.steps), slot.number}, TensorOptions(float64, cpu), loc);
        return;
    }
    slot.progress = detail::make_empty({2}, float64, cpu, loc);
    make_state(slot.progress, slot, "progress");
    write_progress(slot, loc);
}

// Allocates all permanent state of a step, before it changes the first parameter: if memory runs out, the step can be repeated.
void Optimizer::make_buffers(std::size_t group, const Loc& loc) {
    const void* options = options_[group].data();
    const BufferNames names = rule_.buffers(options);
    for (Slot& slot : groups_[group]) {
        AutogradMeta* meta = slot.parameter.impl()->meta;
        if (!meta || slot.is_elsewhere) continue;
        const DType compute = computed_in(slot.parameter.dtype());
        std::unique_lock lock(detail::gradient_mutex());  // other threads' backward may add to it
        if (!meta->has_gradient()) continue;
        detail::begin_op(rule_.op->name, slot.parameter.impl(), loc);
        const detail::UnrecordedParts parts;
        if (takes_rows(group, slot)) {
            detail::rows_or_settle(*meta, slot.parameter.shape());  // merges them
        } else {
            detail::settle_gradient(*meta, slot.parameter.shape());
        }
        lock.unlock();
        for (int i = 0; i < kMaxBuffers; ++i) {
            Tensor& buffer = slot.buffers[i];
            if (buffer.defined()) follow(buffer, slot.parameter.device(), compute);
            if (!names.of[i] || buffer.defined()) continue;
            if (is_of_trace(slot)) {
                const detail::Muted told(false);
                buffer = full(slot.parameter.shape(), rule_.initial_value(options, i), TensorOptions(compute, slot.parameter.device()), loc);
            } else {
                Tensor made = detail::make_empty_like(slot.parameter.impl(), compute, loc);
                buffer = made.fill_(rule_.initial_value(options, i), loc);
                if (detail::is_tracing()) make_state(buffer, slot, names.of[i]);
            }
            slot.has_new_buffers = true;
        }
    }
}

bool Optimizer::takes_rows(std::size_t group, const Slot& slot) const {
    return slot.parameter.impl()->meta->sparse || (rule_.rows_suffice(options_[group].data()) && !on_gpu(slot.parameter));
}

void Optimizer::step(Loc loc) {
    const CallerScope caller(loc);
    if (!rule_.update) fail<ValueError>(loc, "{}: step needs a closure that computes the loss and its gradients", rule_.name);
    const bool is_told = detail::is_watched();
    const ProfileScope scope(detail::is_profiling() ? detail::interned(fmt::format("{}.step", rule_.name)) : "step", loc);
    const detail::PauseRecording pause;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        check_options(g, loc);
        make_buffers(g, loc);
    }
    StepQueue queue(is_told);
    try {
        update_all(queue, loc);
    } catch (...) {  // thrown by a watcher, at the end; or no device memory for a copy in another dtype: earlier updates are complete
        queue.flush();
        throw;
    }
    queue.flush();
}

// Reports the begin of an update, as an op that writes to its parameter and its buffers.
static void tell_begin(const OptimizerRule& rule, const Slot& slot, const BufferNames& names, const Loc& loc) {
    const detail::Muted muted(false);
    detail::tell_begin(rule.op->name, slot.parameter.device(), loc);
    detail::tell_write(slot.parameter);
    for (int i = 0; i < kMaxBuffers; ++i) {
        if (names.of[i] && slot.buffers[i].defined()) detail::tell_write(slot.buffers[i]);
    }
    if (slot.progress.defined()) detail::tell_write(slot.progress);
}

// Reports the end. `rows` are those of a sparse gradient.
static void tell_end(const OptimizerRule& rule, const void* options, const Slot& slot, const UpdateFacts& facts, const Tensor& gradient,
                     const SparseRows& rows, const BufferNames& names, const Loc& loc) {
    const detail::Muted muted(false);
    const Tensor* inputs[3 + kMaxBuffers] = {&slot.parameter, facts.is_sparse ? &rows.values : &gradient, &rows.indices};
    TensorImpl* outputs[2 + kMaxBuffers] = {slot.parameter.impl()};
    const char* said_of_inputs[3 + kMaxBuffers] = {"parameter", facts.is_sparse ? "rows of the gradient" : "gradient", "their indices"};
    const char* said_of_outputs[2 + kMaxBuffers] = {"parameter"};
    int input_count = facts.is_sparse ? 3 : 2, count = 1;
    const auto add_state = [&](const Tensor& state, const char* name) {
        outputs[count] = state.impl();
        said_of_outputs[count++] = name;
        if (!detail::is_tracing()) return;
        inputs[input_count] = &state;
        said_of_inputs[input_count++] = name;
    };
    for (int i = 0; i < kMaxBuffers; ++i) {
        if (names.of[i]) add_state(slot.buffers[i], names.of[i]);
    }
    if (detail::is_tracing()) add_state(slot.progress, "progress");
    const OperandNames said(said_of_inputs, said_of_outputs);
    rule.tell(options, facts, {*rule.op, loc, inputs, input_count, outputs, count, nullptr, 0});
}

// Keeps the first exception of watchers until the step is complete.
class ThrownByWatchers {
 public:
    template <class Call>
    void keep(const Call& call) {
        try {
            call();
        } catch (...) {
            if (!first_) first_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (first_) std::rethrow_exception(first_);
    }

 private:
    std::exception_ptr first_;
};

// Prepares everything that the update of one parameter needs beside its buffers and that takes memory.
static void prepare(Update& work, const Slot& slot, const Tensor& gradient, const SparseRows& rows, const Loc& loc) {
    const DType compute = computed_in(slot.parameter.dtype());
    const detail::PartsOfOp parts;
    if (rows.defined()) {
        work.rows = tapir::detail::coalesce({rows.indices, ready(rows.values, compute)}, slot.parameter.shape()[0], loc);
    } else {
        work.gradient = taken(gradient, compute);
    }
    work.parameter = taken(slot.parameter, compute);
}

// Updates one parameter, or rows of one. `gradient` is undefined if there are only rows; `work` comes from prepare(), or is empty: not yet.
static void update(const OptimizerRule& rule, const void* options, Slot& slot, const Tensor& gradient, const SparseRows& rows, Update& work,
                   StepQueue& queue, ThrownByWatchers& thrown, const Loc& loc) {
    const BufferNames names = rule.buffers(options);
    detail::begin_op(rule.op->name, slot.parameter.impl(), loc);
    if (queue.is_told) thrown.keep([&] { tell_begin(rule, slot, names, loc); });
    if (detail::watching_ops) [[unlikely]]
        detail::log_placement(slot.parameter.impl());
    const detail::PartsOfOp parts;
    if (!work.parameter.defined()) prepare(work, slot, gradient, rows, loc);
    work.queue = &queue;
    for (int i = 0; i < kMaxBuffers; ++i) {
        if (names.of[i]) work.buffers[i] = slot.buffers[i];
    }
    read_progress(slot);
    const bool was_undone = slot.progress.defined() && slot.steps == 0;  // by a trace, whose buffers are still here
    work.first = std::exchange(slot.has_new_buffers, false) || was_undone;
    ++slot.steps;
    const double number = slot.number;
    rule.update(options, slot, work);
    write_progress(slot, loc);
    if (!work.parameter.is_same(slot.parameter)) {  // not contiguous or, on a device, with 16 bits
        queue.flush();
        slot.parameter.copy_(work.parameter, loc);
    } else {
        mark_written(slot.parameter, loc);
    }
    if (!queue.is_told) return;
    queue.flush();
    const UpdateFacts facts{slot.steps, number, work.first, rows.defined()};
    thrown.keep([&] { tell_end(rule, options, slot, facts, gradient, rows, names, loc); });
}

// Used in a trace for a gradient of some rows: takes them out, makes a dense step, and puts them back. Rows that are named several times
// have one gradient, the sum, and get the same values.
static void update_rows(const OptimizerRule& rule, const void* options, Slot& slot, const Tensor& gradient, const Tensor& used_rows, StepQueue& queue,
                        ThrownByWatchers& thrown, const Loc& loc) {
    if (!rule.starts_alike(options)) {
        fail<TapeError>(loc,
                        "{}: a graph cannot hold a step of only the rows that an embedding has used, whose first step is not like the "
                        "others: make the embedding with {{.sparse = false}}",
                        rule.name);
    }
    const auto rows_of = [&](const Tensor& t) {
        const detail::Muted told(!queue.is_told);
        return t.defined() ? index_select(In(t, loc), 0, used_rows) : t;
    };
    Slot rows = slot;
    rows.parameter = rows_of(slot.parameter);
    for (Tensor& buffer : rows.buffers) buffer = rows_of(buffer);
    Update work;
    update(rule, options, rows, rows_of(gradient), {}, work, queue, thrown, loc);
    queue.flush();
    const auto put_back = [&](Tensor& whole, const Tensor& part) {
        const detail::Muted told(!queue.is_told);
        if (part.defined()) whole.copy_(index_copy(In(whole, loc), 0, used_rows, part), loc);
    };
    put_back(slot.parameter, rows.parameter);
    for (int i = 0; i < kMaxBuffers; ++i) put_back(slot.buffers[i], rows.buffers[i]);
    slot.steps = rows.steps;
    slot.number = rows.number;
    slot.has_new_buffers = rows.has_new_buffers;
}

// An update that waits until all updates are prepared.
namespace {
struct Waiting {
    std::size_t group, place;
    Slot* slot;
    Tensor gradient, used_rows;  // used_rows: for an update of only these rows, in a trace
    SparseRows rows;
    Update work;  // empty in a trace, and on a device, which lacks memory for all of them
};
}  // namespace

void Optimizer::update_all(StepQueue& queue, const Loc& loc) {
    ThrownByWatchers thrown;
    std::vector<Waiting> waiting;
    std::size_t next_place = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        const void* options = options_[g].data();
        const BufferNames names = rule_.buffers(options);
        waiting.reserve(waiting.size() + groups_[g].size());
        for (Slot& slot : groups_[g]) {
            const std::size_t place = next_place++;
            AutogradMeta* meta = slot.parameter.impl()->meta;
            if (!meta) continue;
            std::unique_lock lock(detail::gradient_mutex());
            if (!meta->has_gradient()) continue;
            Waiting& w = waiting.emplace_back();
            w.group = g;
            w.place = place;
            w.slot = &slot;
            if (takes_rows(g, slot)) {
                w.rows = detail::rows_or_settle(*meta, slot.parameter.shape());
            } else {
                detail::settle_gradient(*meta, slot.parameter.shape());
            }
            w.gradient = meta->grad;
            w.used_rows = meta->used_rows;
            const bool is_unchanged = meta->is_sure_of_rows();  // unchanged since somebody read the gradient
            lock.unlock();
            bool is_of_rows = false;  // only in a trace
            if (w.gradient.defined() && w.used_rows.defined()) {
                if (!detail::is_tracing()) {
                    w.rows = (is_unchanged ? rows_unchanged : rows_again)(w.gradient, w.used_rows, loc);
                } else {
                    is_of_rows = !rule_.rows_suffice(options) && rows_again(w.gradient, w.used_rows, loc).defined();
                }
            }
            if (!is_of_rows) w.used_rows = Tensor();
            if (slot.is_elsewhere) continue;
            for (int i = 0; i < kMaxBuffers; ++i) {
                if (names.of[i] && !slot.buffers[i].defined()) make_buffers(g, loc);  // another thread's backward has just set the gradient
            }
            if (detail::is_tracing()) make_progress(slot, loc);
            if (!on_gpu(slot.parameter) && !detail::is_tracing()) prepare(w.work, slot, w.gradient, w.rows, loc);
        }
    }
    std::vector<StepPart> parts;
    if (sharing_) {
        for (const Waiting& w : waiting) parts.push_back({w.place, w.slot->parameter, w.rows.indices});
        sharing_->begin(parts, loc);
    }
    // From here on nothing allocates CPU memory, unless several processes share the work.
    for (Waiting& w : waiting) {
        if (w.slot->is_elsewhere) continue;
        const void* options = options_[w.group].data();
        if (w.used_rows.defined()) {
            update_rows(rule_, options, *w.slot, w.gradient, w.used_rows, queue, thrown, loc);
        } else {
            update(rule_, options, *w.slot, w.gradient, w.rows, w.work, queue, thrown, loc);
        }
        w.gradient = Tensor();
        w.work = Update();
    }
    if (sharing_) {
        queue.flush();
        sharing_->end(parts, loc);
    }
    thrown.rethrow();
}

std::vector<Tensor> Optimizer::parameters() const {
    std::vector<Tensor> result;
    for (const auto& group : groups_) {
        for (const Slot& slot : group) result.push_back(slot.parameter);
    }
    return result;
}

void Optimizer::zero_grad() {
    for (auto& group : groups_) {
        for (Slot& slot : group) slot.parameter.zero_grad();
    }
}

double Optimizer::lr(std::size_t group, Loc loc) const {
    check_group(group, groups_.size(), loc);
    return lr_of(rule_).get(options_[group].data());
}

void check_rate(const char* name, const char* what, double rate, const Loc& loc) {
    if (!(rate >= 0) || std::isinf(rate)) fail<ValueError>(loc, "{}: {} must be 0 or a finite number above it, got {}", name, what, rate);
}

void Optimizer::set_lr(double lr, std::size_t group, Loc loc) {
    check_rate("set_lr", "the learning rate", lr, loc);
    if (detail::is_tracing() && lr != this->lr(group, loc)) {
        fail<TapeError>(loc, "set_lr: a graph holds the learning rate as a constant, {}: set another one outside of what is traced",
                        this->lr(group, loc));
    }
    lr_of(rule_).set(options_of(group, loc), lr);
}

void Optimizer::set_lr(double lr, Loc loc) {
    for (std::size_t g = 0; g < groups_.size(); ++g) set_lr(lr, g, loc);
}

// --- State ---------------------------------------------------------------------------------------------------------------

NamedTensors Optimizer::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    return state_of(groups_);
}

NamedTensors Optimizer::state_with(const std::function<void(Slot&)>& fn) const {
    Groups groups = groups_;
    for (auto& group : groups) {
        for (Slot& slot : group) fn(slot);
    }
    return state_of(groups);
}

NamedTensors Optimizer::state_of(const Groups& groups) const {
    const detail::PauseRecording pause;
    NamedTensors state;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        const void* options = options_[g].data();
        for (std::size_t i = 0; i < rule_.option_count; ++i) {
            const OptimizerOption& option = rule_.options[i];
            state.push_back({fmt::format("{}.{}", g, option.name), scalar(option.get(options))});
        }
        const BufferNames names = rule_.buffers(options);
        for (std::size_t i = 0; i < groups[g].size(); ++i) {
            Slot slot = groups[g][i];
            read_progress(slot);
            state.push_back({fmt::format("{}.{}.step", g, i), scalar(static_cast<double>(slot.steps))});
            if (const char* name = rule_.number) state.push_back({fmt::format("{}.{}.{}", g, i, name), scalar(slot.number)});
            for (int k = 0; k < kMaxBuffers; ++k) {
                if (!names.of[k] || !slot.buffers[k].defined()) continue;
                state.push_back({fmt::format("{}.{}.{}", g, i, names.of[k]), slot.buffers[k].clone()});
            }
        }
    }
    return state;
}

void Optimizer::load_state_dict(const NamedTensors& state, Loc loc) {
    const CallerScope caller(loc);
    const detail::PauseRecording pause;
    StateReader reader(rule_.name, state, loc);
    // Looks everything up and checks it first, then puts it in place.
    auto groups = groups_;
    auto options = options_;
    for (std::size_t g = 0; g < groups.size(); ++g) {
        for (std::size_t i = 0; i < rule_.option_count; ++i) {
            const OptimizerOption& option = rule_.options[i];
            const std::string name = fmt::format("{}.{}", g, option.name);
            if (const Tensor* t = reader.tensor(name, {}); t && !option.set(options[g].data(), t->item<double>())) {
                reader.is_out_of_range(name);
            }
        }
        const BufferNames names = rule_.buffers(options[g].data());
        for (std::size_t i = 0; i < groups[g].size(); ++i) {
            Slot& slot = groups[g][i];
            slot.steps = reader.count(fmt::format("{}.{}.step", g, i));
            if (const char* name = rule_.number) slot.number = reader.number(fmt::format("{}.{}.{}", g, i, name));
            for (int k = 0; k < kMaxBuffers; ++k) {
                slot.buffers[k] = Tensor();  // as before the first step, if the state has none
                if (!names.of[k]) continue;
                const Tensor* const value = reader.tensor_if_any(fmt::format("{}.{}.{}", g, i, names.of[k]), slot.parameter.shape());
                if (value && !slot.is_elsewhere) {
                    slot.buffers[k] = value->to(computed_in(slot.parameter.dtype())).clone().to(slot.parameter.device());
                }
            }
        }
    }
    reader.finish();
    for (const auto& group : options) check(rule_, group.data(), loc);
    for (std::size_t g = 0; g < groups.size(); ++g) {
        for (std::size_t i = 0; i < groups[g].size(); ++i) {
            Slot &now = groups_[g][i], &next = groups[g][i];
            if (!now.progress.defined()) continue;  // otherwise graphs keep using these tensors
            for (int k = 0; k < kMaxBuffers; ++k) {
                if (now.buffers[k].defined() && next.buffers[k].defined()) next.buffers[k] = now.buffers[k].copy_(next.buffers[k], loc);
            }
            write_progress(next, loc);
        }
    }
    groups_ = std::move(groups);
    for (std::size_t g = 0; g < options.size(); ++g) std::copy(options[g].begin(), options[g].end(), options_[g].begin());
}

// --- What gdb's printer reads --------------------------------------------------------------------------------------------------

#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no virtual bases here

struct OptimizerLayout {
    static constexpr std::size_t rule() { return offsetof(Optimizer, groups_) - sizeof(void*); }  // a reference, just before them
    static constexpr std::size_t groups() { return offsetof(Optimizer, groups_); }
    static constexpr std::size_t options() { return offsetof(Optimizer, options_); }
};

extern "C" {
extern const gdb::LayoutEntry tapir_gdb_optimizer[];
[[gnu::used, gnu::retain]] constexpr gdb::LayoutEntry tapir_gdb_optimizer[] = {
    {"Optimizer.rule", OptimizerLayout::rule()},
    {"Optimizer.groups", OptimizerLayout::groups()},
    {"Optimizer.options", OptimizerLayout::options()},
    {"sizeof.vector", sizeof(std::vector<Slot>)},
    TAPIR_GDB_SIZE(Slot),
    TAPIR_GDB_OFFSET(Slot, steps),
    TAPIR_GDB_OFFSET(OptimizerRule, name),
    {},
};
}

}  // namespace tapir::optim
