// A user's program that links Tapir::runtime: a graph is run, and what it gives looked at.
#include <tapir/runtime.h>

#include <cstdio>

using namespace tapir;

int main() {
    const Graph graph = Graph::parse("input x: float32 (n, 2)\n%1: float32 (n, 2) = exp(x)\noutput y = %1\n");
    const Tensor y = graph.run({{"x", zeros({3, 2})}}, {"y"})[0];
    const bool same = allclose(softmax(y, 1), full({3, 2}, 0.5));
    std::printf("of %lld rows: %s\n", static_cast<long long>(y.size(0)), same ? "the same" : "different");
    return same ? 0 : 1;
}
