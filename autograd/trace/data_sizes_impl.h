// Sizes that depend on data, of x[mask], nonzero and unique: ops with such results declare them (OpForm::data_sized).
//
// Note [Taken from data sizes]: a program can pass such a size on as a number, x[mask].size(0), and a graph would hold it as a constant.
// Further runs on inputs of the same sizes with other data find this out: what differs from the first run was taken from data.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// Bitmap of the results of an op whose size depends on data.
inline std::uint64_t data_sized(const Attributes& attributes) {
    const OpForm& form = attributes.form();
    return form.data_sized ? form.data_sized(attributes.data()) : 0;
}

/// True if the result size of some op, also in branches and bodies of loops, depends on data.
bool has_data_sizes(const Graph& graph);

/// Returns x with its second half, or all of it, replaced by the smallest or largest element, so that ops which choose elements choose others
/// (if all are equal, as in the zeros that a model is tried with: by smaller or larger ones); or, for floats, with all signs changed.
enum class OtherData : std::uint8_t { half_smallest, half_largest, all_smallest, all_largest, negated };
inline constexpr OtherData kOtherData[] = {OtherData::half_smallest, OtherData::half_largest, OtherData::all_smallest, OtherData::all_largest,
                                           OtherData::negated};
Tensor with_other_data(const Tensor& x, OtherData how);

/// Finds what the other run, on inputs of the same sizes, took from sizes that depend on data. Empty: nothing, or it is left to ops from now
/// on, in all graphs. If the two runs read other values (guards), nothing is known.
std::string taken_from_data(std::vector<Graph>& graphs, const Graph& other);

/// The dimension of a slice whose size is the minimum of a bound and a named size, x[:100], which no formula expresses. -1: none.
int clipped_dim(const Attributes& attributes, const std::vector<Graph::Value*>& inputs);
/// The largest bound of such slices; 0 if there are none.
std::int64_t largest_bound(const Graph& graph);

/// If data chose nothing in any run, a 0 among an op's sizes may be that count: leaves it to the op.
void leave_none_to_ops(std::vector<Graph>& graphs);

/// Results that depend on data sizes or clipped sizes have sizes that no run tells: this finds them by calling the ops.
void follow_data_sizes(Graph& graph, const Loc& loc);

}  // namespace tapir::detail
