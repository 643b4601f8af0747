// Reads labelled binary trees in the bracket notation of the Penn Treebank, one tree a line, as the Stanford Sentiment
// Treebank (Socher et al. 2013) comes: `(3 (2 It) (4 (2 's) (4 lovely)))`.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "dataset.h"
#include "text_file.h"
#include "tree.h"

namespace tree_lstm {

/// The trees of one file; tokens are not set yet. Blank lines are skipped, CRLF line ends accepted. Labels are whole
/// numbers from 0 to classes - 1. A node with one child is replaced by that child under its own label (both span the
/// same words). Escapes are undone: \/ and \* become / and *, -LRB- and -RRB- become parentheses.
/// Throws DataError at the first thing that is not such a tree, and for a file without trees.
std::vector<Tree> read_ptb(const std::filesystem::path& file, int classes = 5);

/// One tree from a line of text. path and line are used for messages and Tree::path().
Tree parse_ptb(std::string_view text, const Source& source = {}, int classes = 5);

struct TreebankOptions {
    int classes = 5;
    /// Words of dev and test get rows of their own, too: useful with pretrained word vectors, which know them.
    bool vocabulary_from_all_splits = false;
};

/// train.txt, dev.txt and test.txt of a folder, with tokens set. The vocabulary is made from the training words.
Dataset read_treebank(const std::filesystem::path& folder, const TreebankOptions& options = {});

}  // namespace tree_lstm
