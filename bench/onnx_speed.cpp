// onnx_speed MODEL INPUT.npz OUTPUT.npz SECONDS: loads an ONNX model, freezes, optimizes and compiles it, runs it on one thread for so long, writes
// its first output, and prints the milliseconds of the fastest run. See onnx_speed.py.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tapir/core/io/npy.h"
#include "tapir/graph.h"
#include "tapir/onnx.h"
#include "tapir/tapir.h"

using namespace tapir;

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    using Clock = std::chrono::steady_clock;
    using Seconds = std::chrono::duration<double>;
    try {
        set_num_threads(1);
        Graph graph = load_onnx(argv[1]);
        freeze(graph);
        optimize(graph);
        const CompiledGraph run = graph.compile();
        const std::vector<Tensor> inputs{load_npz(argv[2]).at(0).tensor};
        Tensor y = run(inputs)[0];
        save_npz(argv[3], {{"y", y}});
        const Clock::time_point start = Clock::now();
        double best = 1e9;
        for (int turns = 0; turns < 3 || Seconds(Clock::now() - start).count() < std::atof(argv[4]); ++turns) {
            const Clock::time_point before = Clock::now();
            y = run(inputs)[0];
            best = std::min(best, Seconds(Clock::now() - before).count());
        }
        std::printf("%.3f\n", best * 1e3);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
