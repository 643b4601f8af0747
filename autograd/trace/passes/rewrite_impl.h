// Tools for passes: inspecting values, inserting nodes before others, and rules for one node each.
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

/// The number as an element of this dtype holds it.
double rounded(double number, DType dtype);
/// The number in all elements of a value, if it is known: for constants, zeros(), full(), and views of these.
/// nullopt for whole numbers that a double does not hold exactly.
std::optional<double> number_of(const Value* value);
/// The least and the largest absolute value of the elements, if all are known and finite.
struct Magnitudes {
    double least, most;
};
std::optional<Magnitudes> magnitudes_of(const Value* value);
/// True if each element is known, finite and not 0.
bool is_finite_constant(const Value* value);
/// True if it is a constant, or may share the memory of one.
bool is_of_constant(const Value* value);
/// True if each size is a formula of dimensions, which may depend on data.
bool is_known(const Sizes& shape);
/// True if attributes can hold it: its dimensions are those of inputs, which each run knows from the start.
bool is_given(const Graph& graph, const Sizes& shape);
/// True if both have the same shape in every run. Unknown sizes are never the same.
bool same_shape(const Value* a, const Value* b);
/// True if both have the same shape (in every run), dtype and device.
bool same_type(const Value* a, const Value* b);
/// The shape of an element-wise op on operands of these shapes; nullopt if they do not determine it.
std::optional<Sizes> broadcast(const Sizes& a, const Sizes& b);
/// The node that makes it, if it is a call of this op with one result; else null.
Node* made_by(const Value* value, const OpForm& op);
/// True if it has exactly one use, an input of one node.
bool has_one_use(const Graph& graph, const Value* value);
/// The node that alone takes the value; null: there are several, or the graph hands the value out.
Node* only_user(const Graph& graph, const Value* value);
bool is_output(const Graph& graph, const Value* value);
/// Joins all of these, and returns their number.
int join(Graph& graph, std::vector<Graph::Joined> joined);
/// Tells if a node's results share the memory of one of its inputs.
enum class Sharing { never, maybe, always };
Sharing sharing_of(const Node& node, std::size_t input);
/// True if an output, or a value written to a parameter, may share its memory: it is one, or views lead from it to one. Views through
/// `except` do not count.
bool is_seen(const Graph& graph, const Value* value, const Value* except = nullptr);
/// True if the op computes each element of its result from the same elements of its operands, which broadcast.
bool is_elementwise(const Node& node);
/// As is_elementwise(), also for ops that change the dtype of the elements.
bool is_pointwise(const Node& node);
Sizes sizes_of(const Node& node, const char* attribute);
/// An attribute that is a list of dimensions, with all of them counted from the front.
std::vector<int> dims_of(const Node& node, const char* attribute);
/// The dimensions of a reduction: all, if it names none.
std::vector<int> reduced_dims(const Node& node);
bool flag_of(const Node& node, const char* attribute);

// --- Making -------------------------------------------------------------------------------------------------------------------

using AttributeList = std::vector<std::pair<std::string, Attribute>>;
/// Inserts a call of an op before another node, with a result of this type.
Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, DType dtype,
           Device device, Sizes shape);
/// Inserts a call with a result like `like`.
Value* put(Graph& graph, Node& before, const OpForm& op, const std::vector<Value*>& inputs, const AttributeList& attributes, const Value* like);
/// Adds a 0-d constant.
Value* put_number(Graph& graph, double number, DType dtype);
/// Replaces a node's result by `other`. If an output or a value written to a parameter shares the result's memory, and `other` is
/// memory that somebody else holds (an input, a parameter, a constant, another output), a copy of it is used: a pass must not
/// make tensors share memory that the program kept apart, or elements of one tensor. Returns false if nothing was to be done.
bool take_place(Graph& graph, Node& node, Value* result, Value* other);

// --- Rules --------------------------------------------------------------------------------------------------------------------

/// A rule for nodes of this op: returns the value that replaces the result, or null.
struct Rule {
    const OpForm& op;
    Value* (*apply)(Graph& graph, Node& node);
};
/// Tries the rules on each node, in running order, and returns the number of changes.
int apply_rules(Graph& graph, std::span<const Rule> rules);

/// Runs a pass on the graphs that are attributes of nodes: branches, bodies of loops. Returns the sum of its results.
int in_nested(Graph& graph, const std::function<int(Graph&)>& pass);

}  // namespace tapir::rewrite
