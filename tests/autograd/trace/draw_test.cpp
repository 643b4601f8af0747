// Drawings of graphs.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "../../fails.h"
#include "passes_check.h"
#include "tapir/autograd/trace/graph/grad.h"
#include "tapir/nn/nn.h"

using namespace passes_check;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
    return n;
}

// A training step of two layers with a constant and a guard.
Graph training_step() {
    static nn::Sequential model(nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2));
    model.parameters();
    const Tensor scale = tensor({1.0F, 2.0F});
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    return trace(
        [&](const Tensor& x) {
            Tape tape;
            const Tensor loss = mean(square(model(x) * scale));
            std::vector<Tensor> leaves;
            for (const Tensor& p : model.parameters()) leaves.push_back(p);
            const std::vector<Tensor> gradients = tape.gradient(loss, leaves);
            static_cast<void>(loss.item<float>() > 0);
            NoGradScope off;
            for (std::size_t i = 0; i < leaves.size(); ++i) leaves[i].sub_(gradients[i] * 0.1);
            return loss;
        },
        {{"x", ones({5, 3})}}, options);
}

}  // namespace

TEST_CASE("a graph as a drawing: boxes by module, values told apart") {
    const Graph graph = training_step();
    for (const std::string& drawing : {graph.to_svg(), graph.to_dot()}) {
        INFO(drawing);
        CHECK(count(drawing, "linear (5, 4)") == 1);
        CHECK(count(drawing, "parameter 0.weight (4, 3)") == 2);  // of the layer, and of what updates it
        CHECK(count(drawing, "constant %") >= 1);
        CHECK(count(drawing, "mul 0.1 (4, 3)") == 1);  // numbers stand beside their op
        CHECK(count(drawing, "draw_test.cpp:") >= graph.nodes().size() / 2);
        CHECK(count(drawing, "item() at draw_test.cpp:") >= 1);
        CHECK(count(drawing, "float32 (5, 4) = linear(x, 0.weight, 0.bias)") == 1);
        CHECK(drawing.find("nan") == std::string::npos);
    }
    const std::string svg = graph.to_svg();
    CHECK(count(svg, "class=\"p\">") == 0);
    CHECK(count(svg, ">input<") == 1);
    CHECK(count(svg, ">output<") == 1);
    CHECK(count(svg, ">guard<") == 1);
    CHECK(count(svg, ">update<") == 4);
    CHECK(count(svg, "<text class=\"p\"") >= 4 + 4);
    CHECK(count(svg, "<text class=\"c\"") >= 1);
    // The layers are boxes in both directions.
    CHECK(count(svg, ">0<title>Linear<") == 2);
    CHECK(count(svg, ">2<title>Linear<") == 2);
}

TEST_CASE("boxes of a graph do not overlap, and each edge leads down beside them") {
    const std::string svg = training_step().to_svg();
    struct Rect {
        double x, y, width, height;
    };
    std::vector<Rect> rects;
    for (std::size_t at = svg.find("<g><rect"); at != std::string::npos; at = svg.find("<g><rect", at + 1)) {
        Rect r{};
        REQUIRE(std::sscanf(svg.c_str() + at, "<g><rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &r.x, &r.y, &r.width, &r.height) == 4);
        for (const Rect& b : rects) {
            const bool apart = r.x >= b.x + b.width || b.x >= r.x + r.width || r.y >= b.y + b.height || b.y >= r.y + r.height;
            CHECK(apart);
        }
        rects.push_back(r);
    }
    CHECK(rects.size() > 20);
    std::size_t edges = 0;
    for (std::size_t at = svg.find("<path d=\"M"); at != std::string::npos; at = svg.find("<path d=\"M", at + 1)) {
        const std::size_t end = svg.find('"', at + 10);
        if (svg.substr(end, 12).find("marker") == std::string::npos) continue;
        ++edges;
        double x = 0, y = 0;
        const auto through = [&](double to_x, double to_y) {  // no point of an edge is in a box
            CHECK(to_y >= y);
            x = to_x;
            y = to_y;
            for (const Rect& r : rects) CHECK_FALSE((x > r.x + 0.2 && x < r.x + r.width - 0.2 && y > r.y + 0.2 && y < r.y + r.height - 0.2));
        };
        const char* command = svg.c_str() + at + 9;
        while (*command != '"') {
            char* next = nullptr;
            std::vector<double> n;
            for (const char* number = command + 1; *number == ' ' || *number == '.' || *number == '-' || (*number >= '0' && *number <= '9');
                 number = next) {
                n.push_back(std::strtod(number, &next));
            }
            if (*command == 'M') {
                x = n[0];
                y = n[1];
            } else if (*command == 'V') {
                for (int i = 1; i <= 20; ++i) through(x, y + (n[0] - y) * i / 20);
            } else {
                REQUIRE(*command == 'C');
                REQUIRE(n.size() == 6);
                const double x0 = x, y0 = y;
                for (int i = 1; i <= 20; ++i) {
                    const double t = i / 20.0, u = 1 - t;
                    through(u * u * u * x0 + 3 * u * u * t * n[0] + 3 * u * t * t * n[2] + t * t * t * n[4],
                            u * u * u * y0 + 3 * u * u * t * n[1] + 3 * u * t * t * n[3] + t * t * t * n[5]);
                }
            }
            command = next;
        }
    }
    CHECK(edges > 20);
}

TEST_CASE("labels of edges do not lie on each other") {
    const auto fan = [](const Tensor& x) {  // eight values of one op, in boxes of their own
        const std::vector<Tensor> parts = split(x, 1, 1);
        std::vector<Tensor> ends;
        for (const Tensor& part : parts) ends.push_back(exp(part));
        return cat(ends, 1);
    };
    nn::Sequential net(nn::Linear(4, 8), nn::ReLU(), nn::Linear(8, 3));
    for (const std::string& svg : {training_step().to_svg(), trace(fan, {{"x", ones({3, 8}), {"batch"}}}).to_svg(),
                                   grad(trace(net, {{"x", ones({2, 4}), {"batch"}}}), {"output"}, {"x", "0.weight"}).to_svg()}) {
        struct Label {
            double x, y, width;
        };
        std::vector<Label> labels;
        const std::string start = "<text class=\"e\"";
        for (std::size_t at = svg.find(start); at != std::string::npos; at = svg.find(start, at + 1)) {
            Label l{};
            REQUIRE(std::sscanf(svg.c_str() + at, "<text class=\"e\" x=\"%lf\" y=\"%lf\">", &l.x, &l.y) == 2);
            const std::size_t text = svg.find('>', at) + 1;
            l.width = 5.4 * static_cast<double>(svg.find('<', text) - text);
            INFO(svg.substr(text, svg.find('<', text) - text) << " at " << l.x << ", " << l.y);
            for (const Label& b : labels) {
                const bool apart = l.x >= b.x + b.width || b.x >= l.x + l.width || l.y >= b.y + 9 || b.y >= l.y + 9;
                CHECK(apart);
            }
            labels.push_back(l);
        }
        CHECK(labels.size() >= 5);
    }
}

TEST_CASE("colours are what every renderer knows") {
    const std::string svg = training_step().to_svg();
    CHECK(svg.find("hsl(") == std::string::npos);
    std::size_t colours = 0;
    const std::string fill = " fill=\"";
    for (std::size_t at = svg.find(fill); at != std::string::npos; at = svg.find(fill, at + 1)) {
        const std::string colour = svg.substr(at + fill.size(), svg.find('"', at + fill.size()) - at - fill.size());
        INFO(colour);
        CHECK((colour.size() == 7 && colour[0] == '#' && colour.find_first_not_of("0123456789abcdef", 1) == std::string::npos));
        ++colours;
    }
    CHECK(colours > 20);
    CHECK(count(svg, "#cddcf4") > 0);  // hsl(216, 65%, 88%)
}

TEST_CASE("names are escaped, and a graph of nothing is a drawing too") {
    Graph graph;
    CHECK(graph.to_svg().find("</svg>") != std::string::npos);
    Graph::Value* x = graph.add_input("a<b>&\"c\"", float32, {2});
    graph.add_output("out", x);
    CHECK(graph.to_svg().find("a&lt;b&gt;&amp;") != std::string::npos);
    CHECK(graph.to_svg().find("a<b>") == std::string::npos);
    CHECK(graph.to_dot().find("a<b>&\\\"c\\\"") != std::string::npos);
    CHECK(count(graph.to_dot(), " -> ") == 1);
}

TEST_CASE("a long graph is drawn up to a limit") {
    Graph graph;
    Graph::Value* value = graph.add_input("x", float32, {2});
    const OpForm& form = *find_form("neg");
    for (int i = 0; i < 10'500; ++i) value = graph.add_result(graph.append(Attributes(form), {value}), float32, {}, {2});
    graph.add_output("y", value);
    CHECK(count(graph.to_dot(), "and 501 more nodes") == 1);
}
