// Infers the results of an op by calling it.
#include "tapir/autograd/trace/graph/infer_impl.h"

#include <algorithm>
#include <unordered_map>

#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/turn_bound_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"

namespace tapir {
namespace {

Tensor made_for(const Graph::Value& value, const DimSizes& sizes, bool is_kind, const Loc& loc) {
    if (value.kind == Graph::Kind::constant) return value.data;
    Shape shape;
    for (const SymInt& size : value.shape) shape.push_back(size.value(sizes, loc), loc);
    if (is_kind) return detail::kind_numbers(shape, value.dtype, value.device, 1, loc);
    Tensor zeros = detail::make_empty(shape, value.dtype, value.device, loc);
    return zeros.fill_(0);
}

// Tries the op on operands like these.
std::vector<ValueType> try_on(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const DimSizes& sizes, bool is_kind,
                              const Loc& loc) {
    const detail::TurnBound turns(detail::kMadeUpTurns);
    std::vector<Tensor> arguments;
    for (const Graph::Value* input : inputs) arguments.push_back(made_for(*input, sizes, is_kind, loc));
    std::vector<const Tensor*> addresses;
    for (const Tensor& argument : arguments) addresses.push_back(&argument);
    std::vector<Tensor> results(detail::kMostResults);
    const Attributes call = attributes.with(sizes, loc);
    detail::run_form(call.form(), {addresses.data(), static_cast<int>(addresses.size()), call.data()}, results.data());
    std::vector<ValueType> types;
    for (const Tensor& y : results) {
        if (!y.defined()) break;
        std::vector<SymInt> shape;
        for (const std::int64_t size : y.shape()) shape.push_back(sizes.empty() ? SymInt(size) : types::unknown());
        types.push_back({y.dtype(), y.device(), std::move(shape)});
    }
    return types;
}

}  // namespace

std::string detail::shown_sizes(const DimSizes& sizes) {
    std::string text;
    for (const auto& [name, size] : sizes) text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", name, size);
    return text;
}

Tensor detail::kind_numbers(const Shape& shape, DType dtype, Device device, std::int64_t integer, const Loc& loc) {
    const PauseRecording pause;
    Tensor x = make_empty(shape, dtype, device, loc);
    x.fill_(is_floating(dtype) ? Scalar(0.5) : Scalar(integer));
    const int rank = shape.rank();
    if (!is_floating(dtype) || rank < 2 || shape[rank - 1] != shape[rank - 2] || shape[rank - 1] < 2) return x;
    const std::int64_t n = shape[rank - 1];
    return x.add_((eye(n) * (arange(n, float32) * (2.0 / static_cast<double>(n)) + 1)).to(device, dtype));
}

ResultTypes detail::result_types_of(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc) {
    std::vector<ValueType> operands;
    for (const Graph::Value* input : inputs) operands.push_back({input->dtype, input->device, input->shape});
    return result_types(attributes, operands, loc);
}

std::vector<ValueType> detail::tried_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc) {
    DimSizes sizes;
    std::int64_t next = 4;
    const auto give_sizes = [&](const SymInt& formula) {
        for (const std::string& dim : formula.dims()) {
            if (sizes.emplace(dim, next + 2).second) next += 2;
        }
    };
    for (const Graph::Value* input : inputs) std::for_each(input->shape.begin(), input->shape.end(), give_sizes);
    for (const auto& [_, attribute] : attributes.all()) {
        if (const auto* size = std::get_if<SymInt>(&attribute)) give_sizes(*size);
        if (const auto* list = std::get_if<std::vector<SymInt>>(&attribute)) std::for_each(list->begin(), list->end(), give_sizes);
    }
    const detail::PauseRecording pause;
    const detail::KeptGenerator generator;  // draws of ops that are only tried do not count
    const CallerScope caller(loc);
    try {
        return try_on(attributes, inputs, sizes, /*is_kind=*/false, loc);
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error&) {  // divisors are not 0, matrices have inverses
        try {
            return try_on(attributes, inputs, sizes, /*is_kind=*/true, loc);
        } catch (const Error&) {}
        throw;
    }
}

std::vector<ValueType> detail::infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc) {
    std::vector<ValueType> tried = tried_results(attributes, inputs, loc);  // checks dtypes and numbers, which the rule ignores
    ResultTypes stated = result_types_of(attributes, inputs, loc);
    return stated.empty() ? tried : std::move(stated);
}

std::optional<std::vector<ValueType>> detail::stated_results(const Graph& graph, const std::vector<ValueType>& inputs, const Loc& loc,
                                                             bool keeps_dtypes) {
    std::unordered_map<const Graph::Value*, ValueType> types;
    const auto own = [](const Graph::Value& value) { return ValueType{value.dtype, value.device, value.shape}; };
    for (std::size_t i = 0; i < graph.inputs().size(); ++i) types[graph.inputs()[i]] = inputs.at(i);
    for (const auto* list : {&graph.constants(), &graph.parameters()}) {
        for (const Graph::Value* value : *list) types[value] = own(*value);
    }
    for (const auto& node : graph.nodes()) {
        std::vector<ValueType> operands;
        bool are_own = true;
        for (const Graph::Value* input : node->inputs) {
            operands.push_back(types.at(input));
            are_own = are_own && operands.back() == own(*input);
        }
        const ResultTypes results = result_types(node->attributes(), operands, loc);
        const bool is_stated = results.size() == node->results.size();
        if (!is_stated && !are_own) return std::nullopt;
        for (std::size_t k = 0; k < node->results.size(); ++k) {
            ValueType& type = types[node->results[k]] = is_stated ? results[k] : own(*node->results[k]);
            if (keeps_dtypes) type.dtype = node->results[k]->dtype;
        }
    }
    std::vector<ValueType> outputs;
    for (const Graph::Output& output : graph.outputs()) outputs.push_back(types.at(output.value));
    return outputs;
}

}  // namespace tapir
