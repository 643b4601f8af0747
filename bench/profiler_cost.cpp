// profiler_cost [ROUNDS [ROW]]: what a Profiler adds to the time of a tiny op, in nanoseconds. Runs without and with one take turns, and a row is
// the difference of their best times: what other programs do to this machine makes runs only slower.
#include <tapir/core/parallel.h>
#include <tapir/tapir.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

using namespace tapir;

namespace {

constexpr int kOps = 1000;  // of a run
constexpr int kRuns = 20;

template <class T>
void keep(const T& value) {
    asm volatile("" : : "r"(&value) : "memory");
}

/// Nanoseconds that kOps ops took, of one.
using Run = std::function<double()>;

template <class Work>
double time(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kOps;
}

const char* only = nullptr;

void row(const char* name, int rounds, const Run& run) {
    if (only && std::strcmp(only, name) != 0) return;
    double plain = 1e30, profiled = 1e30;
    run();
    for (int i = 0; i < rounds; ++i) {
        const auto mean = [&] {
            double sum = 0;
            for (int k = 0; k < kRuns; ++k) sum += run();
            return sum / kRuns;
        };
        plain = std::min(plain, mean());
        const Profiler profiler;  // its memory is made, and touched for the first time, within the time
        profiled = std::min(profiled, mean());
    }
    std::printf("%-32s %8.1f %10.1f %12.1f\n", name, plain, profiled, profiled - plain);
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
    if (argc > 2) only = argv[2];
    set_num_threads(1);
    const Tensor a = randn({2}), b = randn({2}), leaf = randn({2}).requires_grad_();
    const Tensor x = randn({1, 64}), w = randn({64, 64}).requires_grad_(), bias = randn({64}).requires_grad_();
    const auto op = [](const auto& f) {
        return [f] {
            return time([&] {
                for (int i = 0; i < kOps; ++i) keep(f());
            });
        };
    };
    const auto recorded = [](const auto& f) {
        return [f] {
            const Tape tape;
            return time([&] {
                for (int i = 0; i < kOps; ++i) keep(f());
            });
        };
    };
    const auto backward = [&](const auto& f) {
        return [f, &leaf] {
            Tape tape;
            Tensor y = leaf;
            for (int i = 0; i < kOps; ++i) y = f(y);
            const Tensor loss = sum(y);
            return time([&] { tape.backward(loss); });
        };
    };
    std::printf("%-32s %8s %10s %12s\n", "ns per op", "plain", "profiled", "difference");
    row("add", rounds, op([&] { return a + b; }));
    row("add recorded", rounds, recorded([&] { return a + leaf; }));
    row("add of a number", rounds, op([&] { return a + 1; }));
    row("add in place", rounds, op([&] {
            Tensor y = a;
            return y += b;
        }));
    row("tanh", rounds, op([&] { return tanh(a); }));
    row("tanh recorded", rounds, recorded([&] { return tanh(leaf); }));
    row("view", rounds, op([&] { return x.view({8, 8}); }));
    row("sum", rounds, op([&] { return sum(a); }));
    row("linear 1x64", rounds, op([&] { return linear(x, w, bias); }));
    row("linear 1x64 recorded", rounds, recorded([&] { return linear(x, w, bias); }));
    row("backward of add", rounds, backward([&](const Tensor& y) { return y + b; }));
    row("backward of tanh", rounds, backward([](const Tensor& y) { return tanh(y); }));
}
