// A deployed program: it knows Tapir::runtime alone. program FILE EXPECTED: runs the graph of FILE on the inputs that the file EXPECTED
// holds ("in NAME") and compares with its outputs ("out NAME").
#include <tapir/runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

using namespace tapir;

int main(int argc, char** argv) {
    if (argc == 2) {  // a file that is none, or lies
        try {
            load_graph(argv[1]).run({{"x", ones({3, 3})}});
        } catch (const Error& error) {
            std::printf("%s\n", error.what());
            return 0;
        }
    }
    if (argc != 3) return 2;
    try {
        const Graph graph = load_graph(argv[1]);
        Graph::Inputs inputs;
        std::vector<std::pair<std::string, Tensor>> expected;
        for (const NamedTensor& t : load_safetensors(argv[2])) {
            if (t.name.rfind("in ", 0) == 0) inputs.emplace_back(t.name.substr(3), t.tensor);
            if (t.name.rfind("out ", 0) == 0) expected.emplace_back(t.name.substr(4), t.tensor);
        }
        double off = 0;
        for (int repeat = 0; repeat < 3; ++repeat) {
            for (const auto& [name, y] : expected) {
                Tensor have;
                if (repeat < 2) {
                    have = graph.run(inputs, {name})[0];
                } else {
                    const CompiledGraph run = graph.compile({name});
                    std::vector<Tensor> given;
                    for (const std::string& input : run.inputs()) {
                        for (const auto& [own, x] : inputs) {
                            if (own == input) given.push_back(x);
                        }
                    }
                    have = run(given)[0];
                }
                if (have.shape() != y.shape() || have.dtype() != y.dtype()) return 3;
                const std::vector<double> a = have.to_vector<double>(), b = y.to_vector<double>();
                for (std::size_t i = 0; i < a.size(); ++i) {
                    const double differs = std::fabs(a[i] - b[i]) / (1 + std::fabs(b[i]));
                    if (!(differs <= off)) off = differs;  // also nan
                }
            }
        }
        // What a program does before and after: tensors of its own, looked at and indexed.
        const Tensor x = tensor({{1.0f, 2.0f}, {3.0f, 4.0f}});
        std::printf("%zu outputs, off by %.2g; %s, %g\n", expected.size(), off, x.str().c_str(), static_cast<double>(x.at<float>({1, 0})));
        return expected.empty() || !(off < 1e-5);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
