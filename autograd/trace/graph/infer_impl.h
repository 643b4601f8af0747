// What an op gives, without its numbers.
#pragma once

#include <optional>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

struct Inferred {
    DType dtype;
    Device device;
    std::vector<SymInt> shape;  // a dimension "unknown" where no formula of the inputs' dimensions gives the size
};
/// "batch = 2, time = 7".
std::string shown_sizes(const DimSizes& sizes);
/// What most ops take: 0.5, this integer; where the last two dimensions are alike, positive definite matrices.
Tensor kind_numbers(const Shape& shape, DType dtype, Device device, std::int64_t integer, const Loc& loc);
/// The op is called on zeros (where it takes none, on kind_numbers()), with several sizes of the named dimensions. Throws what it throws, and
/// ValueError where its loops do not end on these (TurnBound).
std::vector<Inferred> infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);

/// What the graph gives for inputs of these types, by the rules of its ops alone. Nothing where one states none. keeps_dtypes: each op's result is
/// converted to the dtype that the graph says.
std::optional<std::vector<ValueType>> stated_results(const Graph& graph, const std::vector<ValueType>& inputs, const Loc& loc,
                                                     bool keeps_dtypes = false);

}  // namespace tapir::detail
