// A user's program that links Tapir::onnx: a model is traced, written as ONNX, and read again.
#include <tapir/graph.h>
#include <tapir/onnx.h>
#include <tapir/tapir.h>

#include <cstdio>

using namespace tapir;

int main(int, char** argv) {
    const std::string path = std::string(argv[0]) + ".onnx";
    nn::Sequential net(nn::Linear(4, 8), relu, nn::Linear(8, 3));
    const Graph graph = trace(net, {{"x", randn({2, 4}), {"batch"}}}, {.outputs = {"logits"}});
    save_onnx(path, graph);
    const Tensor x = randn({5, 4});
    const Tensor logits = load_onnx(path).run({{"x", x}}, {"logits"})[0];
    const bool same = allclose(logits, net(x), 1e-5, 1e-6);
    std::printf("of %lld rows: %s\n", static_cast<long long>(logits.size(0)), same ? "the same" : "different");
    return same ? 0 : 1;
}
