// Parses bracketed trees.
#include "tapir/nn/data/ptb.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <string>
#include <utility>

#include "tapir/core/fail_impl.h"
#include "tapir/nn/data/text.h"

namespace tapir::data {

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

// Parses one tree with its own stack for the open nodes, so that memory alone limits the
// nesting depth.
class Parser {
 public:
    Parser(const char* op, std::string_view text, const TreeSource& source, int classes, const Loc& loc)
        : op_(op), text_(text), source_(source), classes_(classes), loc_(loc) {}

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
            stop(text_.size(), fmt::format("the line ends before the '(' in column {} is closed ({} open)", open_.back().offset + 1, open_.size()));
        }
        if (builder_.size() == 0) stop(0, "no tree in this line");
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
        if (open_.empty() && builder_.size() > 0) stop(at_, "text after the end of the tree");
        if (!open_.empty() && !open_.back().word.empty()) stop(at_, "a node with a word cannot have children");
        if (!open_.empty() && open_.back().child_count == 2) {
            stop(at_, "a third child: only binary trees are read, binarise the data first");
        }
        const std::size_t offset = at_++;
        open_.push_back({offset, label(), {}});
    }

    int label() {
        skip_spaces();
        const std::size_t offset = at_;
        const std::string_view token = take_token();
        if (token.empty()) stop(offset, fmt::format("a label from 0 to {} is missing here", classes_ - 1));
        int value = 0;
        const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
        if (error != std::errc() || end != token.data() + token.size() || value < 0 || value >= classes_) {
            stop(offset, fmt::format("label {} is not a whole number from 0 to {}", in_quotes(token), classes_ - 1));
        }
        return value;
    }

    void word() {
        const std::size_t offset = at_;
        const std::string_view token = take_token();
        if (open_.empty()) {
            stop(offset, builder_.size() > 0 ? "text after the end of the tree" : fmt::format("expected '(' but found {}", in_quotes(token)));
        }
        OpenNode& node = open_.back();
        if (!node.word.empty()) stop(offset, fmt::format("a second word, {}, in one node", in_quotes(token)));
        if (node.child_count > 0) stop(offset, fmt::format("a word, {}, beside a child node", in_quotes(token)));
        node.word = token;
    }

    void close() {
        if (open_.empty()) stop(at_, "')' without a '('");
        const OpenNode node = open_.back();
        if (node.word.empty() && node.child_count == 0) stop(at_, "a node with neither a word nor children");
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

    [[noreturn]] void stop(std::size_t offset, const std::string& problem) const {
        fail<FileError>(loc_, "{}: {}:{}:{}: {}", op_, source_.path ? *source_.path : "tree", source_.line, offset + 1, problem);
    }

    const char* op_;
    std::string_view text_;
    const TreeSource& source_;
    int classes_;
    const Loc& loc_;
    std::size_t at_ = 0;
    std::vector<OpenNode> open_;
    Tree::Builder builder_;
};

void check_classes(const char* op, int classes, const Loc& loc) {
    if (classes < 1) fail<ValueError>(loc, "{}: the number of classes must be at least 1, got {}", op, classes);
}

}  // namespace

Tree parse_ptb(TextViewArg text, const TreeSource& source, int classes, Loc loc) {
    const CallerScope caller(loc);
    check_classes("parse_ptb", classes, loc);
    return Parser("parse_ptb", text, source, classes, loc).parse();
}

std::vector<Tree> read_ptb(const TextArg& path, int classes, Loc loc) {
    const CallerScope caller(loc);
    check_classes("read_ptb", classes, loc);
    LineReader reader(path, "read_ptb", loc);
    const auto shared_path = std::make_shared<const std::string>(path);
    std::vector<Tree> trees;
    while (reader.next()) {
        reader.require_text();
        if (reader.is_blank()) continue;
        trees.push_back(Parser("read_ptb", reader.line(), {shared_path, reader.line_number()}, classes, loc).parse());
    }
    if (trees.empty()) fail<FileError>(loc, "read_ptb: {}:1:1: the file holds no trees", path);
    return trees;
}

}  // namespace tapir::data
