// bench_scaling [NAME=VALUE]...: how far training with Replicas scales, on paper (scaling.h). Prints the share of the ranks' time that is not lost, for 1 to
// 1,024 ranks; then the same for what others have published, beside their figures. Names: those of `costs` below.
#include "scaling.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

using namespace scaling;

namespace {

// Seconds and bytes. Measured by bench_parallel: a batch of 256, the link of Gloo. See README.md.
std::map<std::string, double> costs = {
    {"forward", 0.0152}, {"backward", 0.0199}, {"update", 0.0012}, {"copy", 0.0016},      {"bytes", 20.02e6}, {"bucket", 4 << 20},
    {"spread", 0.02},    {"latency", 47e-6},   {"call", 35e-6},    {"bandwidth", 1.43e9}, {"reduce", 1e18},
};

constexpr std::size_t kMost = 1024;

Job tapir(Way way, double spread) {
    return {.forward = costs["forward"],
            .backward = costs["backward"],
            .update = costs["update"],
            .bytes = costs["bytes"],
            .bucket = costs["bucket"],
            .spread = spread,
            .way = way,
            .link = {costs["latency"], costs["bandwidth"], costs["reduce"]},
            .copy = costs["copy"],
            .call = costs["call"],
            .compares = true};
}

void print_tapir() {
    std::printf("| ranks | ring | halving | tree | one bucket | ring, spread %.3f | halving, spread %.3f |\n|---|---|---|---|---|---|---|\n",
                costs["spread"], costs["spread"]);
    for (std::size_t ranks = 1; ranks <= kMost; ranks *= 2) {
        Job whole = tapir(Way::ring, 0);
        whole.bucket = whole.bytes;
        std::printf("| %zu |", ranks);
        for (const Job& job : {tapir(Way::ring, 0), tapir(Way::halving, 0), tapir(Way::tree, 0), whole, tapir(Way::ring, costs["spread"]),
                               tapir(Way::halving, costs["spread"])})
            std::printf(" %.0f%% |", 100 * efficiency(job, ranks, 50));
        std::printf("\n");
    }
}

// What is published is the share at `ranks` of that at `than` ranks. A step is a third forward and two thirds backward.
struct Published {
    const char* what;
    double parameters, step;  // of float32; seconds
    std::size_t ranks_of_machine, than, ranks;
    const char* figure;
};

// The time of a step: TensorFlow's on one P100 (its performance/benchmarks page, 2017), 64 images, and 32 for ResNet-50 as in Goyal et al.
constexpr Published kPublished[] = {
    {"Horovod, Inception V3", 23.8e6, 64 / 142.0, 4, 1, 512, "90%"},
    {"Horovod, VGG-16", 138.4e6, 64 / 154.0, 4, 1, 128, "79%"},
    {"Horovod, VGG-16", 138.4e6, 64 / 154.0, 4, 1, 512, "68%"},
    {"Goyal et al. 2017, ResNet-50", 25.6e6, 32 / 195.0, 8, 8, 256, "about 90%"},
};

void print_published() {
    std::printf("\n| | ranks | published | on paper | 2%% spread | 5%% spread |\n|---|---|---|---|---|---|\n");
    for (const Published& p : kPublished) {
        Job job{.forward = p.step / 3,
                .backward = p.step * 2 / 3,
                .update = 0,
                .bytes = p.parameters * 4,
                .bucket = 64 << 20,
                .spread = 0,
                .way = Way::ring,
                .link = {10e-6, 25e9 / 8, 100e9},
                .ranks_of_machine = p.ranks_of_machine,
                .inside = {10e-6, 10e9, 100e9}};
        std::printf("| %s | %zu to %zu | %s |", p.what, p.than, p.ranks, p.figure);
        for (const double spread : {0.0, 0.02, 0.05}) {
            job.spread = spread;
            std::printf(" %.0f%% |", 100 * efficiency(job, p.ranks) / efficiency(job, p.than));
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string text = argv[i];
        const auto cost = costs.find(text.substr(0, text.find('=')));
        char* end = nullptr;
        const double value = std::strtod(argv[i] + std::min(text.find('='), text.size() - 1) + 1, &end);
        if (cost == costs.end() || text.find('=') == std::string::npos || *end != 0 || !(value >= 0)) {
            std::fprintf(stderr, "bench_scaling: %s is not NAME=VALUE; the names:", argv[i]);
            for (const auto& [name, unused] : costs) std::fprintf(stderr, " %s", name.c_str());
            std::fprintf(stderr, "\n");
            return 1;
        }
        cost->second = value;
    }
    print_tapir();
    print_published();
}
