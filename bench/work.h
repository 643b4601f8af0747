// The work that is timed. bench_tapir.cpp and bench_torch.cpp each define these functions; main.cpp registers them
// under the same names, so the two programs cannot drift apart. Each function says how many items it did
// (SetItemsProcessed): its row is time per item, or items per second.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

#include "sst.h"

namespace bench {

using State = benchmark::State;

/// Of this process, in MB; memory_now() also begins the peak anew.
double memory_now();
double peak_memory();

inline constexpr int kChain = 1000;  // ops per tape in the recorded rows, and per chain

/// One thread; no gradient recording beside what a row asks for.
void start();
void set_threads(int count);

// Rows of tiny ops: what an op costs beside its arithmetic.
void add_float4(State& state);
void add_float4_recorded(State& state);   // b is a leaf; the record's release is in the time
void backward_add_chain(State& state);    // y = y + b, kChain times; the backward only
void backward_tanh_chain(State& state);   // y = tanh(y)
void linear_1x64_recorded(State& state);  // (1, 64) -> (1, 64) with bias, both of them leaves
void view(State& state);                  // (4, 4) as (2, 8)
void narrow(State& state);                // 2 of 4 rows

// Large ones: how fast the arithmetic is.
enum class Unary { kTanh, kSigmoid, kExp, kGelu };
void add_n(State& state, std::int64_t n);
void unary_n(State& state, Unary op, std::int64_t n);
void sum_n(State& state, std::int64_t n);
void softmax_rows(State& state, std::int64_t rows, std::int64_t columns);
void layer_norm_rows(State& state, std::int64_t rows, std::int64_t columns);  // with weight and bias
void matmul_square(State& state, std::int64_t n);
void mlp_step(State& state);  // batch 64, 784-256-10, relu, mean cross-entropy, SGD 0.01

// Models: forward, backward, and where it says Adam a step of it, all parameters and inputs from formulas. Both programs
// must print the same losses (loss_first of the first step, loss_epoch of the fifth) unless bfloat16, an autocast scope around
// the forward pass. peak_mb, of a process's first row: the most
// memory that it had beside what it had before the row.
void mlp_adam(State& state);                    // 784-256-128-10, relu, batch 64
void cnn_adam(State& state, bool bfloat16);     // 1x28x28, two of conv 5x5 (32, 64) + relu + max pool 2, 128, 10; batch 64
void lstm(State& state);                        // 128 -> 256, 64 steps, batch 32; the mean of the squared outputs
void transformer(State& state, bool bfloat16);  // an encoder layer: width 256, 4 heads, 1024, batch 16 of 64; the same loss

inline int rows_trained = 0;

/// Runs one row: train_step() returns the loss as a number. Both programs use it.
template <class Step>
void time_training(State& state, bool has_losses, const Step& train_step) {
    static const bool is_first = rows_trained++ == 0;  // in this process; others find memory that was kept
    static double peak = -1;                           // of the first time
    const double before = memory_now();
    double first = 0, fifth = 0;
    for (int i = 0; i < 5; ++i) (i == 0 ? first : fifth) = train_step();  // buffers and plans are there after these
    if (peak < 0) peak = peak_memory() - before;
    for (auto _ : state) benchmark::DoNotOptimize(train_step());
    state.SetItemsProcessed(state.iterations());
    if (has_losses) state.counters["loss_first"] = first, state.counters["loss_epoch"] = fifth;
    if (is_first) state.counters["peak_mb"] = peak;
}

/// An item is a tree: the first kTrees of SST's train.txt, one at a time, a step each kTreesPerStep. Counters
/// loss_first (the summed loss of the first kTreesPerStep trees, before any step) and loss_epoch (of the first pass)
/// come from fixed weights: both programs must print the same to 1e-4.
void tree_lstm_train(State& state, int hidden, How how);
/// Trains with the trees of a step computed together by batch(), on as many threads as there are; libtorch has no such thing.
void tree_lstm_train_batched(State& state, int hidden, How how, std::size_t trees_per_step = 50);
/// Logits of every node, without a loss; batched: of all trees by one batch().
void tree_lstm_infer(State& state, int hidden, bool batched);

}  // namespace bench
