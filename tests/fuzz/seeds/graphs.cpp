// graph_seeds FOLDER: writes FOLDER/graph/NAME, the text of a graph for each example call of each op, and a few files of such into
// FOLDER/graph_file/NAME.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "../../ops/samples.h"
#include "tapir/autograd/trace/control_flow.h"
#include "tapir/autograd/trace/graph/graph_file.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;

int main(int, char** argv) {
    const std::filesystem::path texts = std::filesystem::path(argv[1]) / "graph", files = std::filesystem::path(argv[1]) / "graph_file";
    std::filesystem::create_directories(texts);
    std::filesystem::create_directories(files);
    int count = 0;
    const auto write = [&](const Graph& graph) {
        const std::string name = "seed" + std::to_string(count++);
        std::ofstream(texts / name) << graph.str();
        if (count % 100 == 1) save_graph((files / name).string(), graph);
    };
    for (const test::Call& call : test::all_calls()) {
        std::vector<TraceInput> inputs;
        for (const Tensor& x : test::make_inputs(call)) inputs.push_back({"x" + std::to_string(inputs.size()), x});
        const auto fn = [&](const std::vector<Tensor>& x) {
            std::vector<Tensor> results;
            for (const Tensor& y : call.run(x)) {
                if (y.defined()) results.push_back(y);
            }
            return results;
        };
        write(trace(fn, inputs));
    }
    const Tensor w = randn({3, 3}).requires_grad_();
    write(trace(
        [&](const Tensor& x) {
            const Tensor y = while_loop([](const Tensor& t) { return t.sum() < 100; }, [](const Tensor& t) { return t * 2; }, {x})[0];
            return cond(y.sum() > 0, [&] { return matmul(y, w); }, [&] { return -y; });
        },
        {{"x", ones({2, 3}), {"batch"}}}));
    std::printf("%d graphs\n", count);
}
