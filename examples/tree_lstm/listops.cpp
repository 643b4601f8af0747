#include "listops.h"

#include <fmt/format.h>

#include <tapir/core/io/file.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <unordered_set>
#include <utility>

namespace tree_lstm {

namespace {

// An expression is a string of tokens, one byte each: digits 0-9 as themselves, then the operators and the end.
enum Token : char { kMin = 10, kMax, kMed, kSumMod, kEnd };
constexpr std::array<std::string_view, 15> kTokenNames = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"};
constexpr int kOperators = 4;

bool is_digit(char token) { return token < kMin; }
bool is_operator(char token) { return token >= kMin && token < kEnd; }
std::string_view name_of(char token) { return kTokenNames[static_cast<std::size_t>(token)]; }

// splitmix64 (Steele, Lea & Flood 2014). The distributions of <random> differ between standard libraries; this does
// not.
class Random {
 public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    /// 0 to bound - 1. The bounds are below 2^8, so the bias of the multiplication is below 2^-24.
    int below(int bound) {
        state_ += 0x9E3779B97F4A7C15U;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        z ^= z >> 31;
        return static_cast<int>(((z >> 32) * static_cast<std::uint64_t>(bound)) >> 32);
    }

 private:
    std::uint64_t state_;
};

// One random expression, or nothing when it became longer than allowed.
std::optional<std::string> random_expression(const ListOpsOptions& options, Random& random) {
    std::string tokens;
    std::vector<int> missing;  // for each open operator, how many arguments are still to come
    const auto open = [&] {
        tokens += static_cast<char>(kMin + random.below(kOperators));
        missing.push_back(2 + random.below(options.max_args - 1));
    };
    open();
    while (!missing.empty()) {
        if (static_cast<int>(tokens.size() + missing.size()) > options.max_length) return std::nullopt;
        if (missing.back() == 0) {
            tokens += static_cast<char>(kEnd);
            missing.pop_back();
            continue;
        }
        --missing.back();
        const bool may_nest = static_cast<int>(missing.size()) < options.max_depth;
        if (may_nest && random.below(4) == 0) {
            open();
        } else {
            tokens += static_cast<char>(random.below(10));
        }
    }
    return tokens;
}

int apply(char operation, std::vector<int>& args) {
    if (operation == kMin) return *std::min_element(args.begin(), args.end());
    if (operation == kMax) return *std::max_element(args.begin(), args.end());
    if (operation == kSumMod) return std::accumulate(args.begin(), args.end(), 0) % 10;
    std::sort(args.begin(), args.end());
    const std::size_t middle = args.size() / 2;
    return args.size() % 2 == 1 ? args[middle] : (args[middle - 1] + args[middle]) / 2;
}

// Makes the tree while the tokens arrive; every open operator has the node of its partial application and the values of
// its arguments so far. Says what is wrong with a token in `problem`.
class ListOpsBuilder {
 public:
    /// False when the token cannot come here.
    bool add(char token) {
        if (is_complete_) return refuse("text after the end of the expression");
        if (is_operator(token)) {
            open_.push_back({token, leaf(kNoLabel, token), {}});
            return true;
        }
        if (open_.empty()) return refuse("an expression starts with an operator");
        if (is_digit(token)) return argument(leaf(token, token), token);
        return close();
    }

    bool is_complete() const { return is_complete_; }
    const std::string& problem() const { return problem_; }
    Tree build(const Source& source) { return builder_.build(source); }

 private:
    struct OpenOperator {
        char operation;
        int node;
        std::vector<int> args;
    };

    int leaf(int label, char token) { return builder_.leaf(label, std::string(name_of(token)), 1 + token); }

    bool argument(int node, int value) {
        OpenOperator& top = open_.back();
        top.args.push_back(value);
        top.node = builder_.inner(kNoLabel, top.node, node);
        return true;
    }

    bool close() {
        OpenOperator top = std::move(open_.back());
        open_.pop_back();
        if (top.args.empty()) return refuse("an operator without arguments");
        const int value = apply(top.operation, top.args);
        const int end = leaf(kNoLabel, kEnd);
        const int node = builder_.inner(value, top.node, end);
        if (!open_.empty()) return argument(node, value);
        is_complete_ = true;
        return true;
    }

    bool refuse(std::string problem) {
        problem_ = std::move(problem);
        return false;
    }

    Tree::Builder builder_;
    std::vector<OpenOperator> open_;
    bool is_complete_ = false;
    std::string problem_;
};

Tree to_tree(std::string_view tokens, const Source& source) {
    ListOpsBuilder builder;
    for (const char token : tokens) builder.add(token);
    return builder.build(source);
}

void require_valid(const ListOpsOptions& options) {
    const auto require = [](bool holds, const char* problem) {
        if (!holds) throw std::invalid_argument(fmt::format("make_listops: {}", problem));
    };
    require(options.train >= 0 && options.dev >= 0 && options.test >= 0, "the number of trees cannot be negative");
    require(options.max_depth >= 1, "max_depth must be at least 1");
    require(options.max_args >= 2 && options.max_args <= 100, "max_args must be between 2 and 100");
    require(options.max_length >= 4, "max_length must be at least 4, the length of [MAX 1 2 ]");
}

struct Word {
    std::string_view text;
    std::size_t offset;
};

std::vector<Word> split_words(std::string_view text) {
    std::vector<Word> words;
    for (std::size_t at = text.find_first_not_of(" \t"); at != std::string_view::npos;) {
        const std::size_t end = std::min(text.find_first_of(" \t", at), text.size());
        words.push_back({text.substr(at, end - at), at});
        at = text.find_first_not_of(" \t", end);
    }
    return words;
}

[[noreturn]] void fail(const Source& source, std::size_t offset, const std::string& problem) {
    throw DataError(source.path ? *source.path : "listops", source.line, static_cast<std::int64_t>(offset) + 1, problem);
}

// The tokens decide the tree, so the brackets hold nothing new: they only have to be the ones the tree is written with.
void require_brackets(const Tree& tree, const std::vector<Word>& given, const Source& source) {
    const std::string text = to_brackets(tree);
    const std::vector<Word> wanted = split_words(text);
    const auto [at, expected] =
        std::mismatch(given.begin(), given.end(), wanted.begin(), wanted.end(), [](const Word& a, const Word& b) { return a.text == b.text; });
    if (at != given.end()) {
        const std::string_view instead = expected != wanted.end() ? expected->text : "the end of the line";
        fail(source, at->offset, fmt::format("brackets: {} where {} is expected", in_quotes(at->text), in_quotes(instead)));
    }
    if (expected != wanted.end()) {
        fail(source, given.back().offset + given.back().text.size(), "brackets: the line ends before the tree does");
    }
}

}  // namespace

Vocabulary listops_vocabulary() {
    Vocabulary vocabulary;
    for (const std::string_view name : kTokenNames) vocabulary.add(name);
    return vocabulary;
}

Dataset make_listops(const ListOpsOptions& options) {
    require_valid(options);
    Dataset data;
    data.name = "ListOps";
    for (int value = 0; value < 10; ++value) data.class_names.push_back(std::to_string(value));
    data.vocabulary = listops_vocabulary();

    // Once a thousand draws in a row give nothing new, the options (almost) leave no more expressions.
    constexpr int kPatience = 1'000;
    const auto path = std::make_shared<const std::string>(fmt::format("ListOps (seed {})", options.seed));
    Random random(options.seed);
    std::unordered_set<std::string> seen;
    const auto fill = [&](std::vector<Tree>& trees, int count) {
        trees.reserve(static_cast<std::size_t>(count));
        for (int failures = 0; static_cast<int>(trees.size()) < count; ++failures) {
            if (failures == kPatience) {
                throw std::invalid_argument(
                    fmt::format("make_listops: only about {} distinct expressions have at most {} tokens, {} arguments "
                                "and depth {}",
                                seen.size(), options.max_length, options.max_args, options.max_depth));
            }
            const std::optional<std::string> tokens = random_expression(options, random);
            if (!tokens || !seen.insert(*tokens).second) continue;
            trees.push_back(to_tree(*tokens, {path, static_cast<std::int64_t>(trees.size()) + 1}));
            failures = -1;
        }
    };
    // Test and dev first: they stay the same when only the number of training trees changes.
    fill(data.test, options.test);
    fill(data.dev, options.dev);
    fill(data.train, options.train);
    return data;
}

std::string to_brackets(const Tree& tree) {
    std::string text;
    std::vector<const Node*> pending = {&tree.root()};  // a null pointer stands for a closing bracket
    while (!pending.empty()) {
        const Node* node = pending.back();
        pending.pop_back();
        if (!text.empty()) text += ' ';
        if (node == nullptr) {
            text += ')';
        } else if (node->is_leaf()) {
            text += node->word;
        } else {
            text += '(';
            pending.insert(pending.end(), {nullptr, node->right, node->left});
        }
    }
    return text;
}

Tree parse_listops(std::string_view text, const Source& source) {
    const std::vector<Word> words = split_words(text);
    ListOpsBuilder builder;
    for (const Word& word : words) {
        if (word.text == "(" || word.text == ")") continue;
        const auto found = std::find(kTokenNames.begin(), kTokenNames.end(), word.text);
        if (found == kTokenNames.end()) fail(source, word.offset, fmt::format("unknown token {}", in_quotes(word.text)));
        if (!builder.add(static_cast<char>(found - kTokenNames.begin()))) fail(source, word.offset, builder.problem());
    }
    if (!builder.is_complete()) fail(source, text.size(), "the line ends before the expression is closed with ']'");
    Tree tree = builder.build(source);
    require_brackets(tree, words, source);
    return tree;
}

void write_listops(const std::filesystem::path& file, const std::vector<Tree>& trees) {
    std::string text;
    for (const Tree& tree : trees) {
        text += fmt::format("{}\t", tree.root().label);
        text += to_brackets(tree);
        text += '\n';
    }
    tapir::write_file(file.string(), text);
}

std::vector<Tree> read_listops(const std::filesystem::path& file) {
    LineReader reader(file, "read_listops");
    const auto path = std::make_shared<const std::string>(reader.path());
    std::vector<Tree> trees;
    while (reader.next()) {
        reader.require_text();
        if (reader.is_blank()) continue;
        std::string text = reader.line();
        const std::size_t tab = text.find('\t');
        const std::string value = tab != std::string::npos ? text.substr(0, tab) : "";
        // Blanked rather than cut off, so that columns in messages stay those of the file.
        if (tab != std::string::npos) std::fill_n(text.begin(), tab, ' ');
        Tree tree = parse_listops(text, {path, reader.line_number()});
        if (!value.empty() && value != std::to_string(tree.root().label)) {
            reader.fail_at(0, fmt::format("the value is {}, not {}", tree.root().label, in_quotes(value)));
        }
        trees.push_back(std::move(tree));
    }
    if (trees.empty()) throw DataError(reader.path(), 1, 1, "the file holds no trees");
    return trees;
}

}  // namespace tree_lstm
