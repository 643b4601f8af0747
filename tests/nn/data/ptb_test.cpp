// Trees, the reader of bracketed ones, and what it says of malformed files.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "tapir/nn/data/ptb.h"

using namespace tapir;
using namespace tapir::data;
using namespace files;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

constexpr int kDeep = 100'000;

// (2 (2 (2 a) (2 a)) (2 a)) ...: kDeep levels to the left.
std::string deep_left(int depth = kDeep) { return repeat("(2 ", depth - 1) + "(2 a)" + repeat(" (2 a))", depth - 1); }
std::string deep_right() { return repeat("(2 (2 a) ", kDeep - 1) + "(2 a)" + repeat(")", kDeep - 1); }

}  // namespace

TEST_CASE("a tree is read as it is written", "[tree]") {
    const Tree tree = parse_ptb("(3 (2 It) (4 (2 's) (4 lovely)))");
    const TreeNode& root = tree.root();
    REQUIRE_FALSE(root.is_leaf());
    CHECK(root.label == 3);
    CHECK(root.left->is_leaf());
    CHECK(root.left->word == "It");
    CHECK(root.right->label == 4);
    CHECK(root.right->left->word == "'s");
    CHECK(root.right->right->word == "lovely");
    CHECK(tree.size() == 5);
    CHECK(tree.leaf_count() == 3);
    CHECK(tree.depth() == 3);
    CHECK(tree.sentence() == "It 's lovely");
}

TEST_CASE("nodes come children first and know their index", "[tree]") {
    const Tree tree = parse_ptb("(3 (2 (1 a) (2 b)) (4 (2 c) (4 d)))");
    int index = 0;
    for (const TreeNode& node : tree.nodes()) {
        CHECK(node.index == index++);
        if (node.is_leaf()) continue;
        CHECK(node.left->index < node.index);
        CHECK(node.right->index < node.index);
        CHECK(node.left == &tree.nodes()[static_cast<std::size_t>(node.left->index)]);
    }
    CHECK(&tree.root() == &tree.nodes().back());
}

TEST_CASE("a copied tree points into itself and a moved one stays whole", "[tree]") {
    auto original = std::make_unique<Tree>(parse_ptb("(3 (2 It) (4 (2 's) (4 lovely)))"));
    Tree copy = *original;
    original.reset();
    CHECK(copy.root().right->right->word == "lovely");
    CHECK(copy.root().right == &copy.nodes()[3]);

    std::vector<Tree> trees;
    for (int i = 0; i < 100; ++i) trees.push_back(copy);  // moved when the vector grows
    for (const Tree& tree : trees) CHECK(tree.root().left == &tree.nodes()[0]);

    Tree other = parse_ptb("(1 one)");
    other = copy;
    CHECK(other.sentence() == "It 's lovely");
    const Tree& self = other;
    other = self;
    CHECK(other.sentence() == "It 's lovely");
    other = std::move(trees[7]);
    CHECK(other.root().right->left == &other.nodes()[1]);
}

TEST_CASE("the builder refuses what is not a tree", "[tree]") {
    Tree::Builder builder;
    CHECK_THROWS_AS(builder.build(), ValueError);
    const int a = builder.leaf(0, "a");
    const int b = builder.leaf(0, "b");
    CHECK_THROWS_AS(builder.inner(0, a, a), ValueError);
    CHECK_THROWS_AS(builder.inner(0, b, a), ValueError);
    CHECK_THROWS_AS(builder.inner(0, a, 7), ValueError);
    CHECK_THROWS_AS(builder.inner(0, -1, b), ValueError);
    CHECK_THROWS_AS(builder.build(), ValueError);
    CHECK(builder.inner(1, a, b) == 2);
    CHECK_THROWS_AS(builder.inner(0, a, 2), ValueError);
    CHECK(builder.build().root().label == 1);
    CHECK(builder.size() == 0);
}

TEST_CASE("a nesting depth of 100,000 is read, copied, moved and destroyed", "[tree][ptb]") {
    for (const std::string& text : {deep_left(), deep_right()}) {
        Tree tree = parse_ptb(text);
        CHECK(tree.depth() == kDeep);
        CHECK(tree.leaf_count() == kDeep);
        Tree copy = tree;
        const Tree moved = std::move(tree);
        CHECK(moved.sentence().size() == 2 * kDeep - 1);
        CHECK(copy.root().label == 2);
    }
}

TEST_CASE("escapes, unary nodes, spaces and line ends of PTB files", "[ptb]") {
    CHECK(parse_ptb("(2 (2 comedy\\/drama) (2 \\*))").sentence() == "comedy/drama *");
    CHECK(parse_ptb("(2 (2 -LRB-) (2 -RRB-))").sentence() == "( )");
    CHECK(parse_ptb("(2 (2 a\\b) (2 \\))").sentence() == "a\\b \\");
    CHECK(parse_ptb("(2 Andr\xC3\xA9)").sentence() == "Andr\xC3\xA9");
    CHECK(parse_ptb("\t( 3(2 a)(4\tb ) )  ").sentence() == "a b");
    CHECK(parse_ptb("(3 5)").sentence() == "5");

    const Tree unary = parse_ptb("(4 (3 (2 (1 a) (0 b))))");
    CHECK(unary.size() == 3);
    CHECK(unary.root().label == 4);
    CHECK(parse_ptb("(4 (3 x))").root().label == 4);

    const TemporaryFolder folder;
    const auto trees = read_ptb(folder.write("crlf.txt", "\xEF\xBB\xBF(1 a)\r\n\r\n  \t\r\n(2 b)\r\n\n(3 c)").string());
    REQUIRE(trees.size() == 3);
    CHECK(trees[0].line() == 1);
    CHECK(trees[1].line() == 4);
    CHECK(trees[2].line() == 6);
    CHECK(trees[2].root().word == "c");
    CHECK(trees[2].path() == (folder.path() / "crlf.txt").string());
}

TEST_CASE("malformed PTB files name file, line and column", "[ptb]") {
    struct Case {
        std::string text;
        std::string place;
        std::string problem;
    };
    using namespace std::string_literals;
    const std::vector<Case> cases = {
        {"", "1:1", "no trees"},
        {"\n \r\n\n", "1:1", "no trees"},
        {"(1 a)\n(2 (1 a) (1 b)\n", "2:15", "before the '(' in column 1 is closed (1 open)"},
        {"(2 (1 a) (1 b", "1:14", "before the '(' in column 10 is closed (2 open)"},
        {"(", "1:2", "label from 0 to 4 is missing"},
        {"(1", "1:3", "is closed"},
        {"(1 a))", "1:6", "')' without a '('"},
        {")", "1:1", "')' without a '('"},
        {"(1 a) (2 b)", "1:7", "text after the end"},
        {"(1 a) # note", "1:7", "text after the end"},
        {"word", "1:1", "expected '(' but found 'word'"},
        {"()", "1:2", "missing"},
        {"(a)", "1:2", "label 'a'"},
        {"(a b)", "1:2", "label 'a'"},
        {"((1 a) (1 b))", "1:2", "missing"},
        {"(5 a)", "1:2", "label '5' is not a whole number from 0 to 4"},
        {"(2 (1 a) (-1 b))", "1:11", "label '-1'"},
        {"(+1 b)", "1:2", "label '+1'"},
        {"(1.5 b)", "1:2", "label '1.5'"},
        {"(99999999999999999999 b)", "1:2", "label '99999999999999999999'"},
        {"(1)", "1:3", "neither a word nor children"},
        {"(1 )", "1:4", "neither a word nor children"},
        {"(1 a b)", "1:6", "a second word"},
        {"(1 a (2 b))", "1:6", "cannot have children"},
        {"(1 (2 b) a)", "1:10", "beside a child"},
        {"(1 (2 a) (2 b) (2 c))", "1:16", "third child"},
        {"(1 a)\n(2 \0b)\n"s, "2:4", "control character 0x00"},
        {"\0\0\0"s, "1:1", "control character 0x00"},
        {"\x7f"
         "ELF\x02\x01",
         "1:1", "control character 0x7F"},
        {"(1 a\rb)", "1:5", "control character 0x0D"},
        {"\xff\xfe(\x80", "1:1", "expected '(' but found '\\xFF\\xFE'"},
        {repeat("(2 ", kDeep), "1:300001", "(100000 open)"},
        {repeat("(", kDeep), "1:2", "missing"},
        {repeat(")", kDeep), "1:1", "without"},
        {repeat("x", kDeep), "1:1", "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"},
    };
    const TemporaryFolder folder;
    for (const Case& c : cases) {
        const fs::path path = folder.write("bad.txt", c.text);
        CAPTURE(c.text.substr(0, 60));
        CHECK_THAT(data_error([&] { read_ptb(path.string()); }), StartsWith(path.string() + ":" + c.place + ": ") && Contains(c.problem));
    }
}

TEST_CASE("random damage to a PTB file never does worse than a FileError", "[ptb]") {
    const std::string whole = "(3 (2 It) (4 (4 (2 's) (4 (3 (2 a) (4 (3 lovely) (2 film)))))))\n(2 (1 No) (2 one))\n";
    const std::string bytes = "() \n\r\t\\024a\x80\xff";
    const TemporaryFolder folder;
    unsigned state = 1;
    const auto random = [&](std::size_t bound) {
        state = state * 1664525U + 1013904223U;
        return static_cast<std::size_t>(state >> 8) % bound;
    };
    int read = 0;
    for (int round = 0; round < 500; ++round) {
        std::string text = whole;
        for (std::size_t i = 0; i <= random(3); ++i) text[random(text.size())] = bytes[random(bytes.size())];
        try {
            for (const Tree& tree : read_ptb(folder.write("damaged.txt", text))) CHECK(tree.size() % 2 == 1);
            ++read;
        } catch (const FileError& error) {
            CHECK_THAT(error.what(), Contains(": read_ptb: " + (folder.path() / "damaged.txt").string() + ":"));
        }
    }
    CHECK(read > 0);
    CHECK(read < 500);
}

TEST_CASE("files that cannot be read", "[ptb]") {
    const TemporaryFolder folder;
    CHECK_THAT(data_error([&] { read_ptb(folder.path() / "none.txt"); }),
               StartsWith((folder.path() / "none.txt").string() + ":1:1: ") && Contains("No such file"));
    CHECK_THAT(data_error([&] { read_ptb(folder.path().string()); }), StartsWith(folder.path().string() + ":1:1: ") && Contains("directory"));
    CHECK_THAT(data_error([&] { read_ptb("/dev/null"); }), Contains("not a regular file"));
    if (::geteuid() != 0) {
        const fs::path secret = folder.write("secret.txt", "(1 a)");
        fs::permissions(secret, fs::perms::none);
        CHECK_THAT(data_error([&] { read_ptb(secret); }), Contains("Permission denied"));
    }
}
