// What tracing, graphs and control flow refuse, each with its message.
#include <catch2/catch.hpp>

#include "../autograd/trace/unchecked.h"
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/trace/graphs.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/onnx_form.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

template <class E, class Fn>
void throws(const std::string& text, const Fn& fn) {
    INFO(text);
    try {
        fn();
        FAIL_CHECK("nothing thrown");
    } catch (const E& error) {
        CHECK_THAT(error.what(), Catch::Contains(text));
    }
}

const Tensor& x3() {
    static const Tensor x = ones({3});
    return x;
}

constexpr OpInfo unknown_op{"unknown_op", NonDiff, "An op without a form."};

void run(const std::string& text, const std::vector<Tensor>& x) { test::unchecked(text)(x); }

}  // namespace

TEST_CASE("inputs of a trace") {
    const auto same = [](const Tensor& x) { return x; };
    const auto add = [](const Tensor& a, const Tensor& b) { return a + b; };
    throws<ValueError>("trace: the input x is undefined", [&] { trace(same, {{"x", Tensor()}}); });
    throws<ValueError>("trace: the parameter w is undefined", [&] { trace(same, {{"x", x3()}}, {.parameters = {{"w", Tensor()}}}); });
    throws<ValueError>("trace: each input needs a name of its own, got \"x\"", [&] { trace(add, {{"x", x3()}, {"x", x3()}}); });
    throws<ValueError>("trace: 2 names of dimensions for the input x of shape (3,)", [&] { trace(same, {{"x", x3(), {"a", "b"}}}); });
    throws<ShapeError>("trace: the dimension n has size 3 and, in y, 2", [&] { trace(add, {{"x", x3(), {"n"}}, {"y", ones({2}), {"n"}}}); });
    throws<ValueError>("trace: at most 4 dimensions can have names, got 5",
                       [&] { trace(same, {{"x", ones({1, 1, 1, 1, 1}), {"a", "b", "c", "d", "e"}}}); });
}

TEST_CASE("functions that no graph can hold") {
    throws<ValueError>("trace: the function gave an undefined tensor", [] { trace([](const Tensor&) { return Tensor(); }, {{"x", x3()}}); });
    throws<TapeError>("trace: this thread traces already", [] {
        trace(
            [](const Tensor& x) {
                trace([](const Tensor& y) { return y; }, {{"y", x}});
                return x;
            },
            {{"x", x3()}});
    });
    throws<TapeError>("trace: what the program does depends on the sizes", [] {
        trace(
            [](const Tensor& x) {
                Tensor y = x;
                for (std::int64_t i = 0; i < x.size(0); ++i) y = y + 1;
                return y;
            },
            {{"x", x3(), {"n"}}});
    });
#if !defined(__SANITIZE_THREAD__)  // which touches all of the memory, tens of gigabytes
    throws<TapeError>("no formula of the named dimensions gives its shape", [] {
        trace([](const Tensor& x) { return zeros({x.size(0) * x.size(0) * x.size(0) * x.size(0) * x.size(0)}); }, {{"x", x3(), {"n"}}});
    });
#endif
    throws<TapeError>("an operand of it that no op made depends on the sizes",
                      [] { trace([](const Tensor& x) { return x * std::sqrt(static_cast<double>(x.size(0))); }, {{"x", x3(), {"n"}}}); });
    throws<TapeError>("a tensor of shape (3,) was made in the trace in a way that a graph cannot hold",
                      [] { trace([](const Tensor& x) { return x + detail::make_empty({3}, float32, cpu, Loc::current()); }, {{"x", x3()}}); });
    throws<TapeError>("trace: add writes to a tensor of shape (3,) in a way that a graph cannot hold", [] {
        Tensor w = ones({3});
        trace(
            [&](const Tensor& x) {
                const Tensor y = x + w;
                {
                    const detail::PauseRecording unseen;
                    w.add_(1);
                }
                return y + w;
            },
            {{"x", x3()}});
    });
    throws<TapeError>("trace: unknown_op is no op that a graph can hold", [] {
        trace(
            [](const Tensor& x) {
                const Tensor y = x.clone();
                record(unknown_op, Loc::current(), {&x}, y, {});
                return y;
            },
            {{"x", x3()}});
    });
    throws<ValueError>("cond: the function gave an undefined tensor",
                       [] { trace([](const Tensor& x) { return cond(sum(x) > 0, [] { return Tensor(); }, [&] { return x; }); }, {{"x", x3()}}); });
}

TEST_CASE("control flow that changes on its way") {
    const auto id = [](const Tensor& t) { return t; };
    throws<ValueError>("cond: an undefined tensor was given, or made", [&] { cond(sum(x3()) > 0, id, id, {Tensor()}); });
    throws<ValueError>("scan: 1 tensors are carried, the function gave 0",
                       [] { scan([](const Tensor&, const Tensor&) { return std::vector<Tensor>(); }, {x3()}, {x3()}); });
    throws<ValueError>("scan: the function gave 2 tensors, and 1 before", [] {
        int calls = 0;
        scan([&](const Tensor& x) { return std::vector<Tensor>(static_cast<std::size_t>(++calls), x); }, {}, {x3()});
    });
    throws<ShapeError>("scan: output 0 has shape (2,), and (1,) before", [] {
        int calls = 0;
        scan([&](const Tensor&) { return ones({++calls}); }, {}, {x3()});
    });
    throws<ValueError>("cond: a graph of it is missing", [] { run("input x: float32 ()\n%1: float32 () = cond(x)\noutput y = %1\n", {ones({})}); });
    const std::string body = "body={\n    input a: float32 ()\n    output b = a\n}";
    throws<ValueError>("scan: 1 tensors are carried along 0 others, by a graph with 1 outputs",
                       [&] { run("input x: float32 ()\n%1: float32 () = scan(x, " + body + ", carries=1, xs=0)\noutput y = %1\n", {ones({})}); });
    throws<ValueError>("scan: a graph of it takes 1 tensors, not 2",
                       [&] { run("input x: float32 (3,)\n%1: float32 (3,) = scan(x, x, " + body + ", carries=1, xs=1)\noutput y = %1\n", {x3()}); });
    throws<ValueError>("while_loop: 1 tensors are carried, the function gave 2", [] {
        const auto never = [](const Tensor& t) { return sum(t) < -1e9; };
        trace([&](const Tensor& t) { return while_loop(never, [](const Tensor& h) { return std::pair{h, h}; }, {t}); }, {{"x", x3()}});
    });
    throws<ShapeError>("scan: xs have shapes () and ()",
                       [&] { run("input x: float32 ()\n%1: float32 () = scan(x, " + body + ", carries=0, xs=1)\noutput y = %1\n", {ones({})}); });
}

TEST_CASE("graphs made by hand") {
    Graph graph;
    throws<ValueError>("Graph::add_parameter: w is undefined", [&] { graph.add_parameter("w", Tensor()); });
    graph.add_parameter("w", x3());
    throws<ValueError>("Graph::add_parameter: there is a parameter w already", [&] { graph.add_parameter("w", x3()); });
    throws<ValueError>("Graph::add_constant: the tensor is undefined", [&] { graph.add_constant(Tensor()); });
    throws<ValueError>("SymInt::floor_div: the divisor must be positive, got 0", [] { static_cast<void>(SymInt::dim("n").floor_div(0)); });
}

TEST_CASE("texts of graphs that are none") {
    throws<ValueError>("Graph::parse: line 2: a } is missing", [] { Graph::parse("input x: float32 ()\n%1: float32 () = cond(x, then_branch={\n"); });
    throws<ValueError>("graphs in graphs, 100 deep", [] {
        std::string text;
        for (int i = 0; i < 120; ++i) text += "%1: float32 () = cond(then_branch={\n";
        Graph::parse(text);
    });
    throws<ValueError>("softmax: its dim cannot be 9999999999900",
                       [] { run("input x: float32 (n,)\n%1: float32 (n,) = softmax(x, dim=99999999999*n)\noutput y = %1\n", {ones({100})}); });
    throws<ValueError>("fused: 1 operands do not fit a body that is not there",
                       [] { run("input x: float32 (3,)\n%1: float32 (3,) = fused(x, body={})\noutput y = %1\n", {x3()}); });
    throws<ValueError>("fused: sum is no element-wise op", [] {
        run("input x: float32 (3,)\n%1: float32 () = fused(x, body={\n    input a: float32 (3,)\n    %1: float32 () = sum(a, dims=(0,), "
            "keepdim=false)\n"
            "    output b = %1\n})\noutput y = %1\n",
            {x3()});
    });
    throws<ShapeError>("place: values of shape (3,) for a part of shape (2,)", [] {
        run("input x: float32 (3,)\n%1: float32 (4,) = place(x, sizes=(2,), strides=(1,), offset=0, shape=(4,))\noutput y = %1\n", {x3()});
    });
    throws<ShapeError>("embedding_bag: indices (3,) and bags (2,) of a weight (5, 3) do not fit", [] {
        run("input w: float32 (5, 3)\ninput i: int64 (3,)\ninput b: int64 (2,)\n%1: float32 (2, 3), %2: float32 (2, 1) = embedding_bag(w, i, b, "
            "mode=\"mean\", "
            "num_bags=2, padding_idx=-1)\noutput y = %1\n",
            {ones({5, 3}), zeros({3}, int64), zeros({2}, int64)});
    });
    throws<ValueError>("a matrix of 3000000000 x 1 is too large", [] { tril_indices(3000000000, 1); });
    const std::string two = "input x: float32 (3,)\n%1: float32 (3,), %2: float32 (3,) = relu(x)\noutput y = %2\n";
    throws<ValueError>("graph: relu gives no result 1", [&] { run(two, {x3()}); });
    throws<ValueError>("graph: relu gives no result 1", [&] { test::unchecked(two).run({{"x", x3()}}); });
    throws<ValueError>("relu gave no result 1",
                       [&] { check_trace(test::unchecked(two), [](const Tensor& x) { return relu(x); }, {x3()}, {.same_ops = false}); });
}

TEST_CASE("inputs that a graph was not made for") {
    const Graph graph = trace([](const Tensor& a, const Tensor& b) { return a + b; }, {{"a", x3(), {"n"}}, {"b", x3(), {"n"}}});
    throws<ShapeError>("graph: the dimension n has size 3, but 2 in the input b of shape (2,)", [&] { graph({x3(), ones({2})}); });
    throws<ValueError>("graph: 1 inputs given, it has 2", [&] { graph({x3()}); });
    throws<ValueError>("graph: the input b is undefined", [&] { graph({x3(), Tensor()}); });
}

TEST_CASE("updates of optimizers that a graph says wrongly") {
    const auto sgd = [](const std::string& p, const std::string& g, const std::string& progress) {
        return "input p: " + p + "\ninput g: " + g + "\nconstant %2: " + progress + "\n%3: " + p +
            ", %4: float64 (2,) = sgd(p, g, %2, lr=0.1)\noutput y = %3\n";
    };
    const std::string start = "float64 (2,) = [0.0, 1.0]";
    throws<ShapeError>("SGD: the gradient has shape (2,), the parameter (3,)",
                       [&] { run(sgd("float32 (3,)", "float32 (2,)", start), {x3(), ones({2})}); });
    throws<DTypeError>("SGD: the parameter is int64", [&] { run(sgd("int64 (3,)", "float32 (3,)", start), {ones({3}, int64), x3()}); });
    throws<ShapeError>("SGD: the progress is float64 (1,), and needs to be float64 (2,) on the CPU",
                       [&] { run(sgd("float32 (3,)", "float32 (3,)", "float64 (1,) = [0.0]"), {x3(), x3()}); });
    throws<ValueError>("SGD: -1 steps", [&] { run(sgd("float32 (3,)", "float32 (3,)", "float64 (2,) = [-1.0, 1.0]"), {x3(), x3()}); });
}

TEST_CASE("what is written as ONNX has a graph to be in") {
    throws<ValueError>("onnx: numbers alone are no values", [] {
        const CallerScope here(Loc::current());
        static_cast<void>(OnnxValue(1) + OnnxValue(2));
    });
}
