// What an op gives, without its numbers.
#pragma once

#include <optional>

#include "tapir/autograd/result_types.h"
#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// "batch = 2, time = 7".
std::string shown_sizes(const DimSizes& sizes);
/// What most ops take: 0.5, this integer; where the last two dimensions are alike, positive definite matrices.
Tensor kind_numbers(const Shape& shape, DType dtype, Device device, std::int64_t integer, const Loc& loc);
/// What the op gives when it is called once on made-up numbers, zeros or kind_numbers(), with small sizes where names stand, of which the
/// results' sizes are unknown. Throws what it throws, and ValueError where its loops do not end on these (TurnBound).
std::vector<ValueType> tried_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);
/// The results by the rule that the op states, which looks at sizes; the op is tried, since it may refuse dtypes and numbers. Of an op without a rule
/// what it gives when it is tried. Throws what either throws.
std::vector<ValueType> infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);

/// What the graph gives for inputs of these types, by the rules of its ops alone. Nothing where one states none. keeps_dtypes: each op's result is
/// converted to the dtype that the graph says.
std::optional<std::vector<ValueType>> stated_results(const Graph& graph, const std::vector<ValueType>& inputs, const Loc& loc,
                                                     bool keeps_dtypes = false);

}  // namespace tapir::detail
