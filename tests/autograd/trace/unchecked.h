// Graphs of texts that Graph::parse() refuses, since an op of theirs does not take its operands or does not give what they state: for tests of
// what meets such graphs that were made by Graph::append().
#pragma once

#include "tapir/autograd/trace/graph/parse_impl.h"

namespace tapir::test {

inline Graph unchecked(const std::string& text) {
    return detail::read_graph(text, {}, {.makes_zeros = true, .checks = detail::ReadOptions::Checks::none}, Loc::current());
}

}  // namespace tapir::test
