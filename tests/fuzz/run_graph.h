// Running graphs that may say anything.
#pragma once

#include <algorithm>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"

namespace fuzz {

using namespace tapir;

inline constexpr std::int64_t kMostElements = 4096;  // of an input

inline Tensor input_of(const Graph::Value& value, const DimSizes& sizes) {
    Shape shape;
    std::int64_t count = 1;
    for (const SymInt& size : value.shape) {
        const std::int64_t number = size.value(sizes);
        if (number < 0 || number > kMostElements || (count *= number) > kMostElements) return {};
        shape.push_back(number);
    }
    if (value.device != cpu) return {};
    const Tensor x = arange(count, {float32}).to(value.dtype).reshape(shape);
    return is_floating(value.dtype) ? x * 0.3 - 1 : value.dtype == int32 || value.dtype == int64 ? x % 3 : x;
}

inline bool has_loop(const Graph& graph) {
    return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
        if (node->op() == "while_loop") return true;
        const auto all = node->attributes().all();
        return std::any_of(all.begin(), all.end(), [](const auto& attribute) {
            const auto* part = std::get_if<std::shared_ptr<const Graph>>(&attribute.second);
            return part && *part && has_loop(**part);
        });
    });
}

/// With small inputs, op by op and as a plan; errors of any type are well.
inline void run_graph(const Graph& graph) {
    if (has_loop(graph)) return;  // which may have no end
    DimSizes sizes;
    std::int64_t next = 2;
    for (const std::string& dim : graph.dims()) sizes[dim] = next++;
    std::vector<Tensor> inputs;
    Graph::Inputs named;
    try {
        for (const Graph::Value* value : graph.inputs()) {
            inputs.push_back(input_of(*value, sizes));
            if (!inputs.back().defined()) return;
            named.emplace_back(value->name, inputs.back());
        }
    } catch (const Error&) {  // of a formula
        return;
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
        try {
            if (repeat == 0) {
                graph(inputs);
            } else {
                graph.run(named);
            }
        } catch (const Error&) {  // of any type: an op refuses what it is given
        } catch (const std::bad_alloc&) {}
    }
}

}  // namespace fuzz
