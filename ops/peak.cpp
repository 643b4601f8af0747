// Measures what this machine can do.
#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <map>
#include <mutex>

#include "tapir/autograd/watch/peak_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/parallel.h"
#include "tapir/core/stream.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"

namespace tapir::detail {
namespace {

// Returns the time of the shortest of many runs, over a period that is long compared to other work on the machine.
template <class Work>
double fastest(const Work& work) {
    constexpr double long_enough = 0.3;  // seconds
    constexpr int least = 6;
    double best = 1e30, all = 0;
    for (int i = 0; i < least || all < long_enough; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        work();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        best = std::min(best, seconds);
        all += seconds;
    }
    return best;
}

Peak measure_here() {
    const TensorOptions here{float32, cpu};
    constexpr std::int64_t n = 512, many = 16 << 20;  // short enough that some run is not interrupted
    const Tensor a = full({n, n}, 0.5, here), source = full({many}, 1.0, here);
    Tensor target = empty({many}, here);
    Peak result;
    result.flops = 2.0 * n * n * n / fastest([&] { matmul(a, a); });
    // On a busy machine the threads wait for each other. This product is too small to be shared.
    constexpr std::int64_t small = 128;
    const Tensor b = full({small, small}, 0.5, here);
    const double of_one = 2.0 * small * small * small / fastest([&] { matmul(b, b); });
    result.was_busy = num_threads() > 1 && of_one > result.flops;
    result.flops = std::max(result.flops, of_one);
    result.bytes = 2.0 * many * sizeof(float) / fastest([&] { target.copy_(source); });
    return result;
}

// Increases the work until it takes long enough, by events; the first run of each size only makes plans and memory.
template <class Make>
double best_rate_on(Device device, std::initializer_list<std::int64_t> sizes, const Make& make) {
    constexpr double long_enough = 3e-3;
    double best = 0;
    for (const std::int64_t size : sizes) {
        try {
            auto [amount, work] = make(size);
            double seconds = 1e30;
            for (int i = 0; i < 3; ++i) {
                Event begin(true), end(true);
                begin.record(Stream::current(device));
                work();
                end.record(Stream::current(device));
                end.synchronize();
                if (i > 0) seconds = std::min(seconds, begin.elapsed_time(end) * 1e-3);
            }
            best = std::max(best, amount / std::max(seconds, 1e-9));
            if (seconds > long_enough) break;
        } catch (const OutOfMemory&) {
            break;
        }
    }
    return best;
}

Peak measure_on(Device device) {
    const TensorOptions there{float32, device};
    Peak result;
    result.flops = best_rate_on(device, {256, 1024, 4096, 8192}, [&](std::int64_t n) {
        const auto size = static_cast<double>(n);
        return std::pair(2 * size * size * size, [a = full({n, n}, 0.5, there)] { matmul(a, a); });
    });
    result.bytes = best_rate_on(device, {1 << 20, 1 << 24, 1 << 28}, [&](std::int64_t n) {
        return std::pair(2.0 * sizeof(float) * static_cast<double>(n),
                         [source = full({n}, 1.0, there), target = empty({n}, there)]() mutable { target.copy_(source); });
    });
    return result;
}

}  // namespace

Peak peak(int device) {
    static std::mutex mutex;
    static std::map<int, Peak> measured;
    const std::lock_guard lock(mutex);
    if (const auto found = measured.find(device); found != measured.end()) return found->second;
    const PauseRecording pause;
    const PauseAutocast plain;
    const PauseMemoryProfiler unseen;
    return measured[device] = device < 0 ? measure_here() : measure_on(cuda(device));
}

}  // namespace tapir::detail
