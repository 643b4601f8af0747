// Reads the Stanford Sentiment Treebank (PTB style, binary: `(3 (2 Effective) (2 (1 but) ...))`) and makes the fixed
// initial weights, for both sides of the Tree-LSTM benchmark: the two programs must do the very same work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace bench {

inline constexpr int kTreesPerStep = 25;
inline constexpr int kTrees = 1000;
inline constexpr float kAdagradRate = 0.05f;

struct Node {
    int label = 0;
    int word = -1;              // leaves only
    int left = -1, right = -1;  // inner nodes only: positions in Tree, both below this node's own
};

using Tree = std::vector<Node>;  // children before parents, the root last

struct Treebank {
    std::vector<Tree> trees;
    std::size_t nodes = 0;
    std::size_t words = 0;  // distinct
};

inline Tree parse_tree(const std::string& line, std::unordered_map<std::string, int>& vocabulary) {
    Tree tree;
    std::vector<Node> open;
    for (std::size_t at = 0; at < line.size();) {
        if (line[at] == '(') {
            open.push_back({.label = line.at(at + 1) - '0'});
            at += 2;
        } else if (line[at] == ')') {
            if (open.empty()) throw std::runtime_error("unbalanced brackets: " + line);
            tree.push_back(open.back());
            open.pop_back();
            if (!open.empty()) (open.back().left < 0 ? open.back().left : open.back().right) = int(tree.size()) - 1;
            ++at;
        } else if (line[at] == ' ') {
            ++at;
        } else {
            const std::size_t end = std::min(line.find_first_of(" ()", at), line.size());
            if (open.empty()) throw std::runtime_error("a word outside of the brackets: " + line);
            open.back().word = vocabulary.try_emplace(line.substr(at, end - at), int(vocabulary.size())).first->second;
            at = end;
        }
    }
    return tree;
}

/// The first `limit` trees of a file; no trees where the file is not there.
inline Treebank read_treebank(const std::string& path, std::size_t limit) {
    Treebank bank;
    std::unordered_map<std::string, int> vocabulary;
    std::ifstream file(path);
    for (std::string line; bank.trees.size() < limit && std::getline(file, line);) {
        bank.trees.push_back(parse_tree(line, vocabulary));
        bank.nodes += bank.trees.back().size();
    }
    bank.words = vocabulary.size();
    return bank;
}

/// How the states of a tree are computed. leaves_together: the leaves as one product instead of one each. forking: the children of a node in a
/// batch() of their own. branching: a node whose state's first number is above 0 takes another step. plain_ops: as a user writes the cell, without an op of its own.
enum class How { node_by_node, leaves_together, forking, branching, plain_ops };

/// The states of all nodes, children first. leaf(k) makes that of leaf k, inner(left, right) one above two others.
template <class State, class Leaf, class Inner>
std::vector<State> states_of(const Tree& tree, const Leaf& leaf, const Inner& inner) {
    std::vector<State> states;
    states.reserve(tree.size());
    std::size_t leaves = 0;
    for (const Node& node : tree) {
        states.push_back(node.word >= 0 ? leaf(leaves++)
                                        : inner(states[static_cast<std::size_t>(node.left)], states[static_cast<std::size_t>(node.right)]));
    }
    return states;
}

/// A tree with the indices of its words (leaves) and its labels (nodes) as tensors of either library.
template <class Tensor>
struct ExampleOf {
    const Tree* tree;
    Tensor words, labels;
};

/// Where the data is: $TAPIR_SST_DIR, else shared/data/sst beside the source tree.
inline std::string sst_dir() {
    const char* given = std::getenv("TAPIR_SST_DIR");
    return given && *given ? given : std::string(TAPIR_BENCH_SOURCE_DIR) + "/../shared/data/sst";
}

/// The first kTrees trees of the training set; none where there is no data. `tensor_of` takes a vector of int64.
template <class Tensor, class TensorOf>
const std::vector<ExampleOf<Tensor>>& examples_of(TensorOf tensor_of, std::size_t* words) {
    static const Treebank bank = read_treebank(sst_dir() + "/train.txt", kTrees);
    static const std::vector<ExampleOf<Tensor>> list = [&] {
        std::vector<ExampleOf<Tensor>> made;
        for (const Tree& tree : bank.trees) {
            std::vector<std::int64_t> leaves, labels;
            for (const Node& node : tree) {
                if (node.word >= 0) leaves.push_back(node.word);
                labels.push_back(node.label);
            }
            made.push_back({&tree, tensor_of(leaves), tensor_of(labels)});
        }
        return made;
    }();
    *words = bank.words;
    return list;
}

/// Uniform in [-scale, scale), the same on every machine: every step but the last product is exact in float.
inline std::vector<float> fixed_weights(std::size_t count, std::uint32_t seed, float scale = 0.1f) {
    std::vector<float> weights(count);
    for (float& w : weights) {
        seed = seed * 1664525u + 1013904223u;
        w = scale * (float(seed >> 8) * 0x1p-23f - 1.0f);
    }
    return weights;
}

}  // namespace bench
