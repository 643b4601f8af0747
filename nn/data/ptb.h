// Reads labelled binary trees in the bracket notation of the Penn Treebank, one tree a line, as the Stanford Sentiment
// Treebank (Socher et al. 2013) comes: `(3 (2 It) (4 (2 's) (4 lovely)))`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/nn/data/tree.h"

namespace tapir::data {

/// Returns the trees of one file, with tokens not set yet. Blank lines are skipped, CRLF line ends accepted. Labels are whole
/// numbers from 0 to classes - 1. A node with one child is replaced by that child under its own label (both span the
/// same words). Escapes are undone: \/ and \* become / and *, -LRB- and -RRB- become parentheses. Brackets may be nested to any
/// depth.
/// Throws FileError with path, line and column at the first thing that is not such a tree, and for a file without trees.
std::vector<Tree> read_ptb(const TextArg& path, int classes = 5, Loc loc = Loc::current());

/// Parses one tree from a line of text. `source` is used for messages and Tree::path().
Tree parse_ptb(TextViewArg text, const TreeSource& source = {}, int classes = 5, Loc loc = Loc::current());

}  // namespace tapir::data
