// trace: runs a function once and keeps its ops as a Graph.
//
//     Graph graph = trace([&](const Tensor& x) { return model(x); }, {{"x", x, {"batch"}}});
//     Tensor y = graph.run({{"x", x}})[0];
//
// The trace refuses, with the line, what a graph cannot hold: a value that the program reads (item(), if (item<bool>())), a size that is no
// formula of the named dimensions, an op that the graph does not know.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/trace/run/compiled_graph.h"
#include "tapir/autograd/traced_function.h"

namespace tapir {

/// An input of a function to be traced: a name for Graph::run(), and an example, whose shape, dtype and device the
/// graph is made for. dims: a name for each dimension whose size may differ in later runs, "" for a fixed one; missing entries at the end
/// mean fixed. The same name means the same size, in all inputs; there may be 4 names. "32*height" is a size divisible by 32, which
/// networks may need that shrink and enlarge images.
struct TraceInput {
    std::string name;
    Tensor tensor;
    std::vector<std::string> dims = {};
};

struct TraceOptions {
    /// The names of the outputs, in order, one for each (ValueError). By default a single output is "output", those of a list, pair, tuple or
    /// struct are "output_0", "output_1", ..., those of nested ones "output_1_0", and those of a map have its keys.
    std::vector<std::string> outputs = {};
    /// Further tensors that the graph keeps as parameters, under these names. Tensors that require gradients are parameters anyway (with
    /// their names in their model). Buffers, such as running means, can be given here. The graph holds parameters themselves, no copies: it sees
    /// later writes to them, and its updates write to them.
    std::vector<std::pair<std::string, Tensor>> parameters = {};
    /// What to do if the program reads a value that depends on inputs or parameters: if ((x > 0).item<bool>()), at(), data(),
    /// to_vector(), to_dlpack(), allclose(), equal(), printing. refuse: TapeError, since the program may decide by the value, and a graph
    /// always does the same. guard: the graph holds for this value only; each run checks it, and throws ValueError with both values if it
    /// differs.
    enum class Reads { refuse, guard } reads = Reads::refuse;
};

namespace detail {

/// is_model: fn reads a model file, which takes long and may refuse sizes; graph and function are compared for fewer sizes then.
Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc, bool is_model = false);

/// Adds the parameters and buffers of fn, if it is a module, under their names there.
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

/// Runs fn on these inputs and returns the graph of its ops. fn is a function, a pointer to one, an object with operator(), a
/// generic lambda, std::ref() of these, or a module, of Tensors or Ins (at most 8; as many as there are inputs) or one
/// std::vector<Tensor>. Tensors that require gradients are parameters, and so are a module's parameters and buffers, by their names.
/// Any other tensor that existed before becomes a constant, a copy of its value then. A module or parameter that fn makes is refused: it
/// would be another one in each run.
/// If dimensions are named, fn is run a few times more, with inputs of other sizes (repeated rows), to find how sizes depend on
/// them; what these runs write and draw is undone. What fn writes in the run with these inputs stays, unless it throws.
/// An example may have size 1, if fn does nothing special for it. Then graph and fn are compared, by the arguments and results of each op:
/// in one more call if no dimension is named, else for the sizes 1 and 2, for a larger one, with the dimensions in the other order, beyond
/// the bounds of slices, and for several more if a size is no polynomial. What fn does for other sizes only, by strides or raw_data() is not seen.
///
/// A whole training step can be traced, with zero_grad(), backward, clip_grad_norm_() and the optimizer's step. The learning rate
/// is a constant of the graph, so code in fn that changes it, like a schedule's step(), is refused; trace again with another one. A
/// gradient is state that no op writes: one that existed before the trace is refused, and so is one that backward leaves for the next
/// run of fn to add to; call zero_grad() in fn, before backward or at the end. All that no op does is refused too: writes through data(),
/// tensors that another thread makes, draws from a Generator of one's own. ASGD's step of row-sparse gradients cannot be kept either.
/// Throws ValueError for undefined inputs and parameters, inputs of the same name, and another number of inputs than fn takes;
/// ShapeError for a named dimension without elements or with two sizes; TapeError for what cannot be kept, if graph and fn differ, and
/// within another trace; and what fn throws.
template <class Fn>
Graph trace(Fn&& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options = {}, Loc loc = Loc::current()) {
    return detail::trace(detail::traced(fn, loc), inputs, detail::with_tensors_of(fn, options), loc);
}

}  // namespace tapir
