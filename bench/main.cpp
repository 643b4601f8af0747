// The list of the rows, with their units, and main() of bench_tapir and of bench_torch. A name is the row's name in the
// table; its label is its unit.
#include <string>

#include "work.h"

namespace bench {
namespace {

template <class Function>
void row(const std::string& name, const char* unit, Function&& function) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [unit, function](State& state) {
                                     function(state);
                                     state.SetLabel(unit);
                                 })
        ->MeasureProcessCPUTime()  // of all threads: what other programs do to this machine counts less than in wall
                                   // time
        ->Unit(benchmark::kMicrosecond);
}

void register_rows() {
    row("add_float4", "ns", add_float4);
    row("add_float4_recorded", "ns", add_float4_recorded);
    row("backward_add_chain", "ns", backward_add_chain);
    row("backward_tanh_chain", "ns", backward_tanh_chain);
    row("linear_1x64_recorded", "ns", linear_1x64_recorded);
    row("view", "ns", view);
    row("narrow", "ns", narrow);

    for (const int h : {64, 150, 300}) {
        row("tree_lstm_train/" + std::to_string(h), "trees/s", [h](State& s) { tree_lstm_train(s, h, false); });
    }
    row("tree_lstm_train_leaves_together/150", "trees/s", [](State& s) { tree_lstm_train(s, 150, true); });
    row("tree_lstm_infer/150", "trees/s", [](State& s) { tree_lstm_infer(s, 150); });

    for (const std::int64_t n : {1'000, 10'000, 100'000, 1'000'000, 10'000'000}) {
        const std::string size = "/" + std::to_string(n);
        row("add" + size, "us", [n](State& s) { add_n(s, n); });
        row("tanh" + size, "us", [n](State& s) { unary_n(s, Unary::kTanh, n); });
        row("sigmoid" + size, "us", [n](State& s) { unary_n(s, Unary::kSigmoid, n); });
        row("exp" + size, "us", [n](State& s) { unary_n(s, Unary::kExp, n); });
        row("sum" + size, "us", [n](State& s) { sum_n(s, n); });
    }
    row("softmax/64x10", "us", [](State& s) { softmax_rows(s, 64, 10); });
    row("softmax/256x1000", "us", [](State& s) { softmax_rows(s, 256, 1000); });
    row("layer_norm/128x768", "us", [](State& s) { layer_norm_rows(s, 128, 768); });
    for (const std::int64_t n : {64, 128, 256, 512, 1024}) {
        row("matmul/" + std::to_string(n), "us", [n](State& s) { matmul_square(s, n); });
    }
    row("mlp_step", "us", mlp_step);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    bench::start();
    bench::register_rows();
    benchmark::RunSpecifiedBenchmarks();
}
