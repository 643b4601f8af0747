// write FOLDER [NAME]: writes the graph of each example call of each op (or of the op NAME), and of its gradient, as an ONNX model with
// inputs and what Tapir makes of them, for check.py. A folder for each, as in ONNX's backend tests: model.onnx, test_data_set_0.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "../ops/samples.h"
#include "tapir/autograd/trace/onnx/onnx.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

namespace fs = std::filesystem;
using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

std::ofstream manifest;

// One line of text.
std::string flat(std::string text) {
    for (char& c : text) {
        if (c == '\n' || c == '\t') c = ' ';
    }
    return text;
}

void write_tensors(const fs::path& folder, const char* what, const std::vector<Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        save_npy((folder / (std::string(what) + "_" + std::to_string(i) + ".npy")).string(), tensors[i].detach().contiguous());
    }
}

bool is_random(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
        if (node->attributes.form().is_random) return true;
    }
    return false;
}

void write_model(const fs::path& folder, const std::string& op, const char* kind, const std::string& what, const Function& fn,
                 const std::vector<Tensor>& inputs) {
    std::string result = "ok";
    bool random = false;
    try {
        manual_seed(5);
        std::vector<TraceInput> named;
        for (std::size_t i = 0; i < inputs.size(); ++i) named.push_back({"x" + std::to_string(i), inputs[i]});
        fs::create_directories(folder / "test_data_set_0");
        Graph graph;
        try {
            graph = trace(fn, named);
        } catch (const Error& error) {
            manifest << folder.filename().string() << '\t' << op << '\t' << kind << '\t' << "untraced\t" << flat(what) << '\t' << flat(error.what()) << '\n';
            return;
        }
        random = is_random(graph);
        std::ofstream(folder / "graph.txt") << graph.str();
        write_tensors(folder / "test_data_set_0", "input", inputs);
        manual_seed(5);
        write_tensors(folder / "test_data_set_0", "output", fn(inputs));
        if (!random) {  // the same in float64: what rounding does to it
            std::vector<Tensor> wide;
            for (const Tensor& x : inputs) wide.push_back(is_floating(x.dtype()) ? x.to(float64) : x);
            write_tensors(folder / "test_data_set_0", "exact", fn(wide));
        }
        save_onnx((folder / "model.onnx").string(), graph);
    } catch (const std::exception& error) {
        result = flat(error.what());
    }
    manifest << folder.filename().string() << '\t' << op << '\t' << kind << '\t' << (result == "ok" ? (random ? "random" : "ok") : "refused") << '\t'
             << flat(what) << '\t' << result << '\n';
}

std::vector<Tensor> gradients(const test::Call& call, const std::vector<Tensor>& inputs) {
    Tape tape;
    std::vector<Tensor> leaves, sources;
    for (const Tensor& x : inputs) {
        leaves.push_back(is_floating(x.dtype()) ? x.clone().requires_grad_() : x);
        if (is_floating(x.dtype())) sources.push_back(leaves.back());
    }
    Tensor total;
    for (const Tensor& y : call.run(leaves)) {
        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
        const Tensor part = sum(y * cos(y.detach()));
        total = total.defined() ? total + part : part;
    }
    if (!total.defined()) return {};
    return tape.gradient(total, sources);
}

}  // namespace

int main(int argc, char** argv) {
    const fs::path folder = argc > 1 ? argv[1] : "onnx_models";
    const std::string only = argc > 2 ? argv[2] : "";
    fs::create_directories(folder);
    manifest.open(folder / "ops.tsv");
    int number = 0;
    for (const test::Call& call : test::all_calls()) {
        ++number;
        if (!only.empty() && call.op->name != only) continue;
        std::vector<Tensor> inputs = test::make_inputs(call);
        for (Tensor& x : inputs) {
            if (x.dtype() == float64) x = x.to(float32);
        }
        char name[200];
        std::snprintf(name, sizeof name, "%04d_%s", number, call.op->name);
        const std::string what = call.inputs + ": " + (call.code.empty() ? call.op->name : call.code);
        write_model(folder / name, call.op->name, "forward", what, call.run, inputs);
        if (!call.differentiable) continue;
        manual_seed(5);
        try {
            if (gradients(call, inputs).empty()) continue;
        } catch (const Error& error) {
            std::fprintf(stderr, "%s: %s\n", call.name.c_str(), error.what());
            continue;
        }
        write_model(folder / (std::string(name) + "_gradient"), call.op->name, "gradient", what,
                    [&](const std::vector<Tensor>& x) { return gradients(call, x); }, inputs);
    }
}
