// What the files of rows share. A program is compiled twice, for Tapir (bench_tapir) and for PyTorch (bench_torch): most rows are one source
// for both (both.h); the Tree-LSTM, which each of them does in its own best way, is in tree_tapir.cpp and tree_torch.cpp.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <string>

#include "sst.h"

namespace bench {

using State = benchmark::State;

/// Makes a row of a name, which is that of its row in the table, with a unit: "ns", "us" or "ms" for an item, or "trees/s". The function
/// says how many items it did (SetItemsProcessed). CPU time of the process for one thread, time by the clock for more.
void add_row(const std::string& name, const char* unit, std::function<void(State&)> function, int threads = 1);

void add_limit_rows();
void add_tiny_rows();
void add_op_rows();
void add_sweep_rows();
void add_step_rows();
void add_inference_rows();
void add_adbench_rows();
void add_convnet_rows();

/// Of this process, in MB; memory_now() also begins the peak anew.
double memory_now();
double peak_memory();

/// One thread; no gradient recording beside what a row asks for.
void start();
void set_threads(int count);

/// An item is a tree: the first kTrees of SST's train.txt, one at a time, a step each kTreesPerStep. Counters
/// loss_first (the summed loss of the first kTreesPerStep trees, before any step) and loss_epoch (of the first pass)
/// come from fixed weights: both programs must print the same to 1e-4.
void tree_lstm_train(State& state, int hidden, How how);
/// Trains with the trees of a step computed together by batch(), on as many threads as there are; PyTorch has no such thing.
void tree_lstm_train_batched(State& state, int hidden, How how, std::size_t trees_per_step = 50);
/// Logits of every node, without a loss; batched: of all trees by one batch().
void tree_lstm_infer(State& state, int hidden, bool batched);

}  // namespace bench
