// ops FOLDER OPSET calls|float64|named|dtypes [NAME]: writes the graph of each example call of each op (or of the op NAME) as an ONNX model with
// inputs and what Tapir makes of them, for check.py. A folder for each, as in ONNX's backend tests: model.onnx, test_data_set_0.
//   calls   and the graph of its gradient
//   float64 the same, of float64
//   named   with a name for each size of its inputs in turn, and inputs of another size as a second data set
//   dtypes  of integers and bool in place of floats
#include <algorithm>
#include <cstdio>
#include <set>

#include "../ops/samples.h"
#include "write.h"

using namespace tapir;
using namespace onnx_test;

namespace {

std::ofstream table;
int opset = 17;

bool is_random(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
        if (node->form().is_random) return true;
    }
    return false;
}

void write_model(const fs::path& folder, const std::string& op, const char* kind, const std::string& what, const Program& fn,
                 const std::vector<Tensor>& inputs, std::int64_t named_size = -1) {
    fs::create_directories(folder);
    manual_seed(5);
    std::vector<TraceInput> named;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        named.push_back({"x" + std::to_string(i), inputs[i]});
        for (const std::int64_t size : inputs[i].shape()) named.back().dims.push_back(size == named_size ? "n" : "");
    }
    Graph graph;
    try {
        graph = trace(fn, named);
    } catch (const Error& error) {
        if (named_size >= 0) return fs::remove_all(folder), void();  // it is of this size
        return note(table, folder, op, kind, "untraced", what, error.what());
    }
    const bool random = is_random(graph);
    std::ofstream(folder / "graph.txt") << graph.str();
    try {
        write_data(folder / "test_data_set_0", fn, inputs, /*has_exact=*/!random);
        if (named_size >= 0) {
            std::vector<Tensor> larger = inputs;
            for (Tensor& x : larger) {
                for (int d = 0; d < x.dim(); ++d) {
                    if (x.size(d) == named_size) x = index_select(x, d, remainder(arange(named_size + 3), named_size));
                }
            }
            try {
                const std::vector<Tensor> wanted = fn(larger), got = graph(larger);
                for (std::size_t i = 0; i < wanted.size(); ++i) {  // a graph of this size only
                    const bool is_same =
                        got[i].shape() == wanted[i].shape() && (random || allclose(got[i].to(float64), wanted[i].to(float64), 1e-4, 1e-5, true));
                    if (!is_same) return fs::remove_all(folder), void();
                }
                write_data(folder / "test_data_set_1", fn, larger, /*has_exact=*/!random);
            } catch (const Error&) {
                return fs::remove_all(folder), void();
            }
        }
        save_onnx((folder / "model.onnx").string(), graph, {.opset = opset});
    } catch (const Error& error) {
        return note(table, folder, op, kind, "refused", what, error.what());
    }
    note(table, folder, op, kind, random ? "random" : "ok", what);
}

}  // namespace

int main(int argc, char** argv) {
    const fs::path folder = argc > 1 ? argv[1] : "onnx_ops";
    if (argc > 2) opset = std::atoi(argv[2]);
    const std::string mode = argc > 3 ? argv[3] : "calls", only = argc > 4 ? argv[4] : "";
    fs::create_directories(folder);
    table.open(folder / "table.tsv");
    int number = 0;
    for (const test::Call& call : test::all_calls()) {
        ++number;
        if (!only.empty() && call.op->name != only) continue;
        std::vector<Tensor> inputs = test::make_inputs(call);
        for (Tensor& x : inputs) {
            if (x.dtype() == float64 && mode != "float64") x = x.to(float32);
        }
        char name[200];
        std::snprintf(name, sizeof name, "%04d_%s", number, call.op->name);
        const std::string what = call.inputs + ": " + (call.code.empty() ? call.op->name : call.code);
        if (mode == "named") {
            std::set<std::int64_t> sizes;
            for (const Tensor& x : inputs) {
                for (const std::int64_t size : x.shape()) sizes.insert(size);
            }
            for (const std::int64_t size : sizes) {
                if (size > 1)
                    write_model(folder / (std::string(name) + "_n" + std::to_string(size)), call.op->name, "named", what, call.run, inputs, size);
            }
            continue;
        }
        if (mode == "dtypes") {
            for (const test::Variant& variant : test::variants(call)) {
                if (variant.name.find('>') != std::string::npos) continue;  // sizes of 0
                try {
                    call.run(variant.inputs);
                } catch (const Error&) {
                    continue;  // no call
                }
                write_model(folder / (std::string(name) + "_" + variant.name), call.op->name, "dtype", variant.name + " " + what, call.run,
                            variant.inputs);
            }
            continue;
        }
        const bool is_double = mode == "float64";
        write_model(folder / name, call.op->name, is_double ? "float64" : "forward", what, call.run, inputs);
        if (!call.differentiable) continue;
        manual_seed(5);
        if (test::gradients(call, inputs).empty()) continue;
        write_model(
            folder / (std::string(name) + "_gradient"), call.op->name, is_double ? "float64_gradient" : "gradient", what,
            [&](const std::vector<Tensor>& x) { return test::gradients(call, x); }, inputs);
    }
}
