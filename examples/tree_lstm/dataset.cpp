#include "dataset.h"

#include <fmt/format.h>
#include <tapir/nn/data/ptb.h>

#include "text_file.h"

namespace tree_lstm {

int Vocabulary::add(std::string_view word) {
    if (const auto found = ids_.find(word); found != ids_.end()) return found->second;
    const int id = size();
    words_.emplace_back(word);
    ids_.emplace(words_.back(), id);
    return id;
}

void Vocabulary::add_words(const std::vector<Tree>& trees) {
    for (const Tree& tree : trees) {
        for (const Node& node : tree.nodes()) {
            if (node.is_leaf()) add(node.word);
        }
    }
}

int Vocabulary::id(std::string_view word) const {
    const auto found = ids_.find(word);
    return found != ids_.end() ? found->second : kUnknown;
}

void Vocabulary::encode(std::vector<Tree>& trees) const {
    for (Tree& tree : trees) {
        for (const Node& node : tree.nodes()) {
            if (node.is_leaf()) tree.set_token(node.index, id(node.word));
        }
    }
}

void Dataset::require_depth_at_most(int limit) const {
    for (const std::vector<Tree>* split : {&train, &dev, &test}) {
        for (const Tree& tree : *split) {
            if (tree.depth() <= limit) continue;
            throw DataError(std::string(tree.path()), tree.line(), 1,
                            fmt::format("the tree is {} nodes deep; the recursive model takes at most {}", tree.depth(), limit));
        }
    }
}

namespace {

std::vector<std::string> class_names(int classes) {
    if (classes == 5) return {"--", "-", "0", "+", "++"};
    std::vector<std::string> names;
    for (int i = 0; i < classes; ++i) names.push_back(std::to_string(i));
    return names;
}

}  // namespace

Dataset read_treebank(const std::filesystem::path& folder, const TreebankOptions& options) {
    Dataset data;
    data.name = folder.filename().empty() ? folder.parent_path().filename().string() : folder.filename().string();
    data.class_names = class_names(options.classes);
    data.train = tapir::data::read_ptb(folder / "train.txt", options.classes);
    data.dev = tapir::data::read_ptb(folder / "dev.txt", options.classes);
    data.test = tapir::data::read_ptb(folder / "test.txt", options.classes);

    data.vocabulary.add_words(data.train);
    if (options.vocabulary_from_all_splits) {
        data.vocabulary.add_words(data.dev);
        data.vocabulary.add_words(data.test);
    }
    for (std::vector<Tree>* split : {&data.train, &data.dev, &data.test}) data.vocabulary.encode(*split);
    return data;
}

}  // namespace tree_lstm
