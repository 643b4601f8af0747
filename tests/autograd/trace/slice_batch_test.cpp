// Graphs that run for a part of their batch at a time.
#include <functional>
#include <thread>

#include "passes_check.h"
#include "tapir/autograd/trace/passes/slice_batch_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/graph.h"

using namespace tapir;
using passes_check::check_same;
using passes_check::ops_of;

namespace {

using Fn = std::function<Tensor(const Tensor&)>;

// The graph of fn in slices of `every`; name: of its batch, empty: the number.
Graph sliced(const Fn& fn, const Tensor& x, const std::string& name, std::int64_t every) {
    Graph graph = name.empty() ? trace(fn, {{"x", x}}) : trace(fn, {{"x", x, {name}}});
    slice_batch(graph, {}, every);
    graph.check();
    return graph;
}

struct Case {
    const char* what;
    Fn fn;
    Shape shape{};
};

Tensor values(const Shape& shape) { return randn(shape, float64); }

void check_equal(const Case& c, const Graph& graph, const Tensor& x) {
    INFO(c.what << "\n" << graph.str());
    const Tensor wanted = c.fn(x);
    for (int run = 0; run < 3; ++run) check_same(graph.run({{"x", x}}), {wanted});  // the first learns, the second lays memory out
    check_same({graph({x})[0]}, {wanted});
}

// Weights that all examples share.
const Tensor& weight(const Shape& shape) {
    static std::map<std::string, Tensor> known;
    Tensor& w = known[shape.str()];
    if (!w.defined()) w = values(shape);
    return w;
}

const Tensor& variance() {
    static const Tensor v = exp(values({3}));
    return v;
}

// Each of these treats an example by itself.
const std::vector<Case>& apart() {
    static const std::vector<Case> cases = {
        {"elements", [](const Tensor& x) { return tanh(x) * 2 + x; }, {6, 3, 4}},
        {"a row for all", [](const Tensor& x) { return x * weight({1, 3, 1}) + weight({4}); }, {6, 3, 4}},
        {"where", [](const Tensor& x) { return where(x > 0, x, x * weight({3, 4})); }, {6, 3, 4}},
        {"convolution", [](const Tensor& x) { return conv2d(x, weight({5, 3, 3, 3}), weight({5}), {.padding = 1}); }, {6, 3, 7, 8}},
        {"conv1d in groups", [](const Tensor& x) { return conv1d(x, weight({4, 2, 3}), {}, {.groups = 2}); }, {6, 4, 9}},
        {"transposed convolution", [](const Tensor& x) { return conv_transpose2d(x, weight({3, 2, 2, 2}), {}, {.stride = 2}); }, {6, 3, 4, 4}},
        {"batch norm in evaluation", [](const Tensor& x) { return batch_norm(x, weight({3}), variance(), weight({3}), weight({3})); }, {6, 3, 4, 4}},
        {"group norm", [](const Tensor& x) { return group_norm(x, 2, weight({4}), weight({4})); }, {6, 4, 5}},
        {"layer norm", [](const Tensor& x) { return layer_norm(x, {4, 5}, weight({4, 5}), weight({4, 5})); }, {6, 4, 5}},
        {"pooling", [](const Tensor& x) { return max_pool2d(x, 2) + avg_pool2d(x, 2); }, {6, 3, 6, 6}},
        {"resizing", [](const Tensor& x) { return interpolate(x, {.size = {9, 5}, .mode = "bilinear"}); }, {6, 3, 4, 4}},
        {"linear", [](const Tensor& x) { return linear(x, weight({5, 4}), weight({5})); }, {6, 3, 4}},
        {"a product with a matrix", [](const Tensor& x) { return matmul(x, weight({4, 5})); }, {6, 3, 4}},
        {"a matrix times each", [](const Tensor& x) { return matmul(weight({5, 3}), x); }, {6, 3, 4}},
        {"products of rows", [](const Tensor& x) { return matmul(x, weight({4, 5})); }, {6, 4}},
        {"products of examples", [](const Tensor& x) { return matmul(x, transpose(x, 1, 2)); }, {6, 3, 4}},
        {"columns of a product", [](const Tensor& x) { return transpose(matmul(weight({5, 4}), transpose(x, 0, 1)), 0, 1) * 2; }, {6, 4}},
        {"softmax", [](const Tensor& x) { return softmax(x, 1) + log_softmax(x, -1); }, {6, 3, 4}},
        {"reductions", [](const Tensor& x) { return sum(x, {1}) + mean(x, 1) + amax(x, 1, true).squeeze(1) - amin(x, 1); }, {6, 3, 4}},
        {"a reduction before it", [](const Tensor& x) { return sum(transpose(x, 0, 1), 0) * 2; }, {6, 3, 4}},
        {"a shape", [](const Tensor& x) { return reshape(x, {x.size(0), 2, 6}).reshape({-1, 12}) * 3; }, {6, 3, 4}},
        {"dimensions moved", [](const Tensor& x) { return permute(x, {2, 0, 1}).transpose(0, 1) * 2; }, {6, 3, 4}},
        {"parts of an example",
         [](const Tensor& x) { return x.index({Slice(), 1}) + x.index({Slice(), Slice(), Slice(1, 2)}).squeeze(2).sum(1, true); },
         {6, 3, 4}},
        {"joined", [](const Tensor& x) { return cat({x, x * 2}, 1); }, {6, 3, 4}},
        {"stacked", [](const Tensor& x) { return stack({x, x * 2}, 0).sum(0) + stack({x, x}, -1).sum(-1); }, {6, 3, 4}},
        {"rows of a table", [](const Tensor& x) { return embedding(clamp(x * 3, 0, 4).to(int64), weight({5, 2})); }, {6, 3}},
        {"rms norm", [](const Tensor& x) { return rms_norm(x, {4}, weight({4})) + logsumexp(x, {2}, true); }, {6, 3, 4}},
        {"along others", [](const Tensor& x) { return cumsum(x, 1) + flip(x, {1, 2}); }, {6, 3, 4}},
        {"padded", [](const Tensor& x) { return pad(x, {1, 2, 0, 1}) * 2; }, {6, 3, 4}},
        {"shuffled pixels", [](const Tensor& x) { return pixel_unshuffle(pixel_shuffle(x, 2) * 2, 2); }, {6, 4, 3, 3}},
        {"joined with what is repeated", [](const Tensor& x) { return cat({weight({1, 1, 4}).expand({x.size(0), 1, 4}), x}, 1); }, {6, 3, 4}},
    };
    return cases;
}

// Each of these mixes examples, or could.
const std::vector<Case>& mixing() {
    static const std::vector<Case> cases = {
        {"a sum over the batch", [](const Tensor& x) { return x - mean(x, 0); }, {6, 6, 4}},
        {"a sum over all", [](const Tensor& x) { return x - mean(x); }, {6, 3}},
        {"a softmax over the batch", [](const Tensor& x) { return softmax(x, 0); }, {6, 6}},
        {"the same, transposed", [](const Tensor& x) { return softmax(transpose(x, 0, 1), 1); }, {6, 6}},
        {"a product over the batch", [](const Tensor& x) { return matmul(transpose(x, 0, 1), x); }, {6, 6}},
        {"a product of all with all", [](const Tensor& x) { return matmul(x, transpose(x, 0, 1)); }, {6, 6}},
        {"columns times a matrix", [](const Tensor& x) { return transpose(matmul(transpose(x, 0, 1), weight({6, 6})), 0, 1); }, {6, 6}},
        {"a matrix times rows", [](const Tensor& x) { return matmul(weight({6, 6}), x); }, {6, 6}},
        {"each with each", [](const Tensor& x) { return x.unsqueeze(0) + x.unsqueeze(1); }, {6, 6}},
        {"a linear layer over the batch", [](const Tensor& x) { return linear(transpose(x, 0, 1), weight({5, 6})); }, {6, 6}},
        {"a convolution of one image", [](const Tensor& x) { return conv2d(x, weight({5, 6, 3, 3})); }, {6, 6, 6}},
        {"batch norm in training", [](const Tensor& x) { return batch_norm(x, {}, {}, {}, {}, {.training = true}); }, {6, 3, 4}},
        {"layer norm over the batch", [](const Tensor& x) { return layer_norm(transpose(x, 0, 1), {6}); }, {6, 6}},
        {"cumulative sums", [](const Tensor& x) { return cumsum(x, 0); }, {6, 3}},
        {"padded in the batch", [](const Tensor& x) { return pad(x, {0, 0, 1, 0}); }, {6, 3}},
        {"a rule over the batch", [](const Tensor& x) { return logsumexp(x, {0}); }, {6, 6}},
        {"flipped", [](const Tensor& x) { return x + flip(x, {0}); }, {6, 3}},
        {"rolled", [](const Tensor& x) { return x + roll(x, 1, 0); }, {6, 3}},
        {"one example for all", [](const Tensor& x) { return x + x[0]; }, {6, 6}},
        {"half of the batch", [](const Tensor& x) { return x[Slice(0, 3)] * x[Slice(3, 6)]; }, {6, 3}},
        {"examples joined", [](const Tensor& x) { return cat({x, x}, 0); }, {6, 3}},
        {"a row for each example", [](const Tensor& x) { return x + weight({6, 3}); }, {6, 3}},
        {"a matrix for each example", [](const Tensor& x) { return matmul(x, weight({6, 4, 2})); }, {6, 3, 4}},
        {"merged", [](const Tensor& x) { return reshape(x, {18, 4}).reshape({3, 6, 4}); }, {6, 3, 4}},
        {"a diagonal", [](const Tensor& x) { return diagonal(x); }, {6, 6}},
        {"sorted", [](const Tensor& x) { return sort(x, 0).values; }, {6, 3}},
    };
    return cases;
}

}  // namespace

TEST_CASE("ops that treat each example by itself run in slices, with the results of the whole batch") {
    manual_seed(1);
    for (const Case& c : apart()) {
        const Tensor x = values(c.shape);
        c.fn(x);  // makes its weights
        for (const char* name : {"", "batch"}) {
            for (const std::int64_t every : {1, 2, 4, 6, 9}) {
                const Graph graph = sliced(c.fn, x, name, every);
                INFO(c.what << "\n" << graph.str());
                CHECK(ops_of(graph).substr(0, 9) == "in_slices");
                check_equal(c, graph, x);
            }
        }
    }
}

TEST_CASE("a graph in slices runs for any batch, also of one and of none") {
    manual_seed(2);
    for (const Case& c : apart()) {
        const Graph graph = sliced(c.fn, values(c.shape), "batch", 2);
        for (const std::int64_t batch : {1, 2, 3, 7, 0}) {
            Shape shape = c.shape;
            shape.raw(0) = batch;
            check_equal(c, graph, values(shape));
        }
    }
}

TEST_CASE("ops that mix examples stay as they are, and so does what depends on them") {
    manual_seed(3);
    for (const Case& c : mixing()) {
        const Tensor x = values(c.shape);
        c.fn(x);  // makes its weights
        const Case then{c.what, [&](const Tensor& t) { return tanh(c.fn(t)); }};
        for (const std::int64_t every : {1, 4}) check_equal(then, sliced(then.fn, x, "", every), x);
        // Between ops that do not mix.
        const Case between{c.what, [&](const Tensor& t) { return exp(c.fn(sin(t) * 2)); }};
        const Graph graph = sliced(between.fn, x, "", 2);
        INFO(c.what << "\n" << graph.str());
        CHECK(ops_of(graph).substr(0, 9) == "in_slices");
        CHECK(ops_of(graph).find(" exp") != std::string::npos);
        check_equal(between, graph, x);
    }
}

TEST_CASE("random chains of ops give in slices what they give at once") {
    for (int seed = 0; seed < 60; ++seed) {
        manual_seed(static_cast<std::uint64_t>(seed));
        const auto draw = [&](std::int64_t n) { return randint(0, n, {1}).item<std::int64_t>(); };
        // Square values, so that dimensions can be taken for each other.
        std::vector<std::function<Tensor(const Tensor&)>> ops;
        for (int i = 0; i < 6; ++i) {
            const std::int64_t dim = draw(3), other = draw(3);
            const std::function<Tensor(const Tensor&)> all[] = {
                [](const Tensor& x) { return tanh(x); },
                [=](const Tensor& x) { return transpose(x, dim, other); },
                [=](const Tensor& x) { return softmax(x, dim); },
                [=](const Tensor& x) { return x - mean(x, dim, true); },
                [=](const Tensor& x) { return linear(x, weight({4, 4}), weight({4})); },
                [=](const Tensor& x) { return matmul(x, x.transpose(1, 2)); },
                [=](const Tensor& x) { return matmul(weight({4, 4}), x); },
                [=](const Tensor& x) { return x.reshape({2, 8, 4}).reshape({4, 4, 4}) + 1; },
                [=](const Tensor& x) { return cat({x, x * 2}, dim).narrow(dim, 2, 4); },
                [=](const Tensor& x) { return layer_norm(x, {4}); },
                [=](const Tensor& x) { return x + x.select(dim, 1).unsqueeze(other); },
                [=](const Tensor& x) { return sum(x, dim, true) + x; },
                [=](const Tensor& x) { return permute(x, {1, 2, 0}); },
            };
            if (const std::int64_t which = draw(std::ssize(all)); which >= 0) ops.push_back(all[which]);
        }
        const Case chain{"chain", [&](const Tensor& x) {
                             Tensor y = x;
                             for (const auto& op : ops) y = op(y) + 0.5;
                             return y;
                         }};
        const Tensor x = values({4, 4, 4});
        chain.fn(x);  // makes its weights
        for (const std::int64_t every : {1, 3}) {
            INFO("seed " << seed);
            check_equal(chain, sliced(chain.fn, x, "", every), x);
        }
    }
}

TEST_CASE("slices hand out each value that is needed later, and keep what views share") {
    manual_seed(4);
    const Tensor x = values({6, 3, 4});
    const auto fn = [](const Tensor& t) {
        const Tensor a = tanh(t), b = a * 2, flat = b.reshape({t.size(0), 12});
        return std::vector<Tensor>{flat + 1, a, cumsum(b, 0), b, flat};
    };
    Graph graph = trace(fn, {{"x", x, {"batch"}}});
    const Graph whole = graph;
    slice_batch(graph, {}, 2);
    graph.check();
    CHECK(ops_of(graph).substr(0, 9) == "in_slices");
    for (int run = 0; run < 3; ++run) {
        const std::vector<Tensor> got = graph.run({{"x", x}}), wanted = whole.run({{"x", x}});
        check_same(got, fn(x));
        CHECK(got[3].shares_storage(got[4]) == wanted[3].shares_storage(wanted[4]));
    }
    const std::vector<Tensor> called = graph({x});
    CHECK(called[3].shares_storage(called[4]));
}

TEST_CASE("several inputs are cut together, and others are not") {
    manual_seed(5);
    const Tensor x = values({6, 3}), y = values({6, 3}), scale = values({3});
    const auto fn = [](const Tensor& a, const Tensor& b, const Tensor& s) { return tanh(a * b) * s; };
    Graph graph = trace(fn, {{"x", x, {"batch"}}, {"y", y, {"batch"}}, {"scale", scale}});
    CHECK(slice_batch(graph, {}, 4) == 1);
    CHECK(ops_of(graph) == "in_slices");
    check_same(graph.run({{"x", x}, {"y", y}, {"scale", scale}}), {fn(x, y, scale)});
    CHECK_THROWS_AS(graph.run({{"x", x}, {"y", values({5, 3})}, {"scale", scale}}), ShapeError);
}

namespace {

// Images that do not fit into the cache, and few weights.
Tensor wide(const Tensor& x, const Tensor& first, const Tensor& second) {
    return mean(conv2d(relu(conv2d(x, first, {}, {.padding = 1})), second, {}, {.padding = 1}), {2, 3});
}

std::string ops_as_compiled(Graph graph) {
    slice_batch(graph);
    graph.check();
    return ops_of(graph);
}

}  // namespace

TEST_CASE("compile() runs images one by one where their results do not fit into the cache") {
    manual_seed(6);
    const Tensor first = randn({16, 3, 3, 3}), second = randn({8, 16, 3, 3}), x = randn({8, 3, 96, 96});
    const auto fn = [&](const Tensor& t) { return wide(t, first, second); };
    for (const char* name : {"", "batch"}) {
        const Graph graph = *name ? trace(fn, {{"x", x, {name}}}) : trace(fn, {{"x", x}});
        CHECK(ops_as_compiled(graph) == "in_slices");
        const CompiledGraph run = graph.compile();
        for (int i = 0; i < 3; ++i) check_same({run({x})[0]}, {fn(x)}, 1e-4, 1e-4);
        if (*name) check_same({run({x[Slice(0, 3)]})[0]}, {fn(x[Slice(0, 3)])}, 1e-4, 1e-4);
    }
}

TEST_CASE("compile() leaves alone what fits, what has large weights, and training steps") {
    manual_seed(7);
    const Tensor first = randn({16, 3, 3, 3}), second = randn({8, 16, 3, 3});
    const Tensor small = randn({2, 3, 8, 8}), rows = randn({64, 256});
    CHECK(ops_as_compiled(trace([&](const Tensor& t) { return wide(t, first, second); }, {{"x", small}})).find("in_slices") == std::string::npos);
    nn::Sequential mlp(nn::Linear(256, 1024), nn::ReLU(), nn::Linear(1024, 256));
    CHECK(ops_as_compiled(trace(mlp, {{"x", rows, {"batch"}}})).find("in_slices") == std::string::npos);
    nn::Conv2d conv(3, 16, 3);
    optim::SGD sgd(conv.parameters(), {.lr = 0.1});
    const auto step = [&](const Tensor& t) {
        sgd.zero_grad();
        Tape tape;
        const Tensor loss = square(conv(t)).mean();
        tape.backward(loss);
        sgd.step();
        return loss;
    };
    CHECK(ops_as_compiled(trace(step, {{"x", randn({8, 3, 64, 64})}})).find("in_slices") == std::string::npos);
}

TEST_CASE("a compiled graph in slices sees weights that are trained on") {
    manual_seed(8);
    nn::Sequential net(nn::Conv2d(3, 16, 3, {.padding = 1}), nn::ReLU(), nn::Conv2d(16, 8, 3, {.padding = 1}));
    const Tensor x = randn({8, 3, 96, 96});
    const Graph graph = trace(net, {{"x", x, {"batch"}}});
    REQUIRE(ops_as_compiled(graph).find("in_slices") != std::string::npos);
    const CompiledGraph run = graph.compile();
    for (int turn = 0; turn < 3; ++turn) {
        check_same({run({x})[0]}, {net(x)}, 1e-4, 1e-4);
        const NoGradScope no_grad;
        for (Tensor& p : net.parameters()) p.mul_(1.5);
    }
}

TEST_CASE("a graph in slices runs on several threads, and slices share threads") {
    manual_seed(9);
    const Tensor first = randn({16, 3, 3, 3}), second = randn({8, 16, 3, 3});
    const auto fn = [&](const Tensor& t) { return wide(t, first, second); };
    const Graph graph = trace(fn, {{"x", randn({8, 3, 96, 96}), {"batch"}}});
    const CompiledGraph run = graph.compile();
    const int before = num_threads();
    for (const int threads : {1, 2, 3, 4}) {
        set_num_threads(threads);
        for (const std::int64_t batch : {1, 2, 5, 8}) {
            const Tensor x = randn({batch, 3, 96, 96});
            for (int i = 0; i < 3; ++i) check_same({run({x})[0]}, {fn(x)}, 1e-4, 1e-4);
        }
    }
    std::vector<std::thread> program;
    std::vector<Tensor> inputs, results(4);
    for (int i = 0; i < 4; ++i) inputs.push_back(randn({4 + i, 3, 96, 96}));
    for (std::size_t i = 0; i < 4; ++i) {
        program.emplace_back([&, i] {
            for (int turn = 0; turn < 4; ++turn) results[i] = run({inputs[i]})[0];
        });
    }
    for (std::thread& thread : program) thread.join();
    for (std::size_t i = 0; i < 4; ++i) check_same({results[i]}, {fn(inputs[i])}, 1e-4, 1e-4);
    set_num_threads(before);
}

TEST_CASE("slices on threads of the pool leave nothing on the caller's tape") {
    manual_seed(12);
    const Tensor first = randn({16, 3, 3, 3}), second = randn({8, 16, 3, 3}), x = randn({8, 3, 96, 96});
    const Graph graph = trace([&](const Tensor& t) { return wide(t, first, second); }, {{"x", x, {"batch"}}});
    const CompiledGraph run = graph.compile();
    const int before = num_threads();
    for (const int threads : {1, 2, 4}) {
        set_num_threads(threads);
        const Tensor w = randn({8}).requires_grad_();
        for (int i = 0; i < 3; ++i) {
            Tape tape;
            const Tensor y = run(x);
            CHECK(tape.size() == 0);
            CHECK(!y.requires_grad());
            check_same({tape.gradient(sum(y * w), {w})[0]}, {sum(wide(x, first, second), 0)}, 1e-4, 1e-3);
        }
    }
    set_num_threads(before);
}

TEST_CASE("planned_bytes() counts the memory of slices, which is less") {
    manual_seed(10);
    const auto fn = [](const Tensor& t) { return softmax(t, 1).unsqueeze(3).transpose(1, 2).softmax(1).sum({1, 3}); };
    const Tensor x = randn({16, 64, 64});
    Graph whole = trace(fn, {{"x", x}});
    const CompiledGraph run = whole.compile();
    for (int i = 0; i < 2; ++i) run({x});
    slice_batch(whole, {}, 1);
    const CompiledGraph in_slices = whole.compile();
    for (int i = 0; i < 2; ++i) in_slices({x});
    CHECK(in_slices.planned_bytes() > 0);
    CHECK(in_slices.planned_bytes() < run.planned_bytes());
}

TEST_CASE("a tape records a graph in slices op by op") {
    manual_seed(11);
    const Tensor x = values({6, 3}).requires_grad_();
    const auto fn = [](const Tensor& t) { return sum(tanh(t) * 2, 1); };
    Graph graph = trace(fn, {{"x", x.detach()}});
    REQUIRE(slice_batch(graph, {}, 2) == 1);
    const auto gradient = [&](const auto& of) {
        Tape tape;
        const Tensor y = of(x);
        return tape.gradient(sum(y * y), {x})[0];
    };
    check_same({gradient([&](const Tensor& t) { return graph({t})[0]; })}, {gradient(fn)});
}

TEST_CASE("in_slices made by hand is refused where its parts do not fit") {
    const Tensor x = values({6, 3});
    Graph graph = trace([](const Tensor& t) { return tanh(t); }, {{"x", x}});
    REQUIRE(slice_batch(graph, {}, 2) == 1);
    Graph::Node* node = graph.nodes()[0].get();
    const auto with = [&](const char* name, const Attribute& value) {
        Graph changed = graph;
        changed.edit_attributes(changed.nodes()[0].get()).set(name, value);
        return changed;
    };
    CHECK_THROWS_AS(with("body", std::shared_ptr<const Graph>()).run({{"x", x}}), ValueError);
    CHECK_THROWS_AS(with("sliced", SymInt(0)).run({{"x", x}}), ValueError);
    CHECK_THROWS_AS(with("sliced", SymInt(2)).run({{"x", x}}), ValueError);
    CHECK_THROWS_AS(with("examples", SymInt(0)).run({{"x", x}}), ValueError);
    const auto body = std::get<std::shared_ptr<const Graph>>(node->attributes().get("body"));
    auto other = std::make_shared<Graph>(trace([](const Tensor& t) { return sum(t, 0); }, {{"x0", x, {"examples"}}}));
    auto number = std::make_shared<Graph>(trace([](const Tensor& t) { return sum(t); }, {{"x0", x, {"examples"}}}));
    const int before = num_threads();
    for (const int threads : {1, 7}) {  // three slices, and all at once
        set_num_threads(threads);
        CHECK_THROWS_AS(with("body", std::shared_ptr<const Graph>(other)).run({{"x", x}}), ShapeError);
        CHECK_THROWS_AS(with("body", std::shared_ptr<const Graph>(number)).run({{"x", x}}), ShapeError);
    }
    set_num_threads(before);
    auto of_two = std::make_shared<Graph>(trace([](const Tensor& a, const Tensor& b) { return a + b; }, {{"x0", x}, {"x1", x}}));
    CHECK_THROWS_AS(with("body", std::shared_ptr<const Graph>(of_two)).run({{"x", x}}), ValueError);
    CHECK(Graph::parse(graph.str()).str() == graph.str());
    const Tensor scale = values({3});
    Graph scaled = trace([](const Tensor& a, const Tensor& s) { return a * s; }, {{"x", x}, {"scale", scale}});
    REQUIRE(slice_batch(scaled, {}, 2) == 1);
    scaled.edit_attributes(scaled.nodes()[0].get()).set("sliced", SymInt(2));
    CHECK_THROWS_AS(scaled.run({{"x", x}, {"scale", scale}}), ShapeError);
}
