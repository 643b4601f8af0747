// What passes are made of: looking at values, putting nodes before others, and rules that look at one node each.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/ops/forms_impl.h"

namespace tapir::rewrite {

using Value = Graph::Value;
using Node = Graph::Node;
using Sizes = std::vector<SymInt>;

// --- Looking ------------------------------------------------------------------------------------------------------------------

/// As an element of this dtype has it.
double rounded(double number, DType dtype);
/// The number that all elements of a value are, where that is known: of constants, zeros(), full(), and views of these.
/// None for whole numbers that a double does not hold exactly.
std::optional<double> number_of(const Value* value);
/// The least and the largest absolute value of elements that are all known and finite.
struct Magnitudes {
    double least, most;
};
std::optional<Magnitudes> magnitudes_of(const Value* value);
/// Whether each element is known, finite and not 0.
bool is_finite_constant(const Value* value);
/// Whether it is a constant, or may lie in the memory of one.
bool is_of_constant(const Value* value);
/// Whether a formula of dimensions, which may depend on data, gives each size.
bool is_known(const Sizes& shape);
/// Whether attributes can say it: its dimensions are those of inputs, which each run knows from the start.
bool is_given(const Graph& graph, const Sizes& shape);
/// The same shape in every run. What is not known is not the same.
bool same_shape(const Value* a, const Value* b);
/// The same, and the same dtype and device.
bool same_type(const Value* a, const Value* b);
/// The shape of an element-wise op on operands of these; none where it is not known before they are.
std::optional<Sizes> broadcast(const Sizes& a, const Sizes& b);
/// The node that makes it, if that is a call of this op with one result.
Node* made_by(const Value* value, const OpForm& op);
/// Whether one input of one node is all that it is there for.
bool has_one_use(const Graph& graph, const Value* value);
bool is_output(const Graph& graph, const Value* value);
/// Whether a node's results lie in the memory of an input of it.
enum class Sharing { never, maybe, always };
Sharing sharing_of(const Node& node, std::size_t input);
/// Whether an output, or what is written to a parameter, may lie in its memory: it is one, or views lead from it to one. Views through
/// `except` do not count.
bool is_seen(const Graph& graph, const Value* value, const Value* except = nullptr);
/// Whether the op computes each element of its result from the same elements of its operands, which broadcast.
bool is_elementwise(const Node& node);
/// The same for what gives the elements another dtype too.
bool is_pointwise(const Node& node);
Sizes sizes_of(const Node& node, const char* attribute);
/// Of an attribute that is a list of dimensions, none of which is below 0.
std::vector<int> dims_of(const Node& node, const char* attribute);
/// Of a reduction: all, where it names none.
std::vector<int> reduced_dims(const Node& node);
bool flag_of(const Node& node, const char* attribute);

// --- Making -------------------------------------------------------------------------------------------------------------------

using AttributeList = std::vector<std::pair<std::string, Attribute>>;
/// A call of an op before another node, with a result of this type.
Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, DType dtype,
           Device device, Sizes shape);
/// With a result like `like`.
Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, const Value* like);
/// A 0-d constant.
Value* put_number(Graph& graph, double number, DType dtype);
/// `other` takes the place of a node's result. Where an output or what is written to a parameter lies in the result's memory, and the
/// other is memory that somebody else holds (of an input, a parameter, a constant, another output), a copy of it does: a pass must not
/// make tensors share memory that the program has kept apart, or elements of one tensor. False: nothing was to be done.
bool take_place(Graph& graph, Node& node, Value* result, Value* other);

// --- Rules --------------------------------------------------------------------------------------------------------------------

/// For nodes of this op: what takes the place of the result, or null.
struct Rule {
    const OpForm& op;
    Value* (*apply)(Graph& graph, Node& node);
};
/// Tries the rules on each node, in the order in which they run, and gives how many have changed something.
int apply_rules(Graph& graph, std::span<const Rule> rules);

/// Runs a pass on the graphs that are attributes of nodes: branches, bodies of loops. Gives what the pass has given.
int in_nested(Graph& graph, const std::function<int(Graph&)>& pass);

}  // namespace tapir::rewrite
