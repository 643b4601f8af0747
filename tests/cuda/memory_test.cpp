// Device memory: what is kept and used again, limits, running out and going on, threads.
#include <algorithm>
#include <thread>

#include "../core/failing_malloc.h"
#include "../fails.h"
#include "check.h"
#include "tapir/nn/nn.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

Tensor bytes(std::int64_t count) { return empty({count}, {uint8, cuda}); }

// As it was before: nothing cached, no limit.
struct Fresh {
    Fresh() {
        synchronize();
        empty_cache(cuda);
        reset_peak_memory(cuda);
    }
    ~Fresh() {
        set_memory_limit(0, cuda);
        empty_cache(cuda);
    }
};

bool caches() {
    { const Tensor x = bytes(1000); }
    return memory_stats(cuda).cached_bytes > 0;
}

}  // namespace

TEST_CASE("device memory is counted", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    const MemoryStats before = memory_stats(cuda);
    {
        const Tensor x = bytes(3 * kMiB), y = bytes(100);
        const MemoryStats now = memory_stats(cuda);
        CHECK(now.live_bytes - before.live_bytes >= 3 * kMiB + 100);
        CHECK(now.live_bytes - before.live_bytes < 3 * kMiB + 2000);
        CHECK(now.allocations - before.allocations == 2);
    }
    CHECK(memory_stats(cuda).live_bytes == before.live_bytes);
    CHECK(memory_stats(cuda).peak_bytes >= before.live_bytes + 3 * kMiB);
    reset_peak_memory(cuda);
    CHECK(memory_stats(cuda).peak_bytes == before.live_bytes);
    CHECK(memory_stats(cpu).live_bytes == memory_stats().live_bytes);
}

TEST_CASE("a step that runs out of memory can be repeated", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    std::vector<Tensor> weights;
    for (int i = 0; i < 6; ++i) weights.push_back(ones({kMiB / 4}, {float32, cuda, true}));
    const auto backward = [&] {
        Tape tape;
        Tensor loss = zeros({}, cuda);
        for (const Tensor& w : weights) loss = loss + sum(w * 3);
        tape.backward(loss);
    };
    optim::Adam adam(weights, {.lr = 0.1});
    backward();
    empty_cache(cuda);
    set_memory_limit(static_cast<std::size_t>(memory_stats(cuda).live_bytes + 5 * kMiB), cuda);
    CHECK_THROWS_AS(adam.step(), OutOfMemory);
    set_memory_limit(0, cuda);
    for (const Tensor& w : weights) CHECK(sum(w).item() == kMiB / 4);
    adam.step();
    for (const Tensor& w : weights) CHECK(w[7].item() == Approx(0.9));
    CHECK(weights[0].is_cuda());
}

TEST_CASE("from_blob takes memory of its device only, and gives it back", "[cuda]") {
    NEEDS_CUDA;
    const Tensor owner = arange(6, {float32, cuda});
    float here[6] = {};
    int freed = 0;
    {
        Tensor x = from_blob(owner.raw_data(), {2, 3}, [&](void* data) { freed += data == owner.raw_data(); }, cuda());
        CHECK(sum(x * 2).item() == 30);
        x.mul_(3);
        const Tensor side = stack({x, x});
        CHECK(side.at<float>({1, 1, 2}) == 15);
    }
    CHECK(freed == 1);
    CHECK(sum(owner).item() == 45);
    FAILS(DeviceError, "from_blob: data is not memory of cuda:0", from_blob(here, {6}, cuda()));
    CHECK(from_blob(here, {0}, cuda()).numel() == 0);
    if (cuda_device_count() > 1) {
        FAILS(DeviceError, "not memory of cuda:1", from_blob(owner.raw_data(), {6}, cuda(1)));
    }
}

TEST_CASE("device memory is used again, cut up and joined", "[cuda]") {
    NEEDS_CUDA;
    if (!caches()) return;
    const Fresh fresh;
    const std::int64_t taken = memory_stats(cuda).system_calls;
    for (int i = 0; i < 100; ++i) {
        const Tensor a = bytes(5000 + i), b = bytes(70000), c = bytes(2 * kMiB);
    }
    CHECK(memory_stats(cuda).system_calls - taken <= 2);
    {
        std::vector<Tensor> pieces;
        for (int i = 0; i < 5; ++i) pieces.push_back(bytes(4 * kMiB));  // one segment of 20 MiB
    }
    const Tensor whole = bytes(10 * kMiB);  // of the joined pieces
    CHECK(memory_stats(cuda).system_calls - taken <= 2);
    empty_cache(cuda);
    CHECK(memory_stats(cuda).cached_bytes <= 10 * kMiB);
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("memory that streams still use comes back when the last of them is through", "[cuda]") {
    if (!caches()) return;
    const Fresh fresh;
    const Stream first(cuda), second(cuda);
    constexpr int count = 50;
    std::vector<Tensor> tensors;
    std::vector<const void*> places;
    for (int i = 0; i < count; ++i) {
        tensors.push_back(full({50000}, i, cuda));
        places.push_back(tensors.back().raw_data());
    }
    synchronize();
    const auto handle = [](const Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); };
    emulator::hold(handle(first));
    emulator::hold(handle(second));
    std::vector<Tensor> sums;
    for (const Stream& stream : {first, second}) {
        const StreamScope scope(stream);
        for (const Tensor& x : tensors) sums.push_back(sum(x));
    }
    tensors.clear();
    const auto is_old = [&](const Tensor& x) { return std::count(places.begin(), places.end(), x.raw_data()) > 0; };
    const int queried = emulator::events_queried();
    CHECK_FALSE(is_old(empty({50000}, cuda)));
    CHECK(emulator::events_queried() - queried == 2);  // one for each stream, however many blocks wait
    emulator::release(handle(second));
    second.synchronize();
    CHECK_FALSE(is_old(empty({50000}, cuda)));
    emulator::release(handle(first));
    first.synchronize();
    std::vector<Tensor> again;
    for (int i = 0; i < count; ++i) again.push_back(empty({50000}, cuda));
    CHECK(std::any_of(again.begin(), again.end(), is_old));
    CHECK(sums.back().item() == 50000.0 * (count - 1));
}
#endif

TEST_CASE("what is left of a large segment serves small tensors when memory is short", "[cuda]") {
    NEEDS_CUDA;
    if (!caches()) return;
    const Fresh fresh;
    set_memory_limit(20 * kMiB, cuda);
    const Tensor held = bytes(4 * kMiB);  // a segment of 20 MiB
    std::vector<Tensor> small;
    for (int i = 0; i < 12; ++i) small.push_back(bytes(kMiB));
    FAILS(OutOfMemory, "empty: 5.0 MiB cannot be had on cuda:0: 16.0 MiB are in use, 4.0 MiB are free in pieces", empty({5 * kMiB}, {uint8, cuda}));
    set_memory_limit(0, cuda);
}

#ifndef __SANITIZE_ADDRESS__
TEST_CASE("device memory is given back where the host has none", "[cuda]") {
    NEEDS_CUDA;
    if (!caches()) return;
    const Fresh fresh;
    const MemoryStats before = memory_stats(cuda);
    for (int pass = 0; pass < 2; ++pass) {
        std::vector<Tensor> all;
        for (int i = 0; i < 20; ++i) {
            for (const std::int64_t count : {std::int64_t{512}, 20 * std::int64_t{512}, kMiB / 2, 3 * kMiB}) all.push_back(bytes(count));
        }
        test::fail_malloc(1, /*all_after=*/true);
        for (Tensor& x : all) x = Tensor();
        const bool has_asked = test::has_malloc_failed();
        test::fail_malloc(0);
        CHECK(!has_asked);
        CHECK(memory_stats(cuda).live_bytes == before.live_bytes);
        CHECK(memory_stats(cuda).allocations - before.allocations == (pass + 1) * 80);
    }
    empty_cache(cuda);
    CHECK(memory_stats(cuda).cached_bytes == before.cached_bytes);
}
#endif

TEST_CASE("out of memory says who holds it, and the program goes on", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    set_memory_limit(64 * kMiB, cuda);
    const int line = __LINE__ + 1;
    const Tensor held = zeros({30 * kMiB}, {uint8, cuda});
    FAILS_IN(OutOfMemory, "empty: 50.0 MiB cannot be had on cuda:0: ", "memory_test.cpp:" + std::to_string(line) + " by zeros",
             empty({50 * kMiB}, {uint8, cuda}));
    FAILS_IN(OutOfMemory, "", "(limit: 64.0 MiB), held by\n", empty({50 * kMiB}, {uint8, cuda}));
    const Tensor x = full({1000}, 2, cuda);
    CHECK((x + 1)[999].item() == 3);
    { const Tensor fits = bytes(25 * kMiB); }
    const Tensor again = bytes(28 * kMiB);  // what is cached makes room
    set_memory_limit(0, cuda);
    const Tensor more = bytes(60 * kMiB);
    CHECK(more.numel() == 60 * kMiB);
    FAILS(DeviceError, "set_memory_limit: CPU memory has no limit of its own", set_memory_limit(1, cpu));
}

TEST_CASE("an op that runs out of memory leaves everything as it was", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    const Tensor x = ones({4 * kMiB}, {float32, cuda, true});
    Tape tape;
    const std::size_t records = tape.size();
    set_memory_limit(static_cast<std::size_t>(memory_stats(cuda).live_bytes + kMiB), cuda);
    FAILS(OutOfMemory, "tanh: 16.0 MiB cannot be had on cuda:0", tanh(x));
    CHECK(tape.size() == records);
    set_memory_limit(0, cuda);
    CHECK(tanh(x)[0].item() == Approx(std::tanh(1.0)));
}

TEST_CASE("out of memory within a layer or a step names the user's line", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    nn::Linear layer(256, 1024);
    layer.to(cuda);
    optim::Adam adam({layer.weight, layer.bias}, {.lr = 0.1});
    const Tensor x = ones({1024, 256}, cuda), y = zeros({1024, 1024}, cuda);
    const auto limit = [](std::int64_t more) {
        empty_cache(cuda);
        set_memory_limit(static_cast<std::size_t>(memory_stats(cuda).live_bytes + memory_stats(cuda).cached_bytes + more), cuda);
    };
    limit(0);
    FAILS(OutOfMemory, "linear: 4.0 MiB cannot be had", static_cast<void>(layer(x) + layer(x) + layer(x) + layer(x) + layer(x)));
    set_memory_limit(0, cuda);
    Tape tape;
    const Tensor loss = mse_loss(layer(x), y);
    tape.backward(loss);
    std::vector<Tensor> fill;  // what the last segments have left
    limit(0);
    try {
        for (;;) fill.push_back(empty({kMiB / 2}, {uint8, cuda}));
    } catch (const OutOfMemory&) {}
    FAILS(OutOfMemory, "adam: 1.0 MiB cannot be had", adam.step());
    set_memory_limit(0, cuda);
}

TEST_CASE("a module that finds no room on the device stays as it is", "[cuda]") {
    NEEDS_CUDA;
    const Fresh fresh;
    nn::Linear small(4, 1024), large(1024, 2048);
    nn::Sequential model(small, large);
    const std::int64_t live = memory_stats(cuda).live_bytes;
    set_memory_limit(static_cast<std::size_t>(live + 4 * kMiB), cuda);
    FAILS(OutOfMemory, "to: 8.0 MiB cannot be had on cuda:0", model.to(cuda));
    for (const Tensor& p : model.parameters()) CHECK(p.device() == cpu);
    CHECK(memory_stats(cuda).live_bytes == live);
    set_memory_limit(0, cuda);
    model.to(cuda);
    for (const Tensor& p : {small.weight, large.bias}) CHECK(p.device() == cuda);
    CHECK(model(ones({4}, cuda)).device() == cuda);
    model.to(cpu);
    CHECK(memory_stats(cuda).live_bytes == live);
}

TEST_CASE("threads share the device's memory", "[cuda]") {
    NEEDS_CUDA;
    const auto live = memory_stats(cuda).live_bytes;
    std::vector<std::thread> threads;
    std::vector<int> good(4, 0);
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([t, &good] {
            const Stream own(cuda);
            const StreamScope scope(own);
            std::vector<Tensor> kept;
            for (int i = 0; i < 60; ++i) {
                kept.push_back(full({100 + 37 * i}, t * 1000 + i, {float32, cuda}));
                if (i % 3 == 2) kept.erase(kept.begin());
                const Tensor& first = kept.front();
                const double value = first[0].item();
                good[static_cast<std::size_t>(t)] += value >= t * 1000 && value < t * 1000 + 60 && (first + 0)[-1].item() == value;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(good == std::vector<int>(4, 60));
    CHECK(memory_stats(cuda).live_bytes == live);
}
