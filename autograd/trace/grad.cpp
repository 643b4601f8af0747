// The gradient of a graph is traced: the graph runs on a tape, op by op, and what backward does is written down with it.
#include "tapir/autograd/trace/grad.h"

#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/trace/infer_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/make.h"

namespace tapir {

Graph grad(const Graph& graph, const std::vector<std::string>& outputs, const std::vector<std::string>& inputs, Loc loc) {
    const auto index_of = [&](const std::vector<std::string>& names, const std::string& name) {
        return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    };
    if (outputs.empty()) fail<ValueError>(loc, "grad: it is told no outputs; give those whose gradients are wanted, as in {{\"loss\"}}");
    std::vector<std::string> output_names, input_names, parameter_names;
    for (const Graph::Output& output : graph.outputs()) output_names.push_back(output.name);
    for (const Graph::Value* value : graph.inputs()) input_names.push_back(value->name);
    for (const Graph::Value* value : graph.parameters()) parameter_names.push_back(value->name);
    for (const std::string& name : outputs) {
        if (index_of(output_names, name) < output_names.size()) continue;
        graph.value(name, loc);  // throws, unless it is an input
        fail<ValueError>(loc, "grad: {} is no output", name);
    }
    for (const std::string& name : inputs) {
        if (index_of(input_names, name) == input_names.size() && index_of(parameter_names, name) == parameter_names.size()) {
            graph.value(name, loc);  // throws, unless it is an output
            fail<ValueError>(loc, "grad: {} is an output, not an input or parameter", name);
        }
    }
    DimSizes sizes;
    std::int64_t next = 2;
    for (const std::string& name : graph.dims()) sizes[name] = next += 2;
    std::vector<TraceInput> examples;
    const bool is_data_sized = detail::has_data_sizes(graph);
    for (const Graph::Value* input : graph.inputs()) {
        Shape shape;
        std::vector<std::string> dims;
        for (const SymInt& size : input->shape) {
            shape.push_back(size.value(sizes, loc), loc);
            dims.push_back(size.is_number() ? "" : size.str());
        }
        const detail::PauseRecording pause;
        Tensor x = detail::make_empty(shape, input->dtype, input->device, loc);
        x.fill_(is_floating(input->dtype) ? 0.5 : 0);
        if (is_data_sized && is_floating(input->dtype)) x.copy_(cos(arange(x.numel(), input->dtype)).reshape(shape));  // to be told apart
        examples.push_back({input->name, x, dims});
    }
    TraceOptions options;
    options.outputs = output_names;
    for (const std::string& name : inputs) {
        std::string own = "grad_" + name;
        for (int n = 2; index_of(options.outputs, own) < options.outputs.size(); ++n) own = fmt::format("grad_{}_{}", name, n);
        options.outputs.push_back(std::move(own));
    }
    for (const Graph::Value* parameter : graph.parameters()) options.parameters.emplace_back(parameter->name, parameter->data);
    const auto run = [&](const std::vector<Tensor>& given) {
        Graph copy = graph;
        std::vector<Tensor> x = given;
        Tape tape;
        std::vector<Tensor> leaves;
        for (const std::string& name : inputs) {
            const std::size_t input = index_of(input_names, name), parameter = index_of(parameter_names, name);
            Tensor& place = input < x.size() ? x[input] : copy.parameters()[parameter]->data;
            place = place.detach().requires_grad_(true, loc);
            leaves.push_back(place);
        }
        std::vector<Tensor> results = copy(x, loc);
        Tensor total;
        for (const std::string& name : outputs) {
            const Tensor part = results[index_of(output_names, name)].sum(loc);
            total = total.defined() ? gradient_ops::add(total, part) : part;
        }
        for (Tensor& g : tape.gradient(total, leaves, {}, loc)) results.push_back(std::move(g));
        return results;
    };
    return trace(run, examples, options, loc);
}

}  // namespace tapir
