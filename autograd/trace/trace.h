// trace: runs a function once and keeps what its ops did as a Graph.
//
//     Graph graph = trace([&](const Tensor& x) { return model(x); }, {{"x", x, {"batch"}}});
//     Tensor y = graph.run({{"x", x}})[0];
//
// What cannot be kept is refused, by line: a value that the program looked at (item(), if (item<bool>())), a size that no formula of the
// named dimensions gives, an op that the graph does not know.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/trace/compiled_graph.h"
#include "tapir/autograd/trace/graph.h"
#include "tapir/autograd/trace/traced_function.h"

namespace tapir {

/// An input of a function to be traced. dims: a name for each dimension whose size may differ in later runs, "" for one that stays;
/// fewer than the tensor has: the rest stays. The same name means the same size. "32*height" is a size that can be divided by 32, which a
/// network may need that makes its images smaller and larger again.
struct TraceInput {
    std::string name;
    Tensor tensor;
    std::vector<std::string> dims = {};
};

struct TraceOptions {
    /// What outputs are called, in order. Else a single one is "output", those of a list, pair, tuple or struct are "output_0", "output_1",
    /// ..., "output_1_0" in one of these in another, and those of a map go by their names.
    std::vector<std::string> outputs = {};
    /// Tensors that the graph shall keep as parameters under these names, beside those that require gradients (which have their
    /// names from their model). Buffers, such as running means, can be given here.
    std::vector<std::pair<std::string, Tensor>> parameters = {};
    /// What happens where the program reads a value that depends on inputs or parameters: if ((x > 0).item<bool>()), at(), data(), to_vector(),
    /// allclose(), equal(), printing. refuse: TapeError, since what the program does next may depend on it, and a graph does always the same. guard: the
    /// graph holds for this value only, and each run of it checks that it is there.
    enum class Reads { refuse, guard } reads = Reads::refuse;
};

namespace detail {

Graph trace(const TracedFunction& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options, const Loc& loc);

template <class Fn>
inline constexpr bool is_module = requires(Fn& fn) { fn.named_parameters(); fn.named_buffers(); };

/// A module as a function: its operator(), or its forward(), called from that line.
template <class Module>
class ModuleFunction {
 public:
    ModuleFunction(Module& module, const Loc& loc) : module_(module), loc_(loc) {}

    template <class... X>
        requires(sizeof...(X) > 0 && (std::is_same_v<X, Tensor> && ...))
    auto operator()(const X&... x) const
        requires requires(Module& m, const Loc& loc) { m(In(x, loc)...); } || requires(Module& m, const Loc& loc) { m.forward(In(x, loc)...); } ||
                 requires(Module& m) { m(x...); } || requires(Module& m) { m.forward(x...); }
    {
        if constexpr (requires { module_(In(x, loc_)...); }) {
            return module_(In(x, loc_)...);
        } else if constexpr (requires { module_.forward(In(x, loc_)...); }) {
            return module_.forward(In(x, loc_)...);
        } else if constexpr (requires { module_(x...); }) {
            return module_(x...);
        } else {
            return module_.forward(x...);
        }
    }

 private:
    Module& module_;
    const Loc& loc_;
};

}  // namespace detail

/// Runs fn, a function of tensors or a module, on these inputs, and gives the graph of what it did: a tensor that required gradients
/// is a parameter, as are a module's parameters and buffers, by their names; any other that was made before is a constant. Where dimensions are named, fn is run a few times more, with inputs
/// of other sizes (rows of these, repeated), to see how sizes depend on them; what it wrote is undone for these runs.
///
/// A whole training step can be traced, with zero_grad(), backward, clip_grad_norm_() and the optimizer's step. The learning rate is a
/// constant of the graph, so that what changes it in fn, as a schedule's step(), is refused; trace again with another one. A gradient
/// that was there before the trace is refused, too: zero_grad() first. So is what no op does: writes through data(), tensors that another
/// thread makes, draws from a Generator of one's own.
/// Throws ValueError for inputs and parameters that are undefined or inputs of the same name, ShapeError for a named dimension without elements, TapeError for
/// what cannot be kept, and what fn throws.
template <class Fn>
Graph trace(Fn&& fn, const std::vector<TraceInput>& inputs, const TraceOptions& options = {}, Loc loc = Loc::current()) {
    if constexpr (detail::is_module<Fn>) {
        TraceOptions named = options;
        for (const auto& list : {fn.named_parameters(), fn.named_buffers()}) {
            for (const auto& [name, tensor] : list) named.parameters.emplace_back(name, tensor);
        }
        detail::ModuleFunction call(fn, loc);
        return detail::trace(detail::traced(call), inputs, named, loc);
    } else {
        return detail::trace(detail::traced(fn), inputs, options, loc);
    }
}

}  // namespace tapir
