// main() of bench_tapir and of bench_torch, and the rows of the Tree-LSTM and of the machine's limits.
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

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

void add_row(const std::string& name, const char* unit, std::function<void(State&)> function, int threads) {
    const std::string full = threads == 1 ? name : name + "/threads:" + std::to_string(threads);
    auto* registered = benchmark::RegisterBenchmark(full.c_str(), [unit, function = std::move(function), threads](State& state) {
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

// Copies by the C library: what it reads and writes together, in GB/s. Of several sizes, as caches are faster than memory.
void add_limit_rows() {
    for (const std::size_t kilobytes : {32, 512, 8 * 1024, 24 * 1024, 512 * 1024}) {
        const std::size_t bytes = kilobytes * 1024;
        const auto copy = [bytes](State& state) {
            const std::vector<char> from(bytes / 2, 1);
            std::vector<char> to(bytes / 2);
            for (auto _ : state) {
                std::memcpy(to.data(), from.data(), from.size());
                benchmark::ClobberMemory();
            }
            state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
        };
        add_row("limit/copy/" + std::to_string(bytes), "GB/s", copy);
    }
}

namespace {

constexpr int kHidden[] = {64, 96, 150, 200, 300, 512};

void add_tree_rows() {
    for (const int h : kHidden) {
        add_row("tree_lstm_train/" + std::to_string(h), "trees/s", [h](State& s) { tree_lstm_train(s, h, How::node_by_node); });
        add_row("tree_lstm_train_plain_ops/" + std::to_string(h), "trees/s", [h](State& s) { tree_lstm_train(s, h, How::plain_ops); });
    }
    for (const int h : {64, 150, 300}) {
        const std::string size = "/" + std::to_string(h);
        add_row("tree_lstm_train_batched" + size, "trees/s", [h](State& s) { tree_lstm_train_batched(s, h, How::node_by_node); });
        add_row("tree_lstm_train_forked" + size, "trees/s", [h](State& s) { tree_lstm_train_batched(s, h, How::forking); });
    }
    for (const int threads : {1, 2}) {
        for (const int h : {64, 150, 300}) {
            const auto train = [h](State& s) { tree_lstm_train_batched(s, h, How::node_by_node, /*trees_per_step=*/100); };
            add_row("tree_lstm_train_100_batched/" + std::to_string(h), "trees/s", train, threads);
        }
    }
    const auto together = [](State& s) { tree_lstm_train(s, 150, How::leaves_together); };
    add_row("tree_lstm_branch/150", "trees/s", [](State& s) { tree_lstm_train(s, 150, How::branching); });
    add_row("tree_lstm_branch_batched/150", "trees/s", [](State& s) { tree_lstm_train_batched(s, 150, How::branching); });
    add_row("tree_lstm_train_leaves_together/150", "trees/s", together);
    for (const int h : kHidden) {
        const std::string size = "/" + std::to_string(h);
        add_row("tree_lstm_infer" + size, "trees/s", [h](State& s) { tree_lstm_infer(s, h, /*batched=*/false); });
        add_row("tree_lstm_infer_batched" + size, "trees/s", [h](State& s) { tree_lstm_infer(s, h, /*batched=*/true); });
    }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    bench::start();
    bench::add_limit_rows();
    bench::add_tiny_rows();
    bench::add_tree_rows();
    bench::add_op_rows();
    bench::add_sweep_rows();
    bench::add_step_rows();
    bench::add_inference_rows();
    bench::add_adbench_rows();
    bench::add_convnet_rows();
    benchmark::RunSpecifiedBenchmarks();
}
