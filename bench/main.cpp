// The list of the rows, with their units, and main() of bench_tapir and of bench_torch. A name is the row's name in the
// table; its label is its unit.
#include <fstream>
#include <string>

#include "work.h"

namespace bench {

namespace {

// A line of /proc/self/status, in MB.
double status_of(const std::string& key) {
    std::ifstream file("/proc/self/status");
    for (std::string word; file >> word;) {
        double kilobytes = 0;
        if (word == key && file >> kilobytes) return kilobytes / 1000;
    }
    return 0;
}

}  // namespace

double memory_now() {
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak, VmHWM, becomes what there is
    return status_of("VmRSS:");
}

double peak_memory() { return status_of("VmHWM:"); }

namespace {

template <class Function>
void row(const std::string& name, const char* unit, Function&& function, int threads = 1) {
    const std::string full = threads == 1 ? name : name + "/threads:" + std::to_string(threads);
    auto* registered = benchmark::RegisterBenchmark(full.c_str(), [unit, function, threads](State& state) {
        set_threads(threads);
        function(state);
        set_threads(1);
        state.SetLabel(unit);
    });
    registered->Unit(benchmark::kMicrosecond);
    if (threads == 1) {
        registered->MeasureProcessCPUTime();  // what other programs do to this machine counts less than in wall time
    } else {
        registered->UseRealTime();
    }
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
        row("tree_lstm_train/" + std::to_string(h), "trees/s", [h](State& s) { tree_lstm_train(s, h, How::node_by_node); });
    }
    for (const int h : {64, 150, 300}) {
        const std::string size = "/" + std::to_string(h);
        row("tree_lstm_train_batched" + size, "trees/s", [h](State& s) { tree_lstm_train_batched(s, h, How::node_by_node); });
        row("tree_lstm_train_forked" + size, "trees/s", [h](State& s) { tree_lstm_train_batched(s, h, How::forking); });
    }
    for (const int threads : {1, 2}) {
        for (const int h : {64, 150, 300}) {
            const auto train = [h](State& s) { tree_lstm_train_batched(s, h, How::node_by_node, /*trees_per_step=*/100); };
            row("tree_lstm_train_100_batched/" + std::to_string(h), "trees/s", train, threads);
        }
    }
    row("tree_lstm_branch/150", "trees/s", [](State& s) { tree_lstm_train(s, 150, How::branching); });
    row("tree_lstm_branch_batched/150", "trees/s", [](State& s) { tree_lstm_train_batched(s, 150, How::branching); });
    row("tree_lstm_train_leaves_together/150", "trees/s", [](State& s) { tree_lstm_train(s, 150, How::leaves_together); });
    row("tree_lstm_infer/150", "trees/s", [](State& s) { tree_lstm_infer(s, 150, /*batched=*/false); });
    row("tree_lstm_infer_batched/150", "trees/s", [](State& s) { tree_lstm_infer(s, 150, /*batched=*/true); });

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
    for (const std::int64_t n : {64, 128, 256, 512}) {  // 1024: with the models
        row("matmul/" + std::to_string(n), "us", [n](State& s) { matmul_square(s, n); });
    }
    row("mlp_step", "us", mlp_step);

    for (const int threads : {1, 2}) {
        row("mlp_adam", "us", mlp_adam, threads);
        row("cnn_adam", "us", [](State& s) { cnn_adam(s, false); }, threads);
        row("lstm", "us", lstm, threads);
        row("transformer", "us", [](State& s) { transformer(s, false); }, threads);
        row("softmax/16384x1024", "us", [](State& s) { softmax_rows(s, 16384, 1024); }, threads);
        row("gelu/16777216", "us", [](State& s) { unary_n(s, Unary::kGelu, 1 << 24); }, threads);
        row("tanh/16777216", "us", [](State& s) { unary_n(s, Unary::kTanh, 1 << 24); }, threads);
        row("sum/16777216", "us", [](State& s) { sum_n(s, 1 << 24); }, threads);
        row("matmul/1024", "us", [](State& s) { matmul_square(s, 1024); }, threads);
    }
    row("cnn_adam/bfloat16", "us", [](State& s) { cnn_adam(s, true); });
    row("transformer/bfloat16", "us", [](State& s) { transformer(s, true); });
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
