// Running a graph as steps over slots: without records, names and checks, in memory that is used again.
#include "tapir/autograd/trace/runner_impl.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/trace/compiled_graph.h"
#include "tapir/autograd/trace/passes.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/fused_impl.h"
#include "tapir/ops/parallel_impl.h"

namespace tapir {
namespace detail {
namespace {

constexpr int kOutside = -1;           // a root: an input, a parameter or a constant
constexpr int kToTheEnd = INT_MAX;     // a last use
constexpr std::size_t kMostFrames = 4;  // that nobody uses, of one plan
constexpr std::size_t kMostConstantBytes = 64 * 1024;  // that a step keeps

std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

// Whether its result may lie where one of its operands does.
bool runs_in_place(const OpForm& form) noexcept { return elementwise_index(form) >= 0 || is_fused_form(form); }

std::string attributes_of(const Graph& graph) {
    std::string text;
    for (const auto& node : graph.nodes()) {
        for (const auto& [name, value] : node->attributes.all()) text += name + "=" + to_string(value) + " ";
        text += "\n";
    }
    return text;
}

// What runs: the graph with element-wise ops put together, of those that are needed.
Graph prepared(Graph graph, const std::vector<std::string>& outputs, const Loc& loc) {
    std::unordered_set<const Graph::Value*> needed;
    for (const std::string& name : outputs) needed.insert(graph.value(name, loc));
    for (const Graph::Guard& guard : graph.guards()) needed.insert(guard.value);
    if (outputs.empty()) {
        for (const Graph::Output& output : graph.outputs()) needed.insert(output.value);
        for (const Graph::Update& update : graph.updates()) needed.insert(update.value);
        for (const auto& node : graph.nodes()) {
            if (node->attributes.is_random()) needed.insert(node->results.begin(), node->results.end());
        }
    }
    std::unordered_set<const Graph::Node*> nodes;
    for (std::size_t i = graph.nodes().size(); i-- > 0;) {
        const Graph::Node& node = *graph.nodes()[i];
        if (std::none_of(node.results.begin(), node.results.end(), [&](const Graph::Value* value) { return needed.count(value) > 0; })) continue;
        needed.insert(node.inputs.begin(), node.inputs.end());
        nodes.insert(&node);
    }
    const auto is_needed = [&](const Graph::Node& node) { return nodes.count(&node) > 0; };
    fuse_elementwise(graph, is_needed);
    batch_products(graph, is_needed);
    return graph;
}

// Loops and branches, which may draw random numbers.
bool has_graph(const Graph::Node& node) {
    const auto all = node.attributes.all();
    return std::any_of(all.begin(), all.end(), [](const auto& one) { return std::holds_alternative<std::shared_ptr<const Graph>>(one.second); });
}

// What a tensor must be for its place to be found in a frame.
struct Geometry {
    Shape shape;
    DType dtype = float32;
    Device device;
    bool is_defined = false, is_contiguous = false;

    Geometry() = default;
    explicit Geometry(const Tensor& x) {
        if (!x.defined()) return;
        shape = x.shape();
        dtype = x.dtype();
        device = x.device();
        is_defined = true;
        is_contiguous = x.is_contiguous();
    }
    bool has_shape_of(const TensorImpl* x) const noexcept {
        if (x->rank != shape.rank()) return false;
        for (int d = 0; d < x->rank; ++d) {
            if (x->sizes[d] != shape.raw(d)) return false;
        }
        return true;
    }
    std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * itemsize(dtype); }
};

// Free places in a block that grows.
class Places {
 public:
    std::size_t take(std::size_t bytes) {
        auto best = free_.end();
        for (auto place = free_.begin(); place != free_.end(); ++place) {
            if (place->bytes >= bytes && (best == free_.end() || place->bytes < best->bytes)) best = place;
        }
        if (best == free_.end()) {
            if (!free_.empty() && free_.back().begin + free_.back().bytes == size_) {
                const std::size_t begin = free_.back().begin;
                free_.pop_back();
                size_ = begin + bytes;
                return begin;
            }
            size_ += bytes;
            return size_ - bytes;
        }
        const std::size_t begin = best->begin;
        best->begin += bytes;
        best->bytes -= bytes;
        if (best->bytes == 0) free_.erase(best);
        return begin;
    }
    void give_back(std::size_t begin, std::size_t bytes) {
        auto after = std::find_if(free_.begin(), free_.end(), [&](const Place& place) { return place.begin > begin; });
        after = free_.insert(after, {begin, bytes});
        if (const auto next = after + 1; next != free_.end() && after->begin + after->bytes == next->begin) {
            after->bytes += next->bytes;
            free_.erase(next);
        }
        if (after == free_.begin()) return;
        if (const auto before = after - 1; before->begin + before->bytes == after->begin) {
            before->bytes += after->bytes;
            free_.erase(after);
        }
    }
    std::size_t size() const noexcept { return size_; }

 private:
    struct Place {
        std::size_t begin, bytes;
    };
    std::vector<Place> free_;  // by where they begin
    std::size_t size_ = 0;
};

// A result that leaves the graph: the tensors of the last two runs, in the slot and here, one of which may be written to again. Two, since a
// program may give a run what the last one gave it.
struct Outgoing {
    int slot;
    Tensor other;
};

// Another handle of what only this thread knows: no atomic instruction is needed for the second one.
Tensor shared_with(const Tensor& mine) noexcept {
    TensorImpl* x = mine.impl();
    if (!x || __atomic_load_n(&x->refs, __ATOMIC_RELAXED) != 1) return mine;
    __atomic_store_n(&x->refs, 2, __ATOMIC_RELAXED);
    return Tensor::adopt(x);
}

// Whether nobody would see that it is written to.
bool is_forgotten(const Tensor& t, const Geometry& as) noexcept {
    if (!t.defined()) return false;
    const TensorImpl* x = t.impl();
    return only_owner(t) && !x->meta && !(x->flags & (TensorImpl::kRequiresGrad | TensorImpl::kMoved)) && x->dtype == as.dtype &&
           x->device == as.device && as.has_shape_of(x);
}

}  // namespace

// A step of a frame.
struct Plan::Call {
    FormCall call;
    bool (*into)(const FormCall&, const Tensor&);  // null: its results are made
    const Step* step;
    Tensor* results;
    std::vector<int> dead = {};  // slots to be emptied after it
    bool stays = false;          // once made: views of what lies in the block, and what depends on constants only
    bool is_made = false;
    bool is_done = false;        // at once with others
};

struct Plan::Frame {
    std::vector<Geometry> given;            // by the graph's inputs
    std::vector<Tensor> slots;              // results
    std::vector<const Tensor*> where;       // of each slot: here, in the graph, or among the inputs
    std::vector<const Tensor*> arguments;   // of all calls
    std::vector<std::pair<std::size_t, int>> input_arguments;  // places in it, and which input belongs there
    std::vector<Call> calls;
    std::vector<Attributes> resolved;       // those that depend on sizes
    std::vector<Tensor> made = std::vector<Tensor>(kMostResults);  // by the op that runs
    std::vector<TensorImpl*> held;          // parameters and constants, as they were when updates were planned
    bool is_learned = false, is_laid_out = false, writes_directly = false;
    std::vector<int> roots;                 // of each slot: whose elements it shows; itself, kOutside
    std::vector<Geometry> seen;             // of each slot
    std::vector<bool> is_placed;            // in the block
    std::vector<int> loose;                 // slots to be emptied at the end
    std::vector<Outgoing> outgoing;
    std::vector<int> order;                 // of the calls but those of updates
    std::vector<int> stages;                // where each begins in it: calls of one stage may run at once
    // Whether that is faster is tried: a machine may have others to do.
    int tries = 0;
    bool runs_at_once = false, is_faster_at_once = false;
    double seconds[2][2] = {};              // the best two, one after the other and at once
    std::vector<int> tail_inputs;           // inputs that updates read directly
    std::vector<bool> is_written;           // of each update
    Tensor block;
};

Plan::Plan(const Graph& graph, std::vector<std::string> outputs, const Loc& loc)
    : edits_(attribute_edits()), attributes_(attributes_of(graph)), graph_(prepared(graph, outputs, loc)), outputs_(std::move(outputs)), is_whole_(outputs_.empty()) {
    std::vector<const Graph::Value*> wanted;
    if (is_whole_) {
        for (const Graph::Output& output : graph_.outputs()) wanted.push_back(output.value);
    } else {
        for (const std::string& name : outputs_) wanted.push_back(graph_.value(name, loc));
    }
    const std::size_t result_count = wanted.size();
    for (const Graph::Guard& guard : graph_.guards()) wanted.push_back(guard.value);
    const std::unordered_set<const Graph::Value*> seen(wanted.begin(), wanted.end());  // by others than updates
    if (is_whole_) {
        for (const Graph::Update& update : graph_.updates()) wanted.push_back(update.value);
    }
    std::unordered_set<const Graph::Value*> needed(wanted.begin(), wanted.end());
    // What draws numbers that nobody needs decides which ones the others get.
    for (const auto& node : graph_.nodes()) {
        if (is_whole_ && node->attributes.is_random()) needed.insert(node->results.begin(), node->results.end());
    }
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
        const Graph::Node& node = *graph_.nodes()[i];
        const auto is_needed = [&](const Graph::Value* value) { return needed.count(value) > 0; };
        if (std::any_of(node.results.begin(), node.results.end(), is_needed)) needed.insert(node.inputs.begin(), node.inputs.end());
    }
    std::unordered_map<const Graph::Value*, int> slots;
    const auto add_slot = [&](const Graph::Value* value) {
        slots[value] = slot_count_;
        last_use_.push_back(-1);
        return slot_count_++;
    };
    for (const Graph::Value* value : graph_.inputs()) input_slots_.push_back(needed.count(value) ? add_slot(value) : -1);
    // Who holds the tensors: a program may put others there.
    std::unordered_map<int, const Graph::Value*> originals;
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) originals[value->number] = value;
    }
    for (const auto* list : {&graph_.parameters(), &graph_.constants()}) {
        for (const Graph::Value* value : *list) {
            if (!needed.count(value)) continue;
            const auto original = originals.find(value->number);
            held_.emplace_back(add_slot(value), original == originals.end() ? value : original->second);
        }
    }
    // An element-wise op that does nothing but say what a parameter shall be writes there itself, after all others, which see the
    // parameter as it was.
    std::unordered_map<const Graph::Node*, int> tail;
    std::unordered_map<const Graph::Value*, int> targets;
    for (const Graph::Update& update : graph_.updates()) ++targets[update.target];
    for (std::size_t i = 0; is_whole_ && i < graph_.updates().size(); ++i) {
        const Graph::Update& update = graph_.updates()[i];
        const Graph::Node* node = update.value->maker;
        const auto is_target = [&](const Graph::Value* value) { return value != update.target && targets.count(value) > 0; };
        const auto same_value = [&](const Graph::Update& other) { return other.value == update.value; };
        if (!node || node->results.size() != 1 || !runs_in_place(node->attributes.form()) || update.target->kind != Graph::Kind::parameter || targets[update.target] > 1 ||
            !update.value->uses.empty() || seen.count(update.value) || std::any_of(node->inputs.begin(), node->inputs.end(), is_target) ||
            std::count_if(graph_.updates().begin(), graph_.updates().end(), same_value) > 1) {
            continue;
        }
        tail[node] = static_cast<int>(i);
    }
    for (const bool is_tail : {false, true}) {
        if (is_tail) tail_ = steps_.size();
        for (const auto& node : graph_.nodes()) {
            const auto is_needed = [&](const Graph::Value* value) { return needed.count(value) > 0; };
            if (std::none_of(node->results.begin(), node->results.end(), is_needed)) continue;
            const auto writes = tail.find(node.get());
            if ((writes != tail.end()) != is_tail) continue;
            Step step{node.get(), {}, slot_count_, {}, is_tail ? writes->second : -1};
            const int number = static_cast<int>(steps_.size());
            for (const Graph::Value* input : node->inputs) {
                step.inputs.push_back(slots.at(input));
                last_use_[at(step.inputs.back())] = number;
            }
            for (const Graph::Value* result : node->results) last_use_[at(add_slot(result))] = number;
            steps_.push_back(std::move(step));
        }
    }
    for (const Graph::Value* value : wanted) last_use_[at(slots.at(value))] = kToTheEnd;
    for (const Step& step : steps_) {
        if (step.update >= 0) last_use_[at(step.first_result)] = static_cast<int>(&step - steps_.data());
        for (std::size_t k = 0; k < step.node->results.size(); ++k) {
            const int slot = step.first_result + static_cast<int>(k), last = last_use_[at(slot)];
            if (last != kToTheEnd) steps_[at(last)].dead.push_back(slot);
        }
    }
    for (std::size_t i = 0; i < result_count; ++i) result_slots_.push_back(slots.at(wanted[i]));
    for (std::size_t i = 0; i < graph_.guards().size(); ++i) guard_slots_.emplace_back(slots.at(graph_.guards()[i].value), static_cast<int>(i));
    for (std::size_t i = 0; is_whole_ && i < graph_.updates().size(); ++i) {
        const Graph::Value* target = graph_.updates()[i].target;
        update_slots_.push_back(slots.at(graph_.updates()[i].value));
        const auto input = std::find(graph_.inputs().begin(), graph_.inputs().end(), target);
        const auto original = originals.find(target->number);
        targets_.emplace_back(original == originals.end() ? target : original->second,
                              input == graph_.inputs().end() ? -1 : static_cast<int>(input - graph_.inputs().begin()));
    }
}

Plan::~Plan() = default;

bool Plan::is_of(const Graph& graph) {
    const std::uint64_t edits = attribute_edits();
    if (edits == edits_.load(std::memory_order_relaxed)) [[likely]]
        return true;
    if (attributes_ != attributes_of(graph)) return false;
    edits_.store(edits, std::memory_order_relaxed);
    return true;
}

std::vector<int> Plan::needed_inputs() const {
    std::vector<int> list;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0) list.push_back(static_cast<int>(i));
    }
    return list;
}

// --- Frames ----------------------------------------------------------------------------------------------------------------------

bool Plan::fits(const Frame& frame, const Tensor* const* given) const noexcept {
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        const Geometry& as = frame.given[i];
        const TensorImpl* x = given[i] ? given[i]->impl() : nullptr;
        if ((x != nullptr) != as.is_defined) return false;
        if (x && (x->dtype != as.dtype || x->device != as.device || !as.has_shape_of(x))) return false;
    }
    return true;
}

// The frame that is at hand costs one atomic instruction; others are for other shapes, and for several threads at once.
std::unique_ptr<Plan::Frame> Plan::take_frame(const Tensor* const* given, bool& holds_place, const Loc& loc) {
    holds_place = !is_taken_.exchange(true, std::memory_order_acquire);
    if (holds_place && at_hand_ && fits(*at_hand_, given)) [[likely]]
        return std::move(at_hand_);
    std::unique_ptr<Frame> frame;
    if (holds_place) frame = std::move(at_hand_);
    {
        const std::lock_guard lock(mutex_);
        if (frame) idle_.push_back(std::move(frame));
        const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& other) { return fits(*other, given); });
        if (found != idle_.rend()) {
            frame = std::move(*found);
            idle_.erase(std::next(found).base());
            return frame;
        }
        if (idle_.size() >= kMostFrames) idle_.erase(idle_.begin());
    }
    try {
        return make_frame(given, loc);
    } catch (...) {
        if (holds_place) is_taken_.store(false, std::memory_order_release);
        throw;
    }
}

void Plan::give_back(std::unique_ptr<Frame> frame, bool holds_place) {
    if (holds_place) {
        at_hand_ = std::move(frame);
        is_taken_.store(false, std::memory_order_release);
        return;
    }
    if (!frame) return;
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(frame));
}

std::size_t Plan::planned_bytes() {
    std::size_t bytes = 0;
    const auto add = [&](const std::unique_ptr<Frame>& frame) { bytes += frame && frame->block.defined() ? frame->block.nbytes() : 0; };
    if (!is_taken_.exchange(true, std::memory_order_acquire)) {
        add(at_hand_);
        is_taken_.store(false, std::memory_order_release);
    }
    const std::lock_guard lock(mutex_);
    std::for_each(idle_.begin(), idle_.end(), add);
    return bytes;
}

std::unique_ptr<Plan::Frame> Plan::make_frame(const Tensor* const* given, const Loc& loc) const {
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) inputs.push_back(given[i] ? *given[i] : Tensor());
    const DimSizes sizes = sizes_of_inputs(graph_, inputs.data(), loc);
    auto frame = std::make_unique<Frame>();
    for (std::size_t i = 0; i < input_slots_.size(); ++i) frame->given.emplace_back(inputs[i]);
    frame->slots.resize(at(slot_count_));
    for (Tensor& slot : frame->slots) frame->where.push_back(&slot);
    std::vector<int> input_of(at(slot_count_), -1);
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0) input_of[at(input_slots_[i])] = static_cast<int>(i);
    }
    for (const auto& [slot, value] : held_) {
        frame->where[at(slot)] = &value->data;
        frame->held.push_back(nullptr);
    }
    std::size_t count = 0;
    for (const Step& step : steps_) count += step.inputs.size();
    frame->arguments.reserve(count);
    frame->resolved.reserve(steps_.size());
    for (const Step& step : steps_) {
        const Attributes& attributes = step.node->attributes;
        if (attributes.is_symbolic()) frame->resolved.push_back(attributes.with(sizes, step.node->loc.line() ? step.node->loc : loc));
        const void* data = attributes.is_symbolic() ? frame->resolved.back().data() : attributes.data();
        const FormCall call{frame->arguments.data() + frame->arguments.size(), static_cast<int>(step.inputs.size()), data};
        for (const int slot : step.inputs) {
            if (input_of[at(slot)] >= 0) frame->input_arguments.emplace_back(frame->arguments.size(), input_of[at(slot)]);
            frame->arguments.push_back(frame->where[at(slot)]);
        }
        frame->calls.push_back({call, nullptr, &step, frame->slots.data() + step.first_result, step.dead});
    }
    return frame;
}

// --- Looking at a first run ------------------------------------------------------------------------------------------------------

void Plan::check_inputs(const Tensor* const* given, const Loc& loc) const {
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0 && !(given[i] && given[i]->defined())) fail<ValueError>(loc, "graph: the input {} is needed", graph_.inputs()[i]->name);
    }
}

// Makes the results.
void Plan::run_op(Call& call, Frame& frame, const Loc& loc) const {
    const Graph::Node& node = *call.step->node;
    const CallerScope caller(node.loc.line() ? node.loc : loc);  // errors speak of the program that was traced
    node.attributes.form().run(call.call, frame.made.data());
    for (std::size_t k = 0; k < node.results.size(); ++k) {
        // Numbers among the operands are tensors here, and may count for more in a promotion.
        Tensor& y = frame.made[k];
        const DType dtype = node.results[k]->dtype;
        if (!y.defined()) fail<ValueError>(node.loc.line() ? node.loc : loc, "graph: {} gives no result {}", node.op, k);
        if (y.dtype() == dtype) {
            call.results[k] = std::move(y);
        } else {
            call.results[k] = y.to(dtype);
            y = Tensor();
        }
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
            frame.roots[at(slot)] = slot;
            frame.seen[at(slot)] = Geometry(y);
            for (std::size_t i = 0; i < call.step->inputs.size(); ++i) {
                if (y.shares_storage(*call.call.inputs[i])) frame.roots[at(slot)] = frame.roots[at(call.step->inputs[i])];
            }
        }
        for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
    }
}

// --- What may run at once --------------------------------------------------------------------------------------------------------

namespace {

// Steps that take less than this one after the other, since waking a thread takes microseconds. As a product that is shared out, which
// those that take long are (ops/gemm.cpp).
std::atomic<std::int64_t> least_parallel_ns{15'000};
constexpr std::int64_t kSharedOutNs = 60'000;

}  // namespace

void set_least_parallel_ns(std::int64_t ns) noexcept { least_parallel_ns = ns; }

// In the order of the program, but that steps which are worth a thread each and do not need each other come together.
void Plan::schedule(Frame& frame) const {
    frame.order.resize(tail_);
    frame.stages.resize(tail_);
    for (std::size_t s = 0; s < tail_; ++s) frame.order[s] = frame.stages[s] = static_cast<int>(s);
    if (num_threads() == 1) return;
    std::vector<int> maker(at(slot_count_), -1), missing(tail_, 0);
    std::vector<std::vector<int>> users(tail_);
    std::vector<bool> is_worth(tail_, false);
    int worth = 0, last_random = -1;
    for (std::size_t s = 0; s < tail_; ++s) {
        const Graph::Node& node = *steps_[s].node;
        std::int64_t results = 0;
        for (std::size_t k = 0; k < node.results.size(); ++k) {
            const int slot = steps_[s].first_result + static_cast<int>(k);
            maker[at(slot)] = static_cast<int>(s);
            if (frame.seen[at(slot)].is_defined) results += frame.seen[at(slot)].shape.numel();
        }
        const auto after = [&](int other) {
            users[at(other)].push_back(static_cast<int>(s));
            ++missing[s];
        };
        for (const int input : steps_[s].inputs) {
            if (maker[at(input)] >= 0) after(maker[at(input)]);
        }
        // Random numbers are drawn in the order of the program, which a branch or a loop may do, too.
        if (node.attributes.form().is_random || has_graph(node)) {
            if (last_random >= 0) after(last_random);
            last_random = static_cast<int>(s);
        }
        if (!node.attributes.form().into) continue;
        // About how long it takes on one thread of a 2020s core.
        std::int64_t elements = results;
        for (std::size_t i = 0; i < steps_[s].inputs.size(); ++i) elements += numel_of(frame, steps_[s].inputs[i]);
        std::int64_t ns = elements / 4;
        if ((node.op == "linear" || node.op == "matmul") && steps_[s].inputs.size() >= 2) {
            const std::int64_t rows = std::max<std::int64_t>(numel_of(frame, steps_[s].inputs[0]), 1), matrix = numel_of(frame, steps_[s].inputs[1]);
            // results = rows * n and rows * k, n * k elements: their product's root is rows * n * k.
            ns = std::max(static_cast<std::int64_t>(std::sqrt(static_cast<double>(results) * static_cast<double>(rows) * static_cast<double>(matrix))) / 70,
                          elements / 8);
        }
        is_worth[s] = ns >= least_parallel_ns.load() && ns < kSharedOutNs;
        worth += is_worth[s];
    }
    if (worth < 2) return;
    std::vector<int> order, stages;
    std::set<int> ready, large;  // large: of those that are worth a thread
    for (std::size_t s = 0; s < tail_; ++s) {
        if (missing[s] == 0) (is_worth[s] ? large : ready).insert(static_cast<int>(s));
    }
    bool any = false;
    while (!ready.empty() || !large.empty()) {
        std::vector<int> now;
        if (!ready.empty()) {
            now.push_back(*ready.begin());
            ready.erase(ready.begin());
        } else {
            now.assign(large.begin(), large.end());
            large.clear();
        }
        any = any || now.size() > 1;
        stages.push_back(static_cast<int>(order.size()));
        for (const int s : now) {
            order.push_back(s);
            for (const int user : users[at(s)]) {
                if (--missing[at(user)] == 0) (is_worth[at(user)] ? large : ready).insert(user);
            }
        }
    }
    if (!any) return;
    frame.order = std::move(order);
    frame.stages = std::move(stages);
}

std::int64_t Plan::numel_of(const Frame& frame, int slot) const {
    const Geometry& seen = frame.seen[at(slot)];
    if (seen.is_defined) return seen.shape.numel();
    const Tensor* x = frame.where[at(slot)];
    return x && x->defined() ? x->numel() : 0;
}

// --- Laying out memory -----------------------------------------------------------------------------------------------------------

void Plan::lay_out(Frame& frame) const {
    schedule(frame);
    const int stage_count = static_cast<int>(frame.stages.size());
    std::vector<int> stage_of(steps_.size(), stage_count), position(steps_.size(), static_cast<int>(steps_.size()));
    const auto stage_end = [&](int stage) { return stage + 1 < stage_count ? frame.stages[at(stage + 1)] : static_cast<int>(frame.order.size()); };
    for (int stage = 0; stage < stage_count; ++stage) {
        for (int i = frame.stages[at(stage)]; i < stage_end(stage); ++i) {
            stage_of[at(frame.order[at(i)])] = stage;
            position[at(frame.order[at(i)])] = stage_end(stage) - 1;  // what it needs is needed until all of its stage have run
        }
    }
    std::vector<int> end(at(slot_count_), -1);       // the stage in which the elements of a root are needed last
    std::vector<int> last(at(slot_count_), -1);      // where in the order a slot is
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const auto use = [&](int slot) {
            last[at(slot)] = std::max(last[at(slot)], position[s]);
            if (const int root = frame.roots[at(slot)]; root >= 0) end[at(root)] = std::max(end[at(root)], stage_of[s]);
        };
        for (const int slot : steps_[s].inputs) use(slot);
        for (std::size_t k = 0; k < steps_[s].node->results.size(); ++k) use(steps_[s].first_result + static_cast<int>(k));
    }
    for (int slot = 0; slot < slot_count_; ++slot) {
        const int root = frame.roots[at(slot)];
        if (last_use_[at(slot)] == kToTheEnd && root >= 0) end[at(root)] = stage_count;
    }
    for (std::size_t s = 0; s < tail_; ++s) frame.calls[s].dead.clear();
    for (std::size_t s = 0; s < tail_; ++s) {
        for (std::size_t k = 0; k < steps_[s].node->results.size(); ++k) {
            const int slot = steps_[s].first_result + static_cast<int>(k);
            const int where = last[at(slot)];
            if (last_use_[at(slot)] != kToTheEnd && where < static_cast<int>(tail_)) frame.calls[at(frame.order[at(where)])].dead.push_back(slot);
        }
    }
    std::vector<bool> leaves(at(slot_count_), false);
    for (const int slot : result_slots_) {
        if (frame.roots[at(slot)] >= 0) leaves[at(frame.roots[at(slot)])] = true;
    }
    frame.is_placed.assign(at(slot_count_), false);
    std::vector<bool> is_constant(at(slot_count_), false);
    for (const auto& [slot, value] : held_) is_constant[at(slot)] = value->kind == Graph::Kind::constant;
    Places places;
    std::vector<std::size_t> begin(at(slot_count_), 0);
    const auto room = [&](int slot) { return (std::max<std::size_t>(frame.seen[at(slot)].bytes(), 1) + kAlignment - 1) / kAlignment * kAlignment; };
    std::vector<std::vector<int>> ends(at(stage_count + 1));  // roots in the block, by the stage in which they are needed last
    for (std::size_t i = 0; i < tail_; ++i) {
        const int s = frame.order[i], stage = stage_of[at(s)];
        const bool is_alone = stage_end(stage) - frame.stages[at(stage)] == 1;
        const bool is_last_of_stage = static_cast<int>(i) + 1 == stage_end(stage);
        const auto leave = [&] {
            for (std::size_t k = 0; is_last_of_stage && k < ends[at(stage)].size(); ++k) places.give_back(begin[at(ends[at(stage)][k])], room(ends[at(stage)][k]));
        };
        Call& call = frame.calls[at(s)];
        const Graph::Node& node = *call.step->node;
        const int count = static_cast<int>(node.results.size());
        bool can = node.attributes.form().into != nullptr && count > 0;
        // What depends on nothing but constants is made once more.
        const auto is_fixed = [&](int slot) { return is_constant[at(slot)]; };
        std::size_t bytes = 0;
        bool is_known = !node.attributes.form().is_random && std::all_of(call.step->inputs.begin(), call.step->inputs.end(), is_fixed);
        for (int k = 0; k < count; ++k) {
            const int slot = call.step->first_result + k;
            is_known = is_known && frame.seen[at(slot)].device == cpu && !(frame.roots[at(slot)] >= 0 && leaves[at(frame.roots[at(slot)])]);
            bytes += frame.seen[at(slot)].bytes();
        }
        if (is_known && bytes <= kMostConstantBytes && !has_graph(node)) {
            call.stays = true;
            for (int k = 0; k < count; ++k) is_constant[at(call.step->first_result + k)] = true;
            leave();
            continue;
        }
        for (int k = 0; can && k < count; ++k) {
            const int slot = call.step->first_result + k;
            const Geometry& y = frame.seen[at(slot)];
            can = frame.roots[at(slot)] == slot && y.is_defined && y.is_contiguous && y.device == cpu && y.dtype == node.results[at(k)]->dtype;
        }
        if (can) call.into = node.attributes.form().into;
        for (int k = 0; can && k < count; ++k) {
            const int slot = call.step->first_result + k;
            if (leaves[at(slot)]) {
                frame.outgoing.push_back({slot, {}});
                continue;
            }
            int taken = -1;  // the operand in whose place it comes
            for (std::size_t n = 0; is_alone && runs_in_place(node.attributes.form()) && n < call.step->inputs.size() && taken < 0; ++n) {
                const int input = call.step->inputs[n];
                const Geometry &x = frame.seen[at(input)], &y = frame.seen[at(slot)];
                const bool ends_here = std::find(ends[at(stage)].begin(), ends[at(stage)].end(), input) != ends[at(stage)].end();  // and its place is not taken yet
                if (!ends_here || x.dtype != y.dtype || !(x.shape == y.shape)) continue;
                const auto is_other_view = [&](int other) { return other != input && frame.roots[at(other)] == input; };
                if (std::none_of(call.step->inputs.begin(), call.step->inputs.end(), is_other_view)) taken = input;
            }
            if (taken >= 0) {
                begin[at(slot)] = begin[at(taken)];
                std::erase(ends[at(stage)], taken);
            } else {
                begin[at(slot)] = places.take(room(slot));
            }
            frame.is_placed[at(slot)] = true;
            ends[at(end[at(slot)])].push_back(slot);
        }
        leave();
    }
    if (places.size() > 0) {
        frame.block = make_empty(Shape(static_cast<std::int64_t>(places.size())), uint8, Device(), Loc{});
        for (int slot = 0; slot < slot_count_; ++slot) {
            if (!frame.is_placed[at(slot)]) continue;
            const Geometry& y = frame.seen[at(slot)];
            const auto offset = static_cast<std::int64_t>(begin[at(slot)]);
            frame.slots[at(slot)] = make_view(frame.block.impl(), y.shape.rank(), y.shape.data(), nullptr, offset);
            TensorImpl* impl = frame.slots[at(slot)].impl();
            impl->dtype = y.dtype;
            impl->flags &= static_cast<std::uint8_t>(~TensorImpl::kView);
        }
    }
    std::vector<bool> stays = frame.is_placed;
    for (const Outgoing& out : frame.outgoing) stays[at(out.slot)] = true;
    for (std::size_t s = 0; s < tail_; ++s) {
        Call& call = frame.calls[s];
        const auto is_placed = [&](int slot) { return frame.roots[at(slot)] >= 0 && frame.is_placed[at(frame.roots[at(slot)])]; };
        const int count = static_cast<int>(call.step->node->results.size());
        if (!call.stays && !call.into && !call.step->inputs.empty()) {
            call.stays = std::all_of(call.step->inputs.begin(), call.step->inputs.end(), is_placed);
            for (int k = 0; k < count; ++k) call.stays = call.stays && is_placed(call.step->first_result + k);
        }
        for (int k = 0; call.stays && k < count; ++k) stays[at(call.step->first_result + k)] = true;
    }
    for (Call& call : frame.calls) {
        std::erase_if(call.dead, [&](int slot) { return stays[at(slot)]; });
        for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
            const int slot = call.step->first_result + static_cast<int>(k);
            if (!stays[at(slot)]) frame.loose.push_back(slot);
        }
    }
    plan_updates(frame);
    frame.is_laid_out = true;
}

// Whether the last steps may write to parameters directly: nothing that they read, but the parameter itself, lies in memory that is written.
void Plan::plan_updates(Frame& frame) const {
    for (std::size_t i = 0; i < held_.size(); ++i) frame.held[i] = held_[i].second->data.impl();
    frame.tail_inputs.clear();
    frame.writes_directly = tail_ < steps_.size();
    const auto is_outside = [&](int slot) { return frame.roots[at(slot)] == kOutside; };
    std::vector<bool> is_tail(update_slots_.size(), false);
    std::vector<const Tensor*> targets;
    for (std::size_t s = tail_; s < steps_.size(); ++s) {
        is_tail[at(steps_[s].update)] = true;
        const Tensor* place = &targets_[at(steps_[s].update)].first->data;
        const bool fits = place->is_contiguous() && place->device() == cpu && place->dtype() == steps_[s].node->results[0]->dtype;
        frame.writes_directly = frame.writes_directly && fits;
        targets.push_back(place);
    }
    for (std::size_t i = 0; i < update_slots_.size(); ++i) {
        if (!is_tail[i] && is_outside(update_slots_[i])) frame.writes_directly = false;
    }
    for (std::size_t s = tail_; frame.writes_directly && s < steps_.size(); ++s) {
        Call& call = frame.calls[s];
        for (std::size_t i = 0; i < call.step->inputs.size(); ++i) {
            const int slot = call.step->inputs[i];
            if (!is_outside(slot)) continue;
            const auto input = std::find(input_slots_.begin(), input_slots_.end(), slot);
            if (input != input_slots_.end()) {
                frame.tail_inputs.push_back(static_cast<int>(input - input_slots_.begin()));
                continue;
            }
            const Tensor* x = call.call.inputs[i];
            if (x == targets[s - tail_]) continue;
            const auto overlaps = [&](const Tensor* target) { return x->shares_storage(*target); };
            const bool is_view_of_outside = frame.where[at(slot)] == &frame.slots[at(slot)];
            if (is_view_of_outside || std::any_of(targets.begin(), targets.end(), overlaps)) frame.writes_directly = false;
        }
    }
    for (std::size_t i = 0; i < targets.size() && frame.writes_directly; ++i) {
        for (std::size_t k = 0; k < i; ++k) frame.writes_directly = frame.writes_directly && !targets[i]->shares_storage(*targets[k]);
    }
}

// --- Running ---------------------------------------------------------------------------------------------------------------------

// Its results do not lie in the block any more, and views of them do not stay.
void Plan::make_loose(Call& call, Frame& frame) const {
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

// What cannot be done this way is left to be made.
void Plan::run_at_once(Frame& frame, std::size_t from, std::size_t to) const {
    parallel_for(static_cast<std::int64_t>(to - from) * 64, 64, [&](std::int64_t begin, std::int64_t end) {  // it cuts at multiples of 64
        for (std::int64_t k = begin / 64; k < end / 64; ++k) {
            Call& call = frame.calls[at(frame.order[from + static_cast<std::size_t>(k)])];
            if (call.into && !call.is_made) call.is_done = call.into(call.call, call.results[0]);
        }
    });
    for (std::size_t i = from; i < to; ++i) {
        Call& call = frame.calls[at(frame.order[i])];
        if (call.into && !call.is_made && !call.is_done) make_loose(call, frame);
    }
}

void Plan::run_steps(Frame& frame, const Loc& loc) const {
    for (Outgoing& out : frame.outgoing) {
        const Geometry& as = frame.seen[at(out.slot)];
        Tensor& last = frame.slots[at(out.slot)];
        if (!is_forgotten(last, as)) {
            last.swap(out.other);
            if (!is_forgotten(last, as)) last = make_empty(as.shape, as.dtype, as.device, loc);
        }
        last.impl()->node = {};
    }
    const Storage* block = frame.block.defined() ? frame.block.impl()->storage : nullptr;
    bool is_as_seen = true;
    std::size_t together = 0;  // before this place in the order, calls have run at once
    for (std::size_t i = 0, stage = 0; i < tail_; ++i) {
        if (i >= together) {
            while (stage < frame.stages.size() && at(frame.stages[stage]) <= i) ++stage;
            const std::size_t stage_end = stage < frame.stages.size() ? at(frame.stages[stage]) : tail_;
            if (stage_end > i + 1 && frame.runs_at_once) {
                run_at_once(frame, i, stage_end);
                together = stage_end;
            }
        }
        Call& call = frame.calls[at(frame.order[i])];
        if (call.is_made) continue;
        if (call.into && (i < together || call.into(call.call, call.results[0]))) [[likely]] {
            for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
            continue;
        }
        if (call.into) make_loose(call, frame);
        run_op(call, frame, loc);
        for (std::size_t k = 0; k < call.step->node->results.size(); ++k) {
            const int slot = call.step->first_result + static_cast<int>(k), root = frame.roots[at(slot)];
            Tensor& y = call.results[k];
            const Geometry& as = frame.seen[at(slot)];
            is_as_seen = is_as_seen && y.defined() == as.is_defined && (!as.is_defined || as.has_shape_of(y.impl()));
            if (!y.defined() || y.impl()->storage != block || y.numel() == 0) continue;
            // A view, where it was none in the first run, or one of something else: what it shows may be overwritten.
            const bool is_known = root >= 0 && root != slot && frame.is_placed[at(root)] && y.raw_data() >= frame.slots[at(root)].raw_data() &&
                                  y.impl()->data < frame.slots[at(root)].impl()->data + frame.seen[at(root)].bytes();
            if (!is_known) y = y.clone();
        }
        if (!is_as_seen) {  // sizes that depend on data: what follows is made as it comes
            for (Call& other : frame.calls) {
                other.into = nullptr;
                other.stays = other.is_made = false;
            }
            frame.writes_directly = false;
        }
        call.is_made = call.stays;
        for (const int dead : call.dead) frame.slots[at(dead)] = Tensor();
    }
}

// Of many runs the first few take turns, and the others go the way that was faster, until one of them is not.
void Plan::run_or_try(Frame& frame, const Loc& loc) const {
    constexpr int period = 256, tries = 8;
    const int now = frame.tries;
    frame.tries = (now + 1) % period;
    const bool is_forced = least_parallel_ns.load(std::memory_order_relaxed) == 0;  // by a test
    frame.runs_at_once = is_forced || (now < tries ? now % 2 == 1 : frame.is_faster_at_once);
    if (now >= tries && !frame.runs_at_once) return run_steps(frame, loc);
    const auto begin = std::chrono::steady_clock::now();
    run_steps(frame, loc);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (now < 2) frame.seconds[now][0] = frame.seconds[now][1] = seconds;
    // The best two of each way: one run may have had luck.
    double(&best)[2] = frame.seconds[now % 2];
    if (now < tries && now >= 2) {
        if (now < 4 || seconds < best[1]) best[1] = seconds;
        if (best[1] < best[0]) std::swap(best[0], best[1]);
    }
    if (now + 1 == tries) frame.is_faster_at_once = frame.seconds[1][1] < 0.95 * frame.seconds[0][1];
    if (now >= tries && seconds > frame.seconds[0][1]) frame.is_faster_at_once = false;
}

void Plan::write_updates(Frame& frame, const Tensor* const* given, const Loc& loc) const {
    const auto target_of = [&](int update) -> const Tensor& {
        const auto& [value, input] = targets_[at(update)];
        return input >= 0 && given[input] ? *given[input] : value->data;
    };
    bool directly = frame.writes_directly;
    for (const int input : frame.tail_inputs) {
        for (std::size_t s = tail_; directly && s < steps_.size(); ++s) directly = !given[input]->shares_storage(target_of(steps_[s].update));
    }
    frame.is_written.assign(update_slots_.size(), false);
    for (std::size_t s = tail_; s < steps_.size(); ++s) {
        Call& call = frame.calls[s];
        if (directly) {
            const Tensor& target = target_of(call.step->update);
            if (call.step->node->attributes.form().into(call.call, target)) {
                mark_written(target, call.step->node->loc);
                frame.is_written[at(call.step->update)] = true;
                continue;
            }
        }
        run_op(call, frame, loc);
    }
    for (std::size_t i = 0; i < update_slots_.size(); ++i) {
        if (frame.is_written[i]) continue;
        Tensor target = target_of(static_cast<int>(i));
        target.copy_(*frame.where[at(update_slots_[i])], loc);
    }
}

// Holds a frame while it runs; one that an error left behind is gone.
struct Plan::Taken {
    Plan& plan;
    bool holds_place = false;
    std::unique_ptr<Frame> frame;
    bool is_good = false;

    Taken(Plan& of, const Tensor* const* given, const Loc& loc) : plan(of), frame(of.take_frame(given, holds_place, loc)) {}
    ~Taken() {
        if (!is_good) frame.reset();
        plan.give_back(std::move(frame), holds_place);
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
};

void Plan::run(const Tensor* const* given, Tensor* results, const Loc& loc) {
    check_inputs(given, loc);
    const PauseRecording pause;
    const PauseAutocast plain;
    Taken taken(*this, given, loc);
    Frame& frame = *taken.frame;
    for (const auto& [place, input] : frame.input_arguments) frame.arguments[place] = given[input];
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0) frame.where[at(input_slots_[i])] = given[i];
    }
    const bool was_learned = frame.is_learned;
    if (was_learned) {
        if (!frame.is_laid_out) lay_out(frame);  // worth it once the same sizes come again
        bool is_changed = false;
        for (std::size_t i = 0; i < held_.size(); ++i) is_changed |= frame.held[i] != held_[i].second->data.impl();
        if (is_changed) {  // others took their places
            plan_updates(frame);
            for (Call& call : frame.calls) call.is_made = false;
        }
        frame.stages.size() < tail_ ? run_or_try(frame, loc) : run_steps(frame, loc);
    } else {
        run_first(frame, loc);
    }
    for (const auto& [slot, i] : guard_slots_) check_guard(graph_.guards()[at(i)], *frame.where[at(slot)], loc);
    const Storage* block = frame.block.defined() ? frame.block.impl()->storage : nullptr;
    for (std::size_t i = 0; i < result_slots_.size(); ++i) {
        const Tensor& y = *frame.where[at(result_slots_[i])];
        if (block && y.defined() && y.impl()->storage == block) {
            results[i] = y.clone();
        } else {
            results[i] = &y == &frame.slots[at(result_slots_[i])] ? shared_with(y) : y;
        }
    }
    if (!update_slots_.empty()) write_updates(frame, given, loc);
    if (was_learned) {
        for (const int slot : frame.loose) frame.slots[at(slot)] = Tensor();
    } else {
        for (Tensor& t : frame.slots) t = Tensor();
        frame.is_learned = true;
    }
    taken.is_good = true;
}

}  // namespace detail

// --- Graph::run -----------------------------------------------------------------------------------------------------------------

struct Graph::Plans {
    std::mutex mutex;
    std::vector<std::unique_ptr<detail::Plan>> plans;  // by outputs
    std::atomic<detail::Plan*> last{nullptr};          // that was run
};

void Graph::changed() noexcept { delete plans_.exchange(nullptr); }

std::vector<Tensor> Graph::run(const Inputs& inputs, const std::vector<std::string>& outputs, Loc loc) const {
    detail::Given given(inputs_.size());
    for (const auto& [name, tensor] : inputs) {
        const auto place = std::find_if(inputs_.begin(), inputs_.end(), [&](const Value* value) { return value->name == name; });
        if (place == inputs_.end()) {
            std::string names;
            for (const Value* value : inputs_) names += (names.empty() ? "" : ", ") + value->name;
            fail<ValueError>(loc, "Graph::run: there is no input {}; there are {}", name, names);
        }
        given.data[place - inputs_.begin()] = &tensor;
    }
    Plans* plans = plans_.load(std::memory_order_acquire);
    if (!plans) {
        auto fresh = std::make_unique<Plans>();
        if (plans_.compare_exchange_strong(plans, fresh.get())) plans = fresh.release();
    }
    detail::Plan* plan = plans->last.load(std::memory_order_acquire);
    if (!plan || plan->outputs() != outputs || !plan->is_of(*this)) {
        plan = nullptr;
        const std::lock_guard lock(plans->mutex);
        for (const auto& known : plans->plans) {
            if (known->outputs() == outputs) plan = known.get();
        }
        if (!plan || !plan->is_of(*this)) {  // another one stays, since a thread may be running it
            plans->plans.push_back(std::make_unique<detail::Plan>(*this, outputs, loc));
            plan = plans->plans.back().get();
        }
        plans->last.store(plan, std::memory_order_release);
    }
    std::vector<Tensor> results(plan->result_count());
    plan->run(given.data, results.data(), loc);
    return results;
}

// --- CompiledGraph ---------------------------------------------------------------------------------------------------------------

struct CompiledGraph::State {
    Graph graph;  // a copy, for its names
    detail::Plan plan;
    std::vector<int> inputs;
    std::vector<std::string> input_names;

    State(const Graph& from, const std::vector<std::string>& outputs, const Loc& loc)
        : graph(from), plan(graph, outputs, loc), inputs(plan.needed_inputs()) {
        for (const int i : inputs) input_names.push_back(graph.inputs()[static_cast<std::size_t>(i)]->name);
    }
};

CompiledGraph Graph::compile(const std::vector<std::string>& outputs, Loc loc) const {
    return CompiledGraph(std::make_shared<CompiledGraph::State>(*this, outputs, loc));
}

const std::vector<std::string>& CompiledGraph::inputs() const noexcept { return state_->input_names; }
std::size_t CompiledGraph::output_count() const noexcept { return state_->plan.result_count(); }
std::size_t CompiledGraph::planned_bytes() const { return state_->plan.planned_bytes(); }

void CompiledGraph::run(const Tensor* const* inputs, std::size_t input_count, Tensor* outputs, std::size_t count, const Loc& loc) const {
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
    std::vector<const Tensor*> addresses;
    for (const Tensor& x : inputs) addresses.push_back(&x);
    std::vector<Tensor> results(output_count());
    run(addresses.data(), addresses.size(), results.data(), results.size(), loc);
    return results;
}

}  // namespace tapir
