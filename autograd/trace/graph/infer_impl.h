// Infers the result types of an op, without computing the results.
#pragma once

#include <optional>

#include "tapir/autograd/result_types.h"
#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// "batch = 2, time = 7".
std::string shown_sizes(const DimSizes& sizes);
/// Values that most ops accept: 0.5, or this integer; positive definite matrices if the last two dimensions are equal.
Tensor kind_numbers(const Shape& shape, DType dtype, Device device, std::int64_t integer, const Loc& loc);
/// The types by the rule that the op states, for these values as operands; none if it states none. Throws ShapeError, IndexError and ValueError.
ResultTypes result_types_of(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);
/// Calls the op once on made-up values, zeros or kind_numbers(), with small sizes for names, and returns the results' types; sizes that depend
/// on names are unknown. Throws what the op throws, and ValueError if its loops do not end on these values (TurnBound).
std::vector<ValueType> tried_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);
/// Returns the results by the op's rule, which checks sizes; the op is also tried, since it may refuse dtypes and values. For an op without a
/// rule, returns tried_results(). Throws what either throws.
std::vector<ValueType> infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);

/// Returns the graph's output types for inputs of these types, by the rules of its ops alone; nullopt if an op states none. keeps_dtypes:
/// converts each op's result to the dtype that the graph states.
std::optional<std::vector<ValueType>> stated_results(const Graph& graph, const std::vector<ValueType>& inputs, const Loc& loc,
                                                     bool keeps_dtypes = false);

}  // namespace tapir::detail
