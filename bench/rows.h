// Kinds of rows: an op, an op while gradients are recorded, gradients, a step. Each begins with a setup, which makes the operands and
// returns the call that is timed:
//
//     add_op("op/add/1M", [] { return [a = uniform({1 << 20}, 1), b = uniform({1 << 20}, 2)] { return a + b; }; });
//
// Counters beside the time: `check`, which both programs must agree on; `flops`, `bytes` and `kernels`, of one call.
#pragma once

#include <string_view>

#include "both.h"
#include "work.h"

namespace bench {

inline constexpr int kChain = 1000;  // ops per tape in the recorded rows, and per chain

/// What the machine must at least do for call(), by Tapir's Profiler. A kernel that does 8 FLOPs or more for each byte of its operands and
/// results counts by its FLOPs, another one by its bytes. `bytes`, if given, is for an op that touches only a part of its operands.
template <class Call>
void count_work([[maybe_unused]] State& state, [[maybe_unused]] const Call& call, [[maybe_unused]] double bytes = 0) {
#ifndef TAPIR_BENCH_TORCH
    double flops = 0, kernels = bytes > 0;
    if (bytes == 0) {
        tapir::Profiler profiler;
        benchmark::DoNotOptimize(call());
        profiler.stop();
        for (const tapir::ProfileRow& row : profiler.rows()) {
            const bool product = row.flops >= 8 * row.bytes && (row.bytes > 0 || row.name == "weight gradients");  // others without bytes are scopes
            if (product) flops += row.flops;
            if (!product && row.bytes > 0) bytes += row.bytes, kernels += static_cast<double>(row.calls);
        }
    }
    state.counters["flops"] = flops;
    state.counters["bytes"] = bytes;
    state.counters["kernels"] = kernels;
#endif
}

struct OpRow {
    bool is_random = false;  // then the results of the two programs differ
    double bytes = 0;        // see count_work()
    int threads = 1;
    const char* unit = "us";
};

template <class Setup>
void add_op(const std::string& name, const Setup& setup, const OpRow& row = {}) {
    const auto run = [setup, row](State& state) {
        const auto call = setup();
        const NoGradients guard;
        if (!row.is_random) state.counters["check"] = total(call());
        if (std::string_view(row.unit) != "ns") count_work(state, call, row.bytes);
        for (auto _ : state) benchmark::DoNotOptimize(call());
        state.SetItemsProcessed(state.iterations());
    };
    add_row(name, row.unit, run, row.threads);
}

/// A tiny op.
template <class Setup>
void add_tiny(const std::string& name, const Setup& setup, bool is_random = false) {
    add_op("tiny/" + name, setup, {.is_random = is_random, .unit = "ns"});
}

/// A tiny op that is recorded, kChain calls on each of Tapir's tapes; the release of the records is in the time.
template <class Setup>
void add_recorded(const std::string& name, const Setup& setup) {
    const auto run = [setup](State& state) {
        const auto call = setup();
        state.counters["check"] = total(call());
        for (auto _ : state) {
#ifndef TAPIR_BENCH_TORCH
            const tapir::Tape tape;
#endif
            for (int i = 0; i < kChain; ++i) benchmark::DoNotOptimize(call());
        }
        state.SetItemsProcessed(state.iterations() * kChain);
    };
    add_row("tiny/" + name + "_recorded", "ns", run);
}

enum class Part { kForward, kBackward };

/// A part of a chain of y = op(y), kChain times, on float[4]; per op.
template <class Op>
void add_chain(const std::string& name, Part part, const Op& op) {
    const auto run = [part, op](State& state) {
        Tensor x = leaf(uniform({4}));
        for (auto _ : state) {
            state.PauseTiming();
            {
#ifdef TAPIR_BENCH_TORCH
                x.mutable_grad() = Tensor();
#else
                x.zero_grad();
                tapir::Tape tape;
#endif
                Tensor y = x;
                if (part == Part::kForward) state.ResumeTiming();
                for (int i = 0; i < kChain; ++i) y = op(y);
                if (part == Part::kForward) state.PauseTiming();
                const Tensor loss = lib::sum(y);
                y = Tensor();
                if (part == Part::kBackward) state.ResumeTiming();
#ifdef TAPIR_BENCH_TORCH
                loss.backward();
#else
                tape.backward(loss);
#endif
                if (part == Part::kBackward) state.PauseTiming();
            }
            state.ResumeTiming();
        }
        state.SetItemsProcessed(state.iterations() * kChain);
        state.counters["check"] = total(x.grad());
    };
    add_row("tiny/" + name + (part == Part::kForward ? "_chain_forward" : "_chain_backward"), "ns", run);
}

/// A loss and its gradients; setup returns the leaves and the loss: std::pair(Tensors, call).
template <class Setup>
void add_gradients(const std::string& name, const Setup& setup, const OpRow& row = {}) {
    const auto run = [setup, row](State& state) {
        const auto made = setup();
        const auto call = [&] { return gradients(made.first, made.second); };
        double check = call();
        for (const Tensor& leaf : made.first) check += total(leaf.grad());
        state.counters["check"] = check;
        count_work(state, call, row.bytes);
        for (auto _ : state) benchmark::DoNotOptimize(call());
        state.SetItemsProcessed(state.iterations());
    };
    add_row("grad/" + name, "us", run, row.threads);
}

struct StepRow {
    bool has_losses = true;  // the programs must agree on the loss of the first and the fifth step
    double bytes = 0;        // see count_work()
};

inline std::string first_step;  // of this process

/// A step of training, one row for one thread and one for two; setup returns what makes a step and returns the loss as a number. peak_mb, of
/// a process's first row: the most memory that it had in the first five steps beside what it had before the model was made.
template <class Setup>
void add_step(const std::string& name, const Setup& setup, const StepRow& row = {}) {
    for (const int threads : {1, 2}) {
        const auto run = [=](State& state) {
            static double peak = -1;  // of the first time: later ones find memory that was kept
            if (first_step.empty()) first_step = name;
            const double before = memory_now();
            auto step = setup();
            double first = 0, fifth = 0;
            for (int i = 0; i < 5; ++i) (i == 0 ? first : fifth) = step();  // buffers and plans are there after these
            if (peak < 0) peak = peak_memory() - before;
            count_work(state, step, row.bytes);
            for (auto _ : state) benchmark::DoNotOptimize(step());
            state.SetItemsProcessed(state.iterations());
            if (row.has_losses) state.counters["loss_first"] = first, state.counters["loss_epoch"] = fifth;
            if (threads == 1 && first_step == name) state.counters["peak_mb"] = peak;
        };
        add_row("step/" + name, "us", run, threads);
    }
}

}  // namespace bench
