// Lays out the results of a plan in memory.
#include <algorithm>
#include <iterator>

#include "tapir/autograd/trace/run/frame_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir::detail {
namespace {

constexpr std::size_t kMostConstantBytes = 64 * 1024;  // limit per step

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
    std::vector<Place> free_;  // sorted by begin
    std::size_t size_ = 0;
};

}  // namespace

/// Decides, for a frame that has run once, where its results lie, and which of them need not be made again.
class MemoryLayout {
 public:
    MemoryLayout(const Plan& plan, Plan::Frame& frame)
        : plan_(plan), frame_(frame), steps_(plan.steps_), stage_count_(static_cast<int>(frame.stages.size())) {
        find_stages();
        find_ends();
        find_what_leaves();
        find_homes();
        for (std::size_t i = 0; i < plan_.tail_; ++i) place(i);
        make_slots();
        find_what_stays();
    }

 private:
    using Call = Plan::Call;

    void find_stages();
    void find_ends();
    void find_what_leaves();
    void find_homes();
    std::vector<int> writes_before(int slot) const;
    bool takes_over(int s) const;
    bool is_early(int update, const std::vector<int>& writes) const;
    void place(std::size_t i);
    bool keeps_constants(Call& call);
    bool can_be_written(const Call& call) const;
    int operand_in_place_of(const Call& call, int slot) const;
    void make_slots();
    void find_what_stays();

    int stage_end(int stage) const { return stage + 1 < stage_count_ ? frame_.stages[at(stage + 1)] : static_cast<int>(frame_.order.size()); }
    std::size_t room(int slot) const { return (std::max<std::size_t>(frame_.seen[at(slot)].bytes(), 1) + kAlignment - 1) / kAlignment * kAlignment; }
    template <class Visit>
    static void each_result(const Call& call, const Visit& visit) {
        for (std::size_t k = 0; k < call.step->node->results.size(); ++k) visit(call.step->first_result + static_cast<int>(k), k);
    }

    const Plan& plan_;
    Plan::Frame& frame_;
    const std::vector<Plan::Step>& steps_;
    const int stage_count_;
    std::vector<int> stage_of_, position_;  // for each step: its stage, and the place in the order at which all of its stage have run
    std::vector<int> end_;                  // for each root: the stage of the last use of its elements
    std::vector<bool> leaves_;              // for each root: an output shares its memory
    std::vector<bool> is_constant_;         // for each slot: it depends on constants only
    Places places_;
    std::vector<std::size_t> begin_;      // for each slot in the block
    std::vector<std::vector<int>> ends_;  // roots in the block, by the stage of their last use
    std::vector<int> maker_;              // for each slot: a step
    std::vector<int> home_;               // for each slot that parts are written into: the outgoing slot in whose tensor it lies; -1: none
    std::vector<int> at_home_;            // slots that do
    std::vector<bool> is_early_;          // for each slot: it lies in an input or a parameter
};

void MemoryLayout::find_stages() {
    stage_of_.assign(steps_.size(), stage_count_);
    position_.assign(steps_.size(), static_cast<int>(steps_.size()));
    for (int stage = 0; stage < stage_count_; ++stage) {
        for (int i = frame_.stages[at(stage)]; i < stage_end(stage); ++i) {
            stage_of_[at(frame_.order[at(i)])] = stage;
            position_[at(frame_.order[at(i)])] = stage_end(stage) - 1;
        }
    }
}

void MemoryLayout::find_ends() {
    const std::size_t slots = at(plan_.slot_count_);
    end_.assign(slots, -1);
    std::vector<int> last(slots, -1);  // the place in the order of each slot's last use
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const auto use = [&](int slot) {
            last[at(slot)] = std::max(last[at(slot)], position_[s]);
            if (const int root = frame_.roots[at(slot)]; root >= 0) end_[at(root)] = std::max(end_[at(root)], stage_of_[s]);
        };
        for (const int slot : steps_[s].inputs) use(slot);
        for (std::size_t k = 0; k < steps_[s].node->results.size(); ++k) use(steps_[s].first_result + static_cast<int>(k));
    }
    for (int slot = 0; slot < plan_.slot_count_; ++slot) {
        const int root = frame_.roots[at(slot)];
        if (plan_.last_use_[at(slot)] == kToTheEnd && root >= 0) end_[at(root)] = stage_count_;
    }
    for (std::size_t s = 0; s < plan_.tail_; ++s) frame_.calls[s].dead.clear();
    for (std::size_t s = 0; s < plan_.tail_; ++s) {
        each_result(frame_.calls[s], [&](int slot, std::size_t) {
            const int where = last[at(slot)];
            if (plan_.last_use_[at(slot)] != kToTheEnd && where < static_cast<int>(plan_.tail_))
                frame_.calls[at(frame_.order[at(where)])].dead.push_back(slot);
        });
    }
}

void MemoryLayout::find_what_leaves() {
    const std::size_t slots = at(plan_.slot_count_);
    leaves_.assign(slots, false);
    for (const int slot : plan_.result_slots_) {
        if (frame_.roots[at(slot)] >= 0) leaves_[at(frame_.roots[at(slot)])] = true;
    }
    is_constant_.assign(slots, false);
    for (const auto& [slot, value] : plan_.held_) {
        if (slot >= 0) is_constant_[at(slot)] = value->kind == Graph::Kind::constant;
    }
    frame_.is_placed.assign(slots, false);
    begin_.assign(slots, 0);
    ends_.resize(at(stage_count_ + 1));
}

// The steps that write part after part and end with this one: each writes into the previous result, which nobody else needs. The last first.
std::vector<int> MemoryLayout::writes_before(int slot) const {
    std::vector<int> writes;
    for (int s = maker_[at(slot)]; s >= 0 && s < static_cast<int>(plan_.tail_); s = maker_[at(slot)]) {
        const int stage = stage_of_[at(s)];
        const bool is_alone = stage_end(stage) - frame_.stages[at(stage)] == 1;
        if (!is_alone || !steps_[at(s)].node->form().part || !can_be_written(frame_.calls[at(s)])) break;
        writes.push_back(s);
        if (!takes_over(s)) break;
        slot = steps_[at(s)].inputs[0];
    }
    return writes;
}

// True if this step is the last use of the tensor that it writes into.
bool MemoryLayout::takes_over(int s) const {
    const std::vector<int>& inputs = steps_[at(s)].inputs;
    const int slot = inputs[0];
    const Geometry &x = frame_.seen[at(slot)], &y = frame_.seen[at(steps_[at(s)].first_result)];
    if (frame_.roots[at(slot)] != slot || leaves_[at(slot)] || end_[at(slot)] != stage_of_[at(s)] || x.dtype != y.dtype || !x.lies_as(y))
        return false;
    return std::none_of(inputs.begin() + 1, inputs.end(), [&](int other) { return frame_.roots[at(other)] == slot; });
}

void MemoryLayout::find_homes() {
    const std::size_t slots = at(plan_.slot_count_);
    maker_.assign(slots, -1);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        for (std::size_t k = 0; k < steps_[s].node->results.size(); ++k) maker_[at(steps_[s].first_result) + k] = static_cast<int>(s);
    }
    home_.assign(slots, -1);
    is_early_.assign(slots, false);
    for (int slot = 0; slot < plan_.slot_count_; ++slot) {
        if (!leaves_[at(slot)] || frame_.roots[at(slot)] != slot) continue;
        for (const int s : writes_before(slot)) {
            if (takes_over(s)) home_[at(steps_[at(s)].inputs[0])] = slot;
        }
    }
    for (int update = 0; update < static_cast<int>(plan_.update_slots_.size()); ++update) {
        std::vector<int> writes = writes_before(plan_.update_slots_[at(update)]);
        if (!is_early(update, writes)) continue;
        std::reverse(writes.begin(), writes.end());
        EarlyWrite early{update, {}, std::move(writes)};
        for (const int s : early.calls) {
            frame_.calls[at(s)].early = static_cast<int>(frame_.early.size());
            frame_.calls[at(s)].part = find_form(steps_[at(s)].node->form().part);
            early.slots.push_back(steps_[at(s)].first_result);
            is_early_[at(early.slots.back())] = true;
        }
        frame_.early.push_back(std::move(early));
    }
    frame_.undo.reserve(steps_.size());
}

// True if these steps may write to the update's target: from the first on, it is read only through their results, which do not leave
// the graph.
bool MemoryLayout::is_early(int update, const std::vector<int>& writes) const {
    if (writes.empty()) return false;
    const auto& [value, input] = plan_.targets_[at(update)];
    const auto holds = [&, held = value](const auto& one) { return one.second == held; };
    const auto held = std::find_if(plan_.held_.begin(), plan_.held_.end(), holds);
    const int target = input >= 0 ? plan_.input_slots_[at(input)] : held == plan_.held_.end() ? -1 : held->first;
    const int first = writes.back(), last_slot = plan_.update_slots_[at(update)];
    if (target < 0 || steps_[at(first)].inputs[0] != target || !frame_.seen[at(last_slot)].is_contiguous) return false;
    for (const int s : writes) {
        if (leaves_[at(steps_[at(s)].first_result)] || steps_[at(s)].inputs.size() > at(kMostOfPart)) return false;
    }
    for (int other = 0; other < static_cast<int>(plan_.targets_.size()); ++other) {
        if (other != update && (plan_.targets_[at(other)] == plan_.targets_[at(update)] || plan_.update_slots_[at(other)] == last_slot)) return false;
    }
    std::vector<bool> shows(at(plan_.slot_count_), false);
    shows[at(target)] = true;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const Plan::Step& step = steps_[s];
        const auto count = std::count_if(step.inputs.begin(), step.inputs.end(), [&](int slot) { return shows[at(slot)]; });
        if (count == 0) continue;
        if (static_cast<int>(s) == first ? count > 1 : s >= plan_.tail_ || position_[s] > position_[at(first)]) return false;
        for (std::size_t k = 0; k < step.node->results.size(); ++k) {
            const std::size_t slot = at(step.first_result) + k;
            if (frame_.roots[slot] == kOutside) shows[slot] = true;
        }
    }
    const auto is_shown = [&](int slot) { return shows[at(slot)]; };
    const auto is_guarded = [&](const auto& guard) { return is_shown(guard.first); };
    return std::none_of(plan_.result_slots_.begin(), plan_.result_slots_.end(), is_shown) &&
        std::none_of(plan_.update_slots_.begin(), plan_.update_slots_.end(), is_shown) &&
        std::none_of(plan_.guard_slots_.begin(), plan_.guard_slots_.end(), is_guarded);
}

// Places the results of the step at this place of the order.
void MemoryLayout::place(std::size_t i) {
    Call& call = frame_.calls[at(frame_.order[i])];
    const int stage = stage_of_[at(frame_.order[i])];
    if (!keeps_constants(call) && can_be_written(call)) {
        call.into = call.step->node->form().into;
        each_result(call, [&](int slot, std::size_t) {
            if (leaves_[at(slot)]) {
                frame_.outgoing.push_back({slot, {}, {}});
                const auto is_here = [&](int other) { return home_[at(other)] == slot; };
                std::copy_if(at_home_.begin(), at_home_.end(), std::back_inserter(frame_.outgoing.back().before), is_here);
                return;
            }
            if (home_[at(slot)] >= 0) {
                at_home_.push_back(slot);
                return;
            }
            if (is_early_[at(slot)]) return;
            const int operand = operand_in_place_of(call, slot);
            if (operand >= 0) std::erase(ends_[at(stage)], operand);
            begin_[at(slot)] = operand >= 0 ? begin_[at(operand)] : places_.take(room(slot));
            frame_.is_placed[at(slot)] = true;
            ends_[at(end_[at(slot)])].push_back(slot);
        });
    }
    if (static_cast<int>(i) + 1 < stage_end(stage)) return;
    for (const int over : ends_[at(stage)]) places_.give_back(begin_[at(over)], room(over));
}

// Results that depend on constants only are made once more, and kept.
bool MemoryLayout::keeps_constants(Call& call) {
    const Graph::Node& node = *call.step->node;
    const auto is_fixed = [&](int slot) { return is_constant_[at(slot)]; };
    bool keeps =
        !node.attributes().is_random() && !node.attributes().has_graph() && std::all_of(call.step->inputs.begin(), call.step->inputs.end(), is_fixed);
    std::size_t bytes = 0;
    each_result(call, [&](int slot, std::size_t) {
        const int root = frame_.roots[at(slot)];
        keeps = keeps && frame_.seen[at(slot)].device == cpu && !(root >= 0 && leaves_[at(root)]);
        bytes += frame_.seen[at(slot)].bytes();
    });
    if (!keeps || bytes > kMostConstantBytes) return false;
    call.stays = true;
    each_result(call, [&](int slot, std::size_t) { is_constant_[at(slot)] = true; });
    return true;
}

bool MemoryLayout::can_be_written(const Call& call) const {
    const Graph::Node& node = *call.step->node;
    const bool takes_channels_last = takes_any_layout(node.form());
    bool can = node.form().into != nullptr && !node.results.empty() && !call.gives_more;
    each_result(call, [&](int slot, std::size_t k) {
        const Geometry& y = frame_.seen[at(slot)];
        can = can && frame_.roots[at(slot)] == slot && y.is_defined && y.device == cpu && y.dtype == node.results[k]->dtype &&
            (y.is_contiguous || (takes_channels_last && y.is_channels_last));
    });
    return can;
}

// The operand whose memory a result may take, since nobody needs it afterwards; -1: none.
int MemoryLayout::operand_in_place_of(const Call& call, int slot) const {
    const int stage = stage_of_[static_cast<std::size_t>(call.step - steps_.data())];
    const bool is_alone = stage_end(stage) - frame_.stages[at(stage)] == 1;
    if (!is_alone || !call.step->node->form().is_in_place) return -1;
    const std::vector<int>& inputs = call.step->inputs;
    for (const int input : inputs) {
        const Geometry &x = frame_.seen[at(input)], &y = frame_.seen[at(slot)];
        const std::vector<int>& over = ends_[at(stage)];
        if (std::find(over.begin(), over.end(), input) == over.end()) continue;  // needed later, or its memory is taken
        if (x.dtype != y.dtype || !x.lies_as(y)) continue;
        const auto is_other_view = [&](int other) { return other != input && frame_.roots[at(other)] == input; };
        if (std::none_of(inputs.begin(), inputs.end(), is_other_view)) return input;
    }
    return -1;
}

void MemoryLayout::make_slots() {
    if (places_.size() == 0) return;
    frame_.block = make_empty(Shape(static_cast<std::int64_t>(places_.size())), uint8, Device(), Loc{});
    for (int slot = 0; slot < plan_.slot_count_; ++slot) {
        if (!frame_.is_placed[at(slot)]) continue;
        const Geometry& y = frame_.seen[at(slot)];
        const std::int64_t* strides = y.is_channels_last ? y.strides.data() : nullptr;
        frame_.slots[at(slot)] = make_view(frame_.block.impl(), y.shape.rank(), y.shape.data(), strides, static_cast<std::int64_t>(begin_[at(slot)]));
        TensorImpl* impl = frame_.slots[at(slot)].impl();
        impl->dtype = y.dtype;
        impl->flags &= static_cast<std::uint8_t>(~TensorImpl::kView);
    }
}

// Views of results in the block need not be made again; slots that do not stay are emptied.
void MemoryLayout::find_what_stays() {
    std::vector<bool> stays = frame_.is_placed;
    for (const Outgoing& out : frame_.outgoing) stays[at(out.slot)] = true;
    const auto shows_block = [&](int slot) { return frame_.roots[at(slot)] >= 0 && frame_.is_placed[at(frame_.roots[at(slot)])]; };
    for (std::size_t s = 0; s < plan_.tail_; ++s) {
        Call& call = frame_.calls[s];
        const std::vector<int>& inputs = call.step->inputs;
        // A branch or loop may return its operand, and something else in another run.
        if (!call.stays && !call.into && !inputs.empty() && !call.step->node->attributes().has_graph()) {
            call.stays = std::all_of(inputs.begin(), inputs.end(), shows_block);
            each_result(call, [&](int slot, std::size_t) { call.stays = call.stays && shows_block(slot); });
        }
        if (call.stays) each_result(call, [&](int slot, std::size_t) { stays[at(slot)] = true; });
    }
    for (Call& call : frame_.calls) {
        std::erase_if(call.dead, [&](int slot) { return stays[at(slot)]; });
        each_result(call, [&](int slot, std::size_t) {
            if (!stays[at(slot)]) frame_.loose.push_back(slot);
        });
    }
}

void Plan::lay_out(Frame& frame) const {
    schedule(frame);
    MemoryLayout(*this, frame);
    plan_updates(frame);
    if (kCanCapture) plan_capture(frame);
    frame.is_laid_out = true;
}

// True for steps that may write to parameters directly: nothing that they read, but the parameter itself, lies in memory that is written.
void Plan::plan_updates(Frame& frame) const {
    for (std::size_t i = 0; i < held_.size(); ++i) frame.held[i] = held_[i].second->data;
    frame.tail_inputs.clear();
    frame.writes_directly = tail_ < steps_.size();
    const auto is_outside = [&](int slot) { return frame.roots[at(slot)] == kOutside; };
    std::vector<bool> is_tail(update_slots_.size(), false);
    std::vector<const Tensor*> targets;
    for (std::size_t s = tail_; s < steps_.size(); ++s) {
        for (std::size_t k = 0; k < steps_[s].updates.size(); ++k) {
            const int update = steps_[s].updates[k];
            is_tail[at(update)] = true;
            const Tensor* place = &targets_[at(update)].first->data;
            const bool fits = place->is_contiguous() && place->device() == cpu && place->dtype() == steps_[s].node->results[k]->dtype;
            frame.writes_directly = frame.writes_directly && fits;
            targets.push_back(place);
        }
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
            const auto is_own = [&](int update) { return x == &targets_[at(update)].first->data; };
            if (std::any_of(steps_[s].updates.begin(), steps_[s].updates.end(), is_own)) continue;
            const auto overlaps = [&](const Tensor* target) { return x->shares_storage(*target); };
            const bool is_view_of_outside = frame.where[at(slot)] == &frame.slots[at(slot)];
            if (is_view_of_outside || std::any_of(targets.begin(), targets.end(), overlaps)) frame.writes_directly = false;
        }
    }
    for (std::size_t i = 0; i < targets.size() && frame.writes_directly; ++i) {
        for (std::size_t k = 0; k < i; ++k) frame.writes_directly = frame.writes_directly && !targets[i]->shares_storage(*targets[k]);
    }
}

}  // namespace tapir::detail
