// Runs a graph as steps over slots: without records, names and checks, in memory that is reused.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/trace/graph/check_node_impl.h"
#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/graph/node_scope_impl.h"
#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/autograd/trace/run/frame_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace detail {
namespace {

// A second handle of a tensor that only this thread knows, made without an atomic instruction.
Tensor shared_with(const Tensor& mine) noexcept {
    TensorImpl* x = mine.impl();
    if (!x || __atomic_load_n(&x->refs, __ATOMIC_RELAXED) != 1) return mine;
    __atomic_store_n(&x->refs, 2, __ATOMIC_RELAXED);
    return Tensor::adopt(x);
}

// True if nobody would see a write to it.
bool is_forgotten(const Tensor& t, const Geometry& as) noexcept {
    if (!t.defined()) return false;
    const TensorImpl* x = t.impl();
    return only_owner(t) && !x->meta && !(x->flags & (TensorImpl::kRequiresGrad | TensorImpl::kMoved)) && x->dtype == as.dtype &&
        x->device == as.device && as.has_shape_of(x);
}

}  // namespace

void Plan::check_inputs(const Tensor* const* given, const Loc& loc) const {
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0 && !(given[i] && given[i]->defined()))
            fail<ValueError>(loc, "graph: the input {} is needed", graph_.inputs()[i]->name);
    }
}

// Calls the op, which makes the results.
void Plan::run_op(Call& call, Frame& frame, const Loc& loc) const {
    const Graph::Node& node = *call.step->node;
    const NodeScope scope(node, loc);
    run_form(node.form(), call.call, frame.made.data());
    for (std::size_t k = 0; k < node.results.size(); ++k) {
        // Numbers among the operands are tensors here, and may weigh more in a promotion.
        Tensor& y = frame.made[k];
        const DType dtype = node.results[k]->dtype;
        if (!y.defined()) fail<ValueError>(node.loc.line() ? node.loc : loc, "graph: {} gives no result {}", node.op(), k);
        if (y.dtype() == dtype) {
            call.results[k] = std::move(y);
        } else {
            call.results[k] = y.to(dtype);
            y = Tensor();
        }
    }
    // A hand-made graph may name fewer results than there are: nothing must be written into the slots after them.
    for (std::size_t k = node.results.size(); k < frame.made.size() && frame.made[k].defined(); ++k) {
        frame.made[k] = Tensor();
        call.gives_more = true;
    }
}

void Plan::run_first(Frame& frame, const Loc& loc) const {
    frame.roots.assign(at(slot_count_), kOutside);
    frame.seen.resize(at(slot_count_));
    for (std::size_t s = 0; s < tail_; ++s) {
        Call& call = frame.calls[s];
        run_op(call, frame, loc);
        for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
            const int slot = call.step->first_result + static_cast<int>(k);
            const Tensor& y = call.results[k];
            check_result(*call.step->node, k, y, call.call.inputs, loc);
            frame.roots[at(slot)] = slot;
            frame.seen[at(slot)] = Geometry(y);
            for (std::size_t i = 0; i < call.step->inputs.size(); ++i) {
                if (y.shares_storage(*call.call.inputs[i])) frame.roots[at(slot)] = frame.roots[at(call.step->inputs[i])];
            }
        }
        for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
    }
}

// --- Running ---------------------------------------------------------------------------------------------------------------------

// Its results are no longer in the block, and views of them are not kept.
void Plan::make_loose(Call& call, Frame& frame) const {
    if (call.early >= 0) {
        if (!frame.undo.empty() && frame.undo.back().call == &call) frame.undo.pop_back();
        leave_early(call, frame);
    }
    call.into = nullptr;
    for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
        const int slot = call.step->first_result + static_cast<int>(k);
        if (!frame.is_placed[at(slot)]) continue;
        frame.is_placed[at(slot)] = false;
        frame.loose.push_back(slot);
        for (Call& other : frame.calls) {
            const auto shows = [&](int input) { return frame.roots[at(input)] == slot; };
            if (!other.stays || std::none_of(other.step->inputs.begin(), other.step->inputs.end(), shows)) continue;
            other.stays = other.is_made = false;
            for (std::size_t i = 0; i < other.step->node->results.size(); ++i) frame.loose.push_back(other.step->first_result + static_cast<int>(i));
        }
    }
}

// Steps that cannot be run this way are left to the sequential run.
void Plan::run_at_once(Frame& frame, std::size_t from, std::size_t to) const {
    parallel_items(static_cast<std::int64_t>(to - from), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k = begin; k < end; ++k) {
            Call& call = frame.calls[at(frame.order[from + static_cast<std::size_t>(k)])];
            if (call.into && !call.is_made) call.is_done = call.into(call.call, call.results[0]);
        }
    });
    for (std::size_t i = from; i < to; ++i) {
        Call& call = frame.calls[at(frame.order[i])];
        if (call.into && !call.is_made && !call.is_done) make_loose(call, frame);
    }
}

void Plan::start_outgoing(Frame& frame, const Loc& loc) const {
    for (Outgoing& out : frame.outgoing) {
        const Geometry& as = frame.seen[at(out.slot)];
        Tensor& last = frame.slots[at(out.slot)];
        if (!is_forgotten(last, as)) {
            last.swap(out.other);
            if (!is_forgotten(last, as)) last = as.make(loc);
        }
        last.impl()->node = {};
        for (const int before : out.before) frame.slots[at(before)] = last;
    }
}

const Tensor& Plan::target_of(int update, const Tensor* const* given) const {
    const auto& [value, input] = targets_[at(update)];
    return input >= 0 && given[input] ? *given[input] : value->data;
}

// Decides the targets of early writes in this run.
void Plan::start_early(Frame& frame, const Tensor* const* given, const Loc& loc) const {
    for (EarlyWrite& early : frame.early) {
        const Tensor& target = target_of(early.update, given);
        const Geometry& as = frame.seen[at(early.slots.back())];
        const auto can = [&](int s) { return frame.calls[at(s)].into != nullptr; };
        const auto is_another = [&](const Tensor& x) { return x.impl() != target.impl() && x.shares_storage(target); };
        bool& is_active = early.is_active;
        is_active = !(kCanCapture && frame.captured) && target.is_contiguous() && target.device() == cpu && target.dtype() == as.dtype &&
            as.has_shape_of(target.impl()) && std::all_of(early.calls.begin(), early.calls.end(), can);
        for (std::size_t i = 0; is_active && i < input_slots_.size(); ++i) is_active = !given[i] || !given[i]->defined() || !is_another(*given[i]);
        for (std::size_t i = 0; is_active && i < held_.size(); ++i) is_active = !is_another(held_[i].second->data);
        const Tensor home = is_active ? target : as.make(loc);
        for (const int slot : early.slots) frame.slots[at(slot)] = home;
    }
}

// Saves a part before it is written early.
void Plan::keep_part(const Call& call, Frame& frame) const {
    if (!frame.early[at(call.early)].is_active) return;
    if (!call.into) return leave_early(call, frame);
    try {
        run_form(*call.part, {call.call.inputs, call.call.count - 1, call.call.attrs}, frame.made.data());
        Frame::Undo kept{&call, {}};
        for (int i = 0; i + 1 < call.call.count; ++i) kept.operands[at(i)] = i == 0 ? call.results[0] : *call.call.inputs[i];
        kept.operands[at(call.call.count - 1)] = frame.made[0].clone();
        frame.undo.push_back(std::move(kept));
    } catch (const Error&) {  // the op itself reports the error
        leave_early(call, frame);
    }
    frame.made[0] = Tensor();
}

// Redirects this write, and those after it, to a tensor beside the target.
void Plan::leave_early(const Call& call, Frame& frame) const {
    EarlyWrite& early = frame.early[at(call.early)];
    if (!early.is_active) return;
    early.is_active = false;
    const Tensor home = frame.seen[at(early.slots.back())].make(Loc{});
    bool is_after = false;
    for (std::size_t i = 0; i < early.calls.size(); ++i) {
        is_after = is_after || &frame.calls[at(early.calls[i])] == &call;
        if (is_after) frame.slots[at(early.slots[i])] = home;
    }
}

// Undoes the last write first.
void Plan::undo_early(Frame& frame) const noexcept {
    for (; !frame.undo.empty(); frame.undo.pop_back()) {
        const auto& [call, operands] = frame.undo.back();
        const Tensor* inputs[kMostOfPart];
        for (int i = 0; i < kMostOfPart; ++i) inputs[i] = &operands[at(i)];
        try {
            call->step->node->form().into({inputs, call->call.count, call->call.attrs}, operands[0]);
        } catch (const std::exception&) {  // out of memory: the others are restored all the same
        }
    }
}

// Returns false if a result has another shape than in the first run.
bool Plan::make_results(Call& call, Frame& frame, const Loc& loc) const {
    const Storage* block = frame.block.defined() ? frame.block.impl()->storage : nullptr;
    bool is_as_seen = true;
    run_op(call, frame, loc);
    for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
        const int slot = call.step->first_result + static_cast<int>(k), root = frame.roots[at(slot)];
        Tensor& y = call.results[k];
        const Geometry& as = frame.seen[at(slot)];
        is_as_seen = is_as_seen && y.defined() == as.is_defined && (!as.is_defined || as.has_shape_of(y.impl()));
        if (!y.defined() || y.impl()->storage != block || y.numel() == 0) continue;
        // A view that was none in the first run, or one of another tensor: its memory may be overwritten.
        const bool is_known = root >= 0 && root != slot && frame.is_placed[at(root)] && y.raw_data() >= frame.slots[at(root)].raw_data() &&
            y.impl()->data < frame.slots[at(root)].impl()->data + frame.seen[at(root)].bytes();
        if (!is_known) y = y.clone();
    }
    if (!is_as_seen) {  // sizes that depend on data: later results are made anew
        for (Call& other : frame.calls) {
            other.into = nullptr;
            other.stays = other.is_made = false;
        }
        frame.writes_directly = false;
    }
    call.is_made = call.stays;
    for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
    return is_as_seen;
}

void Plan::run_steps(Frame& frame, const Loc& loc) const {
    if (!frame.outgoing.empty()) start_outgoing(frame, loc);
    std::size_t together = 0;  // calls before this place in the order have run at once
    for (std::size_t i = 0, stage = 0; i < tail_; ++i) {
        if (frame.runs_at_once && i >= together) {
            while (stage < frame.stages.size() && at(frame.stages[stage]) <= i) ++stage;
            const std::size_t stage_end = stage < frame.stages.size() ? at(frame.stages[stage]) : tail_;
            if (stage_end > i + 1) {
                run_at_once(frame, i, stage_end);
                together = stage_end;
            }
        }
        Call& call = frame.calls[at(frame.order[i])];
        if (call.is_made) continue;
        if (call.early >= 0) [[unlikely]]
            keep_part(call, frame);
        if (call.into && (i < together || call.into(call.call, call.results[0]))) [[likely]] {
            for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
            continue;
        }
        if (call.into) make_loose(call, frame);
        make_results(call, frame, loc);
    }
}

// In each period of runs, the first few alternate; the others use the faster way, until one of them is slower.
void Plan::run_or_try(Frame& frame, const Loc& loc) const {
    constexpr int period = 256, tries = 8;
    const int now = frame.tries;
    frame.tries = (now + 1) % period;
    const bool is_forced = least_parallel_ns() == 0;  // for tests
    frame.runs_at_once = is_forced || (now < tries ? now % 2 == 1 : frame.is_faster_at_once);
    if (now >= tries && !frame.runs_at_once) return run_steps(frame, loc);
    const auto begin = std::chrono::steady_clock::now();
    run_steps(frame, loc);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (now < 2) frame.seconds[now][0] = frame.seconds[now][1] = seconds;
    // The best two of each way: a single run may be lucky.
    double(&best)[2] = frame.seconds[now % 2];
    if (now < tries && now >= 2) {
        if (now < 4 || seconds < best[1]) best[1] = seconds;
        if (best[1] < best[0]) std::swap(best[0], best[1]);
    }
    if (now + 1 == tries) frame.is_faster_at_once = frame.seconds[1][1] < 0.95 * frame.seconds[0][1];
    if (now >= tries && seconds > frame.seconds[0][1]) frame.is_faster_at_once = false;
}

void Plan::write_updates(Frame& frame, const Tensor* const* given, const Loc& loc) const {
    bool directly = frame.writes_directly;
    for (const int input : frame.tail_inputs) {
        for (std::size_t s = tail_; directly && s < steps_.size(); ++s) {
            for (const int update : steps_[s].updates) directly = directly && !given[input]->shares_storage(target_of(update, given));
        }
    }
    frame.is_written.assign(update_slots_.size(), false);
    for (const EarlyWrite& early : frame.early) {
        if (!early.is_active) continue;
        mark_written(target_of(early.update, given), steps_[at(early.calls.back())].node->loc);
        frame.is_written[at(early.update)] = true;
    }
    for (std::size_t s = tail_; s < steps_.size(); ++s) {
        Call& call = frame.calls[s];
        if (directly) {
            const std::vector<int>& updates = call.step->updates;
            Tensor several[kMostWritten];
            bool fits = !call.gives_more;
            for (std::size_t k = 0; k < updates.size(); ++k) {
                const Geometry& as = frame.seen[at(call.step->first_result) + k];
                fits = fits && as.is_defined && as.has_shape_of(target_of(updates[k], given).impl());
                if (updates.size() > 1) several[k] = target_of(updates[k], given);
            }
            if (fits && call.step->node->form().into(call.call, updates.size() > 1 ? several[0] : target_of(updates[0], given))) {
                for (const int update : updates) {
                    mark_written(target_of(update, given), call.step->node->loc);
                    frame.is_written[at(update)] = true;
                }
                continue;
            }
        }
        run_op(call, frame, loc);
        for (std::size_t k = 0; k < call.step->node->results.size(); ++k) frame.seen[at(call.step->first_result) + k] = Geometry(call.results[k]);
    }
    std::vector<std::pair<Tensor, Tensor>> others;
    for (std::size_t i = 0; i < update_slots_.size(); ++i) {
        if (!frame.is_written[i]) others.emplace_back(target_of(static_cast<int>(i), given), *frame.where[at(update_slots_[i])]);
    }
    if (!others.empty()) write_at_once(std::move(others), loc);
}

// Holds a frame during a run; after an error the frame is dropped.
struct Plan::Taken {
    Plan& plan;
    AtHand* place = nullptr;
    std::unique_ptr<Frame> frame;
    bool is_good = false;

    Taken(Plan& of, const Tensor* const* given, const Loc& loc) : plan(of), frame(of.take_frame(given, place, loc)) {}
    ~Taken() {
        if (!is_good) {
            plan.undo_early(*frame);
            frame.reset();
        }
        plan.give_back(std::move(frame), place);
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
};

void Plan::run(const Tensor* const* given, Tensor* results, const Loc& loc) {
    const PauseRecording pause;
    const PauseAutocast plain;
    if (writes_inputs_) check_written_inputs(graph_, given, loc);
    Taken taken(*this, given, loc);
    Frame& frame = *taken.frame;
    for (const auto& [place, input] : frame.input_arguments) *place = given[input];
    const bool was_learned = frame.is_learned;
    if (was_learned) [[likely]] {
        if (!frame.is_laid_out) lay_out(frame);  // pays off once the same sizes come again
        bool is_changed = false;
        for (std::size_t i = 0; i < held_.size(); ++i) is_changed |= frame.held[i].impl() != held_[i].second->data.impl();
        if (is_changed) {  // their tensors were replaced
            plan_updates(frame);
            for (Call& call : frame.calls) call.is_made = false;
        }
        if (!frame.early.empty()) start_early(frame, given, loc);
        if (!kCanCapture || !frame.captured || !run_captured(frame, given, loc)) [[likely]] {
            frame.stages.size() < tail_ ? run_or_try(frame, loc) : run_steps(frame, loc);
            frame.ran_on = &thread;
        }
    } else {
        run_first(frame, loc);
        frame.ran_on = &thread;
    }
    for (const auto& [slot, i] : guard_slots_) check_guard(graph_.guards()[at(i)], *frame.where[at(slot)], loc);
    const Storage* block = frame.block.defined() ? frame.block.impl()->storage : nullptr;
    for (std::size_t i = 0; i < result_slots_.size(); ++i) {
        const Tensor& y = *frame.where[at(result_slots_[i])];
        const bool is_in_block = y.defined() && ((block && y.impl()->storage == block) || (kCanCapture && frame.captured && is_captured(y)));
        Tensor handed = is_in_block || are_constants_[i] ? y.clone() : &y == &frame.slots[at(result_slots_[i])] ? shared_with(y) : y;
        results[i].swap(handed);
    }
    if (!update_slots_.empty()) write_updates(frame, given, loc);
    if (was_learned) {
        for (const int slot : frame.loose) frame.slots[at(slot)] = Tensor();
    } else {
        for (Tensor& t : frame.slots) t = Tensor();
        frame.is_learned = true;
    }
    frame.undo.clear();
    taken.is_good = true;
}

}  // namespace detail

// --- Graph::run -----------------------------------------------------------------------------------------------------------------

struct Graph::Plans {
    std::mutex mutex;
    std::vector<std::unique_ptr<detail::Plan>> plans;  // for several lists of outputs
    std::atomic<detail::Plan*> last{nullptr};          // the one that ran last

    detail::Plan* find(const Graph& graph, const std::vector<std::string>& outputs, const Loc& loc) {
        const std::lock_guard lock(mutex);
        auto known = std::find_if(plans.begin(), plans.end(), [&](const auto& one) { return one->outputs() == outputs; });
        if (known == plans.end()) known = plans.insert(known, std::make_unique<detail::Plan>(graph, outputs, /*in_slices=*/false, loc));
        last.store(known->get(), std::memory_order_release);
        return known->get();
    }
};

void Graph::changed() noexcept { delete plans_.exchange(nullptr); }

// Plans do not report to watchers or tracers.
static void refuse_in_trace(const char* what, const Loc& loc) {
    if (!detail::is_tracing() || !detail::is_watched()) return;
    fail<TapeError>(loc, "{}: a trace does not see what it computes; in a function that is traced call graph(inputs) instead", what);
}

// Lists the inputs, which have names, in the graph's order.
static void list_inputs(const char* what, const Graph& graph, const Graph::Inputs& inputs, detail::Given& given, const Loc& loc) {
    const auto& values = graph.inputs();
    for (const auto& [name, tensor] : inputs) {
        const auto place = std::find_if(values.begin(), values.end(), [&](const Graph::Value* value) { return value->name == name; });
        if (place == values.end()) {
            std::string names;
            for (const Graph::Value* value : values) names += (names.empty() ? "" : ", ") + value->name;
            fail<ValueError>(loc, "{}: there is no input {}; there are {}", what, name, names);
        }
        const Tensor*& there = given.data[place - values.begin()];
        if (there) fail<ValueError>(loc, "{}: the input {} is given twice", what, name);
        there = &tensor;
    }
}

std::vector<Tensor> Graph::run(const Inputs& inputs, const std::vector<std::string>& outputs, Loc loc) const {
    const detail::CallLine call(loc);
    refuse_in_trace("Graph::run", loc);
    detail::Given given(inputs_.size());
    list_inputs("Graph::run", *this, inputs, given, loc);
    detail::Plan& ready = plan(outputs, loc);
    std::vector<Tensor> results(ready.result_count());
    ready.run(given.data, results.data(), loc);
    return results;
}

detail::Plan& Graph::plan(const std::vector<std::string>& outputs, const Loc& loc) const {
    Plans* plans = plans_.load(std::memory_order_acquire);
    if (!plans) {
        auto fresh = std::make_unique<Plans>();
        if (plans_.compare_exchange_strong(plans, fresh.get())) plans = fresh.release();
    }
    detail::Plan* last = plans->last.load(std::memory_order_acquire);
    return last && last->outputs() == outputs ? *last : *plans->find(*this, outputs, loc);
}

void detail::run_in_order(const Graph& graph, const Tensor* const* given, Tensor* results, const Loc& loc) {
    static const std::vector<std::string> all;
    graph.plan(all, loc).run(given, results, loc);
}

std::size_t detail::planned_bytes(const Graph& graph) {
    Graph::Plans* plans = graph.plans_.load(std::memory_order_acquire);
    if (!plans) return 0;
    const std::lock_guard lock(plans->mutex);
    std::size_t bytes = 0;
    for (const auto& one : plans->plans) bytes += one->planned_bytes();
    return bytes;
}

// --- CompiledGraph ---------------------------------------------------------------------------------------------------------------

// TAPIR_SLICES=off: to compare.
static bool may_slice() {
    const char* const wish = std::getenv("TAPIR_SLICES");
    return !wish || std::strcmp(wish, "off") != 0;
}

struct CompiledGraph::State {
    Graph graph;  // a copy, for its names
    detail::Plan plan;
    std::vector<int> inputs;
    std::vector<std::string> input_names;

    State(const Graph& from, const std::vector<std::string>& outputs, const Loc& loc)
        : graph(from), plan(graph, outputs, may_slice(), loc), inputs(plan.needed_inputs()) {
        for (const int i : inputs) input_names.push_back(graph.inputs()[static_cast<std::size_t>(i)]->name);
    }
};

CompiledGraph Graph::compile(const std::vector<std::string>& outputs, Loc loc) const {
    const detail::CallLine call(loc);
    return CompiledGraph(std::make_shared<CompiledGraph::State>(*this, outputs, loc));
}

const std::vector<std::string>& CompiledGraph::inputs() const noexcept { return state_->input_names; }
std::size_t CompiledGraph::output_count() const noexcept { return state_->plan.result_count(); }
std::size_t CompiledGraph::planned_bytes() const { return state_->plan.planned_bytes(); }

void CompiledGraph::run_in_order(const Tensor* const* inputs, std::size_t input_count, Tensor* outputs, std::size_t count, const Loc& loc) const {
    const detail::CallLine call(loc);
    refuse_in_trace("CompiledGraph", loc);
    const std::vector<int>& places = state_->inputs;
    if (input_count != places.size()) {
        fail<ValueError>(loc, "CompiledGraph: {} inputs given, it has {}: {}", input_count, places.size(), fmt::join(state_->input_names, ", "));
    }
    if (count != output_count()) fail<ValueError>(loc, "CompiledGraph: {} outputs asked for, it has {}", count, output_count());
    if (places.size() == state_->graph.inputs().size()) return state_->plan.run(inputs, outputs, loc);
    detail::Given given(state_->graph.inputs().size());
    for (std::size_t i = 0; i < input_count; ++i) given.data[places[i]] = inputs[i];
    state_->plan.run(given.data, outputs, loc);
}

std::vector<Tensor> CompiledGraph::operator()(const std::vector<Tensor>& inputs, Loc loc) const {
    const detail::CallLine call(loc);
    detail::Given addresses(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) addresses.data[i] = &inputs[i];
    std::vector<Tensor> results(output_count());
    run_in_order(addresses.data, inputs.size(), results.data(), results.size(), loc);
    return results;
}

std::vector<Tensor> CompiledGraph::run(const Graph::Inputs& inputs, Loc loc) const {
    const detail::CallLine call(loc);
    refuse_in_trace("CompiledGraph::run", loc);
    detail::Given given(state_->graph.inputs().size());
    list_inputs("CompiledGraph::run", state_->graph, inputs, given, loc);
    std::vector<Tensor> results(output_count());
    state_->plan.run(given.data, results.data(), loc);
    return results;
}

}  // namespace tapir
