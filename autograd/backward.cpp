// The walk over the records, from the last to the first.
//
// Note [What an error leaves behind]
// All checks of a backward come before the first rule runs (check_reached): records used
// up before, saved tensors written to since. The walk holds the gradients of leaves and hands them over at its end. So
// a TapeError leaves every grad() as it was. So does an exception out of user code (a hook, a custom function), but
// saved tensors that were released before it stay released. What leaves have collected (collected.cpp) is computed
// when grad() is called, and may run out of memory there.
#include <algorithm>
#include <cstring>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/function.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/reducer_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/thread_tapes_impl.h"
#include "tapir/autograd/users_function_impl.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"

namespace tapir {

void release_saved(Record& record) noexcept;  // log.cpp

namespace {

bool get(const std::vector<std::uint8_t>& bits, std::uint32_t i) noexcept { return bits[i >> 3] >> (i & 7) & 1; }
void set(std::vector<std::uint8_t>& bits, std::uint32_t i) noexcept { bits[i >> 3] = static_cast<std::uint8_t>(bits[i >> 3] | 1u << (i & 7)); }

// Vectors that walks use, kept warm: a walk inside a walk (from a hook) takes fresh ones. Each takes its own when it begins, so
// that giving them back at its end needs no memory.
struct WalkMemory {
    std::vector<GradientSlot> slots;
    std::vector<std::uint8_t> wanted, reached, kept;

    /// Swaps these vectors with those of the walk.
    void exchange(Walk& walk) noexcept {
        std::swap(slots, walk.slots);
        std::swap(wanted, walk.wanted);
        std::swap(reached, walk.reached);
        std::swap(kept, walk.kept);
    }
};
thread_local std::unique_ptr<WalkMemory> spare_memory;

}  // namespace

// --- Backward: the view of a rule ----------------------------------------------------------------------------------------------

Tensor Backward::grad_to_write(int i) {
    if (!needs(i) || walk_.recording || walk_.watched) return {};
    const std::uint32_t id = record_.inputs()[i];
    GradientSlot& slot = walk_.slots[id];
    const Record& input = *walk_.log.records[id];
    if (walk_.streams) walk_.streams->bring(slot.grad);
    own_gradient(slot.grad, input.shape(), input.dtype, grad().device());
    return slot.grad;
}

void Backward::tell(int i, const Tensor& g, const Tensor* product, const Tensor* rows) {
    WatcherList::each([&](OpWatcher& watcher) { watcher.give(walk_, index_, i, g, product, rows); });
}

Tensor Backward::grad_or_zeros(int k) const {
    const Tensor& g = grad(k);
    if (g.defined()) return g;
    Device device;
    for (int j = 0; j < record_.output_count; ++j) {
        if (grad(j).defined()) device = grad(j).device();
    }
    return gradient_ops::zeros(output_shape(k), output_dtype(k), device);
}

Tensor Backward::saved(int i) const noexcept { return detail::handle_of(record_.saved()[i].impl); }

// --- The walk --------------------------------------------------------------------------------------------------------------

void Walk::extend(std::size_t count) {
    if (slots.size() < count) slots.resize(count);
    const std::size_t bytes = std::max(count / 8 + 1, wanted.size());
    wanted.resize(bytes, 0);
    kept.resize(bytes, 0);
    reached.resize(bytes, 0);
    for (std::size_t i = extent; i < count; ++i) set(wanted, static_cast<std::uint32_t>(i));
    extent = std::max(extent, count);
}

void Walk::run(std::size_t from, std::size_t to) {
    const bool may_share = !recording && !watched && !streams && !detail::watching_ops && log.stream_runs.empty();
    for (std::size_t k = log.parts.size(); may_share && k-- > 0;) {
        const Log::Parts& parts = log.parts[k];
        if (parts.first < from || parts.ends.back() > to) continue;
        const auto hook = log.hooks.lower_bound(parts.first);
        if (hook != log.hooks.end() && hook->first < parts.ends.back()) continue;  // hooks run on the thread that walks
        run_in_order(parts.ends.back(), to);
        LeafCalls* const calls = std::exchange(leaf_calls, nullptr);
        run_parts(parts);
        leaf_calls = calls;
        to = parts.first;
    }
    run_in_order(from, to);
}

void Walk::run_in_order(std::size_t from, std::size_t to) {
    const detail::PauseAutocast paused;  // rules compute in the dtypes that they find
    Loc& caller = detail::thread.caller;
    const detail::ModuleRestore restore_module;
    const Loc outer_caller = caller;
    struct Restore {
        Loc& place;
        const Loc& value;
        ~Restore() {
            place = value;
            gdb::end_rule();
        }
    } restore{caller, outer_caller};
    for (std::size_t i = to; i-- > from;) {
        const auto index = static_cast<std::uint32_t>(i);
        Record& record = *log.records[i];
        if (record.flags & (Record::kExtra | Record::kLeaf)) {
            if (leaf_calls && (record.flags & Record::kLeaf)) [[unlikely]]
                leaf_calls->passed(index);
            continue;
        }
        bool any = false;
        if (record.device.type != DeviceType::cpu || detail::watching_ops) [[unlikely]] {
            detail::thread.op = record.op->name;
            detail::thread.op_loc = record.loc;
            detail::thread.is_placed = detail::logging_placement == 0;
            if (streams) streams->follow(index);
        }
        for (std::uint32_t k = 0; k < record.output_count; ++k) {
            GradientSlot& slot = slots[index + k];
            if (slot.empty()) continue;
            any = true;
            if (slot.pending) [[unlikely]]
                flush(index + k);
            if (streams) [[unlikely]]
                streams->bring(slot.grad);
            const Record& output = *log.records[index + k];
            if (output.flags & Record::kHooked) [[unlikely]] {
                caller = output.loc;
                detail::thread.module = output.module;
                detail::thread.module_call = output.module_call;
                const UsersFunction told(*this);
                auto hook = log.hooks.lower_bound(index + k);
                for (std::size_t left = log.hooks.count(index + k); left > 0; --left, ++hook) {  // not those it registers
                    hook->second.apply(slot.grad);
                }
            }
            if (get(kept, index + k)) kept_grads.emplace_back(index + k, slot.grad);
        }
        if (!any) continue;
        caller = record.loc;
        detail::thread.module = record.module;
        detail::thread.module_call = record.module_call;
        if (detail::watching_ops && gdb::is_watching()) [[unlikely]]
            watched |=
                gdb::begin_rule(record.op->name, slots[index].grad.impl(), record.loc, record.op->backward == CustomFunction::rule) && may_be_watched;
        Backward context(*this, index);
        if (watched) [[unlikely]]
            WatcherList::each([&](OpWatcher& watcher) { watcher.begin_rule(*this, index); });
        const std::size_t recorded = log.records.size();
        record.op->backward(context);
        for (std::size_t made = recorded; only_traced && made < log.records.size(); ++made) {
            if (!(log.records[made]->flags & Record::kLeaf)) release_saved(*log.records[made]);
        }
        if (watched) [[unlikely]]
            WatcherList::each([&](OpWatcher& watcher) { watcher.end_rule(*this, index); });
        for (std::uint32_t k = 0; k < record.output_count; ++k) {
            slots[index + k].grad = Tensor();
            slots[index + k].pending.reset();
        }
        if (releasing) release_saved(record);
    }
}

// --- One call of backward() or gradient() ----------------------------------------------------------------------------------

// Removes the records of leaves that a failed call has named for the first time.
struct NewLeaves {
    Log& log;
    std::size_t count = log.records.size();
    bool stay = false;
    explicit NewLeaves(Log& of) noexcept : log(of) {}
    NewLeaves(const NewLeaves&) = delete;
    NewLeaves& operator=(const NewLeaves&) = delete;
    ~NewLeaves() {
        if (!stay) log.truncate(count);
    }
};

// Restores, at its end, the thread's state that a walk changes. The walk's tape may have ended by then.
class WalkScope {
 public:
    explicit WalkScope(Log& log) noexcept
        : log_(log), paused_(detail::thread.log), outer_(ThreadTapes::own().walking), was_muted_(detail::thread.muted),
          was_apart_(detail::thread.observed.is_apart) {
        ++log.walks;
        ThreadTapes::own().walking = &log;
        detail::thread.observed.is_apart = false;
    }
    ~WalkScope() {
        detail::thread.muted = was_muted_;
        detail::thread.observed.is_apart = was_apart_;
        ThreadTapes::own().walking = outer_;
        ThreadTapes::own().resume(paused_);
        if (--log_.walks == 0 && log_.depth == 0) close_log(&log_);
    }
    WalkScope(const WalkScope&) = delete;
    WalkScope& operator=(const WalkScope&) = delete;

    bool was_muted() const noexcept { return was_muted_; }

 private:
    Log& log_;
    Log *paused_, *outer_;
    bool was_muted_, was_apart_;
};

class BackwardRun : private LeafCalls {
 public:
    BackwardRun(Tape& tape, const Tensor& y, const BackwardOptions& options, const Loc& loc, const char* what);
    ~BackwardRun();
    BackwardRun(const BackwardRun&) = delete;
    BackwardRun& operator=(const BackwardRun&) = delete;

    void accumulate();
    /// As accumulate() of a walk that reaches no leaf.
    static void reduce_alone(GradientReducer& reducer, const Loc& loc);
    std::vector<Tensor> gradients(const std::vector<Tensor>& xs);

 private:
    std::uint32_t value_of(const Tensor& y);
    void take_memory();
    void walk();
    void check_reached();
    void want_all();
    void want(const std::vector<std::uint32_t>& sources);
    Tensor run_hooks(std::uint32_t leaf_value);
    Tensor following(const Tensor& g, const Tensor& x);
    struct Result;
    Result result_of(std::uint32_t leaf_value, Tensor used_rows);
    std::vector<Result> retained_results();
    static std::vector<Result> results_of(GradientReducer& reducer);
    static void write(Result& result);
    void accumulate_all();
    void begin_reducing();
    void passed(std::uint32_t leaf_value) override;

    std::size_t tape_begin_;
    Loc loc_;
    const char* what_;
    WalkScope scope_;
    NewLeaves new_leaves_;
    Walk walk_;
    std::uint32_t y_value_;
    Tensor seed_;
    std::unique_ptr<WalkMemory> memory_;
    bool notes_rows_ = false;   // for gradients that are dense only because they are traced
    bool is_followed_ = false;  // gradients may be differentiated again
    bool accumulates_ = false;
    std::vector<GradientReducer*> reducers_;
};

// For a tensor that is neither a leaf nor on a live tape.
[[noreturn]] static void fail_unrecorded(const char* what, const Tensor& y, const Loc& loc) {
    if (y.impl()->node.tape & NodeRef::kElsewhere) {
        fail<TapeError>(loc,
                        "{}: this tensor was not recorded on the tape: it was computed{} on a thread without a tape, before this tape "
                        "began",
                        what, computed_at(y.impl()));
    }
    if (y.impl()->node.tape) {
        fail<TapeError>(loc, "{}: this tensor was not recorded on the tape: the tape it was recorded on has ended", what);
    }
    if (!is_floating(y.dtype())) {
        fail<TapeError>(loc,
                        "{}: this tensor was not recorded on the tape: no gradient flows through integers and bools, as argmax() "
                        "and comparisons give them",
                        what);
    }
    if (!detail::thread.log) {
        fail<TapeError>(loc,
                        "{}: this tensor was not recorded on the tape: recording is paused here, as by a NoGradScope: what is "
                        "computed while one is alive is a constant",
                        what);
    }
    fail<TapeError>(loc,
                    "{}: this tensor was not recorded on the tape: no tensor it was computed from requires a gradient, or it was "
                    "computed before the tape began, under a NoGradScope, or through stop_gradient(), detach(), item() or argmax(): "
                    "make the tape first, and parameters with requires_grad_()",
                    what);
}

// The value that y names, if a walk may begin at it.
std::uint32_t BackwardRun::value_of(const Tensor& y) {
    Log& log = walk_.log;
    static_cast<void>(tracked(y.impl(), log, loc_));  // throws the reason if it should be tracked and is not
    const std::uint32_t value = log.value_of(y.impl(), loc_);
    if (value == kNoValue) fail_unrecorded(what_, y, loc_);
    if (value < tape_begin_ && !(log.records[value]->flags & Record::kLeaf)) {
        fail<TapeError>(loc_, "{}: this tensor was recorded before this tape began, on one around it; call {} on that tape", what_, what_);
    }
    return value;
}

void BackwardRun::take_memory() {
    memory_ = spare_memory ? std::move(spare_memory) : std::make_unique<WalkMemory>();
    memory_->exchange(walk_);
    const std::size_t count = walk_.log.records.size();
    if (walk_.slots.size() < count) walk_.slots.resize(count);
    walk_.wanted.assign(count / 8 + 1, 0);
    walk_.reached.assign(count / 8 + 1, 0);
    walk_.kept.assign(count / 8 + 1, 0);
    walk_.extent = count;
}

// No program intends this many nested walks of one log.
constexpr int kMostWalks = 100;

BackwardRun::BackwardRun(Tape& tape, const Tensor& y, const BackwardOptions& options, const Loc& loc, const char* what)
    : tape_begin_(tape.begin_), loc_(detail::caller(loc)), what_(what), scope_(*tape.log_), new_leaves_((take_in_joined(*tape.log_), *tape.log_)),
      walk_{*tape.log_, tape.begin_} {
    detail::refuse_in_instance(what, loc_);
    if (!y.defined()) detail::fail_undefined(what, loc_);
    Log& log = *tape.log_;
    if (log.walks > kMostWalks) {
        fail<TapeError>(loc_, "{}: it is called inside of itself {} times: by a hook that a backward of the same values calls again", what,
                        kMostWalks);
    }
    y_value_ = value_of(y);
    if (gdb::is_watching()) [[unlikely]]
        gdb::begin(what, y.impl(), loc_);
    if (options.gradient.defined()) {
        if (options.gradient.shape() != y.shape()) {
            fail<ShapeError>(loc_, "{}: the gradient has shape {}, the tensor has {}", what, options.gradient.shape(), y.shape());
        }
        detail::check_same_device(what, y, options.gradient, loc_);
        detail::begin_op(what, y.impl(), loc_);
        seed_ = options.gradient;
    } else {
        if (y.numel() != 1) {
            fail<TapeError>(loc_, "{}: needs a scalar, got shape {}; take its sum() or mean(), or pass its own gradient, of the same shape", what,
                            y.shape());
        }
        const CallerScope caller(loc_);
        seed_ = gradient_ops::ones(y.shape(), y.dtype(), y.device());
    }
    // An outer tape needs the rules on record and the saved tensors in place.
    const bool outermost = tape.outer_ == nullptr;
    const bool is_tracing = detail::is_tracing();  // then the rules' ops become part of the graph
    walk_.recording = options.create_graph || !outermost || is_tracing;
    walk_.only_traced = is_tracing && !options.create_graph && outermost;
    is_followed_ = walk_.recording && !is_tracing;
    notes_rows_ = outermost && !options.create_graph;
    walk_.may_be_watched = !scope_.was_muted() && !is_tracing;
    walk_.watched = detail::is_watched() && !is_tracing;  // watchers see the rules, not the ops that these call
    walk_.releasing = outermost && !options.create_graph && !options.retain_graph && !tape.persistent();
    take_memory();
    detail::thread.muted = !is_tracing;
    detail::set_log(walk_.recording ? &log : nullptr);
    if (seed_.dtype() != y.dtype()) {
        const CallerScope caller(loc_);
        seed_ = gradient_ops::cast(seed_, y.dtype());
    }
}

BackwardRun::~BackwardRun() {
    for (std::size_t i = 0; i < walk_.extent; ++i) {
        GradientSlot& slot = walk_.slots[i];
        if (slot.empty()) continue;
        slot.grad = Tensor();
        slot.pending.reset();
    }
    memory_->exchange(walk_);
    spare_memory = std::move(memory_);
}

// Every value on the tape leads to a leaf, or it would not have been recorded. From before an inner tape, only the
// leaves count.
void BackwardRun::want_all() {
    std::fill(walk_.wanted.begin(), walk_.wanted.end(), std::uint8_t{0xff});
    if (walk_.begin == 0) return;
    std::fill(walk_.wanted.begin(), walk_.wanted.begin() + static_cast<std::ptrdiff_t>(walk_.begin / 8), std::uint8_t{0});
    for (auto i = static_cast<std::uint32_t>(walk_.begin / 8 * 8); i < walk_.begin; ++i) {
        walk_.wanted[i >> 3] = static_cast<std::uint8_t>(walk_.wanted[i >> 3] & ~(1u << (i & 7)));
    }
    for (const std::uint32_t leaf : walk_.log.leaves) set(walk_.wanted, leaf);
}

// Marks the values that depend on one of the sources.
void BackwardRun::want(const std::vector<std::uint32_t>& sources) {
    for (const std::uint32_t source : sources) {
        if (source == kNoValue) continue;
        set(walk_.wanted, source);
        set(walk_.kept, source);
    }
    for (auto i = static_cast<std::uint32_t>(walk_.begin); i <= y_value_; ++i) {
        const Record& record = *walk_.log.records[i];
        if (record.flags & (Record::kLeaf | Record::kExtra)) continue;
        bool any = false;
        for (int k = 0; k < record.input_count && !any; ++k) {
            any = record.inputs()[k] != kNoValue && get(walk_.wanted, record.inputs()[k]);
        }
        if (!any && !(record.flags & Record::kOpaque)) continue;
        for (std::uint32_t k = 0; k < record.output_count; ++k) set(walk_.wanted, i + k);
    }
}

// See Note [What an error leaves behind].
void BackwardRun::check_reached() {
    for (const RowBlock::Reference& block : walk_.log.row_blocks) block->learn();
    set(walk_.reached, y_value_);
    for (std::size_t i = y_value_ + std::size_t{1}; i-- > walk_.begin;) {
        const auto index = static_cast<std::uint32_t>(i);
        const Record& record = *walk_.log.records[i];
        if (record.flags & (Record::kLeaf | Record::kExtra)) continue;
        bool any = false;
        for (std::uint32_t k = 0; k < record.output_count; ++k) any |= get(walk_.reached, index + k);
        if (!any) continue;
        bool useful = record.flags & Record::kOpaque;
        for (int k = 0; k < record.input_count; ++k) {
            const std::uint32_t input = record.inputs()[k];
            if (input == kNoValue || !get(walk_.wanted, input)) continue;
            set(walk_.reached, input);
            useful = true;
        }
        if (!useful) continue;
        if (record.flags & Record::kReleased) [[unlikely]] {
            fail<TapeError>(loc_,
                            "{}: the saved tensors of {} at {} were used up by the {} at {}; make the tape "
                            "persistent to run backward again",
                            what_, record.op->name, detail::file_and_line(record.loc), walk_.log.last_walk,
                            detail::file_and_line(walk_.log.last_backward));
        }
        for (int k = 0; k < record.saved_count; ++k) {
            const SavedTensor& saved = record.saved()[k];
            if (saved.impl->storage->version_now() == saved.version) [[likely]]
                continue;
            if (saved.impl->storage->is_unchecked) continue;
            const detail::ModuleRestore restore;
            detail::thread.module = record.module;  // the message names it
            fail<TapeError>(record.loc,
                            "{}: a tensor of shape {} that it saved for backward was modified in place at {}, "
                            "before the backward at {}",
                            record.op->name, Shape(saved.impl->sizes, saved.impl->rank), detail::file_and_line(saved.impl->storage->last_write),
                            detail::file_and_line(loc_));
        }
    }
}

void BackwardRun::walk() {
    check_reached();
    if (accumulates_) begin_reducing();
    new_leaves_.stay = true;
    if (walk_.watched) [[unlikely]] {
        WatcherList::each([&](OpWatcher& watcher) {
            walk_.by_rows |= watcher.wants_rows();
            watcher.begin_walk(walk_);
        });
    }
    if (walk_.releasing) {
        walk_.log.last_backward = loc_;
        walk_.log.last_walk = what_;
    }
    walk_.slots[y_value_].grad = std::move(seed_);
    BackwardStreams streams(walk_.log);
    walk_.streams = streams.are_several() ? &streams : nullptr;
    if (!reducers_.empty()) walk_.leaf_calls = this;
    walk_.run(walk_.begin, std::max<std::size_t>(y_value_ + std::size_t{1}, walk_.begin));
    walk_.streams = nullptr;
    walk_.leaf_calls = nullptr;
}

namespace {

// Returns a copy of a leaf's hooks: other threads' walks call them at the same time, and a hook may register another or remove itself.
std::vector<GradientHook> hooks_of(AutogradMeta& meta) {
    const std::lock_guard lock(detail::gradient_mutex());
    meta.drop_removed_hooks();
    return meta.hooks;
}

// The rule of a gradient that does not depend on x.
void constant_gradient_rule(Backward& b) { b.give(0, gradient_ops::zeros(b.input_shape(0), b.input_dtype(0), b.grad().device())); }
constexpr OpInfo constant_gradient_op{"constant_gradient", constant_gradient_rule, "A gradient that does not depend on what it is the gradient of."};

}  // namespace

// Prepares the gradient g of x for another differentiation: that of relu does not depend on x, so its own gradient is zeros, not an error.
Tensor BackwardRun::following(const Tensor& g, const Tensor& x) {
    if (!is_followed_ || tracked(g.impl(), walk_.log, loc_)) return g;
    const Tensor constant = g.detach();
    const Tensor* input = &x;
    TensorImpl* output = constant.impl();
    append_record(walk_.log, {constant_gradient_op, loc_, &input, 1, &output, 1, nullptr, 0});
    return constant;
}

// Collected gradients that no hook has to see stay collected.
// A gradient of rows becomes dense for the hooks. Returns these rows, so that hooks which only look do not change the step.
Tensor BackwardRun::run_hooks(std::uint32_t leaf_value) {
    AutogradMeta& meta = *walk_.log.records[leaf_value]->saved()[0].impl->meta;
    const std::vector<GradientHook> hooks = hooks_of(meta);
    if (hooks.empty()) return {};
    GradientSlot& slot = walk_.slots[leaf_value];
    Tensor used_rows;
    if (slot.pending) {
        walk_.sum_held(leaf_value);
        const Pending& pending = *slot.pending;
        if (meta.sparse && !slot.grad.defined() && pending.products.rows == 0 && !pending.rows.empty()) {
            used_rows = detail::indices_of(pending.rows);
        }
        walk_.flush(leaf_value);
    }
    const UsersFunction told(walk_);
    for (const GradientHook& hook : hooks) hook.apply(slot.grad);
    return used_rows;
}

// A leaf's new gradient. All are computed in full before the first is written.
struct BackwardRun::Result {
    AutogradMeta* meta;
    Tensor grad;
    bool add;               // grad: to the gradient that is there, in place
    Pending pending;        // collected parts, to be added to those of the leaf
    Tensor used_rows;       // of grad together with the existing gradient
    bool replaces = false;  // the gradient that is there is a part of this one
};

namespace detail {
void trace_addition(const Tensor& leaf);  // autograd/trace/tracer.cpp
}

BackwardRun::Result BackwardRun::result_of(std::uint32_t leaf_value, Tensor used_rows) {
    TensorImpl* leaf = walk_.log.records[leaf_value]->saved()[0].impl;
    const Shape shape(leaf->sizes, leaf->rank);
    AutogradMeta& meta = *leaf->meta;
    GradientSlot& slot = walk_.slots[leaf_value];
    if (detail::thread.trace != 0) [[unlikely]]
        detail::trace_addition(detail::handle_of(leaf));
    if (slot.pending) walk_.sum_held(leaf_value);
    if (walk_.watched) [[unlikely]]
        WatcherList::each([&](OpWatcher& watcher) { watcher.accumulate(walk_, leaf_value); });
    Result result{&meta, std::move(slot.grad), false, {}, {}};
    if (const auto pending = std::move(slot.pending)) result.pending = std::move(*pending);
    if (walk_.recording && !result.pending.rows.empty()) {  // they are part of the gradient, too
        if (notes_rows_ && meta.sparse) {
            std::vector<Tensor> parts;
            for (const SparseRows& part : result.pending.rows) parts.push_back(part.indices);
            used_rows = parts.size() == 1 ? gradient_ops::dense_copy(parts[0]) : gradient_ops::concatenate(parts);
        }
        result.pending.rows.clear();
    }
    if (meta.products.rows + result.pending.products.rows > meta.products.capacity() && meta.products.rows > 0) {
        detail::settle_gradient(meta, shape);  // the same gradient, computed
    }
    if (!result.pending.rows.empty()) {
        detail::own_rows(result.pending.rows);
        detail::bound_rows(meta, shape);
        meta.rows.reserve(meta.rows.size() + 1);
    }
    if (!result.grad.defined()) return result;
    if (!only_owner(result.grad)) result.grad = gradient_ops::dense_copy(result.grad);
    if (is_followed_) result.grad = following(result.grad, detail::handle_of(leaf));
    if (used_rows.defined() && meta.grad.defined()) {
        used_rows = meta.used_rows.defined() ? gradient_ops::concatenate({meta.used_rows, used_rows}) : Tensor();
    }
    result.used_rows = std::move(used_rows);
    if (meta.grad.defined()) {
        result.add = !walk_.recording && only_owner(meta.grad) && is_written_here(meta.grad);
        if (!result.add) {
            wait_for_writer(meta.grad);
            result.grad = gradient_ops::add(meta.grad, result.grad);
        }
    }
    return result;
}

// For the values whose gradients are to be retained.
std::vector<BackwardRun::Result> BackwardRun::retained_results() {
    std::vector<Result> results;
    for (const auto& [value, grad] : walk_.kept_grads) {
        const auto of = [&, at = value](const auto& entry) { return entry.first == at; };
        const auto found = std::find_if(walk_.log.retained.begin(), walk_.log.retained.end(), of);
        if (found == walk_.log.retained.end() || !grad.defined()) continue;
        AutogradMeta& meta = *found->second.impl()->meta;
        Tensor sum = meta.grad.defined() ? gradient_ops::add(meta.grad, grad) : gradient_ops::dense_copy(grad);
        results.push_back({&meta, std::move(sum), false, {}, {}});
    }
    return results;
}

// --- Gradients of several processes, see reducer_impl.h --------------------------------------------------------------------

static AutogradMeta& meta_of_leaf(const Log& log, std::uint32_t leaf_value) { return *log.records[leaf_value]->saved()[0].impl->meta; }

void BackwardRun::begin_reducing() {
    std::vector<GradientReducer*> found, alone;
    const auto is_new = [](std::vector<GradientReducer*>& in, GradientReducer* reducer) {
        if (std::find(in.begin(), in.end(), reducer) != in.end()) return false;
        in.push_back(reducer);
        return true;
    };
    for (const std::uint32_t leaf : walk_.log.leaves) {
        if (leaf >= walk_.extent || !get(walk_.reached, leaf)) continue;
        const AutogradMeta& meta = meta_of_leaf(walk_.log, leaf);
        if (!meta.reducer) continue;
        if (!meta.reducer->reduces()) {
            if (is_new(alone, meta.reducer)) meta.reducer->begin_alone(loc_);
            meta.reducer->check_accumulation(meta.reducer_place, loc_);
        } else if (is_new(found, meta.reducer)) {
            if (walk_.recording)
                fail<TapeError>(loc_,
                                "{}: the gradients of Replicas cannot be recorded, as by create_graph and by an outer tape; take tape.gradient(), "
                                "which is of this rank alone",
                                what_);
        }
    }
    for (GradientReducer* const reducer : found) {
        reducer->begin(loc_);
        reducers_.push_back(reducer);  // those that cancel() may be called for
    }
}

void BackwardRun::passed(std::uint32_t leaf_value) {
    AutogradMeta& meta = meta_of_leaf(walk_.log, leaf_value);
    GradientSlot& slot = walk_.slots[leaf_value];
    if (!meta.reducer || slot.empty() || std::find(reducers_.begin(), reducers_.end(), meta.reducer) == reducers_.end()) return;
    const CallerScope caller(loc_);
    const Tensor used_rows = run_hooks(leaf_value);
    if (slot.pending && meta.sparse) {
        walk_.sum_held(leaf_value);
        walk_.complete_products(leaf_value);
    } else if (slot.pending) {
        walk_.flush(leaf_value);
    }
    if (walk_.watched) [[unlikely]]
        WatcherList::each([&](OpWatcher& watcher) { watcher.accumulate(walk_, leaf_value); });
    meta.reducer->ready(meta.reducer_place, slot, used_rows);
}

std::vector<BackwardRun::Result> BackwardRun::results_of(GradientReducer& reducer) {
    std::vector<Result> results;
    for (GradientReducer::Reduced& reduced : reducer.finish()) {
        Result result{reduced.meta, std::move(reduced.grad), false, {}, {}, !reduced.adds};
        if (reduced.adds && result.grad.defined() && result.meta->grad.defined()) result.grad = gradient_ops::add(result.meta->grad, result.grad);
        result.pending.rows = std::move(reduced.rows);
        result.meta->rows.reserve(result.meta->rows.size() + result.pending.rows.size());
        results.push_back(std::move(result));
    }
    return results;
}

void BackwardRun::write(Result& result) {
    AutogradMeta& meta = *result.meta;
    if (result.replaces) meta.drop_gradient();
    if (result.grad.defined()) {
        meta.used_rows = std::move(result.used_rows);
        meta.note_rows_version(false);  // hooks may have written to it
    }
    if (result.add) {
        gradient_ops::add_into(meta.grad, result.grad);
    } else if (result.grad.defined()) {
        meta.grad = std::move(result.grad);
    }
    for (SparseRows& rows : result.pending.rows) meta.rows.push_back(std::move(rows));
    ProductRows& products = result.pending.products;
    if (products.rows == 0) return;
    if (meta.products.rows == 0) {
        meta.products = std::move(products);
    } else {
        meta.products.append(products);
    }
}

void BackwardRun::reduce_alone(GradientReducer& reducer, const Loc& loc) {
    reducer.begin(loc);
    try {
        const detail::PauseRecording pause;
        std::vector<Result> results = results_of(reducer);
        const std::lock_guard lock(detail::gradient_mutex());
        for (Result& result : results) write(result);
    } catch (const std::exception& e) {
        reducer.cancel(e.what());
        throw;
    }
    reducer.written();
}

void reduce_without_walk(GradientReducer& reducer, const Loc& loc) { BackwardRun::reduce_alone(reducer, loc); }

void BackwardRun::accumulate() {
    accumulates_ = true;
    const auto cancel = [this](const char* reason) {
        for (GradientReducer* const reducer : reducers_) reducer->cancel(reason);
    };
    try {
        accumulate_all();
    } catch (const std::exception& e) {
        cancel(e.what());
        throw;
    } catch (...) {
        cancel("an exception in backward()");
        throw;
    }
    for (GradientReducer* const reducer : reducers_) reducer->written();
}

void BackwardRun::accumulate_all() {
    want_all();
    for (const auto& [value, tensor] : walk_.log.retained) {
        if (value <= y_value_) set(walk_.kept, value);
    }
    walk();
    const CallerScope caller(loc_);  // the handling of leaves has no line of its own
    if (!reducers_.empty()) {
        for (const std::uint32_t leaf : walk_.log.leaves) {
            if (leaf < walk_.slots.size()) passed(leaf);
        }
    }
    std::vector<std::uint32_t> reached;
    for (const std::uint32_t leaf : walk_.log.leaves) {
        if (leaf < walk_.slots.size() && !walk_.slots[leaf].empty()) reached.push_back(leaf);
    }
    std::vector<Tensor> used_rows;
    used_rows.reserve(reached.size());
    for (const std::uint32_t leaf : reached) used_rows.push_back(run_hooks(leaf));
    std::vector<Result> results;
    for (GradientReducer* const reducer : reducers_) {
        for (Result& result : results_of(*reducer)) results.push_back(std::move(result));
    }
    const std::lock_guard lock(detail::gradient_mutex());
    for (Result& result : retained_results()) results.push_back(std::move(result));
    results.reserve(results.size() + reached.size());
    for (std::size_t i = 0; i < reached.size(); ++i) results.push_back(result_of(reached[i], std::move(used_rows[i])));
    for (Result& result : results) write(result);  // from here on nothing fails
    for (const std::uint32_t leaf : reached) {
        const AutogradMeta& meta = meta_of_leaf(walk_.log, leaf);
        if (meta.reducer) [[unlikely]]
            meta.reducer->accumulated(meta.reducer_place);
    }
}

std::vector<Tensor> BackwardRun::gradients(const std::vector<Tensor>& xs) {
    std::vector<std::uint32_t> values;
    values.reserve(xs.size());
    for (const Tensor& x : xs) {
        if (!x.defined()) detail::fail_undefined(what_, loc_);
        static_cast<void>(tracked(x.impl(), walk_.log, loc_));
        const std::uint32_t value = walk_.log.value_of(x.impl(), loc_);
        if (value == kNoValue) {
            fail<TapeError>(loc_, "{}: an x of shape {} is neither a leaf with requires_grad_() nor recorded on this tape", what_, x.shape());
        }
        values.push_back(value);
    }
    walk_.extend(walk_.log.records.size());  // a leaf named for the first time here has just got its record
    std::fill(walk_.wanted.begin(), walk_.wanted.end(), std::uint8_t{0});
    want(values);
    walk();
    const CallerScope caller(loc_);
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < xs.size(); ++i) {
        Tensor g;
        GradientSlot& slot = walk_.slots[values[i]];
        if (slot.pending) walk_.flush(values[i]);
        if (!slot.empty() && (walk_.log.records[values[i]]->flags & Record::kLeaf)) run_hooks(values[i]);
        if (slot.grad.defined()) g = slot.grad;
        for (const auto& [value, kept] : walk_.kept_grads) {
            if (value == values[i]) g = kept;
        }
        if (!g.defined()) g = gradient_ops::zeros(xs[i].shape(), xs[i].dtype(), xs[i].device());
        result.push_back(following(g, xs[i]));
    }
    return result;
}

void Tape::backward(const Tensor& loss, const BackwardOptions& options, Loc loc) {
    const detail::CallLine call(loc);
    const ProfileScope scope("backward", loc);
    BackwardRun(*this, loss, options, loc, "backward").accumulate();
}

std::vector<Tensor> gradient_as(const char* what, Tape& tape, const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options,
                                const Loc& loc) {
    const detail::CallLine call(loc);
    const ProfileScope scope(what, loc);
    return BackwardRun(tape, y, options, loc, what).gradients(xs);
}

std::vector<Tensor> Tape::gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options, Loc loc) {
    return gradient_as("gradient", *this, y, xs, options, loc);
}

std::vector<Tensor> gradient(const Tensor& y, const std::vector<Tensor>& xs, const BackwardOptions& options, Loc loc) {
    Tape* tape = Tape::current();
    if (!tape) fail_without_tape("gradient", y, loc);
    return tape->gradient(y, xs, options, loc);
}

}  // namespace tapir
