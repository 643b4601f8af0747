// What can be traced: everything that C++ can call with tensors.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>

#include "../../fails.h"
#include "tapir/autograd/trace/graphs.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

Tensor doubled(const Tensor& x) { return x * 2; }
Tensor by_in(In x) { return relu(x) * 2; }
Tensor by_value(Tensor x) noexcept { return x * 2; }
Tensor difference(In x, const Tensor& y) { return x.tensor - y; }
Tensor constant() { return ones({2}) * 2; }
std::vector<Tensor> reversed(const std::vector<Tensor>& x) { return {x.rbegin(), x.rend()}; }
Tensor scaled(const Tensor& x, double factor = 2) { return x * factor; }

struct Functor {
    double factor = 2;
    Tensor operator()(const Tensor& x) const { return x * factor; }
};
struct Counting {  // neither const nor to be copied
    Counting() = default;
    Counting(const Counting&) = delete;
    int calls = 0;
    Tensor operator()(In x) {
        ++calls;
        return x.tensor * 2;
    }
};
struct Generic {
    template <class X>
    auto operator()(const X& x) const {
        return x.relu() * 2;  // neither a list nor an In has it
    }
};
struct Several {
    Tensor operator()(const Tensor& x) const { return x * 2; }
    Tensor operator()(const Tensor& x, const Tensor& y) const { return x * y; }
};

// As Tensor difference(In, const Tensor&), with more that a user need not give.
struct Optional {
    Tensor operator()(In x, const Tensor& y = {}, double factor = 1) const { return (y.defined() ? x.tensor - y : x.tensor) * factor; }
};

struct Net : nn::Module {
    nn::Linear layer{3, 3};
    void members(nn::Members& m) override { m("layer", layer); }
};
struct ForwardOfIn : Net {
    Tensor forward(In x) const { return layer(x); }
};
struct ForwardOfTensor : Net {
    Tensor forward(const Tensor& x) const { return layer(x); }
};
struct ForwardOfAnything : Net {
    auto forward(const auto& x) const { return layer(x.relu()); }
};
struct ForwardOfTwo : Net {
    Tensor forward(const auto& x, const auto& y) const { return layer(x.relu() + y.relu()); }
};
struct ForwardOfList : Net {
    Tensor forward(const std::vector<Tensor>& x) const { return layer(x[0] + x[1]); }
};
struct OverloadedForward : Net {
    Tensor forward(In x) const { return layer(x); }
    Tensor forward(In x, In y) const { return layer(add(x, y.tensor)); }
};
struct CallOfIn : Net {
    Tensor operator()(In x) { return layer(x); }
};
template <class Layer>
struct Wrapped : nn::Module {
    Layer inner;
    explicit Wrapped(Layer layer) : inner(std::move(layer)) {}
    void members(nn::Members& m) override { m("inner", inner); }
    template <class X>
    auto operator()(const X& x) const {
        return inner.forward(x.contiguous());
    }
};

void doubles(const Graph& graph) {
    INFO(graph.str());
    REQUIRE(graph.inputs().size() == 1);
    CHECK(graph({tensor({1.f, 2.5f})})[0].to_vector<float>() == std::vector<float>{2, 5});
}

template <class Model>
void keeps_names(Model&& model, const Net& net) {
    const Graph graph = trace(model, {{"x", ones({2, 3})}});
    INFO(graph.str());
    REQUIRE(graph.parameters().size() == 2);
    CHECK(graph.parameters()[0]->name == "layer.weight");
    CHECK(graph.parameters()[0]->data.is_same(net.layer.weight));
    const Tensor x = rand({2, 3});
    CHECK(equal(graph({x})[0], net.layer(x)));
}

}  // namespace

TEST_CASE("functions and pointers to them are traced") {
    const Tensor x = tensor({3.f, 4.f});
    doubles(trace(doubled, {{"x", x}}));
    doubles(trace(&doubled, {{"x", x}}));
    doubles(trace(*doubled, {{"x", x}}));
    doubles(trace(by_in, {{"x", x}}));
    doubles(trace(by_value, {{"x", x}}));
    Tensor (*pointer)(const Tensor&) = doubled;
    doubles(trace(pointer, {{"x", x}}));
    Tensor (*const constant_pointer)(In) = by_in;
    doubles(trace(constant_pointer, {{"x", x}}));
    Tensor (&reference)(const Tensor&) = doubled;
    doubles(trace(reference, {{"x", x}}));
    Tensor (*of_library)(In) = neg;
    CHECK(trace(of_library, {{"x", x}})({x})[0].to_vector<float>() == std::vector<float>{-3, -4});
    CHECK(trace(constant, {})({})[0].to_vector<float>() == std::vector<float>{2, 2});

    const Graph two = trace(difference, {{"x", x}, {"y", x}});
    CHECK(two({x, x * 3})[0].to_vector<float>() == std::vector<float>{-6, -8});
    const Graph list = trace(reversed, {{"x", x}, {"y", x}});
    CHECK(list({x, x * 3})[0].to_vector<float>() == std::vector<float>{9, 12});

    CHECK(check_trace(two, difference, {x * 2, x}));
    CHECK(check_trace(two, &difference, {x * 2, x}));
    FAILS(ValueError, "trace: a function of 2 tensors is given 1", trace(difference, {{"x", x}}));
}

TEST_CASE("callable objects are traced") {
    const Tensor x = tensor({3.f, 4.f});
    const auto lambda = [factor = 2.0](const Tensor& t) { return t * factor; };
    auto changing = [calls = 0](const Tensor& t) mutable { return ++calls, t * 2; };
    doubles(trace(lambda, {{"x", x}}));
    doubles(trace(changing, {{"x", x}}));
    doubles(trace([](Tensor t) { return t.mul_(2); }, {{"x", x.clone()}}));
    doubles(trace([](auto t) { return t.relu() * 2; }, {{"x", x}}));
    doubles(trace([](auto&& t) { return t.relu() * 2; }, {{"x", x}}));
    doubles(trace([](const auto& t, double factor = 2) { return t * factor; }, {{"x", x}}));
    doubles(trace(Functor(), {{"x", x}}));
    const Functor functor;
    doubles(trace(functor, {{"x", x}}));
    Counting counting;
    doubles(trace(counting, {{"x", x}}));
    CHECK(counting.calls == 2);
    doubles(trace(Generic(), {{"x", x}}));
    doubles(trace(Several(), {{"x", x}}));
    doubles(trace(std::bind(scaled, std::placeholders::_1, 2.0), {{"x", x}}));

    const std::function<Tensor(const Tensor&)> erased = doubled;
    doubles(trace(erased, {{"x", x}}));
    doubles(trace(std::function<Tensor(In)>(by_in), {{"x", x}}));
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)> of_list = reversed;
    CHECK(trace(of_list, {{"x", x}, {"y", x}})({x, x * 3})[1].to_vector<float>() == std::vector<float>{3, 4});

    doubles(trace(std::ref(lambda), {{"x", x}}));
    doubles(trace(std::cref(functor), {{"x", x}}));
    doubles(trace(std::ref(counting), {{"x", x}}));
    CHECK(counting.calls == 4);  // each trace calls it twice
    doubles(trace(std::ref(doubled), {{"x", x}}));
}

TEST_CASE("what may be left out may be given") {
    const Tensor x = tensor({3.f, 4.f});
    CHECK(trace(Several(), {{"x", x}, {"y", x}})({x, x})[0].to_vector<float>() == std::vector<float>{9, 16});
    CHECK(trace(Optional(), {{"x", x}})({x})[0].to_vector<float>() == std::vector<float>{3, 4});
    CHECK(trace(Optional(), {{"x", x}, {"y", x}})({x, x * 3})[0].to_vector<float>() == std::vector<float>{-6, -8});
    FAILS(ValueError, "trace: a function of 1 or 2 tensors is given 3", trace(Optional(), {{"x", x}, {"y", x}, {"z", x}}));

    const nn::GRU gru(3, 4);
    const Tensor steps = rand({2, 5, 3}), h = rand({1, 5, 4});
    const Graph graph = trace(gru, {{"x", steps}, {"h", h}});
    CHECK(allclose(graph({steps, h})[0], gru(steps, h).output));
    CHECK_FALSE(allclose(graph({steps, h})[0], gru(steps).output));
}

TEST_CASE("modules of any kind are traced with the names of their parameters") {
    const ForwardOfIn of_in;
    keeps_names(of_in, of_in);
    ForwardOfIn changeable;
    keeps_names(changeable, changeable);
    keeps_names(std::ref(changeable), changeable);
    keeps_names(std::cref(of_in), of_in);
    const ForwardOfTensor of_tensor;
    keeps_names(of_tensor, of_tensor);
    CallOfIn called;
    keeps_names(called, called);
    OverloadedForward overloaded;
    keeps_names(overloaded, overloaded);
    keeps_names(nn::AnyModule(of_in), of_in);

    const Tensor x = rand({2, 3}), y = rand({2, 3});
    const ForwardOfAnything anything;
    const Graph graph = trace(anything, {{"x", x}});
    CHECK(graph.parameters().at(0)->name == "layer.weight");
    CHECK(equal(graph({y - 0.5})[0], anything.forward(y - 0.5)));
    CHECK(check_trace(graph, anything, {y - 0.5}));

    const ForwardOfTwo two;
    CHECK(equal(trace(two, {{"x", x}, {"y", y}})({y, y})[0], two.forward(y, y)));
    CHECK(equal(trace(overloaded, {{"x", x}, {"y", y}})({y, y})[0], overloaded.forward(y, y)));
    const ForwardOfList list;
    CHECK(equal(trace(list, {{"x", x}, {"y", y}})({y, y})[0], list.forward({y, y})));

    const Wrapped<ForwardOfTensor> wrapped(of_tensor);
    const Graph inner = trace(wrapped, {{"x", x}});
    CHECK(inner.parameters().at(0)->name == "inner.layer.weight");
    CHECK(equal(inner({y})[0], of_tensor.forward(y)));
}

TEST_CASE("ops in functions of In are on the line of the call") {
    const Tensor x = ones({2});
    const auto line_of = [](const Graph& graph) { return graph.nodes().at(0)->loc.line(); };
    const ForwardOfIn module;
    const OverloadedForward overloaded;
    CHECK(line_of(trace(by_in, {{"x", x}})) == __LINE__);
    CHECK(line_of(trace(std::function<Tensor(In)>(by_in), {{"x", x}})) == __LINE__);
    CHECK(line_of(trace([](In t) { return relu(t); }, {{"x", x}})) == __LINE__);
    CHECK(line_of(trace(module, {{"x", ones({2, 3})}})) == __LINE__);
    CHECK(line_of(trace(std::ref(module), {{"x", ones({2, 3})}})) == __LINE__);
    CHECK(line_of(trace(overloaded, {{"x", ones({2, 3})}})) == __LINE__);
    FAILS(ShapeError, "linear", trace(module, {{"x", ones({2, 4})}}));
    FAILS(ShapeError, "matmul", trace([](In t) { return matmul(t, t); }, {{"x", ones({2, 3})}}));
    const auto square = [](In t) { return matmul(t, t); };
    FAILS(ShapeError, "matmul", cond(ones({}), square, square, {ones({2, 3})}));
}

TEST_CASE("branches and bodies may be functions") {
    const Tensor x = tensor({3.f, 4.f});
    Tensor (*of_library)(In) = neg;
    CHECK(cond(x.sum() > 0, doubled, by_in, {x}).to_vector<float>() == std::vector<float>{6, 8});
    CHECK(cond(x.sum() > 0, of_library, doubled, {x}).to_vector<float>() == std::vector<float>{-3, -4});
    const Graph graph = trace([&](const Tensor& t) { return cond(t.sum() > 0, doubled, of_library, {t}); }, {{"x", x}});
    CHECK(graph({x})[0].to_vector<float>() == std::vector<float>{6, 8});
    CHECK(graph({-x})[0].to_vector<float>() == std::vector<float>{3, 4});
    const std::function<Tensor(const Tensor&)> is_small = [](const Tensor& t) { return t.sum() < 20; };
    CHECK(while_loop(is_small, doubled, {x})[0].to_vector<float>() == std::vector<float>{12, 16});
    CHECK(scan(reversed, {x}, {stack({x * 2, x * 3})}).carry[0].to_vector<float>() == std::vector<float>{9, 12});
}

TEST_CASE("a program that gives nothing is traced for what it writes") {
    nn::Parameter total{zeros({2})};
    const auto add = [&](const Tensor& x) {
        const NoGradScope plain;
        total.add_(x);
    };
    const Graph graph = trace(add, {{"x", ones({2})}});
    CHECK(graph.outputs().empty());
    CHECK(graph({full({2}, 3.0)}).empty());
    CHECK(total.to_vector<float>() == std::vector<float>{4, 4});
}
