// Passes: make a graph smaller or faster without changing what it computes, beyond rounding.
//
//     optimize(graph);
//
// Each pass changes the graph in place, also the graphs within it (branches, bodies of loops), and returns the number of changes. Names,
// shapes and dtypes of inputs and outputs, writes to parameters, guards, and the order in which random numbers are drawn stay the
// same. Beyond rounding means: the sign of zero, and values that overflow or underflow on the way, may differ, and so may results
// computed from these: x*1e20*1e-20 becomes x, log(softmax(x)) is finite where softmax(x) is 0, 1/(x + 0) of -0 is -inf, and sums of
// quotients or means of products may be infinite where they were not. Results for infinite and nan operands stay: x * 0 is not 0;
// PassOptions can lift that.
#pragma once

#include <functional>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// Removes nodes that no output, update or guard needs. Random ops stay: the numbers that others draw depend on them.
int eliminate_dead_code(Graph& graph);

/// Merges nodes of the same op, inputs and attributes, and constants of the same elements. Random ops stay.
int eliminate_common_subexpressions(Graph& graph);

/// Computes results that depend on constants only, if they have at most `most_elements`, or no more than the largest of these constants
/// (a weight and the scale of a batch normalisation become one weight). Parameters are not constants, since they may be
/// trained: see freeze(). A constant from Graph::add_constant() is the program's own tensor: the graph sees later writes to it, but
/// results computed from it here do not. Large results of zeros(), full(), expand() are not computed, since the ops are smaller.
int fold_constants(Graph& graph, std::int64_t most_elements = 1 << 20);

struct PassOptions {
    /// Allows results to become nan or infinite, or cease to be, if a factor is infinite or nan, a divisor is 0, or a dimension with
    /// a name has size 0. Then c*a + c*b -> c*(a + b), a/c + b/c -> (a + b)/c and sum(x*c) -> sum(x)*c hold for any c, else for finite constants
    /// (and integers); (x*a)*b -> x*(a*b) for any a, b, else for constants of finite nonzero product; pow(x, .5) -> sqrt(x), pow(x, -.5) -> rsqrt(x).
    bool allow_nonfinite = false;
};

/// Algebra. Removes what changes nothing: x*1, x/1, x + 0, x - 0, -(-x), transposes and permutations that undo each other, reshapes, expansions,
/// conversions and copies without effect, where() of a constant mask. Joins chains: transposes, reshapes, expansions,
/// conversions, sums, numbers (x*2*3). Also c*a + c*b -> c*(a + b) (see PassOptions), log(softmax(x)) -> log_softmax(x), pow(x, 2) -> square(x) and
/// the like, sums of one element, of products with a common factor (sum(x*2) -> sum(x)*2), and of expanded values.
int simplify(Graph& graph, const PassOptions& options = {});

/// Computes element-wise ops before their operands are expanded: exp(x.expand({n, 3})) -> exp(x).expand({n, 3}). Operands that
/// broadcast by themselves are not expanded first; numbers replace tensors that are full of one; and small operands are combined
/// first: (x * a) * b -> x * (a * b), if a * b is smaller than x (for floats: see PassOptions), and likewise sums of integers.
int hoist_broadcasts(Graph& graph, const PassOptions& options = {});

/// Folds batch normalisation in evaluation mode into the weight and bias of the convolution or linear layer before it (Jacob et al. 2018,
/// section 3.2), if weight and statistics are constants: for a model that is traced in evaluation mode with parameters, after freeze().
/// with_parameters: also if they are parameters; each run then computes the new weight from them, and they can still be trained.
/// This pays off if the images are larger than the weights.
int fold_batch_norm(Graph& graph, bool with_parameters = false);

/// For inference: turns parameters that the graph does not write to into constants, as copies, so that results computed from them alone are
/// computed once. Their names stay in listings. Returns their number. Training the model later does not change this graph.
int freeze(Graph& graph);

/// The number of changes that one pass has made.
struct PassReport {
    const char* pass;
    int changes;
};

/// Runs all passes but freeze(), in a fixed order, until nothing changes. Returns one entry for each pass. Results that fold_constants() has
/// computed do not follow later changes of the tensors that they were computed from.
std::vector<PassReport> optimize(Graph& graph, const PassOptions& options = {});

/// Joins element-wise ops of one shape and dtype that work on each other's results into one `fused` node: one pass over memory, with
/// the same numbers. One `fused_reduce` if only a sum or a mean needs the result. Graph::run and compile() do this themselves; optimize() does not.
/// takes: selects nodes; null: all.
int fuse_elementwise(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// Joins convolutions with the addition and the activation behind them, and lets them keep their weights, if these are parameters or constants,
/// in the layout that the kernel wants: for float32 on the CPU. Graph::run and compile() do this themselves; optimize() does not.
int fuse_convolutions(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// Joins images along their channels in one pass with the batch normalisation (by running statistics) and the relu behind that, or with the relu
/// before it: for float32 on the CPU, with the same numbers. Graph::run and compile() do this themselves; optimize() does not.
int fuse_joins(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// Lets maximum pooling on the CPU leave out the places of the largest elements where nobody wants them, with the same numbers. Graph::run and
/// compile() do this themselves; optimize() does not.
int drop_pool_indices(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// Joins products with the same matrix, of few rows each, that do not need each other's results: the matrix is read once. The
/// results are views of its rows, equal up to rounding; outputs are made apart. Graph::run and Graph::compile do this, too.
int batch_products(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});
/// Lets linear() of one row by a constant weight (see freeze()) read a copy of the weight in a layout that makes it one
/// stream of memory, if these weights are at most 1 MB in total. Results are equal up to rounding. Graph::run and compile() do this, too.
int pack_weights(Graph& graph, const std::function<bool(const Graph::Node&)>& takes = {});

}  // namespace tapir
