// What an op gives, without its numbers.
#pragma once

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

struct Inferred {
    DType dtype;
    Device device;
    std::vector<SymInt> shape;  // a dimension "unknown" where no formula of the inputs' dimensions gives the size
};
/// The op is called on zeros, with several sizes of the named dimensions. Throws what it throws.
std::vector<Inferred> infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc);

/// Whether some of its ops give as many elements as data says.
bool has_data_sizes(const Graph& graph);

}  // namespace tapir::detail
