// Patterns: rewriting rules as text, "log(softmax(x))" -> "log_softmax(x)".
//
// A single letter stands for any value, the same letter for the same value; m and n stand for masks, of any dtype. A number stands for a value
// that has it in every element, if the rest broadcasts to the result's shape without it. Operands of add, mul and the like match in either
// order. All values have the result's dtype and device, and the replacement its shape. A result's attributes are those of the op that matched.
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
        once = 4,       // only if nothing else uses the intermediate values, which would be computed besides
        no_bools = 8,
        finite_c = 16,    // for floats: only if `c` is a constant of finite numbers, none of them 0
        loosely = 32,     // nan and infinities may come out otherwise
        no_doubles = 64,  // not float64: a number is rounded to float32
    };
    unsigned where = anywhere;
};

/// Tries the patterns on each node, in running order, and returns the number of changes. allow_nonfinite: also applies those that are
/// `loosely`, and ignores finite_c.
int apply_patterns(Graph& graph, std::span<const Pattern> patterns, bool allow_nonfinite);

}  // namespace tapir::rewrite
