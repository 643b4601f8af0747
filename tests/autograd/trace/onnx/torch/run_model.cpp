// run_model MODEL INPUTS.npz OUTPUTS.npz: loads an ONNX model and writes its outputs, and, as grad.NAME, the gradients of its weights
// for the sum of all outputs. Inputs called known.NAME are known when the model is loaded. Where EXAMPLES is set,
// the others are its examples.
#include <cstdio>
#include <cstdlib>

#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/core/io/npy.h"
#include "tapir/tapir.h"

using namespace tapir;

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    try {
        const NamedTensors given = load_npz(argv[2]);
        LoadOnnxOptions options;
        for (const NamedTensor& input : given) {
            const bool is_known = input.name.starts_with("known.");
            if (is_known) options.known.emplace_back(input.name.substr(6), input.tensor);
            if (!is_known && std::getenv("EXAMPLES")) options.examples.emplace_back(input.name, input.tensor);
        }
        const Graph graph = load_onnx(argv[1], options);
        std::vector<Tensor> inputs;
        for (const Graph::Value* value : graph.inputs()) {
            for (const NamedTensor& input : given) {
                if (input.name == value->name) inputs.push_back(input.tensor);
            }
        }
        Tape tape;
        const std::vector<Tensor> outputs = graph(inputs);
        NamedTensors results;
        Tensor total;
        for (std::size_t k = 0; k < outputs.size(); ++k) {
            results.push_back({graph.outputs()[k].name, outputs[k].detach()});
            total = total.defined() ? total + sum(outputs[k]) : sum(outputs[k]);
        }
        std::vector<Tensor> weights;
        std::vector<std::string> names;
        for (const Graph::Value* value : graph.parameters()) {
            if (!value->data.requires_grad()) continue;
            weights.push_back(value->data);
            names.push_back(value->name);
        }
        if (!weights.empty()) tape.backward(total);
        for (std::size_t i = 0; i < weights.size(); ++i) {
            if (weights[i].grad().defined()) results.push_back({"grad." + names[i], weights[i].grad()});
        }
        save_npz(argv[3], results);
        std::printf("%zu nodes, %zu weights\n", graph.nodes().size(), weights.size());
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
