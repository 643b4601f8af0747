// check_trace: whether a graph does what its program does, also for other inputs than those that it was traced with.
//
//     const Graph graph = trace(model, {{"x", x}});
//     check_trace(graph, model, {other});
//
// A graph does always the same. Where the program would have gone another way, or has computed a number that is a constant of the
// graph, the two differ, and this says at which op first.
#pragma once

#include <string>
#include <vector>

#include "tapir/autograd/trace/trace.h"

namespace tapir {

struct CheckTraceOptions {
    double rtol = 1e-5;  ///< |graph - program| <= atol + rtol |program|; nan is nan
    double atol = 1e-8;
    /// The graph's ops are to be the program's, one by one, as trace() gives them. false, for a graph that was edited or simplified: the
    /// outputs and updates are compared, and ops only to say where it begins that these differ.
    bool same_ops = true;
    bool raise_exception = true;  ///< else what differs is only in the result
};

struct CheckTraceResult {
    bool ok = true;
    std::string message;  ///< the first op that differs, its line, and how
    Loc where;            ///< that line of the program; line() == 0: not known
    explicit operator bool() const noexcept { return ok; }
};

namespace detail {
CheckTraceResult check_trace(const Graph& graph, const TracedFunction& fn, const std::vector<Tensor>& inputs, const CheckTraceOptions& options,
                             const Loc& loc);
}

/// Runs the program fn and its graph on the same inputs, in order, and with the same random numbers, and compares what each op
/// gives. Inputs should be others than those of the trace: their named dimensions may have other sizes. What the two write, to
/// parameters or inputs, and what they draw is undone. The program may read values (item()); whether the guards of the graph hold is
/// not looked at, only whether its ops are still right. Throws TapeError with the first op that differs, as PyTorch's tracer does,
/// so that the call is a check; with {.raise_exception = false} look at what it gives. Throws also what the graph throws for these inputs,
/// what the program throws, and TapeError where that does what no graph can hold.
template <class Fn>
CheckTraceResult check_trace(const Graph& graph, Fn&& fn, const std::vector<Tensor>& inputs, const CheckTraceOptions& options = {},
                             Loc loc = Loc::current()) {
    return detail::check_trace(graph, detail::traced(fn, loc, "check_trace"), inputs, options, loc);
}

}  // namespace tapir
