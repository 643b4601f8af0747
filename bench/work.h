// The work that is timed. bench_tapir.cpp and bench_torch.cpp each define these functions; main.cpp registers them
// under the same names, so the two programs cannot drift apart. Each function says how many items it did
// (SetItemsProcessed): its row is time per item, or items per second.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

#include "sst.h"

namespace bench {

using State = benchmark::State;

inline constexpr int kChain = 1000;  // ops per tape in the recorded rows, and per chain

/// One thread; no gradient recording beside what a row asks for.
void start();

// Rows of tiny ops: what an op costs beside its arithmetic.
void add_float4(State& state);
void add_float4_recorded(State& state);   // b is a leaf; the record's release is in the time
void backward_add_chain(State& state);    // y = y + b, kChain times; the backward only
void backward_tanh_chain(State& state);   // y = tanh(y)
void linear_1x64_recorded(State& state);  // (1, 64) -> (1, 64) with bias, both of them leaves
void view(State& state);                  // (4, 4) as (2, 8)
void narrow(State& state);                // 2 of 4 rows

// Large ones: how fast the arithmetic is.
enum class Unary { kTanh, kSigmoid, kExp };
void add_n(State& state, std::int64_t n);
void unary_n(State& state, Unary op, std::int64_t n);
void sum_n(State& state, std::int64_t n);
void softmax_rows(State& state, std::int64_t rows, std::int64_t columns);
void layer_norm_rows(State& state, std::int64_t rows, std::int64_t columns);  // with weight and bias
void matmul_square(State& state, std::int64_t n);
void mlp_step(State& state);  // batch 64, 784-256-10, relu, mean cross-entropy, SGD 0.01

/// An item is a tree: the first kTrees of SST's train.txt, one at a time, a step each kTreesPerStep. Counters
/// loss_first (the summed loss of the first kTreesPerStep trees, before any step) and loss_epoch (of the first pass)
/// come from fixed weights: both programs must print the same to 1e-4. leaves_together: the leaves of a tree as one
/// product instead of one each.
void tree_lstm_train(State& state, int hidden, bool leaves_together);
/// Logits of every node, without a loss.
void tree_lstm_infer(State& state, int hidden);

}  // namespace bench
