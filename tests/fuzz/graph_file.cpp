// Files of graphs: each is a FileError or a graph that is whole, whose constants, indices among them, are as the file has them, and that
// gives errors or results when it is run.
#include "tapir/autograd/trace/graph/graph_file.h"

#include "input.h"
#include "run_graph.h"

using namespace tapir;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::run([&] {
        const Graph graph = load_graph(fuzz::file_of(data, size));
        graph.check();
        fuzz::run_graph(graph);
    });
}
