#include "ptb.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <memory>
#include <string>
#include <utility>

namespace tree_lstm {

namespace {

std::string unescape(std::string_view word) {
    if (word == "-LRB-") return "(";
    if (word == "-RRB-") return ")";
    std::string out;
    for (std::size_t i = 0; i < word.size(); ++i) {
        const bool is_escape = word[i] == '\\' && i + 1 < word.size() && (word[i + 1] == '/' || word[i + 1] == '*');
        if (!is_escape) out += word[i];
    }
    return out;
}

// Reads one tree with a stack of its own for the nodes that are open, so that the nesting depth is bounded by memory
// only.
class Parser {
  public:
    Parser(std::string_view text, const Source& source, int classes)
        : text_(text), source_(source), classes_(classes) {}

    Tree parse() {
        for (skip_spaces(); at_ < text_.size(); skip_spaces()) {
            if (text_[at_] == '(') {
                open();
            } else if (text_[at_] == ')') {
                close();
            } else {
                word();
            }
        }
        if (!open_.empty()) {
            fail(text_.size(), fmt::format("the line ends before the '(' in column {} is closed ({} open)",
                                           open_.back().offset + 1, open_.size()));
        }
        if (builder_.size() == 0) fail(0, "no tree in this line");
        return builder_.build(source_);
    }

  private:
    struct OpenNode {
        std::size_t offset;
        int label;
        std::string_view word;
        std::array<int, 2> children{};
        int child_count = 0;
    };

    void open() {
        if (open_.empty() && builder_.size() > 0) fail(at_, "text after the end of the tree");
        if (!open_.empty() && !open_.back().word.empty()) fail(at_, "a node with a word cannot have children");
        if (!open_.empty() && open_.back().child_count == 2) {
            fail(at_, "a third child: only binary trees are read, binarise the data first");
        }
        const std::size_t offset = at_++;
        open_.push_back({offset, label(), {}});
    }

    int label() {
        skip_spaces();
        const std::size_t offset = at_;
        const std::string_view token = take_token();
        if (token.empty()) fail(offset, fmt::format("a label from 0 to {} is missing here", classes_ - 1));
        int value = 0;
        const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
        if (error != std::errc() || end != token.data() + token.size() || value < 0 || value >= classes_) {
            fail(offset, fmt::format("label {} is not a whole number from 0 to {}", in_quotes(token), classes_ - 1));
        }
        return value;
    }

    void word() {
        const std::size_t offset = at_;
        const std::string_view token = take_token();
        if (open_.empty()) {
            fail(offset, builder_.size() > 0 ? "text after the end of the tree"
                                             : fmt::format("expected '(' but found {}", in_quotes(token)));
        }
        OpenNode& node = open_.back();
        if (!node.word.empty()) fail(offset, fmt::format("a second word, {}, in one node", in_quotes(token)));
        if (node.child_count > 0) fail(offset, fmt::format("a word, {}, beside a child node", in_quotes(token)));
        node.word = token;
    }

    void close() {
        if (open_.empty()) fail(at_, "')' without a '('");
        const OpenNode node = open_.back();
        if (node.word.empty() && node.child_count == 0) fail(at_, "a node with neither a word nor children");
        open_.pop_back();
        ++at_;
        const int index = add(node);
        if (open_.empty()) return;
        OpenNode& parent = open_.back();
        parent.children[static_cast<std::size_t>(parent.child_count++)] = index;
    }

    int add(const OpenNode& node) {
        if (!node.word.empty()) return builder_.leaf(node.label, unescape(node.word));
        if (node.child_count == 2) return builder_.inner(node.label, node.children[0], node.children[1]);
        builder_.set_label(node.children[0], node.label);
        return node.children[0];
    }

    void skip_spaces() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    }

    std::string_view take_token() {
        const std::size_t end = std::min(text_.find_first_of(" \t()", at_), text_.size());
        const std::string_view token = text_.substr(at_, end - at_);
        at_ = end;
        return token;
    }

    [[noreturn]] void fail(std::size_t offset, const std::string& problem) const {
        throw DataError(source_.path ? *source_.path : "tree", source_.line, static_cast<std::int64_t>(offset) + 1,
                        problem);
    }

    std::string_view text_;
    const Source& source_;
    int classes_;
    std::size_t at_ = 0;
    std::vector<OpenNode> open_;
    Tree::Builder builder_;
};

std::vector<std::string> class_names(int classes) {
    if (classes == 5) return {"--", "-", "0", "+", "++"};
    std::vector<std::string> names;
    for (int i = 0; i < classes; ++i) names.push_back(std::to_string(i));
    return names;
}

}  // namespace

Tree parse_ptb(std::string_view text, const Source& source, int classes) {
    return Parser(text, source, classes).parse();
}

std::vector<Tree> read_ptb(const std::filesystem::path& file, int classes) {
    LineReader reader(file);
    const auto path = std::make_shared<const std::string>(reader.path());
    std::vector<Tree> trees;
    while (reader.next()) {
        reader.require_text();
        if (!reader.is_blank()) trees.push_back(parse_ptb(reader.line(), {path, reader.line_number()}, classes));
    }
    if (trees.empty()) throw DataError(reader.path(), 1, 1, "the file holds no trees");
    return trees;
}

Dataset read_treebank(const std::filesystem::path& folder, const TreebankOptions& options) {
    Dataset data;
    data.name = folder.filename().empty() ? folder.parent_path().filename().string() : folder.filename().string();
    data.class_names = class_names(options.classes);
    data.train = read_ptb(folder / "train.txt", options.classes);
    data.dev = read_ptb(folder / "dev.txt", options.classes);
    data.test = read_ptb(folder / "test.txt", options.classes);

    data.vocabulary.add_words(data.train);
    if (options.vocabulary_from_all_splits) {
        data.vocabulary.add_words(data.dev);
        data.vocabulary.add_words(data.test);
    }
    for (std::vector<Tree>* split : {&data.train, &data.dev, &data.test}) data.vocabulary.encode(*split);
    return data;
}

}  // namespace tree_lstm
