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

#include "tapir/autograd/trace/compiled_graph.h"
#include "tapir/autograd/trace/graph.h"
#include "tapir/autograd/trace/traced_function.h"

namespace tapir {

/// An input of a function to be traced. dims: a name for each dimension whose size may differ in later runs, "" for one that stays;
/// fewer than the tensor has: the rest stays. The same name means the same size. "32*height" is a size that can be divided by 32,
/// which a network may need that makes its images smaller and larger again.
struct TraceInput {
    std::string name;
    Tensor tensor;
    std::vector<std::string> dims = {};
};

struct TraceOptions {
    /// What outputs are called, in order. Else a single one is "output", those of a list, pair, tuple or struct are "output_0",
    /// "output_1", ..., "output_1_0" in one of these in another, and those of a map go by their names.
    std::vector<std::string> outputs = {};
    /// Tensors that the graph shall keep as parameters under these names, beside those that require gradients (which have their
    /// names from their model). Buffers, such as running means, can be given here.
    std::vector<std::pair<std::string, Tensor>> parameters = {};
    /// What happens where the program reads a value that depends on inputs or parameters: if ((x > 0).item<bool>()), at(), data(),
    /// to_vector(), allclose(), equal(), printing. refuse: TapeError, since what the program does next may depend on it, and a
    /// graph does always the same. guard: the graph holds for this value only, and each run of it checks that it is there.
    enum class Reads { refuse, guard } reads = Reads::refuse;
};

namespace detail {

Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc);

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
/// any other that was made before is a constant. Where dimensions are named, fn is run a few times more, with inputs of other sizes
/// (rows of these, repeated), to see how sizes depend on them; what it wrote is undone for these runs, and where trace throws for all.
/// An example of size 1 will do, if fn does nothing else for it.
///
/// A whole training step can be traced, with zero_grad(), backward, clip_grad_norm_() and the optimizer's step. The learning rate
/// is a constant of the graph, so that what changes it in fn, as a schedule's step(), is refused; trace again with another one. A
/// gradient is state that no op writes: one that was there before the trace is refused, and one that backward leaves for the next
/// run of fn to add to; call zero_grad() in fn, before backward or at the end. So is what no op does: writes through data(),
/// tensors that another thread makes, draws from a Generator of one's own.
/// Throws ValueError for inputs and parameters that are undefined or inputs of the same name, ShapeError for a named dimension
/// without elements, TapeError for what cannot be kept, and what fn throws.
template <class Fn>
Graph trace(Fn&& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options = {}, Loc loc = Loc::current()) {
    return detail::trace(detail::traced(fn, loc), inputs, detail::with_tensors_of(fn, options), loc);
}

}  // namespace tapir
