// check_trace: compares a graph with its program, also for other inputs than those that it was traced with.
//
//     const Graph graph = trace(model, {{"x", x}});
//     check_trace(graph, model, {other});
//
// A graph always does the same. If the program takes another branch, or computes a number that is a constant of the graph, the two
// differ, and check_trace names the first op that does.
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/trace/trace.h"

namespace tapir {

struct CheckTraceOptions {
    double rtol = 1e-5;  ///< |graph - program| <= atol + rtol |program|; nan is nan
    double atol = 1e-8;
    /// The graph's ops must be the program's, one by one, as trace() makes them. false, for a graph that was edited or simplified: only
    /// outputs and updates are compared; ops are used to say where a difference begins.
    bool same_ops = true;
    bool raise_exception = true;  ///< else differences are only in the result
};

struct CheckTraceResult {
    bool ok = true;
    std::string message;  ///< the first op that differs, its line, and the difference
    Loc where;            ///< that line of the program; line() == 0 if it is not known
    explicit operator bool() const noexcept { return ok; }
};

namespace detail {
CheckTraceResult check_trace(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, const CheckTraceOptions& options,
                             const Loc& loc);
}

/// Runs the program fn and its graph on the same inputs, in order, with the same random numbers, and compares the results of each
/// op. Inputs should be others than those of the trace: their named dimensions may have other sizes. All that the two write, to
/// parameters or inputs, and all random numbers they draw are undone. The program may read values (item()); the guards of the graph are
/// not checked, only that its ops are still right. Throws TapeError that names the first op that differs, as PyTorch's tracer does,
/// so that the call is a check; with {.raise_exception = false}, look at the result. Also throws what the graph throws for these inputs,
/// what the program throws, and TapeError if the program does something that no graph can hold.
template <class Fn>
CheckTraceResult check_trace(const Graph& graph, Fn&& fn, const std::vector<Tensor>& inputs, const CheckTraceOptions& options = {},
                             Loc loc = Loc::current()) {
    return detail::check_trace(graph, detail::traced(fn, loc, "check_trace"), inputs, options, loc);
}

}  // namespace tapir
