// Draws trees with what a model said of them as an SVG page for a browser: the words along the bottom, above them every
// node with its predicted class, green where that is right; where it is wrong the prediction is red with the true class
// beside it. Pointing at a node shows its words.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tree.h"

namespace tree_lstm {

struct Drawing {
    const Tree* tree = nullptr;
    std::vector<int> predicted;  ///< class of each node, by Node::index; kNoLabel: none. Empty: true labels are drawn
    std::string title;
};

struct SvgOptions {
    std::string title;                     ///< of the page
    std::vector<std::string> class_names;  ///< a class beyond these is written as its number
    /// Fills each node with a colour from red (class 0) over grey to blue (the last class): what the model felt. Right
    /// or wrong is then told by the outline.
    bool class_scale = false;
};

/// The page as text. Throws std::invalid_argument when a drawing has no tree, or `predicted` is neither empty nor as
/// long as the tree.
std::string draw_svg(const std::vector<Drawing>& drawings, const SvgOptions& options = {});

/// Writes it, atomically. Throws tapir::FileError when that fails.
void write_svg(const std::filesystem::path& file, const std::vector<Drawing>& drawings, const SvgOptions& options = {});

}  // namespace tree_lstm
