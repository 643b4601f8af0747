// A labelled binary tree over the words of a sentence. A model walks it recursively:
//
//     State f(const data::TreeNode& n) {
//         if (n.is_leaf()) return leaf_cell(embedding(n.token));
//         return inner_cell(f(*n.left), f(*n.right));
//     }
//
// read_ptb() (ptb.h) reads them. All nodes of a tree sit in one array, children before their parents and the root last.
// So a loop over nodes() visits them bottom-up without recursion, results can be kept in an array by TreeNode::index, and
// destruction is flat however deep the tree is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/core/error.h"

namespace tapir::data {

/// The label of a node without one.
inline constexpr int kNoLabel = -1;

struct TreeNode {
    const TreeNode* left = nullptr;
    const TreeNode* right = nullptr;
    int label = kNoLabel;  ///< the true class, or kNoLabel
    int token = 0;         ///< leaf: the word's row in the vocabulary (0: unknown)
    int index = 0;         ///< position in Tree::nodes()
    std::string word;      ///< leaf: the word as it reads

    bool is_leaf() const { return left == nullptr; }
    bool has_label() const { return label != kNoLabel; }
};

/// Source of a tree, for messages. All trees of a file share the path.
struct TreeSource {
    std::shared_ptr<const std::string> path;
    std::int64_t line = 0;
};

class Tree {
 public:
    class Builder;

    Tree(const Tree& other);
    Tree& operator=(const Tree& other);
    Tree(Tree&&) noexcept;  // the array keeps its address, and the nodes their pointers
    Tree& operator=(Tree&&) noexcept;
    ~Tree();

    const TreeNode& root() const { return nodes_.back(); }
    std::span<const TreeNode> nodes() const;
    int size() const { return static_cast<int>(nodes_.size()); }
    int leaf_count() const { return (size() + 1) / 2; }

    /// Returns the number of nodes on the longest path from the root to a leaf; 1 for a single leaf. A recursive model needs this many calls
    /// on the stack at once.
    int depth() const { return depth_; }

    /// Returns the words from left to right, separated by spaces.
    std::string sentence() const;

    /// Return the file (or the generator) and the line that the tree came from; "" and 0 if not given.
    std::string_view path() const { return source_.path ? std::string_view(*source_.path) : std::string_view(); }
    std::int64_t line() const { return source_.line; }

    /// Sets the vocabulary row of the leaf at `index`.
    void set_token(int index, int token) { nodes_[static_cast<std::size_t>(index)].token = token; }

 private:
    Tree(std::vector<TreeNode> nodes, int depth, TreeSource source);

    std::vector<TreeNode> nodes_;
    int depth_ = 0;
    TreeSource source_;
};

/// Makes a tree from the bottom up, without recursion: leaf() and inner() return an index that a later inner() takes.
class Tree::Builder {
 public:
    int leaf(int label, std::string word, int token = 0);

    /// left and right must be two different nodes without parent, in the order of their words. Throws ValueError otherwise.
    int inner(int label, int left, int right, Loc loc = Loc::current());

    /// Throws ValueError if there is no such node.
    void set_label(int index, int label, Loc loc = Loc::current());
    int size() const { return static_cast<int>(nodes_.size()); }

    /// Returns the tree whose root is the node made last; the builder is empty afterwards. Throws ValueError if there is no node, or if
    /// a node other than the last has no parent.
    Tree build(TreeSource source = {}, Loc loc = Loc::current());

 private:
    struct Link {
        int left = -1;
        int right = -1;
        int depth = 1;
        bool has_parent = false;
    };

    // Indices until build(): the array moves while it grows.
    std::vector<TreeNode> nodes_;
    std::vector<Link> links_;
};

}  // namespace tapir::data
