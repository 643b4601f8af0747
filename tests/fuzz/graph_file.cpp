#include "tapir/autograd/trace/graph_file.h"

#include "input.h"

using namespace tapir;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::run([&] { load_graph(fuzz::file_of(data, size)); });
}
