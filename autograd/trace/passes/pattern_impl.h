// Patterns: rewriting rules as text, "log(softmax(x))" -> "log_softmax(x)".
//
// A single letter stands for any value, the same letter for the same value; m and n for masks, of any dtype. A number stands for a value
// that is it everywhere, where the rest broadcasts to the result's shape without it. Operands of add, mul and their like come in either order. All values are of the result's dtype and device, and
// what takes its place has its shape. A result's attributes are those of the op that was found.
#pragma once

#include <span>

#include "tapir/autograd/trace/passes/rewrite_impl.h"

namespace tapir::rewrite {

struct Pattern {
    const char *from, *to;
    enum Where : unsigned {
        anywhere = 0,
        reals = 1,      // floating dtypes only
        no_halves = 2,  // not float16: sums and products that did not overflow might
        once = 4,       // where nothing else needs what is between: it would be computed besides
        no_bools = 8,
        finite_c = 16,  // of floats: where `c` is a constant of finite numbers, none of them 0
        loosely = 32,   // nan and infinities may come out otherwise
    };
    unsigned where = anywhere;
};

/// Tries them on each node, in the order in which they run, and gives how many have changed something. allow_nonfinite: those that are
/// `loosely` too, and finite_c does not count.
int apply_patterns(Graph& graph, std::span<const Pattern> patterns, bool allow_nonfinite);

}  // namespace tapir::rewrite
