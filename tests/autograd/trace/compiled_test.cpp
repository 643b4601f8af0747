// Graphs that are run again and again: in memory that is laid out once, where results of earlier runs must not be touched.
#include <catch2/catch.hpp>
#include <thread>

#include "../../fails.h"
#include "../../ops/samples.h"
#include "tapir/autograd/trace/passes/passes.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/core/parallel.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// Other numbers than `inputs`, which are as good.
std::vector<Tensor> others(const std::vector<Tensor>& inputs, int round) {
    std::vector<Tensor> list;
    for (const Tensor& x : inputs) list.push_back(is_floating(x.dtype()) ? x * (1 - round / 64.0) + round / 256.0 : x.clone());
    return list;
}

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        INFO("output " << i);
        CHECK(got[i].dtype() == wanted[i].dtype());
        REQUIRE(got[i].shape() == wanted[i].shape());
        CHECK(allclose(got[i].to(float64), wanted[i].to(float64), 1e-10, 1e-10, /*equal_nan=*/true));
    }
}

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

// What is run is the function's results, and others that are made of them, so that they lie in planned memory.
void check_runs(const Function& fn, const std::vector<Tensor>& inputs) {
    const Function more = [&](const std::vector<Tensor>& x) {
        std::vector<Tensor> results;
        for (const Tensor& y : fn(x)) results.push_back(is_floating(y.dtype()) ? y * 0.5 + 1 : y);
        return results;
    };
    std::vector<TraceInput> named;
    for (std::size_t i = 0; i < inputs.size(); ++i) named.push_back({"x" + std::to_string(i), inputs[i]});
    for (const Function& traced : {fn, more}) {
        manual_seed(5);
        const Graph graph = trace(traced, named);
        INFO(graph.str());
        std::vector<std::vector<Tensor>> given, wanted, got;
        for (int round = 0; round < 4; ++round) {
            given.push_back(others(inputs, round));
            manual_seed(7);
            wanted.push_back(graph(given.back()));
            manual_seed(7);
            Graph::Inputs by_name;
            for (std::size_t i = 0; i < inputs.size(); ++i) by_name.emplace_back("x" + std::to_string(i), given.back()[i]);
            got.push_back(graph.run(by_name));
        }
        for (std::size_t i = 0; i < got.size(); ++i) check_same(got[i], wanted[i]);  // all are held
    }
}

// While it lives every step that can is run beside others.
struct AllAtOnce {
    const int threads = num_threads();
    AllAtOnce() {
        set_num_threads(3);
        tapir::detail::set_least_parallel_ns(0);
    }
    ~AllAtOnce() {
        set_num_threads(threads);
        tapir::detail::set_least_parallel_ns(15'000);
    }
};

Graph small_mlp() {
    manual_seed(3);
    const Tensor w = randn({6, 4}).requires_grad_(), b = randn({6}).requires_grad_(), v = randn({3, 6}).requires_grad_();
    return trace([=](const Tensor& x) { return linear(relu(linear(x, w, b)) * 2 + 1, v); }, {{"x", randn({2, 4}), {"batch"}}});
}

}  // namespace

TEST_CASE("the only output is a tensor, whose rows are not taken for outputs") {
    const CompiledGraph run = trace([](const Tensor& x) { return x * 2; }, {{"x", ones({2, 3})}}).compile();
    const Tensor x = rand({2, 3});
    CHECK(equal(run({x})[0], x * 2));
    const auto y = run(x);
    CHECK(equal(y[0], x[0] * 2));
    CHECK(!std::is_invocable_v<decltype([](auto&& output) -> decltype(std::forward<decltype(output)>(output)[0]) { return {}; }), OnlyOutput>);
    CHECK(std::is_invocable_v<decltype([](auto&& output) -> decltype(std::forward<decltype(output)>(output)[0]) { return {}; }), OnlyOutput&>);
}

TEST_CASE("a graph and what it is compiled to are called alike") {
    const Graph graph = trace([](const Tensor& x, const Tensor& y) { return std::vector{x - y}; }, {{"x", ones({2, 3})}, {"y", ones({2, 3})}});
    const CompiledGraph compiled = graph.compile();
    const Tensor x = rand({2, 3}), y = rand({2, 3});
    const auto check = [&](const auto& run) {
        CHECK(equal(run(x, y), x - y));
        CHECK(equal(run({x, y})[0], x - y));
        CHECK(equal(run(std::vector{x, y})[0], x - y));
        CHECK(equal(run.run({{"y", y}, {"x", x}})[0], x - y));
    };
    check(graph);
    check(compiled);
    FAILS(ValueError, "Graph::run: there is no input z; there are x, y", graph.run({{"z", x}}));
    FAILS(ValueError, "CompiledGraph::run: there is no input z; there are x, y", compiled.run({{"z", x}}));
    FAILS(ValueError, "CompiledGraph::run: the input x is given twice", compiled.run({{"x", x}, {"x", x}}));
    FAILS(ValueError, "graph: the input y is needed", compiled.run({{"x", x}}));

    const Graph two = trace([](const Tensor& t) { return std::vector{t + 1, t * 2}; }, {{"x", x}});
    FAILS(ValueError, "graph: its only output is asked for, and it has 2: write graph({x})", two(x));
    FAILS(ValueError, "graph: 1 inputs given, it has 2", graph(x));
    Tape tape;  // a graph's ops are recorded
    const Tensor leaf = rand({2, 3}).requires_grad_();
    CHECK(equal(tape.gradient(sum(graph(leaf, y)), leaf), ones({2, 3})));
}

TEST_CASE("every op runs in planned memory", "[ops]") {
    for (const test::Call& call : test::all_calls()) {
        INFO(call.name << ": " << call.torch);
        try {
            check_runs(call.run, test::make_inputs(call));
        } catch (const Error& error) {
            FAIL_CHECK(error.what());
        }
    }
}

static void check_gradients_of_all_ops() {
    for (const test::Call& call : test::all_calls()) {
        if (!call.differentiable) continue;
        INFO(call.name << ": " << call.torch);
        try {
            const std::vector<Tensor> inputs = test::make_inputs(call);
            manual_seed(5);
            if (test::gradients(call, inputs).empty()) continue;
            check_runs([&](const std::vector<Tensor>& x) { return test::gradients(call, x); }, inputs);
        } catch (const Error& error) {
            if (!test::is_gradient_sized_by_data(call, error)) FAIL_CHECK(error.what());
        }
    }
}

TEST_CASE("the gradient of every op runs in planned memory", "[ops]") { check_gradients_of_all_ops(); }

TEST_CASE("the gradient of every op runs with steps at once", "[ops]") {
    const AllAtOnce all;
    check_gradients_of_all_ops();
}

TEST_CASE("branches that run at once give what they gave one after the other") {
    manual_seed(8);
    const Tensor w = randn({24, 24}).requires_grad_(), v = randn({24, 24}).requires_grad_();
    const auto fn = [=](const Tensor& x) {
        Tensor a = x, b = x * 2, c = dropout(x, 0.5);
        for (int i = 0; i < 5; ++i) {
            a = tanh(matmul(a, w));
            b = softmax(matmul(b, v), 1) + a;
            c = cat({relu(c + dropout(b, 0.5)), a.t()}, 1).narrow(1, i, 24);
        }
        return std::vector<Tensor>{a, b, c, a.t()};
    };
    const Tensor x = randn({24, 24});
    manual_seed(9);
    const Graph graph = trace(fn, {{"x", x}});
    std::vector<std::vector<Tensor>> got, wanted;
    for (int i = 0; i < 4; ++i) {
        manual_seed(static_cast<std::uint64_t>(i));
        wanted.push_back(graph({x}));
    }
    const AllAtOnce all;
    for (int i = 0; i < 4; ++i) {
        manual_seed(static_cast<std::uint64_t>(i));
        got.push_back(graph.run({{"x", x}}));
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
        for (std::size_t k = 0; k < 4; ++k) CHECK(allclose(got[i][k], wanted[i][k], 1e-5, 1e-6));
    }
}

TEST_CASE("a compiled graph is called with tensors in order") {
    const Graph graph = small_mlp();
    const CompiledGraph run = graph.compile();
    CHECK(run.inputs() == std::vector<std::string>{"x"});
    CHECK(run.output_count() == 1);
    const Tensor x = randn({5, 4});
    for (int i = 0; i < 3; ++i) CHECK(equal(run(x), graph({x})[0]));
    CHECK(equal(run(std::vector<Tensor>{x})[0], graph({x})[0]));
    CHECK(equal(run({x})[0], graph({x})[0]));
    const CompiledGraph sum = trace([](const Tensor& a, const Tensor& b) { return a + b; }, {{"a", x}, {"b", x}}).compile();
    CHECK(equal(sum({x, x})[0], sum(x, x)));
    CHECK(run.planned_bytes() > 0);
    FAILS(ValueError, "CompiledGraph: 2 inputs given, it has 1: x", run(x, x));
    FAILS(ValueError, "CompiledGraph: 2 outputs asked for, it has 1", run.call<2>(x));
    FAILS(ValueError, "graph: the input x is needed", run(Tensor()));
    FAILS(ShapeError, "the input x has shape (5, 3)", run(randn({5, 3})));
    CHECK(equal(run(x), graph({x})[0]));  // an error leaves it usable
}

TEST_CASE("an attribute that is set is seen by the next run") {
    Graph graph = trace([](const Tensor& x) { return clamp(x, -1, 1); }, {{"x", randn({3})}});
    const Tensor x = tensor({-3.0f, 0.25f, 3.0f});
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}})[0], tensor({-1.0f, 0.25f, 1.0f})));
    graph.set_attribute(graph.nodes()[0].get(), "max", 2.0);
    for (int i = 0; i < 3; ++i) CHECK(equal(graph.run({{"x", x}})[0], tensor({-1.0f, 0.25f, 2.0f})));
}

TEST_CASE("a compiled graph outlives its graph, and what is done to it") {
    Tensor x = randn({2, 4}), wanted;
    CompiledGraph run = [&] {
        Graph graph = small_mlp();
        wanted = graph({x})[0];
        CompiledGraph ready = graph.compile();
        graph = trace([](const Tensor& t) { return t; }, {{"x", x}});
        return ready;
    }();
    for (int i = 0; i < 3; ++i) CHECK(equal(run(x), wanted));
}

TEST_CASE("what a run gave is not touched by later ones") {
    const Graph graph = small_mlp();
    const CompiledGraph run = graph.compile();
    std::vector<Tensor> inputs, held, views, copies;
    for (int i = 0; i < 6; ++i) {
        inputs.push_back(randn({2, 4}));
        Tensor y = run(inputs.back());
        copies.push_back(y.clone());
        if (i % 2 == 0) held.push_back(y);
        views.push_back(y[1]);  // a view alone holds it too
        y = Tensor();
    }
    for (std::size_t i = 0; i < views.size(); ++i) CHECK(equal(views[i], copies[i][1]));
    for (std::size_t i = 0; i < held.size(); ++i) CHECK(equal(held[i], copies[2 * i]));
}

TEST_CASE("what nobody holds is written to again") {
    const Graph graph = small_mlp();
    const CompiledGraph run = graph.compile();
    const Tensor x = randn({2, 4});
    for (int i = 0; i < 2; ++i) run(x);
    const void* place = run(x).raw_data();
    CHECK(run(x).raw_data() == place);
    const Tensor held = run(x).requires_grad_();
    CHECK(run(x).raw_data() != held.raw_data());
    CHECK(!run(x).requires_grad());
}

TEST_CASE("a run may be given what the last one gave") {
    manual_seed(4);
    const Tensor w = randn({4, 4}).requires_grad_();
    const Graph graph = trace([=](const Tensor& h) { return tanh(matmul(h, w)) + 0.25; }, {{"h", randn({1, 4})}});
    const CompiledGraph run = graph.compile();
    Tensor h = randn({1, 4}), wanted = h;
    for (int i = 0; i < 8; ++i) {
        h = run(h);
        const NoGradScope no_grad;
        wanted = tanh(matmul(wanted, w)) + 0.25;
        CHECK(equal(h, wanted));
    }
}

TEST_CASE("outputs may be inputs, parameters, views and one another") {
    manual_seed(5);
    const Tensor w = randn({4, 4}).requires_grad_();
    const Graph graph = trace(
        [=](const Tensor& x) {
            const Tensor y = relu(matmul(x, w)), t = y.t(), doubled = t * 2;
            return std::vector<Tensor>{x, y, t, y[0], doubled, doubled, doubled.narrow(0, 1, 2) + 1, w.t()};
        },
        {{"x", randn({3, 4})}});
    std::vector<std::vector<Tensor>> got, wanted;
    for (int i = 0; i < 4; ++i) {
        const Tensor x = randn({3, 4});
        wanted.push_back(graph({x}));
        got.push_back(graph.run({{"x", x}}));
        CHECK(got.back()[0].is_same(x));
    }
    for (std::size_t i = 0; i < got.size(); ++i) check_same(got[i], wanted[i]);
}

TEST_CASE("operands that are not contiguous, and shapes in turn") {
    const Graph graph = small_mlp();
    const CompiledGraph run = graph.compile();
    for (int i = 0; i < 4; ++i) {
        for (const std::int64_t batch : {1, 2, 7, 0, 33}) {
            const Tensor x = randn({batch, 4}), turned = randn({4, batch}).t(), apart = randn({batch, 8}).index({Slice(), Slice(0, 8, 2)});
            for (const Tensor& input : {x, turned, apart}) CHECK(equal(run(input), graph({input})[0]));
        }
    }
}

TEST_CASE("sizes that depend on data do not meet planned memory") {
    const Graph graph = trace(
        [](const Tensor& x) {
            const Tensor some = masked_select(x, x > 0) * 2 + 1;
            return std::vector<Tensor>{sum(some * some), cat({some, some}) - 1};
        },
        {{"x", tensor({1.0, -2.0, 3.0})}});
    for (const Tensor& x :
         {tensor({1.0, -2.0, 3.0}), tensor({1.0, -5.0, 4.0}), tensor({1.0, 2.0, 3.0}), tensor({-1.0, -2.0, -3.0}), tensor({1.0, -2.0, 3.0})}) {
        check_same(graph.run({{"x", x}}), graph({x}));
    }
}

TEST_CASE("a step that fails leaves the graph usable") {
    TraceOptions options;
    options.reads = TraceOptions::Reads::guard;
    const Graph graph = trace([](const Tensor& x) { return x[0].item() > 0 ? x * 2 + 1 : x; }, {{"x", tensor({1.0, 2.0})}}, options);
    const Tensor good = tensor({1.0, 5.0});
    for (int i = 0; i < 3; ++i) {
        CHECK(equal(graph.run({{"x", good}})[0], good * 2 + 1));
        FAILS(ValueError, "the program read a value with item()", graph.run({{"x", tensor({-1.0, 5.0})}}));
    }
}

TEST_CASE("a parameter that changes between runs is seen, wherever its tensor lies") {
    manual_seed(6);
    Tensor w = randn({4, 4}).requires_grad_();
    Graph graph = trace([=](const Tensor& x) { return relu(matmul(x, w.t())) + w[0]; }, {{"x", randn({2, 4})}});
    const Tensor x = randn({2, 4});
    for (int i = 0; i < 4; ++i) {
        CHECK(equal(graph.run({{"x", x}})[0], graph({x})[0]));
        const NoGradScope no_grad;
        if (i == 2) {
            graph.parameters()[0]->data = randn({4, 4});
        } else {
            w.mul_(0.5);
        }
    }
}

TEST_CASE("a step of training writes to its parameters as the program did") {
    manual_seed(7);
    const Tensor w0 = randn({4, 3}), b0 = randn({4}), x = randn({5, 3}), labels = tensor({0, 1, 2, 3, 0});
    const auto make_step = [&](const Tensor& w, const Tensor& b) {
        return [=](const Tensor& input, const Tensor& wanted, const Tensor& rate) {
            Tape tape;
            const Tensor loss = cross_entropy(linear(input, w, b), wanted);
            const std::vector<Tensor> g = tape.gradient(loss, {w, b});
            const NoGradScope no_grad;
            Tensor weight = w, bias = b;
            weight.sub_(g[0] * rate);
            bias.sub_(g[1] * rate);
            return std::vector<Tensor>{loss, weight.sum()};
        };
    };
    Tensor w = w0.clone().requires_grad_(), b = b0.clone().requires_grad_(), w2 = w0.clone().requires_grad_(), b2 = b0.clone().requires_grad_();
    const Tensor rate = tensor(0.1f);
    const Graph graph = trace(make_step(w, b), {{"x", x}, {"labels", labels}, {"rate", rate}});
    const CompiledGraph run = graph.compile();
    make_step(w2, b2)(x, labels, rate);
    for (int i = 0; i < 5; ++i) {
        const auto [loss, total] = run.call<2>(x, labels, rate);
        const std::vector<Tensor> wanted = make_step(w2, b2)(x, labels, rate);
        CHECK(allclose(loss, wanted[0]));
        CHECK(allclose(total, wanted[1]));
        CHECK(allclose(w, w2));
        CHECK(allclose(b, b2));
    }
}

TEST_CASE("updates that read each other's parameters see what was there before") {
    Tensor a = tensor({1.0, 2.0}), b = tensor({10.0, 20.0});
    TraceOptions options;
    options.parameters = {{"a", a}, {"b", b}};
    const Graph graph = trace(
        [&](const Tensor& x) {
            const Tensor was = a.clone();
            a.copy_(b + x);
            b.copy_(was - x);
            return was * 1;
        },
        {{"x", tensor({0.0, 0.0})}}, options);
    Tensor wanted_a = a.clone(), wanted_b = b.clone();
    for (int i = 0; i < 4; ++i) {
        const Tensor x = tensor({i + 1.0, 0.5});
        CHECK(equal(graph.run({{"x", x}})[0], wanted_a));
        const Tensor was = wanted_a;
        wanted_a = wanted_b + x;
        wanted_b = was - x;
        CHECK(equal(a, wanted_a));
        CHECK(equal(b, wanted_b));
    }
}

TEST_CASE("parameters that share memory are updated one after the other") {
    Tensor whole = tensor({1.0, 2.0, 3.0}), part = whole.narrow(0, 0, 2);
    TraceOptions options;
    options.parameters = {{"whole", whole}};
    const Graph graph = trace(
        [&](const Tensor& x) {
            whole.mul_(2);
            return whole.narrow(0, 0, 2) + x;
        },
        {{"x", zeros({2}, {part.dtype()})}}, options);
    const Tensor before = whole.clone();
    for (int i = 1; i <= 4; ++i) {
        // The input is a view of the parameter that the run overwrites.
        const Tensor y = graph.run({{"x", part}})[0];
        CHECK(allclose(whole, before * std::pow(2, i)));
        CHECK(allclose(y, (before * std::pow(2, i)).narrow(0, 0, 2) + (before * std::pow(2, i - 1)).narrow(0, 0, 2)));
    }
}

TEST_CASE("several threads call one compiled graph") {
    const Graph graph = small_mlp();
    const CompiledGraph run = graph.compile();
    std::vector<Tensor> inputs, wanted;
    for (int i = 0; i < 4; ++i) {
        inputs.push_back(randn({i % 2 + 1, 4}));
        wanted.push_back(graph({inputs.back()})[0]);
    }
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 200; ++i) wrong[t] += !equal(run(inputs[t]), wanted[t]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("an optimizer's update writes to its parameters, as the program does") {
    const auto train = [](bool compiled, bool amsgrad) {
        manual_seed(4);
        const nn::Linear layer(4, 3);
        optim::Adam adam({layer.weight, layer.bias}, {.lr = 0.1, .amsgrad = amsgrad});
        const auto step = [&](const Tensor& x, const Tensor& labels) {
            adam.zero_grad();
            Tape tape;
            const Tensor loss = cross_entropy(layer(x), labels);
            tape.backward(loss);
            adam.step();
            return loss;
        };
        const auto batch = [] { return std::pair(randn({5, 4}), randint(0, 3, {5})); };
        std::vector<Tensor> results;
        auto [x, labels] = batch();
        const Graph graph = trace(step, {{"x", x}, {"labels", labels}});
        const CompiledGraph run = graph.compile();
        for (int i = 0; i < 5; ++i) {
            std::tie(x, labels) = batch();
            results.push_back(compiled ? run(x, labels) : step(x, labels));
        }
        step(x, labels);  // the program goes on from there
        results.push_back(layer.weight.detach().clone());
        results.push_back(layer.bias.detach().clone());
        for (const auto& [name, tensor] : adam.state_dict()) results.push_back(tensor.clone());
        return results;
    };
    for (const bool amsgrad : {false, true}) {
        const std::vector<Tensor> got = train(true, amsgrad), wanted = train(false, amsgrad);
        REQUIRE(got.size() == wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], wanted[i], 1e-5, 1e-7));
    }
}

TEST_CASE("inputs that are only written to are written to") {
    const auto fn = [](const Tensor& x, const Tensor& a, const Tensor& b) {
        Tensor first = a, second = b;
        first.copy_(x * 2);
        second.copy_(x * 3);
        return x + 1;
    };
    Graph graph = trace(fn, {{"x", ones({2})}, {"a", zeros({2})}, {"b", zeros({2})}});
    optimize(graph);
    CompiledGraph compiled = graph.compile();
    for (int again = 1; again < 4; ++again) {
        const Tensor x = full({2}, double(again)), a = zeros({2}), b = zeros({2});
        CHECK(equal(compiled({x, a, b})[0], x + 1));
        CHECK(equal(a, x * 2));
        CHECK(equal(b, x * 3));
    }
    FAILS(ValueError, "", graph.run({{"x", ones({2})}}));
}
