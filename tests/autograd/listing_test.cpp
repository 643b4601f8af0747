// The tape as a table and as a drawing, and the modules that records, errors and drawings name.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "../fails.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/core/module_name.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct Cell : nn::Module {
    nn::Linear forget{3, 4}, input{3, 4};
    void members(nn::Members& m) override { m("forget", forget)("input", input); }
    Tensor forward(const Tensor& x) const {
        const nn::ModuleScope scope(*this);
        const Tensor gate = sigmoid(forget(x));
        return gate * input(x);
    }
};

struct Encoder : nn::Module {
    Cell cell;
    nn::Sequential head{nn::Linear(4, 2), relu};
    void members(nn::Members& m) override { m("cell", cell)("head", head); }
    Tensor forward(const Tensor& x) const { return head(cell.forward(x)); }
};

struct Model : nn::Module {
    Encoder encoder;
    void members(nn::Members& m) override { m("encoder", encoder); }
};

// The modules of the records, leaves left out.
std::vector<std::string> modules_of(const Tape& tape) {
    std::vector<std::string> result;
    for (Record* record : tape.log().records) {
        if (!(record->flags & Record::kLeaf)) result.push_back(record->module ? record->module->shown() : "");
    }
    return result;
}

using Strings = std::vector<std::string>;

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
}

}  // namespace

TEST_CASE("records know the path of the module that they ran for") {
    Model model;
    {
        Tape tape;
        const Tensor y = sum(model.encoder.forward(randn({2, 3})));
        // Nobody has asked for the parameters: the types.
        CHECK(modules_of(tape) == Strings{"Linear", "Cell", "Linear", "Cell", "Linear", "Sequential", ""});
    }
    model.encoder.parameters();
    {
        Tape tape;
        model.encoder.forward(randn({2, 3}));
        CHECK(modules_of(tape) == Strings{"cell.forget", "cell", "cell.input", "cell", "head.0", "head"});
    }
    model.parameters();
    model.encoder.cell.parameters();  // known as parts of something larger
    const Tensor x = randn({2, 3});
    Tape tape;
    const Tensor y = model.encoder.forward(x), z = exp(y);
    CHECK(modules_of(tape) ==
          Strings{"encoder.cell.forget", "encoder.cell", "encoder.cell.input", "encoder.cell", "encoder.head.0", "encoder.head", ""});
    tape.backward(sum(z));
    try {
        model.encoder.forward(zeros({2, 5}));
        FAIL("no error");
    } catch (const ShapeError& error) {
        const std::string what = error.what();
        INFO(what);
        CHECK(what.find("listing_test.cpp:") == 0);
        CHECK(what.find(": linear: ") != std::string::npos);
        CHECK(what.ends_with(" (in encoder.cell.forget)"));
    }
    try {
        matmul(x, x);
        FAIL("no error");
    } catch (const ShapeError& error) {
        CHECK(std::string(error.what()).find("(in ") == std::string::npos);
    }
}

TEST_CASE("an error in backward names the module of the forward call") {
    Model model;
    model.parameters();
    Tensor h = randn({2, 4});
    Tape tape;
    Tensor y = model.encoder.head(h.requires_grad_());
    Tensor weight = model.encoder.head[0].as<nn::Linear>().weight;
    {
        const NoGradScope off;
        weight.mul_(2);
    }
    try {
        tape.backward(sum(y));
        FAIL("nothing thrown");
    } catch (const TapeError& error) {
        const std::string text = error.what();
        INFO(text);
        CHECK(text.find("linear: a tensor of shape (2, 4) that it saved for backward was modified in place") != std::string::npos);
        CHECK(text.find(" (in encoder.head.0)") != std::string::npos);
    }
}

TEST_CASE("the tape as a table") {
    Model model;
    model.parameters();
    const Tensor x = randn({2, 3});
    Tape tape;
    const Tensor y = sum(model.encoder.forward(x));
    const std::string table = tape.str();
    INFO(table);
    CHECK(table.find("tape of listing_test.cpp:") == 0);
    CHECK(count(table, "\n") == tape.size() + 2);
    CHECK(count(table, "linear ") == 3);
    CHECK(table.find("leaf     float32 (4, 3)") != std::string::npos);
    CHECK(table.find("encoder.cell.forget.weight\n") != std::string::npos);
    CHECK(table.find("encoder.cell.forget\n") != std::string::npos);
    CHECK(count(table, "listing_test.cpp:") == tape.size() + 1);
    // Only what has the pattern, and the two lines above it.
    const std::string few = tape.str("sigmoid");
    CHECK(count(few, "\n") == 3);
    CHECK(few.find("sigmoid  float32 (2, 4)") != std::string::npos);
    CHECK(few.find("linear") == std::string::npos);
    CHECK(count(tape.str("encoder.head"), "\n") == 2 + 4);
    const std::string nothing = tape.str("nothing like it");
    CHECK(nothing.substr(nothing.find('\n')) == "\nno record has \"nothing like it\"\n");
}

TEST_CASE("the tape as a drawing: a box for each run of a module's ops") {
    Model model;
    model.parameters();
    Tape tape;
    const Tensor x = randn({2, 3});
    const Tensor y = sum(model.encoder.forward(x) + model.encoder.forward(x * 2));
    for (const std::string& drawing : {tape.to_svg(), tape.to_dot()}) {
        INFO(drawing);
        CHECK(count(drawing, "encoder.head.0") >= 2);
        CHECK(count(drawing, "sigmoid (2, 4)") == 2);
        CHECK(drawing.find("listing_test.cpp:") != std::string::npos);
        CHECK(drawing.find("encoder.cell.forget.weight float32 (4, 3)") != std::string::npos);
        CHECK(drawing.find("nan") == std::string::npos);
    }
    // Two calls each: forget, sigmoid (cell), input, mul (cell), head.0, relu (head); then add and sum outside.
    CHECK(count(tape.to_svg(), "<g><rect") == 14);
    CHECK(count(tape.to_dot(), "[label=") == 14 + count(tape.to_dot(), " -> "));
    CHECK(count(tape.to_dot(), " -> ") == 2 * 5 + 2 + 1);
}

TEST_CASE("a table names the further outputs of an op by its name and their number") {
    const Tensor w = ones({3, 2}).requires_grad_();
    Tape tape;
    const std::vector<Tensor> parts = w.unbind();
    const std::string name = tape.log().records[1]->op->name, table = tape.str();
    INFO(table);
    CHECK(count(table, "  " + name + "  ") == 1);
    CHECK(count(table, "  " + name + " #1") == 1);
    CHECK(count(table, "  " + name + " #2") == 1);
    CHECK(count(tape.str(name + " #2"), "\n") == 3);  // the title, the columns, and that
    CHECK(count(table, "4 records") == 1);
    const Tensor x = parts[0] + parts[2];
    CHECK(tape.str().find("1, 3") != std::string::npos);
    Tape inner;
    const Tensor y = exp(x);
    CHECK(inner.str().find(": 1 record, ") != std::string::npos);
}

TEST_CASE("boxes of a drawing do not overlap, and results are below what they are made of") {
    // A binary tree of 64 leaves, with an edge from each leaf to the end.
    std::vector<Tensor> level;
    const Tensor w = randn({2}).requires_grad_();
    Tape tape;
    for (int i = 0; i < 64; ++i) level.push_back(w * i);
    const Tensor all = stack(level);
    while (level.size() > 1) {
        std::vector<Tensor> next;
        for (std::size_t i = 0; i < level.size(); i += 2) next.push_back(level[i] * level[i + 1]);
        level = next;
    }
    const Tensor y = sum(all) + sum(level[0]);
    const std::string svg = tape.to_svg();
    struct Rect {
        double x, y, width, height;
    };
    std::vector<Rect> rects;
    for (std::size_t at = svg.find("<g><rect"); at != std::string::npos; at = svg.find("<g><rect", at + 1)) {
        Rect r{};
        REQUIRE(std::sscanf(svg.c_str() + at, "<g><rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &r.x, &r.y, &r.width, &r.height) == 4);
        rects.push_back(r);
    }
    CHECK(rects.size() == 64 + 1 + 63 + 3);  // products of the leaf, which has too many uses to be drawn, ...
    for (std::size_t i = 0; i < rects.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            const Rect &a = rects[i], &b = rects[j];
            const bool apart = a.x >= b.x + b.width || b.x >= a.x + a.width || a.y >= b.y + b.height || b.y >= a.y + a.height;
            CHECK(apart);
        }
    }
    CHECK(rects.back().y == std::max_element(rects.begin(), rects.end(), [](const Rect& a, const Rect& b) { return a.y < b.y; })->y);
}

namespace {

// An RNN of plain weights; every state is used again at the end.
std::string drawing_of_steps(int steps) {
    const Tensor w = eye(2).requires_grad_(), u = eye(2).requires_grad_(), x = ones({1, 2});
    Tape tape;
    std::vector<Tensor> states;
    Tensor h = zeros({1, 2});
    for (int i = 0; i < steps; ++i) states.push_back(h = tanh(matmul(h, w) + matmul(x, u)));
    Tensor total = h;
    for (const Tensor& state : states) total = total + state;
    return tape.to_svg();
}

}  // namespace

TEST_CASE("a drawing grows with the length of the tape, not with its square") {
    const std::string one = drawing_of_steps(1000), two = drawing_of_steps(2000);
    CHECK(count(one, "<g><rect") == 5 * 1000);
    CHECK(count(two, "<g><rect") == 5 * 2000);
    CHECK(count(one, "\nleaf float32 (2, 2)") == 2 * 1000);
    CHECK(one.size() < 6'000'000);
    CHECK(two.size() * 10 > one.size() * 19);
    CHECK(two.size() * 10 < one.size() * 22);
}

TEST_CASE("a drawing of a very long tape has its first records, and says how many it leaves out") {
    const Tensor w = ones({2}).requires_grad_();
    Tape tape;
    Tensor y = w;
    for (int i = 0; i < 10'499; ++i) y = -y;
    for (const std::string& drawing : {tape.to_svg(), tape.to_dot()}) {
        CHECK(count(drawing, "neg (2,)") == 9'999);  // and the leaf
        CHECK(count(drawing, "and 500 more records") == 1);
    }
}

TEST_CASE("the colours of modules differ, and a module's parts have its colour") {
    const auto hues = [](const std::string& dot) {
        std::vector<double> found;
        const std::string key = ", fillcolor=\"";  // after a tooltip
        for (std::size_t at = dot.find("tooltip="); (at = dot.find(key, at)) != std::string::npos; ++at) {
            found.push_back(std::stod(dot.substr(at + key.size())));
        }
        return found;
    };
    struct Eight : nn::Module {
        std::map<std::string, nn::Linear> parts;
        Eight() {
            for (const char* name : {"a", "b", "c", "d", "encoder", "decoder", "query", "key"}) parts.emplace(name, nn::Linear(2, 2));
        }
        void members(nn::Members& m) override { m("", parts); }
    };
    Eight model;
    model.parameters();
    Tensor x = ones({1, 2});
    Tape tape;
    for (int i = 0; i < 2; ++i) {
        for (const auto& [name, part] : model.parts) x = part(x);
    }
    const std::vector<double> of_eight = hues(tape.to_dot());
    REQUIRE(of_eight.size() == 16);
    for (std::size_t i = 0; i < 16; ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            const double apart = std::abs(of_eight[i] - of_eight[j]);
            if (i == j + 8)
                CHECK(apart == 0);
            else
                CHECK(std::min(apart, 1 - apart) > 0.05);
        }
    }
    Model nested;
    nested.parameters();
    Tape second;
    (void)nested.encoder.forward(ones({2, 3}));
    const std::vector<double> of_parts = hues(second.to_dot());
    REQUIRE(of_parts.size() == 6);
    CHECK(std::count(of_parts.begin(), of_parts.end(), of_parts[0]) == 6);
}
