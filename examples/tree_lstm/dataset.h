// What the program trains on: trees in three splits, the vocabulary of their words, the names of the classes.
// read_treebank() and make_listops() (listops.h) each make one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tree.h"

namespace tree_lstm {

/// Words and their rows in an embedding table. Row 0 is the unknown word, "<unk>".
class Vocabulary {
 public:
    static constexpr int kUnknown = 0;

    Vocabulary() { add("<unk>"); }

    /// The word's row; a word not seen before gets the next one.
    int add(std::string_view word);
    void add_words(const std::vector<Tree>& trees);

    /// The word's row, kUnknown when it has none.
    int id(std::string_view word) const;
    const std::string& word(int id) const { return words_.at(static_cast<std::size_t>(id)); }
    int size() const { return static_cast<int>(words_.size()); }

    /// Sets the token of every leaf.
    void encode(std::vector<Tree>& trees) const;

 private:
    struct Hash {
        using is_transparent = void;  // looked up by string_view without making a string
        std::size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
    };

    std::vector<std::string> words_;
    std::unordered_map<std::string, int, Hash, std::equal_to<>> ids_;
};

struct Dataset {
    std::string name;
    std::vector<std::string> class_names;
    Vocabulary vocabulary;
    std::vector<Tree> train;
    std::vector<Tree> dev;  ///< may be empty
    std::vector<Tree> test;

    int classes() const { return static_cast<int>(class_names.size()); }

    /// Throws DataError naming the first tree that is deeper than a recursive model's stack allows.
    void require_depth_at_most(int limit) const;
};

struct TreebankOptions {
    int classes = 5;
    /// Words of dev and test get rows of their own, too: useful with pretrained word vectors, which know them.
    bool vocabulary_from_all_splits = false;
};

/// train.txt, dev.txt and test.txt of a folder, trees in the PTB form, with tokens set. The vocabulary is made from the training
/// words. Throws FileError.
Dataset read_treebank(const std::filesystem::path& folder, const TreebankOptions& options = {});

}  // namespace tree_lstm
