// The data side of examples/tree_lstm: the treebank, the readers and what they say of malformed files, ListOps, word vectors,
// the drawing and the progress display.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../examples/common/show.h"
#include "../../examples/common/write.h"
#include "../../examples/tree_lstm/glove.h"
#include "../../examples/tree_lstm/listops.h"
#include "../../examples/tree_lstm/progress.h"
#include "../../examples/tree_lstm/svg.h"
#include "../../examples/tree_lstm/text_file.h"
#include "../../examples/tree_lstm/tree.h"
#include "../nn/data/files.h"
#include "tapir/core/process_rank.h"
#include "tapir/nn/data/ptb.h"

using namespace tree_lstm;
using show::duration;
using show::xml_escaped;
using namespace files;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using tapir::data::parse_ptb;

namespace {

constexpr int kDeep = 100'000;

std::string deep_left(int depth = kDeep) { return repeat("(2 ", depth - 1) + "(2 a)" + repeat(" (2 a))", depth - 1); }
std::string deep_right() { return repeat("(2 (2 a) ", kDeep - 1) + "(2 a)" + repeat(")", kDeep - 1); }

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The treebank

TEST_CASE("a data set names the tree that is too deep for recursion", "[tree][ptb]") {
    const TemporaryFolder folder;
    folder.write("train.txt", "(1 a)\n\n" + deep_right() + "\n");
    folder.write("dev.txt", "(1 a)\n");
    folder.write("test.txt", "(1 a)\n");
    CHECK_THAT(data_error([&] { read_treebank(folder.path() / "none"); }), Contains("train.txt:1:1: cannot open"));
    CHECK_THAT(data_error([&] { read_treebank("/dev/null"); }), StartsWith("/dev/null/train.txt:1:1: "));
    const Dataset data = read_treebank(folder.path());
    data.require_depth_at_most(kDeep);
    CHECK_THAT(data_error([&] { data.require_depth_at_most(5000); }),
               StartsWith((folder.path() / "train.txt").string() + ":3:1: ") && Contains("100000 nodes deep"));
}

TEST_CASE("the vocabulary comes from the training words", "[ptb]") {
    const TemporaryFolder folder;
    folder.write("train.txt", "(3 (2 a) (4 (2 b) (4 a)))\n");
    folder.write("dev.txt", "(3 (2 a) (4 c))\n");
    folder.write("test.txt", "(3 (2 d) (4 b))\n");
    const Dataset data = read_treebank(folder.path());
    CHECK(data.classes() == 5);
    CHECK(data.vocabulary.size() == 3);
    CHECK(data.vocabulary.word(Vocabulary::kUnknown) == "<unk>");
    CHECK(data.train[0].root().left->token == 1);
    CHECK(data.train[0].root().right->left->token == 2);
    CHECK(data.train[0].root().right->right->token == 1);
    CHECK(data.dev[0].root().right->token == Vocabulary::kUnknown);
    CHECK(data.dev[0].root().right->word == "c");
    CHECK(data.test[0].root().right->token == 2);

    const Dataset all = read_treebank(folder.path() / "", {.classes = 5, .vocabulary_from_all_splits = true});
    CHECK(all.vocabulary.size() == 5);
    CHECK(all.name == folder.path().filename().string());
    CHECK(all.test[0].root().left->token == 4);
    CHECK_THAT(data_error([&] { read_treebank(folder.path(), {.classes = 4}); }), Contains("from 0 to 3"));
}

TEST_CASE("the Stanford Sentiment Treebank has its known counts", "[ptb]") {
    const char* folder = std::getenv("TAPIR_SST_DIR");
    if (folder == nullptr) {
        WARN("skipped: set TAPIR_SST_DIR to the folder with train.txt, dev.txt and test.txt");
        return;
    }
    const Dataset data = read_treebank(folder);
    CHECK(data.train.size() == 8544);
    CHECK(data.dev.size() == 1101);
    CHECK(data.test.size() == 2210);
    int nodes = 0;
    for (std::size_t i = 0; i < 1000; ++i) nodes += data.train[i].size();
    CHECK(nodes == 39374);
    data.require_depth_at_most(64);
    for (const Tree& tree : data.train) {
        for (const Node& node : tree.nodes()) {
            if (node.is_leaf() && node.token == Vocabulary::kUnknown) FAIL("unknown training word " << node.word);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// ListOps

namespace {

// A second evaluator, on the tree and after the authors' to_value(): a partial application is an operator with the
// arguments so far, combined as they come; the median is found by counting.
struct Value {
    std::string operation;
    std::vector<int> args;
    int number = -1;
};

int finish(const Value& f) {
    std::vector<int> histogram(10, 0);
    int sum = 0;
    for (const int arg : f.args) {
        ++histogram[static_cast<std::size_t>(arg)];
        sum += arg;
    }
    const auto nth = [&](std::size_t n) {  // the n-th smallest, from 0
        int value = 0;
        for (std::size_t seen = 0; (seen += static_cast<std::size_t>(histogram[static_cast<std::size_t>(value)])) <= n;) ++value;
        return value;
    };
    const std::size_t n = f.args.size();
    if (f.operation == "[MIN") return nth(0);
    if (f.operation == "[MAX") return nth(n - 1);
    if (f.operation == "[SM") return sum % 10;
    REQUIRE(f.operation == "[MED");
    return static_cast<int>((nth((n - 1) / 2) + nth(n / 2)) / 2.0);
}

Value evaluate(const Node& node) {
    if (node.is_leaf()) {
        if (node.word.size() == 1 && node.word != "]") return {"", {}, node.word[0] - '0'};
        return {node.word, {}, -1};
    }
    Value left = evaluate(*node.left);
    const Value right = evaluate(*node.right);
    if (right.operation == "]") return {"", {}, finish(left)};
    left.args.push_back(right.number);
    return left;
}

}  // namespace

TEST_CASE("ListOps expressions have the values worked out by hand", "[listops]") {
    const std::vector<std::pair<std::string, int>> cases = {
        {"( ( ( [MAX 2 ) 9 ) ] )", 9},
        {"( ( ( [MIN 2 ) 9 ) ] )", 2},
        {"( ( ( [SM 8 ) 9 ) ] )", 7},
        {"( ( ( [MED 2 ) 9 ) ] )", 5},        // 5.5 rounded down
        {"( ( ( ( [MED 9 ) 1 ) 4 ) ] )", 4},  // odd: the middle one
        {"( ( ( ( ( [MED 4 ) 2 ) 8 ) 9 ) ] )", 6},
        {"( ( ( ( ( ( [SM 9 ) 9 ) 9 ) 9 ) 9 ) ] )", 5},
        {"( ( [MIN 3 ) ] )", 3},  // not made here, but read
        {"( ( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )", 4},
        {"( ( ( [SM ( ( ( [SM 1 ) 2 ) ] ) ) ( ( ( [MED 3 ) 8 ) ] ) ) ] )", 8},
    };
    for (const auto& [text, value] : cases) {
        const Tree tree = parse_listops(text);
        CAPTURE(text);
        CHECK(tree.root().label == value);
        CHECK(evaluate(tree.root()).number == value);
        CHECK(to_brackets(tree) == text);
    }
}

TEST_CASE("ListOps labels: digits and completed expressions have one", "[listops]") {
    const Tree tree = parse_listops("( ( ( [MAX 2 ) ( ( ( [SM 8 ) 9 ) ] ) ) ] )");
    const Node& root = tree.root();
    CHECK(root.label == 7);
    CHECK_FALSE(root.right->has_label());             // ]
    CHECK_FALSE(root.left->has_label());              // ( ( [MAX 2 ) (...) )
    CHECK(root.left->right->label == 7);              // ( ( ( [SM 8 ) 9 ) ] )
    CHECK_FALSE(root.left->left->has_label());        // ( [MAX 2 )
    CHECK_FALSE(root.left->left->left->has_label());  // [MAX
    CHECK(root.left->left->right->label == 2);        // 2
    const Vocabulary vocabulary = listops_vocabulary();
    CHECK(vocabulary.size() == 16);
    for (const Node& node : tree.nodes()) {
        if (node.is_leaf()) CHECK(vocabulary.id(node.word) == node.token);
    }
}

TEST_CASE("made ListOps trees are right, within bounds and distinct", "[listops]") {
    ListOpsOptions options;
    options.train = 4000;
    options.dev = 500;
    options.test = 1000;
    options.max_depth = 6;
    options.max_args = 4;
    options.max_length = 60;
    options.seed = 7;
    const Dataset data = make_listops(options);
    REQUIRE(data.train.size() == 4000);
    REQUIRE(data.dev.size() == 500);
    REQUIRE(data.test.size() == 1000);
    CHECK(data.classes() == 10);

    std::set<std::string> seen;
    std::map<std::string, int> tokens;
    std::map<std::size_t, int> arg_counts;
    int digits = 0;
    int nested = 0;
    int wrong = 0;
    int too_large = 0;
    int deepest = 0;
    for (const auto* split : {&data.train, &data.dev, &data.test}) {
        for (const Tree& tree : *split) {
            seen.insert(to_brackets(tree));
            wrong += evaluate(tree.root()).number != tree.root().label ? 1 : 0;
            too_large += tree.leaf_count() > options.max_length ? 1 : 0;
            int open = 0;
            for (const Node& node : tree.nodes()) {
                if (!node.is_leaf()) continue;
                ++tokens[node.word];
                if (node.word.size() > 1) deepest = std::max(deepest, ++open);
                if (node.word == "]") --open;
                if (node.label != kNoLabel) ++digits;
                if (node.word.size() > 1 && open > 1) ++nested;
            }
            for (const Node& node : tree.nodes()) {
                if (!node.is_leaf() && node.right->word == "]") ++arg_counts[evaluate(*node.left).args.size()];
            }
        }
    }
    CHECK(seen.size() == 5500);
    CHECK(wrong == 0);
    CHECK(too_large == 0);
    CHECK(deepest == 6);
    CHECK(tokens.size() == 15);
    CHECK(arg_counts.size() == 3);  // 2, 3, 4
    CHECK(arg_counts.begin()->first == 2);
    // p = 0.25, a little less because of the bounds.
    CHECK(static_cast<double>(nested) / (nested + digits) == Approx(0.24).margin(0.02));
}

TEST_CASE("ListOps is the same everywhere", "[listops]") {
    const ListOpsOptions options{.train = 3, .test = 4, .seed = 0};
    const Dataset data = make_listops(options);
    // Worked out by hand: 1 + 2 = 3, 3 + 3 + 5 = 11; the middle of 2 4 8 9 is (4 + 8) / 2; MIN 4 2 = 2.
    CHECK(to_brackets(data.test[0]) == "( ( ( ( [SM ( ( ( [SM 1 ) 2 ) ] ) ) 3 ) 5 ) ] )");
    CHECK(data.test[0].root().label == 1);
    CHECK(data.test[1].sentence() == "[MED 4 2 8 9 ]");
    CHECK(data.test[1].root().label == 6);
    CHECK(data.test[2].sentence() == "[MAX 4 6 9 [MIN 4 2 ] 3 ]");
    CHECK(data.test[2].root().label == 9);
    // 1 + 2 + 1 + 9 + 3 = 16, so the smallest of 2 4 6 9 1 is 1, and the mean of 1 and 8 is 4.5.
    CHECK(data.test[3].sentence() == "[MED [MIN 2 4 [SM [MIN 1 9 9 2 1 ] 2 1 9 3 ] 9 1 ] 8 ]");
    CHECK(data.test[3].root().label == 4);

    // More training trees leave the test trees as they are.
    const Dataset more = make_listops({.train = 50, .test = 4, .seed = 0});
    for (std::size_t i = 0; i < 4; ++i) CHECK(to_brackets(more.test[i]) == to_brackets(data.test[i]));
    CHECK(to_brackets(make_listops({.train = 3, .test = 4, .seed = 1}).test[0]) != to_brackets(data.test[0]));
    CHECK(data.test[1].path() == "ListOps (seed 0)");
    CHECK(data.test[1].line() == 2);
}

TEST_CASE("ListOps options that cannot be met", "[listops]") {
    const auto make = [](ListOpsOptions options) { return make_listops(options); };
    // One operator with two digits: 4 * 100 expressions.
    CHECK_THROWS_WITH(make({.train = 401, .test = 0, .max_depth = 1, .max_args = 2}), Contains("distinct expressions"));
    CHECK(make({.train = 390, .test = 0, .max_depth = 1, .max_args = 2}).train.size() == 390);
    CHECK_THROWS_WITH(make({.train = 401, .test = 0, .max_length = 4}), Contains("distinct expressions"));
    CHECK_THROWS_AS(make({.max_depth = 0}), std::invalid_argument);
    CHECK_THROWS_AS(make({.max_args = 1}), std::invalid_argument);
    CHECK_THROWS_AS(make({.max_length = 3}), std::invalid_argument);
    CHECK_THROWS_AS(make({.train = -1}), std::invalid_argument);
    CHECK(make({.train = 0, .test = 0}).train.empty());
    // More than eight arguments an operator would grow without end if nothing were cut off.
    CHECK(make({.train = 100, .test = 0, .max_depth = 1'000'000, .max_args = 100, .max_length = 500}).train.size() == 100);
    const int largest = std::numeric_limits<int>::max();
    CHECK(make({.train = 100, .test = 0, .max_depth = largest, .max_length = largest}).train.size() == 100);
}

TEST_CASE("ListOps files go round", "[listops]") {
    const TemporaryFolder folder;
    const Dataset data = make_listops({.train = 50, .test = 5});
    write_listops(folder.path() / "train.tsv", data.train);
    const auto trees = read_listops(folder.path() / "train.tsv");
    REQUIRE(trees.size() == 50);
    for (std::size_t i = 0; i < trees.size(); ++i) {
        CHECK(to_brackets(trees[i]) == to_brackets(data.train[i]));
        for (std::size_t n = 0; n < trees[i].nodes().size(); ++n) {
            CHECK(trees[i].nodes()[n].label == data.train[i].nodes()[n].label);
            CHECK(trees[i].nodes()[n].token == data.train[i].nodes()[n].token);
        }
    }
    CHECK(trees[4].line() == 5);
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // no temporary file is left
    CHECK_THAT(data_error([&] { write_listops(folder.path() / "none" / "x.tsv", data.train); }), Contains("none/x.tsv: No such file"));
}

TEST_CASE("malformed ListOps files name file, line and column", "[listops]") {
    const std::vector<std::array<std::string, 3>> cases = {
        {"", "1:1", "no trees"},
        {"9\t( ( ( [MAX 2 ) 9 ) ] )\n8\t( ( ( [MAX 2 ) 9 ) ] )\n", "2:1", "the value is 9, not '8'"},
        {"\n( ( ( [AVG 2 ) 9 ) ] )", "2:7", "unknown token '[AVG'"},
        {"( ( ( [MAX 2 ) 10 ) ] )", "1:16", "unknown token '10'"},
        {"( ( ( [MAX 2 ) 9 ) )", "1:21", "closed with ']'"},
        {"( [MAX ] )", "1:8", "without arguments"},
        {"( 2 3 )", "1:3", "starts with an operator"},
        {"( ] ] )", "1:3", "starts with an operator"},
        {"5", "1:1", "starts with an operator"},
        {"( ( ( [MAX 2 ) 9 ) ] ) 4", "1:24", "after the end"},
        {"( ( ( [MAX 2 ) 9 ) ]", "1:21", "the line ends before the tree does"},
        {"( ( ( [MAX 2 ) 9 ) ] ) )", "1:24", "')' where 'the end of the line' is expected"},
        {"( ( [MAX ( 2 9 ) ) ] )", "1:5", "'[MAX' where '(' is expected"},
        {"[MAX 2 9 ]", "1:1", "'[MAX' where '(' is expected"},
        {"( ( ( [MAX 2 ) \x01 ) ] )", "1:16", "control character"},
    };
    const TemporaryFolder folder;
    for (const auto& [text, place, problem] : cases) {
        const fs::path path = folder.write("bad.tsv", text);
        CAPTURE(text);
        CHECK_THAT(data_error([&] { read_listops(path); }), StartsWith(path.string() + ":" + place + ": ") && Contains(problem));
    }
}

TEST_CASE("a ListOps expression 100,000 deep is read", "[listops]") {
    const Tree tree = parse_listops(repeat("( ( ( [MAX 2 ) ", kDeep) + "7" + repeat(" ) ] )", kDeep));
    CHECK(tree.root().label == 7);
    CHECK(tree.depth() == 2 * kDeep + 2);
    CHECK_THAT(data_error([] { parse_listops(repeat("( ( ( [MAX 2 ) ", kDeep)); }), StartsWith("listops:0:"));
}

// ---------------------------------------------------------------------------------------------------------------------
// GloVe

namespace {

Vocabulary words(std::initializer_list<const char*> list) {
    Vocabulary vocabulary;
    for (const char* word : list) vocabulary.add(word);
    return vocabulary;
}

}  // namespace

TEST_CASE("word vectors are read for the vocabulary", "[glove]") {
    const TemporaryFolder folder;
    const Vocabulary vocabulary = words({"the", "Film", "missing", "NASA"});
    const std::string lines =
        "the 0.5 -1e-1 2\r\n"
        "unused 1 2 3 \n"
        "film 7 8 9\n"
        "\n"
        "Film 1 2 3\n"
        "at name@domain.com 4 4 4\n"
        ". . . 5 5 5\n"
        "the 9 9 9\n"
        "nasa 1e-60 0.25 -0\n";
    for (const std::string header : {"", "8 3\n"}) {
        const WordVectors vectors = read_glove(folder.write("g.txt", header + lines), vocabulary);
        CHECK(vectors.dim == 3);
        CHECK(vectors.rows.size() == 15);
        CHECK(vectors.found == std::vector<bool>{false, true, true, false, true});
        CHECK(vectors.found_count == 3);
        const auto row = [&](int id) { return std::vector<float>(vectors.row(id).begin(), vectors.row(id).end()); };
        CHECK(row(1) == std::vector<float>{0.5F, -0.1F, 2.0F});  // the first line for a word
        CHECK(row(2) == std::vector<float>{1, 2, 3});            // the exact spelling, though it comes later
        CHECK(row(3) == std::vector<float>{0, 0, 0});
        CHECK(row(4) == std::vector<float>{0, 0.25F, 0});  // the lower-case form; too small a value is 0
    }
}

TEST_CASE("malformed word vector files name file and line", "[glove]") {
    const std::vector<std::array<std::string, 3>> cases = {
        {"", "1:1", "no word vectors"},
        {"2 3\n", "1:1", "no word vectors"},
        {"a 1 2 3\nb 1 2\n", "2:1", "'b' has 2 values, not 3"},
        {"a 1 2 3\nb 1 2 3 4\n", "2:1", "'b' has 4 values, not 3"},
        {"2 3\na 1 2\n", "2:1", "'a' has 2 values, not 3"},
        {"a 1 2 3\nb\n", "2:1", "'b' has 0 values, not 3"},
        {"a 1 2 3\n 1 2 3\n", "2:1", "not 3"},
        {"a\n", "1:1", "expected a word and its values"},
        {"a 1 x 3\n", "1:5", "'x' is not a finite number"},
        {"a 1 2 nan\n", "1:7", "'nan'"},
        {"a 1 inf 3\n", "1:5", "'inf'"},
        {"a 1 1e60 3\n", "1:5", "'1e60'"},
        {"a 1 2.0.0 3\n", "1:5", "'2.0.0'"},
        {"a 1  3\n", "1:5", "''"},
        {"5 0\n", "1:3", "dimension"},
        {"5 99999999999\n", "1:3", "dimension"},
        {"5 1000000\na 1\n", "1:1", "plausible"},
    };
    const TemporaryFolder folder;
    const Vocabulary vocabulary = words({"a", "b"});
    for (const auto& [text, place, problem] : cases) {
        const fs::path path = folder.write("g.txt", text);
        CAPTURE(text);
        CHECK_THAT(data_error([&] { read_glove(path, vocabulary); }), StartsWith(path.string() + ":" + place + ": ") && Contains(problem));
    }
    const fs::path path = folder.write("g.txt", "a 1 2 3\n");
    CHECK_THAT(data_error([&] { read_glove(path, vocabulary, 4); }), Contains("3 values, 4 are wanted"));
    CHECK(read_glove(path, vocabulary, 3).found_count == 1);
    CHECK_THAT(data_error([&] { read_glove(folder.path(), vocabulary); }), Contains("directory"));
    CHECK_THAT(data_error([&] { read_glove(folder.path() / "no", vocabulary); }), Contains("No such file"));
}

TEST_CASE("reading word vectors reports how far it is", "[glove]") {
    const TemporaryFolder folder;
    std::string text;
    while (text.size() < 9'000'000) text += "word" + std::to_string(text.size()) + " 0.125 0.25 0.5 -0.125 1.5\n";
    const fs::path path = folder.write("big.txt", text);
    std::vector<std::uint64_t> bytes;
    read_glove(path, words({"word0"}), 5, [&](std::uint64_t done, std::uint64_t total) {
        CHECK(total == text.size());
        bytes.push_back(done);
    });
    CHECK(bytes.size() == 3);  // after 4 and 8 MiB, and at the end
    CHECK(std::is_sorted(bytes.begin(), bytes.end()));
    CHECK(bytes.back() == text.size());
}

// ---------------------------------------------------------------------------------------------------------------------
// SVG

namespace {

// Enough of XML to find a tag left open, an attribute without quotes or a bare & or <.
bool is_well_formed(const std::string& xml) {
    std::vector<std::string> open;
    for (std::size_t at = 0; at < xml.size(); ++at) {
        if (xml[at] == '&') {
            const std::string entity = xml.substr(at, xml.find(';', at) - at);
            if (!std::set<std::string>{"&amp", "&lt", "&gt", "&quot", "&apos"}.contains(entity)) return false;
        }
        if (xml[at] != '<') continue;
        const std::size_t end = xml.find('>', at);
        if (end == std::string::npos) return false;
        const std::string tag = xml.substr(at + 1, end - at - 1);
        if (tag.find('<') != std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0) return false;
        const std::string name = tag.substr(tag[0] == '/', tag.find(' ') - (tag[0] == '/'));
        at = end;
        if (tag[0] == '?' || tag.back() == '/') continue;
        if (tag[0] != '/') {
            open.push_back(name);
        } else if (open.empty() || open.back() != name) {
            return false;
        } else {
            open.pop_back();
        }
    }
    return open.empty();
}

int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

}  // namespace

TEST_CASE("XML text is escaped and valid", "[svg]") {
    CHECK(xml_escaped("a<b>&\"c'") == "a&lt;b&gt;&amp;&quot;c&apos;");
    CHECK(xml_escaped("Mam\xC3\xA1 \xE6\x97\xA5 \xF0\x9F\x98\x80") == "Mam\xC3\xA1 \xE6\x97\xA5 \xF0\x9F\x98\x80");
    const std::string bad = "\xEF\xBF\xBD";  // U+FFFD
    CHECK(xml_escaped(std::string("a\0b", 3)) == "a" + bad + "b");
    CHECK(xml_escaped("\x1b\xff") == bad + bad);
    CHECK(xml_escaped("\xC3") == bad);                                // cut off
    CHECK(xml_escaped("\xC0\x80") == bad + bad);                      // overlong
    CHECK(xml_escaped("\xE0\x80\x80") == bad + bad + bad);            // overlong
    CHECK(xml_escaped("\xED\xA0\x80") == bad + bad + bad);            // a surrogate
    CHECK(xml_escaped("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // beyond U+10FFFF
    CHECK(xml_escaped("\xEF\xBF\xBF") == bad);                        // U+FFFF is no character
}

TEST_CASE("trees are drawn with predicted and true labels", "[svg]") {
    const Tree tree = parse_ptb("(3 (2 R&D) (4 (2 <i>) (4 \"x\")))");
    const Tree other = parse_listops("( ( ( [MAX 2 ) 9 ) ] )");
    std::vector<Drawing> drawings = {{&tree, {2, 2, 4, 1, 3}, "one & only"}, {&other, {-1, 2, -1, 9, 3, -1, 9}, ""}};
    for (const bool scale : {false, true}) {
        const std::string svg = draw_svg(drawings, {.title = "<page>", .class_names = {"--", "-", "0", "+", "++"}, .class_scale = scale});
        CHECK(is_well_formed(svg));
        CHECK(count(svg, "class=\"word\"") == 3 + 4);
        CHECK(count(svg, "class=\"edge\"") == 4 + 6);
        CHECK_THAT(svg, Contains("4 of 5 labelled nodes right; root: predicted +, true +"));
        CHECK_THAT(svg, Contains("3 of 3 labelled nodes right; root: predicted 9, true 9"));
        CHECK_THAT(svg, Contains("&lt;page&gt;") && Contains("one &amp; only") && Contains(">R&amp;D<"));
        CHECK_THAT(svg, Contains("<title>&lt;i&gt; &quot;x&quot;</title>"));
        CHECK_THAT(svg, !Contains("nan") && !Contains("inf"));
    }
    CHECK(is_well_formed(draw_svg({})));
    CHECK(is_well_formed(draw_svg({{&tree, {}, "labels only"}})));
    drawings[0].predicted.pop_back();
    CHECK_THROWS_WITH(draw_svg(drawings), Contains("4 predictions for a tree of 5 nodes"));
    CHECK_THROWS_AS(draw_svg({{nullptr, {}, ""}}), std::invalid_argument);
}

TEST_CASE("a deep tree can be drawn", "[svg]") {
    constexpr int kDepth = 10'000;  // the deepest of all takes 20 s under the address sanitizer
    const Tree tree = parse_ptb(deep_left(kDepth));
    const std::string svg = draw_svg({{&tree, {}, "deep"}});
    CHECK(count(svg, "class=\"word\"") == kDepth);
    CHECK(svg.size() < 1500U * kDepth);  // tooltips are cut off, or the page would grow with the depth squared
}

TEST_CASE("a drawing replaces the old file or leaves it", "[svg]") {
    const TemporaryFolder folder;
    const Tree tree = parse_ptb("(3 (2 a) (4 b))");
    const fs::path path = folder.write("trees.svg", "old");
    write_svg(path, {{&tree, {}, "new"}});
    CHECK_THAT(read_all(path), StartsWith("<?xml") && Contains("new"));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);

    CHECK_THAT(data_error([&] { write_svg(folder.path(), {{&tree, {}, ""}}); }), Contains("not a regular file"));
    CHECK_THAT(data_error([&] { write_svg("/dev/null/x.svg", {{&tree, {}, ""}}); }), Contains("Not a directory"));
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Progress

namespace {

// What a terminal shows after the given output: each \r starts the line anew, \x1b[K clears the rest of it.
std::vector<std::string> screen(const std::string& output) {
    std::vector<std::string> lines = {""};
    std::size_t column = 0;
    for (std::size_t i = 0; i < output.size(); ++i) {
        std::string& line = lines.back();
        if (output[i] == '\r') {
            column = 0;
        } else if (output[i] == '\n') {
            lines.emplace_back();
            column = 0;
        } else if (output.compare(i, 3, "\x1b[K") == 0) {
            line.resize(column);
            i += 2;
        } else {
            if (column == line.size()) line += ' ';
            line[column++] = output[i];
        }
    }
    return lines;
}

struct Fake {
    std::ostringstream out;
    double now = 1000;
    int columns = 100;
    ProgressOptions options(bool terminal) {
        return {&out, terminal, terminal ? 0.1 : 5.0, [this] { return columns; }, [this] { return now; }};
    }
};

}  // namespace

TEST_CASE("a terminal shows one bar, redrawn in place", "[progress]") {
    Fake fake;
    Progress progress(2, 1000, fake.options(true));
    progress.start_epoch(1);
    for (int done = 10; done <= 1000; done += 10) {
        fake.now += 0.02;
        progress.update(done, 1.25, 0.5);
    }
    const std::string output = fake.out.str();
    CHECK(count(output, "\r") <= 21);  // 2 seconds, ten drawings in each
    CHECK(count(output, "\n") == 0);
    REQUIRE(screen(output).size() == 1);
    CHECK(screen(output)[0] == "epoch 1/2 [=============================] 100%  loss 1.2500  acc  50.0%     500 trees/s    2 s left");
    fake.now += 1;  // an evaluation
    progress.finish_epoch("test 48.0%");
    CHECK(screen(fake.out.str()) == std::vector<std::string>{"epoch 1/2  loss 1.2500  train  50.0%  500 trees/s  3.0 s  test 48.0%", ""});

    progress.start_epoch(2);
    fake.now += 1;
    progress.update(500, 1.0, 0.75);
    // 4 s for one and a half epochs: the remaining half takes 1.33 s.
    CHECK(screen(fake.out.str()).back() == "epoch 2/2 [==============>              ]  50%  loss 1.0000  acc  75.0%     500 trees/s    1 s left");
}

TEST_CASE("the bar fits its terminal", "[progress]") {
    Fake fake;
    Progress progress(10, 1'000'000, fake.options(true));
    progress.start_epoch(3);
    for (const int columns : {200, 100, 80, 70, 40, 10, 1, 0}) {
        fake.columns = columns;
        fake.now += 1;
        fake.out.str("");
        progress.update(250'000, 0.123, 0.987);
        const std::string line = screen(fake.out.str()).at(0);
        CAPTURE(columns, line);
        CHECK(line.size() <= static_cast<std::size_t>(std::max(columns - 1, 0)));
        CHECK((columns < 80) == (line.find('[') == std::string::npos));
    }
}

TEST_CASE("an unfinished bar is ended by a new line", "[progress]") {
    Fake fake;
    {
        Progress progress(1, 10, fake.options(true));
        progress.start_epoch(1);
        progress.update(1, 1, 0);
    }
    CHECK(fake.out.str().back() == '\n');
    fake.out.str("");
    {
        Progress progress(1, 10, fake.options(true));
        progress.start_epoch(1);
        progress.update(10, 1, 0);
        progress.finish_epoch();
    }
    CHECK(count(fake.out.str(), "\n") == 1);
}

TEST_CASE("without a terminal plain lines come at intervals", "[progress]") {
    Fake fake;
    Progress progress(1, 12'000, fake.options(false));
    progress.start_epoch(1);
    for (int done = 100; done <= 12'000; done += 100) {
        fake.now += 0.1;
        progress.update(done, 0.5, 0.9);
    }
    progress.finish_epoch("dev 88.0%");
    const auto lines = screen(fake.out.str());
    REQUIRE(lines.size() == 4);
    CHECK_THAT(
        lines[0],
        StartsWith("epoch 1/1  5,000/12,000 trees  loss 0.5000  acc 90.0%  1,000 trees/s  7 s left") || StartsWith("epoch 1/1  5,100/12,000 trees"));
    CHECK(lines[2] == "epoch 1/1  loss 0.5000  train  90.0%  1,000 trees/s  12.0 s  dev 88.0%");
    CHECK(fake.out.str().find_first_of("\r\x1b") == std::string::npos);
}

TEST_CASE("numbers no training should give are shown, not tripped over", "[progress]") {
    Fake fake;
    Progress progress(1, 0, fake.options(true));
    progress.start_epoch(1);
    progress.update(0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN());
    fake.now += 1;
    progress.update(5, std::numeric_limits<double>::infinity(), 2);
    progress.finish_epoch();
    CHECK_THAT(fake.out.str(), Contains("loss nan") && Contains("loss inf"));

    CHECK(duration(0.4) == "0 s");
    CHECK(duration(59.6) == "1:00");
    CHECK(duration(185) == "3:05");
    CHECK(duration(7200 + 600) == "2:10:00");
    CHECK(duration(-1) == "?");
    CHECK(duration(std::numeric_limits<double>::infinity()) == "?");
    CHECK(grouped(0) == "0");
    CHECK(grouped(999) == "999");
    CHECK(grouped(1000) == "1,000");
    CHECK(grouped(-1234567) == "-1,234,567");
    CHECK(ProgressOptions::for_stdout().columns() > 0);
}

TEST_CASE("of several processes the first one shows its progress", "[progress]") {
    const auto written = [] {
        const files::TemporaryFolder folder;
        const std::string path = (folder.path() / "out").string();
        std::cout << std::flush;
        std::fflush(stdout);
        const int kept = ::dup(STDOUT_FILENO), file = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
        ::dup2(file, STDOUT_FILENO);
        {
            Progress epochs(1, 10);
            epochs.start_epoch(1);
            epochs.update(10, 0.5, 0.5);
            epochs.finish_epoch();
            show::Progress steps(3);
            steps.update(3, "loss 1.5");
            steps.print("the end");
        }
        std::fflush(stdout);
        ::dup2(kept, STDOUT_FILENO);
        ::close(file);
        ::close(kept);
        return files::read_all(path);
    };
    for (const char* part : {"epoch 1/1", "3/3  loss 1.5", "the end"}) CHECK_THAT(written(), Contains(part));
    std::string others;
    std::thread([&] {
        tapir::detail::set_thread_rank(1);
        others = written();
    }).join();
    CHECK(others == "");
}
