// Running a graph as steps over slots: without records, names and checks, in memory that is used again.
#include "tapir/autograd/trace/runner_impl.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {
namespace detail {

Plan::Plan(const Graph& graph, std::vector<std::string> outputs, const Loc& loc)
    : graph_(graph), outputs_(std::move(outputs)), is_whole_(outputs_.empty()) {
    std::vector<const Graph::Value*> wanted;
    if (is_whole_) {
        for (const Graph::Output& output : graph.outputs()) wanted.push_back(output.value);
    } else {
        for (const std::string& name : outputs_) wanted.push_back(graph.value(name, loc));
    }
    const std::size_t result_count = wanted.size();
    for (const Graph::Guard& guard : graph.guards()) wanted.push_back(guard.value);
    if (is_whole_) {
        for (const Graph::Update& update : graph.updates()) wanted.push_back(update.value);
    }
    std::unordered_set<const Graph::Value*> needed(wanted.begin(), wanted.end());
    // What draws numbers that nobody needs decides which ones the others get.
    for (const auto& node : graph.nodes()) {
        if (is_whole_ && node->attributes.form().is_random) needed.insert(node->results.begin(), node->results.end());
    }
    for (std::size_t i = graph.nodes().size(); i-- > 0;) {
        const Graph::Node& node = *graph.nodes()[i];
        const auto is_needed = [&](const Graph::Value* value) { return needed.count(value) > 0; };
        if (std::any_of(node.results.begin(), node.results.end(), is_needed)) needed.insert(node.inputs.begin(), node.inputs.end());
    }
    std::unordered_map<const Graph::Value*, int> slots;
    const auto slot_of = [&](const Graph::Value* value) {
        if (!needed.count(value)) return -1;
        const auto [place, is_new] = slots.try_emplace(value, slot_count_);
        if (is_new) ++slot_count_;
        return place->second;
    };
    for (const Graph::Value* value : graph.inputs()) input_slots_.push_back(slot_of(value));
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) {
            if (const int slot = slot_of(value); slot >= 0) held_.emplace_back(slot, value);
        }
    }
    std::unordered_map<int, std::size_t> last_use;
    for (const auto& node : graph.nodes()) {
        if (std::none_of(node->results.begin(), node->results.end(), [&](const Graph::Value* v) { return needed.count(v) > 0; })) continue;
        Step step{node.get(), {}, {}, {}};
        for (const Graph::Value* input : node->inputs) {
            step.inputs.push_back(slot_of(input));
            if (input->kind == Graph::Kind::result) last_use[step.inputs.back()] = steps_.size();
        }
        for (const Graph::Value* result : node->results) {
            step.results.push_back(slot_of(result));
            if (step.results.back() >= 0) last_use.emplace(step.results.back(), steps_.size());
        }
        steps_.push_back(std::move(step));
    }
    for (const Graph::Value* value : wanted) last_use.erase(slots.at(value));
    for (const auto& [slot, at] : last_use) steps_[at].dead.push_back(slot);
    for (Step& step : steps_) {
        if (step.results.size() != 1 || !step.node->attributes.form().into) continue;
        const Graph::Value& result = *step.node->results[0];
        for (std::size_t i = 0; i < step.inputs.size() && step.reusable < 0; ++i) {
            const Graph::Value& input = *step.node->inputs[i];
            const bool is_alike = input.dtype == result.dtype && input.device == result.device && input.shape == result.shape;
            if (is_alike && std::find(step.dead.begin(), step.dead.end(), step.inputs[i]) != step.dead.end()) step.reusable = step.inputs[i];
        }
    }
    for (std::size_t i = 0; i < result_count; ++i) result_slots_.push_back(slots.at(wanted[i]));
    for (std::size_t i = 0; i < graph.guards().size(); ++i) guard_slots_.emplace_back(slots.at(graph.guards()[i].value), static_cast<int>(i));
    for (std::size_t i = 0; is_whole_ && i < graph.updates().size(); ++i) {
        update_slots_.emplace_back(slots.at(graph.updates()[i].value), static_cast<int>(i));
    }
}

std::unique_ptr<Plan::State> Plan::take_state() {
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            std::unique_ptr<State> state = std::move(idle_.back());
            idle_.pop_back();
            return state;
        }
    }
    auto state = std::make_unique<State>();
    state->slots.resize(static_cast<std::size_t>(slot_count_));
    for (const Step& step : steps_) {
        std::vector<const Tensor*> arguments;
        for (const int slot : step.inputs) arguments.push_back(&state->slots[static_cast<std::size_t>(slot)]);
        state->arguments.push_back(std::move(arguments));
    }
    return state;
}

void Plan::check_inputs(const Tensor* given, const Loc& loc) const {
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0 && !given[i].defined()) fail<ValueError>(loc, "graph: the input {} is needed", graph_.inputs()[i]->name);
    }
}

// What depends on the inputs' shapes.
void Plan::prepare(State& state, const Tensor* given, const Loc& loc) const {
    const DimSizes sizes = sizes_of_inputs(graph_, given, loc);
    state.resolved.clear();
    state.resolved.reserve(steps_.size());
    state.attrs.clear();
    state.shapes.clear();
    for (const Step& step : steps_) {
        const Attributes& attributes = step.node->attributes;
        if (attributes.is_symbolic()) {
            state.resolved.push_back(attributes.with(sizes, step.node->loc.line() ? step.node->loc : loc));
            state.attrs.push_back(state.resolved.back().data());
        } else {
            state.attrs.push_back(attributes.data());
        }
        Shape shape;
        bool is_known = attributes.form().into != nullptr;
        for (const SymInt& size : step.node->results[0]->shape) {
            for (const std::string& name : size.dims()) is_known &= sizes.count(name) > 0;
            if (is_known) shape.push_back(size.value(sizes, loc), loc);
        }
        if (!is_known) shape = Shape(std::int64_t{-1});
        state.shapes.push_back(shape);
    }
    state.given.clear();
    for (std::size_t i = 0; i < input_slots_.size(); ++i) state.given.push_back(given[i].defined() ? given[i].shape() : Shape());
}

void Plan::run_step(std::size_t s, State& state) const {
    const Step& step = steps_[s];
    const OpForm& form = step.node->attributes.form();
    const FormCall call{state.arguments[s].data(), static_cast<int>(state.arguments[s].size()), state.attrs[s]};
    const auto slot = [&](int i) -> Tensor& { return state.slots[static_cast<std::size_t>(i)]; };
    bool is_done = false;
    if (form.into && step.results.size() == 1 && !(state.shapes[s].rank() == 1 && state.shapes[s].raw(0) == -1)) {
        const Graph::Value& result = *step.node->results[0];
        const bool is_reused = step.reusable >= 0 && only_owner(slot(step.reusable));
        Tensor out = is_reused ? slot(step.reusable) : make_empty(state.shapes[s], result.dtype, result.device, step.node->loc);
        is_done = form.into(call, out);
        if (is_done) slot(step.results[0]) = std::move(out);
    }
    if (!is_done) {
        Tensor results[256];
        form.run(call, results);
        for (std::size_t k = 0; k < step.results.size(); ++k) {
            if (step.results[k] < 0) continue;
            // Numbers among the operands are tensors here, and may count for more in a promotion.
            const DType dtype = step.node->results[k]->dtype;
            if (!results[k].defined()) fail<ValueError>(step.node->loc, "graph: {} gives no result {}", step.node->op, k);
            slot(step.results[k]) = results[k].dtype() == dtype ? std::move(results[k]) : results[k].to(dtype);
        }
    }
    for (const int dead : step.dead) slot(dead) = Tensor();
}

void Plan::run(const Tensor* given, Tensor* results, const Loc& loc) {
    check_inputs(given, loc);
    const PauseRecording pause;
    const PauseAutocast plain;
    std::unique_ptr<State> state = take_state();
    bool is_prepared = state->given.size() == input_slots_.size() && !state->attrs.empty();
    for (std::size_t i = 0; i < input_slots_.size() && is_prepared; ++i) {
        is_prepared = given[i].defined() ? given[i].shape() == state->given[i] && given[i].dtype() == graph_.inputs()[i]->dtype : true;
    }
    if (!is_prepared) prepare(*state, given, loc);
    const auto slot = [&](int i) -> Tensor& { return state->slots[static_cast<std::size_t>(i)]; };
    for (const auto& [place, value] : held_) slot(place) = value->data;
    for (std::size_t i = 0; i < input_slots_.size(); ++i) {
        if (input_slots_[i] >= 0) slot(input_slots_[i]) = given[i];
    }
    for (std::size_t s = 0; s < steps_.size(); ++s) {
        const Loc& line = steps_[s].node->loc;
        const CallerScope caller(line.line() ? line : loc);
        run_step(s, *state);
    }
    for (const auto& [place, i] : guard_slots_) check_guard(graph_.guards()[static_cast<std::size_t>(i)], slot(place), loc);
    for (std::size_t i = 0; i < result_slots_.size(); ++i) {
        const Tensor& y = slot(result_slots_[i]);
        results[i] = y;
    }
    for (const auto& [place, i] : update_slots_) {
        const Graph::Value& target = *graph_.updates()[static_cast<std::size_t>(i)].target;
        Tensor written = target.data;
        if (target.kind == Graph::Kind::input) {
            for (std::size_t k = 0; k < graph_.inputs().size(); ++k) {
                if (graph_.inputs()[k] == &target) written = given[k];
            }
        }
        written.copy_(slot(place), loc);
    }
    for (Tensor& t : state->slots) t = Tensor();
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(state));
}

}  // namespace detail

// --- Graph::run -----------------------------------------------------------------------------------------------------------------

struct Graph::Plans {
    std::mutex mutex;
    std::vector<std::unique_ptr<detail::Plan>> plans;  // by outputs
};

void Graph::changed() noexcept { plans_.reset(); }

std::vector<Tensor> Graph::run(const Inputs& inputs, const std::vector<std::string>& outputs, Loc loc) const {
    std::vector<Tensor> given(inputs_.size());
    for (const auto& [name, tensor] : inputs) {
        const auto place = std::find_if(inputs_.begin(), inputs_.end(), [&](const Value* value) { return value->name == name; });
        if (place == inputs_.end()) {
            std::string names;
            for (const Value* value : inputs_) names += (names.empty() ? "" : ", ") + value->name;
            fail<ValueError>(loc, "Graph::run: there is no input {}; there are {}", name, names);
        }
        given[static_cast<std::size_t>(place - inputs_.begin())] = tensor;
    }
    std::shared_ptr<Plans> plans = std::atomic_load(&plans_);
    if (!plans) {
        auto fresh = std::make_shared<Plans>();
        if (std::atomic_compare_exchange_strong(&plans_, &plans, fresh)) plans = fresh;
    }
    detail::Plan* plan = nullptr;
    {
        const std::lock_guard lock(plans->mutex);
        for (const auto& known : plans->plans) {
            if (known->outputs() == outputs) plan = known.get();
        }
        if (!plan) {
            plans->plans.push_back(std::make_unique<detail::Plan>(*this, outputs, loc));
            plan = plans->plans.back().get();
        }
    }
    std::vector<Tensor> results(plan->result_count());
    plan->run(given.data(), results.data(), loc);
    return results;
}

}  // namespace tapir
