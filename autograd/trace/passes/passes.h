// Passes: what makes a graph smaller or faster without changing what it computes, beyond rounding.
//
//     optimize(graph);
//
// Each changes the graph in place, the graphs within it too (branches, bodies of loops), and gives how many changes it made. The names,
// shapes and dtypes of inputs and outputs and what is written to parameters stay, and so do guards and the order in which random numbers
// are drawn. Beyond rounding means: the sign of zero, and what overflows or underflows on the way, may come out otherwise, and what is
// computed from that: x*1e20*1e-20 becomes x, log(softmax(x)) is finite where softmax(x) is 0, 1/(x + 0) of -0 is -inf, and sums of
// quotients or means of products may be infinite where they were not. What infinite and nan operands give stays: x * 0 is not 0;
// PassOptions say otherwise.
#pragma once

#include <functional>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// Takes away what no output, update or guard needs. Random ops stay: the numbers that others draw depend on them.
int eliminate_dead_code(Graph& graph);

/// One node for several of the same op, inputs and attributes; one constant for several of the same elements. Random ops stay.
int eliminate_common_subexpressions(Graph& graph);

/// Computes what depends on constants only, where the result has at most `most_elements`, or no more than the largest of these constants
/// (a weight and the scale of a batch normalisation become one weight). Parameters are no constants, since they may be
/// trained: see freeze(). A constant that Graph::add_constant() was given is the program's own tensor, and what is written to that later the graph
/// sees, but not what was computed from it here. zeros(), full(), expand() of much stay, which are small as ops.
int fold_constants(Graph& graph, std::int64_t most_elements = 1 << 20);

struct PassOptions {
    /// Whether a number may come out as nan or infinite, or the other way round, where a factor is infinite or nan, a divisor 0, or a dimension with
    /// a name has size 0: c*a + c*b -> c*(a + b), a/c + b/c -> (a + b)/c and sum(x*c) -> sum(x)*c for any c then, else for finite constants
    /// (and of integers); (x*a)*b -> x*(a*b) for any a and b then, else for constants whose product is neither 0 nor infinite; pow(x, 0.5) -> sqrt(x), pow(x, -0.5) -> rsqrt(x).
    bool allow_nonfinite = false;
};

/// Algebra. What changes nothing goes: x*1, x/1, x + 0, x - 0, -(-x), transposes and permutations that undo each other, reshapes, expansions,
/// conversions and copies that change nothing, where() of a constant mask. What comes in chains becomes one: transposes, reshapes, expansions,
/// conversions, sums, numbers (x*2*3). And c*a + c*b -> c*(a + b) (see PassOptions), log(softmax(x)) -> log_softmax(x), pow(x, 2) -> square(x) and
/// its like, sums of one element, of products with what is the same for all (sum(x*2) -> sum(x)*2), and of what was expanded.
int simplify(Graph& graph, const PassOptions& options = {});

/// Element-wise ops are computed before their operands are expanded: exp(x.expand({n, 3})) -> exp(x).expand({n, 3}); operands that
/// broadcast by themselves are not expanded first; numbers take the place of tensors that are full of one; and what is small is put
/// together first: (x * a) * b -> x * (a * b), where a * b is smaller than x (of floats: see PassOptions), and of integers sums.
int hoist_broadcasts(Graph& graph, const PassOptions& options = {});

/// Batch normalisation in evaluation mode behind a convolution or a linear layer becomes part of its weight and bias (Jacob et al. 2018,
/// section 3.2), where weight and statistics are constants: of a model that is traced in evaluation mode with parameters, after freeze().
/// with_parameters: also where they are parameters; the new weight is computed from them in each run then, and they can still be trained.
/// That pays off where the images are larger than the weights.
int fold_batch_norm(Graph& graph, bool with_parameters = false);

/// For inference: parameters that the graph does not write to become constants, copies of them, so that what is computed from them alone is
/// computed once. Their names stay in listings. Gives how many; training the model they are from changes this graph no more.
int freeze(Graph& graph);

/// How many changes one pass has made.
struct PassReport {
    const char* pass;
    int changes;
};

/// All of them but freeze(), in a fixed order, again and again until nothing changes. One line for each pass. What fold_constants() has
/// computed follows the tensors that it was computed from no more.
std::vector<PassReport> optimize(Graph& graph, const PassOptions& options = {});

/// One `fused` node for element-wise ops of one shape and dtype that work on each other's results: they run as one pass over memory, with
/// the same numbers. One `fused_reduce` where a sum or a mean is all that their result is needed for. What runs a graph does this itself (Graph::run, Graph::compile); it is no part of optimize().
/// takes: which nodes; null: all.
int fuse_elementwise(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// One product for several with the same matrix, each of few rows, that do not need each other's results: the matrix is read once. The
/// results are views of its rows, the same up to rounding; outputs are made apart. Done by what runs a graph, too.
int batch_products(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// linear() of one row by a weight that is a constant (see freeze()) reads a copy of the weight in a layout in which that is one
/// stream of memory, where these weights together are no more than 1 MB; the results are the same up to rounding. Done by what runs a graph, too.
int pack_weights(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});

}  // namespace tapir
