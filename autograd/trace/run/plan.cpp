// Makes a plan of a graph, and its frames.
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/autograd/trace/passes/simplify_impl.h"
#include "tapir/autograd/trace/passes/slice_batch_impl.h"
#include "tapir/autograd/trace/run/frame_impl.h"
#include "tapir/autograd/trace/run/fused_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {
namespace {

constexpr std::size_t kMostFrames = 4;  // limit on the unused frames of one plan, where there are not more threads

// Without names: all outputs. Then the values of guards. Then, without names, the values of updates.
std::vector<const Graph::Value*> wanted_values(const Graph& graph, const std::vector<std::string>& outputs, const Loc& loc) {
    std::vector<const Graph::Value*> wanted;
    for (const std::string& name : outputs) wanted.push_back(graph.value(name, loc));
    if (outputs.empty()) {
        for (const Graph::Output& output : graph.outputs()) wanted.push_back(output.value);
    }
    for (const Graph::Guard& guard : graph.guards()) wanted.push_back(guard.value);
    if (outputs.empty()) {
        for (const Graph::Update& update : graph.updates()) wanted.push_back(update.value);
    }
    return wanted;
}

using Needed = std::unordered_set<const Graph::Value*>;

bool makes_needed(const Graph::Node& node, const Needed& needed) {
    return std::any_of(node.results.begin(), node.results.end(), [&](const Graph::Value* value) { return needed.count(value) > 0; });
}

// These values, and all that they are computed from. all_draws: also unused random numbers, since they decide what the others get.
Needed needed_for(const Graph& graph, const std::vector<const Graph::Value*>& wanted, bool all_draws) {
    Needed needed(wanted.begin(), wanted.end());
    for (std::size_t i = graph.nodes().size(); i-- > 0;) {
        const Graph::Node& node = *graph.nodes()[i];
        if (all_draws && node.attributes().is_random()) needed.insert(node.results.begin(), node.results.end());
        if (makes_needed(node, needed)) needed.insert(node.inputs.begin(), node.inputs.end());
    }
    return needed;
}

// Adds the names of dimensions that attributes depend on.
void add_dims(const Attributes& attributes, std::unordered_set<std::string>& names) {
    if (!attributes.is_symbolic()) return;
    const auto add = [&](const SymInt& size) {
        for (std::string& name : size.dims()) names.insert(std::move(name));
    };
    for (const auto& [name, attribute] : attributes.all()) {
        if (const auto* size = std::get_if<SymInt>(&attribute)) add(*size);
        if (const auto* sizes = std::get_if<std::vector<SymInt>>(&attribute)) std::for_each(sizes->begin(), sizes->end(), add);
        if (const auto* part = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
            for (const auto& node : (*part)->nodes()) add_dims(node->attributes(), names);
        }
    }
}

// Adds inputs that determine the sizes of these dimensions, if no needed input does.
void add_inputs_of_sizes(const Graph& graph, Needed& needed) {
    std::unordered_set<std::string> names;
    for (const auto& node : graph.nodes()) {
        if (makes_needed(*node, needed)) add_dims(node->attributes(), names);
    }
    const auto each = [&](bool is_needed, const auto& visit) {  // for the inputs that determine the size of a dimension
        for (const Graph::Value* input : graph.inputs()) {
            for (const SymInt& size : input->shape) {
                const std::optional<SymInt::OfOneDim> one = size.of_one_dim();
                if (one && names.count(one->dim) > 0 && (needed.count(input) > 0) == is_needed) visit(input, one->dim);
            }
        }
    };
    std::unordered_set<std::string> known;
    each(true, [&](const Graph::Value*, const std::string& name) { known.insert(name); });
    for (const std::string& name : known) names.erase(name);
    std::vector<const Graph::Value*> others;
    each(false, [&](const Graph::Value* input, const std::string& name) {
        others.push_back(input);
        names.erase(name);  // one input is enough
    });
    needed.insert(others.begin(), others.end());
}

// Prepares the graph that runs: joins the needed element-wise ops.
Graph prepared(Graph graph, const std::vector<std::string>& outputs, bool in_slices, const Loc& loc) {
    remove_gradient_stops(graph, /*only_idle=*/false);
#ifndef TAPIR_RUNTIME  // the runtime has no simplifications: optimize() does this before a graph is saved
    rewrite::simplify_overwriting(graph);
#endif
    const Needed needed = needed_for(graph, wanted_values(graph, outputs, loc), outputs.empty());
    std::unordered_set<const Graph::Node*> nodes;
    for (const auto& node : graph.nodes()) {
        if (makes_needed(*node, needed)) nodes.insert(node.get());
    }
    const auto is_needed = [&](const Graph::Node& node) { return nodes.count(&node) > 0; };
#ifndef TAPIR_RUNTIME  // which has no oneDNN, and so no images with their channels last
    if (in_slices) slice_batch(graph, is_needed);
    // Joins first: they take relu ops that convolutions would.
    fuse_joins(graph, is_needed);
    fuse_convolutions(graph, is_needed);
#endif
    drop_pool_indices(graph, is_needed);
    fuse_elementwise(graph, is_needed);
    batch_products(graph, is_needed);
    pack_weights(graph, is_needed);
    return graph;
}

}  // namespace

bool takes_any_layout(const OpForm& form) noexcept {
    const std::optional<FusedOp> op = fused_op(form);
    return is_fused_form(form) || (op && (op->elementwise >= 0 || op->condition >= 0));
}

// An element-wise op or an optimizer's update whose results are only written to parameters writes there itself, after all others,
// which see the old values. Returns the update of each result; empty if the node is not of this kind.
static std::vector<int> updates_written_by(const Graph& graph, const Graph::Node& node) {
    const OpForm& form = node.form();
    if (node.results.size() > kMostWritten) return {};
    if (form.is_update ? node.results.size() + 1 != node.inputs.size() : node.results.size() != 1 || !form.is_in_place) return {};
    std::vector<int> updates;
    std::vector<const Graph::Value*> own;  // targets
    for (const Graph::Value* result : node.results) {
        int update = -1;
        for (std::size_t i = 0; i < graph.updates().size(); ++i) {
            if (graph.updates()[i].value != result) continue;
            if (update >= 0) return {};
            update = static_cast<int>(i);
        }
        if (update < 0 || !result->uses.empty()) return {};
        const Graph::Value* target = graph.updates()[at(update)].target;
        const auto writes_it = [&](const Graph::Update& other) { return other.target == target; };
        if (target->kind != Graph::Kind::parameter || std::count_if(graph.updates().begin(), graph.updates().end(), writes_it) > 1) return {};
        updates.push_back(update);
        own.push_back(target);
    }
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const auto writes_it = [&](const Graph::Update& update) { return update.target == node.inputs[i]; };
        if (std::none_of(graph.updates().begin(), graph.updates().end(), writes_it)) continue;
        const std::size_t result = form.is_update && i > 0 ? i - 1 : 0;
        if ((form.is_update && i == 1) || own[result] != node.inputs[i]) return {};
    }
    return updates;
}

// The slots of a plan's values, used while it is made.
class Plan::Slots {
 public:
    explicit Slots(Plan& plan) : plan_(plan) {}
    int add(const Graph::Value* value) {
        of_[value] = plan_.slot_count_;
        plan_.last_use_.push_back(-1);
        return plan_.slot_count_++;
    }
    int of(const Graph::Value* value) const { return of_.at(value); }

 private:
    Plan& plan_;
    std::unordered_map<const Graph::Value*, int> of_;
};

Plan::Plan(const Graph& graph, std::vector<std::string> outputs, bool in_slices, const Loc& loc)
    : graph_(prepared(graph, outputs, in_slices, loc)), outputs_(std::move(outputs)), is_whole_(outputs_.empty()),
      writes_inputs_(writes_inputs(graph)) {
    const std::vector<const Graph::Value*> wanted = wanted_values(graph_, outputs_, loc);
    const std::size_t result_count = is_whole_ ? graph_.outputs().size() : outputs_.size();
    Needed needed = needed_for(graph_, wanted, is_whole_);
    for (std::size_t i = 0; is_whole_ && i < graph_.updates().size(); ++i) needed.insert(graph_.updates()[i].target);
    add_inputs_of_sizes(graph_, needed);
    // The owners of the tensors: a program may replace a tensor there.
    std::unordered_map<int, const Graph::Value*> originals;
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) originals[value->number] = value;
    }
    const auto holder = [&](const Graph::Value* value) {
        const auto original = originals.find(value->number);
        return original == originals.end() ? value : original->second;
    };
    Slots slots(*this);
    for (const Graph::Value* value : graph_.inputs()) input_slots_.push_back(needed.count(value) ? slots.add(value) : -1);
    for (const auto* list : {&graph_.parameters(), &graph_.constants()}) {
        for (const Graph::Value* value : *list) {
            if (needed.count(value)) held_.emplace_back(slots.add(value), holder(value));
        }
    }
    add_steps(slots, needed, Needed(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(result_count + graph_.guards().size())));
    for (const Graph::Value* value : wanted) last_use_[at(slots.of(value))] = kToTheEnd;
    note_dead();
    for (std::size_t i = 0; i < result_count; ++i) {
        result_slots_.push_back(slots.of(wanted[i]));
        are_constants_.push_back(rewrite::is_of_constant(wanted[i]));
    }
    for (std::size_t i = 0; i < graph_.guards().size(); ++i) guard_slots_.emplace_back(slots.of(graph_.guards()[i].value), static_cast<int>(i));
    for (std::size_t i = 0; is_whole_ && i < graph_.updates().size(); ++i) {
        const auto& [target, value] = graph_.updates()[i];
        update_slots_.push_back(slots.of(value));
        const auto input = std::find(graph_.inputs().begin(), graph_.inputs().end(), target);
        targets_.emplace_back(holder(target), input == graph_.inputs().end() ? -1 : static_cast<int>(input - graph_.inputs().begin()));
    }
}

// Adds steps; those that write updates come last. seen: values that are used for more than updates.
void Plan::add_steps(Slots& slots, const std::unordered_set<const Graph::Value*>& needed, const std::unordered_set<const Graph::Value*>& seen) {
    std::unordered_map<const Graph::Node*, std::vector<int>> writers;
    for (const auto& node : graph_.nodes()) {
        if (!is_whole_ || makes_needed(*node, seen)) continue;
        std::vector<int> updates = updates_written_by(graph_, *node);
        if (!updates.empty()) writers.emplace(node.get(), std::move(updates));
    }
    for (const bool is_tail : {false, true}) {
        if (is_tail) tail_ = steps_.size();
        for (const auto& node : graph_.nodes()) {
            const auto writes = writers.find(node.get());
            if ((writes != writers.end()) != is_tail || !makes_needed(*node, needed)) continue;
            Step step{node.get(), {}, slot_count_, {}, is_tail ? writes->second : std::vector<int>()};
            const int number = static_cast<int>(steps_.size());
            for (const Graph::Value* input : node->inputs) {
                step.inputs.push_back(slots.of(input));
                last_use_[at(step.inputs.back())] = number;
            }
            for (const Graph::Value* result : node->results) last_use_[at(slots.add(result))] = number;
            steps_.push_back(std::move(step));
        }
    }
}

// Finds the step after which each result is not needed any more.
void Plan::note_dead() {
    for (const Step& step : steps_) {
        for (std::size_t k = 0; k < step.updates.size(); ++k) last_use_[at(step.first_result) + k] = static_cast<int>(&step - steps_.data());
        for (std::size_t k = 0; k < step.node->results.size(); ++k) {
            const int slot = step.first_result + static_cast<int>(k), last = last_use_[at(slot)];
            if (last != kToTheEnd) steps_[at(last)].dead.push_back(slot);
        }
    }
}

Plan::~Plan() = default;

std::vector<int> Plan::needed_inputs() const {
    std::vector<int> list;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0) list.push_back(static_cast<int>(i));
    }
    return list;
}

// --- Frames ----------------------------------------------------------------------------------------------------------------------

bool are_alike(const Tensor& a, const Tensor& b) noexcept {
    const TensorImpl *x = a.impl(), *y = b.impl();
    return x && y && x->dtype == y->dtype && x->device == y->device && x->rank == y->rank && std::equal(x->sizes, x->sizes + x->rank, y->sizes);
}

bool Plan::fits(const Frame& frame, const Tensor* const* given) const noexcept {
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        const Geometry& as = frame.given[i];
        const TensorImpl* x = given[i] ? given[i]->impl() : nullptr;
        if ((x != nullptr) != as.is_defined) return false;
        if (x && (x->dtype != as.dtype || x->device != as.device || !as.has_shape_of(x))) return false;
    }
    for (std::size_t i = 0; i < held_.size(); ++i) {  // a program may replace them; a new frame checks that
        const Tensor &now = held_[i].second->data, &as = frame.held[i];
        if (now.impl() != as.impl() && !are_alike(now, as)) return false;
    }
    return true;
}

// The frame at hand costs nothing; others are for other shapes, and for more threads than there are places.
std::unique_ptr<Plan::Frame> Plan::take_frame(const Tensor* const* given, AtHand*& place, const Loc& loc) {
    const void* const me = &thread;
    // Addresses of thread-local variables are multiples of large powers of 2, so they are hashed.
    AtHand& mine = at_hand_[(reinterpret_cast<std::uintptr_t>(me) * std::uintptr_t{0x9e3779b97f4a7c15}) >> (8 * sizeof(std::uintptr_t) - 2)];
    const void* owner = mine.owner.load(std::memory_order_relaxed);
    if (!owner && mine.owner.compare_exchange_strong(owner, me, std::memory_order_relaxed)) owner = me;
    place = owner == me ? &mine : nullptr;
    if (place && mine.frame && fits(*mine.frame, given)) [[likely]]
        return std::move(mine.frame);
    check_inputs(given, loc);
    return other_frame(given, place, loc);
}

std::unique_ptr<Plan::Frame> Plan::other_frame(const Tensor* const* given, AtHand* place, const Loc& loc) {
    std::unique_ptr<Frame> frame;
    if (place) {
        frame = std::move(place->frame);
        place->bytes.store(0, std::memory_order_relaxed);
    }
    {
        const std::lock_guard lock(mutex_);
        if (frame) idle_.push_back(std::move(frame));
        const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& other) { return fits(*other, given); });
        if (found != idle_.rend()) {
            frame = std::move(*found);
            idle_.erase(std::next(found).base());
            return frame;
        }
        if (idle_.size() >= std::max(kMostFrames, at(num_threads()))) idle_.erase(idle_.begin());
    }
    return make_frame(given, loc);
}

// The bytes that a frame keeps between runs.
std::size_t Plan::bytes_in(const Frame& frame) const {
    return (frame.block.defined() ? frame.block.nbytes() : 0) + (kCanCapture && frame.captured ? bytes_of(*frame.captured) : 0);
}

// frame: null after an error.
void Plan::give_back(std::unique_ptr<Frame> frame, AtHand* place) {
    const std::size_t bytes = frame ? bytes_in(*frame) : 0;
    if (place && !place->frame) {  // a nested run may have put its own there
        place->frame = std::move(frame);
        place->bytes.store(bytes, std::memory_order_relaxed);
        return;
    }
    if (!frame) return;
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(frame));
}

std::size_t Plan::planned_bytes() {
    std::size_t bytes = 0;
    for (const AtHand& place : at_hand_) bytes += place.bytes.load(std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    for (const std::unique_ptr<Frame>& frame : idle_) bytes += bytes_in(*frame);
    for (const Step& step : steps_) {
        if (!step.node->attributes().has_graph()) continue;
        for (const auto& [name, attribute] : step.node->attributes().all()) {
            if (const auto* part = std::get_if<std::shared_ptr<const Graph>>(&attribute); part && *part) bytes += detail::planned_bytes(**part);
        }
    }
    return bytes;
}

std::unique_ptr<Plan::Frame> Plan::make_frame(const Tensor* const* given, const Loc& loc) const {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) inputs.push_back(given[i] ? *given[i] : Tensor());
    const DimSizes sizes = sizes_of_inputs(graph_, inputs.data(), loc);
    for (const auto& [slot, value] : held_) check_held(*value, loc);
    auto frame = std::make_unique<Frame>();
    for (std::size_t i = 0; i < input_slots_.size(); ++i) frame->given.emplace_back(inputs[i]);
    frame->slots.resize(at(slot_count_));
    for (Tensor& slot : frame->slots) frame->where.push_back(&slot);
    std::vector<int> input_of(at(slot_count_), -1);
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] < 0) continue;
        input_of[at(input_slots_[i])] = static_cast<int>(i);
        frame->input_arguments.emplace_back(&frame->where[at(input_slots_[i])], static_cast<int>(i));
    }
    for (const auto& [slot, value] : held_) {
        if (slot >= 0) frame->where[at(slot)] = &value->data;
        frame->held.push_back(value->data);
    }
    std::size_t count = 0;
    for (const Step& step : steps_) count += step.inputs.size();
    frame->arguments.reserve(count);
    frame->resolved.reserve(steps_.size());
    for (const Step& step : steps_) {
        const Attributes& attributes = step.node->attributes();
        if (attributes.is_symbolic()) frame->resolved.push_back(attributes.with(sizes, step.node->loc.line() ? step.node->loc : loc));
        const void* data = attributes.is_symbolic() ? frame->resolved.back().data() : attributes.data();
        const FormCall call{frame->arguments.data() + frame->arguments.size(), static_cast<int>(step.inputs.size()), data};
        for (const int slot : step.inputs) {
            if (input_of[at(slot)] >= 0) frame->input_arguments.emplace_back(frame->arguments.data() + frame->arguments.size(), input_of[at(slot)]);
            frame->arguments.push_back(frame->where[at(slot)]);
        }
        frame->calls.push_back({call, nullptr, &step, frame->slots.data() + step.first_result, step.dead});
    }
    return frame;
}

}  // namespace tapir::detail
