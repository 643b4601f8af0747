// Sizes that depend on data, of x[mask], nonzero and unique: an op that makes such says so (OpForm::data_sized).
//
// Note [Taken from data sizes]: a program can hand such a size on as a number, x[mask].size(0), which a graph would hold for good. That
// is found out by more runs on inputs of the same sizes with other data: what differs from the first run was taken from data.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// Of which results of an op data says the size; a bit for each.
inline std::uint64_t data_sized(const Attributes& attributes) {
    const OpForm& form = attributes.form();
    return form.data_sized ? form.data_sized(attributes.data()) : 0;
}

/// Whether some of its ops, those in branches and bodies of loops too, give as many elements as data says.
bool has_data_sizes(const Graph& graph);

/// With the smallest or the largest element in the place of the second half, or of all, so that what chooses elements chooses others (where
/// all are alike, as in the zeros that a model is tried with: with smaller or larger ones); or, of floats, with all signs changed.
enum class OtherData : std::uint8_t { half_smallest, half_largest, all_smallest, all_largest, negated };
inline constexpr OtherData kOtherData[] = {OtherData::half_smallest, OtherData::half_largest, OtherData::all_smallest, OtherData::all_largest,
                                           OtherData::negated};
Tensor with_other_data(const Tensor& x, OtherData how);

/// What differs in the other run, on inputs of the same sizes, was taken from sizes that depend on data. Empty: nothing was, or what was is
/// left to ops from now on, in all graphs. Where the two read other values (guards), nothing is known.
std::string taken_from_data(std::vector<Graph>& graphs, const Graph& other);

/// Along which dimension a slice has as many elements as the least of a bound and a size that has a name says, x[:100]: no formula. -1: none.
int clipped_dim(const Attributes& attributes, const std::vector<Graph::Value*>& inputs);
/// The largest bound of such slices; 0: there are none.
std::int64_t largest_bound(const Graph& graph);

/// Where data chose nothing in any run, the 0 that an op is told of it is as many as data chooses.
void leave_none_to_ops(std::vector<Graph>& graphs);

/// What is made of results whose sizes depend on data, or are clipped, has sizes that no run tells: these are found by calling the ops.
void follow_data_sizes(Graph& graph, const Loc& loc);

}  // namespace tapir::detail
