// Saves models and what they give, for program.cpp: in this folder NAME.graph and NAME.expected.
#include <cstdio>

#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

void save(const std::string& name, const Graph& graph, const std::vector<Tensor>& inputs) {
    save_graph(name + ".graph", graph);
    NamedTensors expected;
    for (std::size_t i = 0; i < inputs.size(); ++i) expected.push_back({"in " + graph.inputs()[i]->name, inputs[i]});
    const std::vector<Tensor> outputs = graph(inputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) expected.push_back({"out " + graph.outputs()[i].name, outputs[i]});
    save_safetensors(name + ".expected", expected);
    std::printf("%s\n", name.c_str());
}

}  // namespace

int main() {
    manual_seed(1);
    nn::Linear hidden(20, 30), output(30, 5);
    save("mlp", trace([&](const Tensor& x) { return log_softmax(output(relu(hidden(x))), 1); }, {{"x", randn({4, 20}), {"batch"}}}),
         {randn({7, 20})});
    nn::LSTM lstm(6, 8, {.num_layers = 2});
    save("lstm", trace([&](const Tensor& x) { return lstm(x).output; }, {{"x", randn({5, 3, 6}), {"", "batch"}}}), {randn({5, 4, 6})});
    nn::NaryTreeLSTMCell cell(6, 8);
    const auto tree = [&](const Tensor& x, const Tensor& h, const Tensor& c) {
        const LSTMState node = cell({h, c}, cell(x));
        return std::vector<Tensor>{node.h, node.c};
    };
    save("tree", trace(tree, {{"x", randn({1, 6})}, {"h", randn({1, 8})}, {"c", randn({1, 8})}}), {randn({1, 6}), randn({1, 8}), randn({1, 8})});
    nn::Conv2d convolution(1, 4, 3);
    nn::BatchNorm2d norm(4);
    norm.eval();
    const auto lenet = [&](const Tensor& x) { return max_pool2d(relu(norm(convolution(x))), 2).flatten(1); };
    save("convolution", trace(lenet, {{"x", randn({2, 1, 12, 12}), {"batch"}}}), {randn({3, 1, 12, 12})});
    // A training step, which the runtime does not take.
    nn::Linear learner(2, 1);
    optim::Lion lion(learner.parameters(), {.lr = 0.1});
    const auto step = [&](const Tensor& x) {
        lion.zero_grad();
        Tape tape;
        const Tensor loss = learner(x).sum();
        tape.backward(loss);
        lion.step();
        return loss;
    };
    save_graph("training.graph", trace(step, {{"x", randn({3, 2})}}));
    // What no program has made.
    const auto write = [](const std::string& name, const std::string& node) {
        const std::string text = "input x: float32 (3, 3)\n" + node + "  # model.cpp:7\noutput y = %1\n";
        save_safetensors(name + ".graph", {}, {{"tapir_graph_version", "1"}, {"tapir_graph", text}});
    };
    write("missized", "%1: float32 (3, 4) = exp(x)");
    write("lying", "%1: float32 (3, 4) = matmul(x, x)");
    const auto loop = [](const Tensor& x) {
        return while_loop([](const Tensor& t) { return t.sum() < 100; }, [](const Tensor& t) { return t * 2; }, {x})[0];
    };
    save("loop", trace(loop, {{"x", ones({3})}}), {full({3}, 0.7)});
}
