// Makes and destroys trees.
#include "tapir/nn/data/tree.h"

#include <algorithm>
#include <utility>

#include "tapir/core/fail_impl.h"

namespace tapir::data {

Tree::Tree(std::vector<TreeNode> nodes, int depth, TreeSource source) : nodes_(std::move(nodes)), depth_(depth), source_(std::move(source)) {}

Tree::Tree(Tree&&) noexcept = default;
Tree& Tree::operator=(Tree&&) noexcept = default;
Tree::~Tree() = default;

Tree::Tree(const Tree& other) : nodes_(other.nodes_), depth_(other.depth_), source_(other.source_) {
    for (TreeNode& node : nodes_) {
        if (node.is_leaf()) continue;
        node.left = &nodes_[static_cast<std::size_t>(node.left->index)];
        node.right = &nodes_[static_cast<std::size_t>(node.right->index)];
    }
}

Tree& Tree::operator=(const Tree& other) {
    if (this != &other) *this = Tree(other);
    return *this;
}

std::span<const TreeNode> Tree::nodes() const { return nodes_; }

std::string Tree::sentence() const {
    std::string text;
    for (const TreeNode& node : nodes_) {
        if (!node.is_leaf()) continue;
        if (!text.empty()) text += ' ';
        text += node.word;
    }
    return text;
}

int Tree::Builder::leaf(int label, std::string word, int token) {
    TreeNode node;
    node.label = label;
    node.token = token;
    node.index = size();
    node.word = std::move(word);
    nodes_.push_back(std::move(node));
    links_.emplace_back();
    return size() - 1;
}

int Tree::Builder::inner(int label, int left, int right, Loc loc) {
    const CallerScope caller(loc);
    const auto is_free = [this](int index) { return index >= 0 && index < size() && !links_[static_cast<std::size_t>(index)].has_parent; };
    if (left >= right || !is_free(left) || !is_free(right)) {
        fail<ValueError>(loc, "Tree::Builder::inner: two nodes without a parent are needed, in order");
    }
    Link& left_link = links_[static_cast<std::size_t>(left)];
    Link& right_link = links_[static_cast<std::size_t>(right)];
    left_link.has_parent = right_link.has_parent = true;
    const int depth = 1 + std::max(left_link.depth, right_link.depth);

    const int index = leaf(label, std::string());
    links_.back() = {left, right, depth, /*has_parent=*/false};
    return index;
}

void Tree::Builder::set_label(int index, int label, Loc loc) {
    if (index < 0 || index >= size()) fail<ValueError>(loc, "Tree::Builder::set_label: there is no node {} of {}", index, size());
    nodes_[static_cast<std::size_t>(index)].label = label;
}

Tree Tree::Builder::build(TreeSource source, Loc loc) {
    const CallerScope caller(loc);
    if (nodes_.empty()) fail<ValueError>(loc, "Tree::Builder::build: there is no node");
    const auto orphan = std::find_if(links_.begin(), links_.end() - 1, [](const Link& l) { return !l.has_parent; });
    if (orphan != links_.end() - 1) fail<ValueError>(loc, "Tree::Builder::build: a node other than the last has no parent");

    nodes_.shrink_to_fit();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (links_[i].left < 0) continue;
        nodes_[i].left = &nodes_[static_cast<std::size_t>(links_[i].left)];
        nodes_[i].right = &nodes_[static_cast<std::size_t>(links_[i].right)];
    }
    const int depth = links_.back().depth;
    links_.clear();
    return Tree(std::exchange(nodes_, {}), depth, std::move(source));
}

}  // namespace tapir::data
