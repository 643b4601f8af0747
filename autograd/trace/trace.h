// trace: runs a function once and keeps what its ops did as a Graph.
//
//     Graph graph = trace([&](const Tensor& x) { return model(x); }, {{"x", x, {"batch"}}});
//     Tensor y = graph.run({{"x", x}})[0];
//
// What cannot be kept is refused, by line: a value that the program looked at (item(), if (item<bool>())), a size that no formula
// of the named dimensions gives, an op that the graph does not know.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/autograd/traced_function.h"

namespace tapir {

/// An input of a function to be traced: a name, by which Graph::run() takes it, and an example, whose shape, dtype and device are what the
/// graph is made for. dims: a name for each dimension whose size may differ in later runs, "" for one that stays; fewer than the tensor
/// has: the rest stays. The same name means the same size, of all inputs; there may be 4 names. "32*height" is a size that can be divided
/// by 32, which a network may need that makes its images smaller and larger again.
struct TraceInput {
    std::string name;
    Tensor tensor;
    std::vector<std::string> dims = {};
};

struct TraceOptions {
    /// What outputs are called, in order, as many as there are (ValueError). Else a single one is "output", those of a list, pair, tuple or
    /// struct are "output_0", "output_1", ..., "output_1_0" in one of these in another, and those of a map go by their names.
    std::vector<std::string> outputs = {};
    /// Tensors that the graph shall keep as parameters under these names, beside those that require gradients (which have their
    /// names from their model). Buffers, such as running means, can be given here. The graph holds parameters themselves, no copies: what
    /// is written to them later it sees, and what its updates write is written to them.
    std::vector<std::pair<std::string, Tensor>> parameters = {};
    /// What happens where the program reads a value that depends on inputs or parameters: if ((x > 0).item<bool>()), at(), data(),
    /// to_vector(), to_dlpack(), allclose(), equal(), printing. refuse: TapeError, since what the program does next may depend on it, and a
    /// graph does always the same. guard: the graph holds for this value only, and each run of it checks that it is there, and throws
    /// ValueError with both values where it is another.
    enum class Reads { refuse, guard } reads = Reads::refuse;
};

namespace detail {

/// is_model: a file's, which takes long and may refuse sizes; graph and function are compared for fewer sizes then.
Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc, bool is_model = false);

/// These with the parameters and buffers of fn, where it is a module, by their names there.
template <class Fn>
TraceOptions with_tensors_of(const Fn& fn, TraceOptions options) {
    if constexpr (is_module<const Fn>) {
        for (const auto& list : {fn.named_parameters(), fn.named_buffers()}) {
            for (const auto& [name, tensor] : list) options.parameters.emplace_back(name, tensor);
        }
    } else if constexpr (is_reference<Fn>) {
        return with_tensors_of(fn.get(), std::move(options));
    } else if constexpr (requires { fn.get()->named_parameters(); }) {  // nn::AnyModule
        if (fn.get()) return with_tensors_of(*fn.get(), std::move(options));
    }
    return options;
}

}  // namespace detail

/// Runs fn on these inputs, and gives the graph of what it did. fn is a function, a pointer to one, an object with operator(), a
/// generic lambda, std::ref() of these, or a module, of Tensors or Ins (at most 8; as many as there are inputs) or one
/// std::vector<Tensor>. A tensor that required gradients is a parameter, as are a module's parameters and buffers, by their names;
/// any other that was made before is a constant, a copy of what it was then, and a module or parameter that fn makes is refused: it would be
/// another one in each run.
/// Where dimensions are named, fn is run a few times more, with inputs of other sizes (rows of these, repeated), to see how sizes depend on
/// them; what it wrote and drew is undone for these runs. What it wrote in the run with these inputs stays, unless it throws.
/// An example of size 1 will do, if fn does nothing else for it. Then graph and fn are compared, what each op is called with and what comes
/// out, in one call more where no dimension has a name, else for the sizes 1 and 2, for a larger one, with the dimensions in the other order, beyond the bounds of slices, and for several more where
/// a size is no polynomial of dimensions. What fn does for other sizes only, by strides or raw_data() is not seen.
///
/// A whole training step can be traced, with zero_grad(), backward, clip_grad_norm_() and the optimizer's step. The learning rate
/// is a constant of the graph, so that what changes it in fn, as a schedule's step(), is refused; trace again with another one. A
/// gradient is state that no op writes: one that was there before the trace is refused, and one that backward leaves for the next
/// run of fn to add to; call zero_grad() in fn, before backward or at the end. So is what no op does: writes through data(),
/// tensors that another thread makes, draws from a Generator of one's own. Nor can ASGD's step of row-sparse gradients be kept.
/// Throws ValueError for inputs and parameters that are undefined, inputs of the same name, and another number of inputs than fn takes,
/// ShapeError for a named dimension without elements or with two sizes, TapeError for what cannot be kept, where graph and fn differ, and
/// within another trace, and what fn throws.
template <class Fn>
Graph trace(Fn&& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options = {}, Loc loc = Loc::current()) {
    return detail::trace(detail::traced(fn, loc), inputs, detail::with_tensors_of(fn, options), loc);
}

}  // namespace tapir
