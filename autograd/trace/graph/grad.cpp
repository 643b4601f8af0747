// Traces the gradient of a graph: the graph runs on a tape, op by op, and the tracer writes down what backward does.
#include "tapir/autograd/trace/graph/grad.h"

#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/data_sizes_impl.h"
#include "tapir/autograd/trace/graph/detach_impl.h"
#include "tapir/autograd/trace/graph/infer_impl.h"
#include "tapir/autograd/trace/hint_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"

namespace tapir {
namespace {

using Names = std::vector<std::string>;

std::size_t index_of(const Names& names, const std::string& name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}
bool has(const Names& names, const std::string& name) { return index_of(names, name) < names.size(); }

// "grad_x", or "grad_x_2" if that is taken.
std::string fresh(const Names& taken, const std::string& name) {
    std::string own = name;
    for (int n = 2; has(taken, own); ++n) own = fmt::format("{}_{}", name, n);
    return own;
}

class Gradient {
 public:
    Gradient(const Graph& graph, const Names& outputs, const Names& inputs, const Graph::Inputs& examples, const Loc& loc)
        : graph_(graph), copy_(graph), outputs_(outputs), inputs_(inputs), examples_(examples), loc_(loc) {
        for (const Graph::Output& output : graph.outputs()) output_names_.push_back(output.name);
        for (const Graph::Value* value : graph.inputs()) input_names_.push_back(value->name);
        for (const Graph::Value* value : graph.parameters()) parameter_names_.push_back(value->name);
        check();
        keep_parameters();
        guards_ = copy_.take_guards();  // made-up numbers differ from those that the program saw
        for (const Graph::Guard& guard : guards_) {
            guard_names_.push_back(fresh(output_names_, "guard"));
            output_names_.push_back(guard_names_.back());
            copy_.add_output(guard_names_.back(), guard.value, loc);
        }
        for (const Graph::Update& update : copy_.updates()) {
            update_names_.push_back(fresh(output_names_, "update"));
            output_names_.push_back(update_names_.back());
            copy_.add_output(update_names_.back(), update.value, loc);
        }
        copy_.remove_updates();
    }

    // integer: the value of whole numbers among the inputs.
    Graph traced(std::int64_t integer) const {
        const detail::TurnBound turns(examples_.size() < graph_.inputs().size() ? detail::kMadeUpTurns : INT64_MAX);
        try {
            return traced_once(integer);
        } catch (const ValueError&) {
            if (!turns.is_spent()) throw;
            detail::rethrow_with_hint<ValueError>(std::current_exception(), "; give grad() examples of the inputs, on which its loops end");
        }
    }

    bool has_integers() const {
        return std::any_of(graph_.inputs().begin(), graph_.inputs().end(),
                           [](const Graph::Value* x) { return !is_floating(x->dtype) && x->dtype != bool_; });
    }

 private:
    Graph traced_once(std::int64_t integer) const {
        TraceOptions options;
        options.outputs = output_names_;
        for (const std::string& name : inputs_) options.outputs.push_back(fresh(options.outputs, "grad_" + name));
        for (const Graph::Value* parameter : copy_.parameters()) options.parameters.emplace_back(parameter->name, parameter->data);
        Graph made = trace([&](const std::vector<Tensor>& x) { return run(x); }, example_inputs(integer), options, loc_);
        for (std::size_t i = 0; i < guards_.size(); ++i) {
            made.add_guard({made.value(guard_names_[i], loc_), guards_[i].expected, guards_[i].what, guards_[i].loc}, loc_);
            made.remove_output(guard_names_[i], loc_);
        }
        for (std::size_t i = 0; i < update_names_.size(); ++i) {
            const Graph::Value& target = *graph_.updates()[i].target;
            const bool is_input = target.kind == Graph::Kind::input;
            const auto& places = is_input ? made.inputs() : made.parameters();
            const auto place = std::find_if(places.begin(), places.end(), [&](const Graph::Value* value) { return value->name == target.name; });
            Graph::Value* mine = place != places.end() ? *place : made.add_parameter(target.name, target.data, loc_);
            made.add_update(mine, made.value(update_names_[i], loc_), loc_);
            made.remove_output(update_names_[i], loc_);
        }
        for (Graph::Value* parameter : made.parameters()) {
            const std::size_t i = index_of(parameter_names_, parameter->name);
            if (i < parameter_names_.size()) parameter->data = graph_.parameters()[i]->data;
        }
        return made;
    }

    void check() const {
        if (outputs_.empty()) fail<ValueError>(loc_, "grad: it is told no outputs; give those whose gradients are wanted, as in {{\"loss\"}}");
        if (inputs_.empty()) fail<ValueError>(loc_, "grad: no inputs are given");
        for (const std::string& name : outputs_) {
            if (has(output_names_, name)) continue;
            graph_.value(name, loc_);  // throws, unless it is an input
            fail<ValueError>(loc_, "grad: {} is no output", name);
        }
        for (std::size_t i = 0; i < inputs_.size(); ++i) {
            const std::string& name = inputs_[i];
            if (!has(input_names_, name) && !has(parameter_names_, name)) {
                graph_.value(name, loc_);  // throws, unless it is an output
                fail<ValueError>(loc_, "grad: {} is an output, not an input or parameter", name);
            }
            if (index_of(inputs_, name) < i) fail<ValueError>(loc_, "grad: the input {} is given twice", name);
        }
        for (const auto& [name, tensor] : examples_) {
            if (!has(input_names_, name)) fail<ValueError>(loc_, "grad: there is no input {} to give an example of", name);
            if (!tensor.defined()) fail<ValueError>(loc_, "grad: the example of the input {} is undefined", name);
        }
    }

    // Makes the graph write to copies, so that its parameters stay as they are.
    void keep_parameters() {
        const detail::PauseRecording pause;
        for (const Graph::Update& update : copy_.updates()) {
            if (update.target->kind != Graph::Kind::parameter) continue;
            Tensor copy = update.target->data.detach().clone();
            if (update.target->data.requires_grad()) copy.requires_grad_(true, loc_);
            update.target->data = copy;
        }
    }

    std::vector<TraceInput> example_inputs(std::int64_t integer) const {
        std::vector<Tensor> given(graph_.inputs().size());
        for (const auto& [name, tensor] : examples_) given[index_of(input_names_, name)] = tensor.detach().clone();  // it may be written to
        DimSizes sizes = detail::sizes_of_inputs(graph_, given.data(), loc_);
        std::int64_t next = 2;
        for (const std::string& name : graph_.dims()) sizes.try_emplace(name, next += 2);
        const bool is_data_sized = detail::has_data_sizes(graph_);
        std::vector<TraceInput> list;
        for (std::size_t i = 0; i < given.size(); ++i) {
            const Graph::Value& input = *graph_.inputs()[i];
            Shape shape;
            Names dims;
            for (const SymInt& size : input.shape) {
                shape.push_back(size.value(sizes, loc_), loc_);
                dims.push_back(size.is_number() ? "" : size.str());
            }
            if (!given[i].defined()) {
                const detail::PauseRecording pause;
                given[i] = detail::kind_numbers(shape, input.dtype, input.device, integer, loc_);
                // Makes the elements distinct.
                if (is_data_sized && is_floating(input.dtype)) given[i].copy_(cos(arange(given[i].numel(), input.dtype)).reshape(shape));
            }
            list.push_back({input.name, given[i], dims});
        }
        return list;
    }

    std::vector<Tensor> run(const std::vector<Tensor>& given) const {
        Graph copy = copy_;
        std::vector<Tensor> x = given;
        Tape tape;
        std::vector<Tensor> leaves;
        for (const std::string& name : inputs_) {
            const std::size_t input = index_of(input_names_, name), parameter = index_of(parameter_names_, name);
            Tensor& place = input < x.size() ? x[input] : copy.parameters()[parameter]->data;
            place = detail::traced_leaf(place, loc_);
            leaves.push_back(place);
        }
        std::vector<Tensor> results = copy(x, loc_);
        Tensor total;
        for (const std::string& name : outputs_) {
            const Tensor part = results[index_of(output_names_, name)].sum(loc_);
            total = total.defined() ? gradient_ops::add(total, part) : part;
        }
        if (!total.requires_grad()) {
            fail<TapeError>(loc_,
                            "grad: no gradient flows from {} to {}: what is computed does not depend on it, or only through detach(), a "
                            "NoGradScope or whole numbers",
                            fmt::join(outputs_, ", "), fmt::join(inputs_, ", "));
        }
        for (Tensor& g : tape.gradient(total, leaves, {}, loc_)) results.push_back(std::move(g));
        return results;
    }

    const Graph& graph_;
    Graph copy_;
    const Names &outputs_, &inputs_;
    const Graph::Inputs& examples_;
    const Loc& loc_;
    Names output_names_, input_names_, parameter_names_, guard_names_, update_names_;
    std::vector<Graph::Guard> guards_;
};

}  // namespace

Graph grad(const Graph& graph, const std::vector<std::string>& outputs, const std::vector<std::string>& inputs, const Graph::Inputs& examples,
           Loc loc) {
    const detail::CallLine call(loc);
    const detail::KeptGenerator generator;
    const Gradient gradient(graph, outputs, inputs, examples, loc);
    try {
        return gradient.traced(1);
    } catch (const IndexError&) {
        if (!gradient.has_integers()) throw;
    }
    return gradient.traced(0);  // an index into one element
}

}  // namespace tapir
