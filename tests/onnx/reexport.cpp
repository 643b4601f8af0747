// reexport FOLDER: each case of ONNX's backend tests that load_onnx() reads is written again by save_onnx(), with its inputs and what it
// is to give, for check.py.
#include <cstdio>

#include "../autograd/trace/onnx/backend_cases.h"
#include "write.h"

using namespace backend;

namespace {

// Those whose results differ for a reason: "part/case: state: reason".
void write_known(const fs::path& folder) {
    std::ifstream in(TAPIR_ONNX_NOT_REEXPORTED);
    std::ofstream out(folder / "known.tsv");
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#') continue;
        const std::size_t a = line.find(": "), b = line.find(": ", a + 2);
        out << line.substr(0, a) << "\treexported\t" << line.substr(a + 2, b - a - 2) << '\t' << line.substr(b + 2) << '\n';
    }
}

bool is_random(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
        if (node->form().is_random) return true;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    const fs::path folder = argc > 1 ? argv[1] : "reexported";
    if (!fs::exists(data_folder() / "node")) {
        std::puts("skipped: no libonnx-testdata");
        return 77;
    }
    fs::create_directories(folder);
    write_known(folder);
    std::ofstream table(folder / "table.tsv");
    for (const std::string part : {"node", "simple", "pytorch-operator", "pytorch-converted"}) {
        for (const fs::path& path : cases_of(part)) {
            const Outcome outcome = run_case(path);
            if (!outcome.passes || outcome.runs.empty()) continue;  // not_passing.txt
            const std::string name = path.filename().string(), op = part + "/" + name;
            const fs::path to = folder / (part + "_" + name);
            const Run& run = outcome.runs[0];
            fs::create_directories(to / "test_data_set_0");
            std::ofstream(to / "graph.txt") << run.graph.str();
            try {
                onnx_test::write_tensors(to / "test_data_set_0", "input", run.inputs);
                onnx_test::write_tensors(to / "test_data_set_0", "output", run.outputs);
                save_onnx((to / "model.onnx").string(), run.graph);
                onnx_test::note(table, to, op, "reexported", is_random(run.graph) ? "random" : "ok", op);
            } catch (const std::exception& error) {
                onnx_test::note(table, to, op, "reexported", "refused", op, error.what());
            }
        }
    }
}
