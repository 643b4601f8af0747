// The library's trees, by the names that the example calls them.
#pragma once

#include <tapir/nn/data/tree.h>

namespace tree_lstm {

using tapir::data::kNoLabel;
using tapir::data::Tree;
using Node = tapir::data::TreeNode;
using Source = tapir::data::TreeSource;

}  // namespace tree_lstm
