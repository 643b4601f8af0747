// Several CUDA devices: the emulator has two.
#include <chrono>
#include <cmath>
#include <thread>

#include "../fails.h"
#include "compare.h"
#include "tapir/nn/nn.h"
#include "tapir/optim/optim.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;
using namespace tapir::test;

/// Ends the test case, saying so, where there are not two CUDA devices.
#define NEEDS_TWO_DEVICES                                \
    if (tapir::cuda_device_count() < 2) {                \
        WARN("fewer than two CUDA devices: not tested"); \
        return;                                          \
    }                                                    \
    static_assert(true)

TEST_CASE("tensors are copied from device to device", "[cuda]") {
    NEEDS_TWO_DEVICES;
    const Tensor x = arange(24, float32).view({2, 3, 4});
    const Tensor first = x.to(cuda(0)), second = first.to(cuda(1));
    CHECK(first.device() == cuda(0));
    CHECK(second.device() == cuda(1));
    CHECK(second.to_vector<float>() == x.to_vector<float>());
    CHECK(second.to(cuda(0)).to_vector<float>() == x.to_vector<float>());
    // Views of either are packed where they are.
    CHECK(first.transpose(0, 2).to(cuda(1)).to_vector<float>() == x.transpose(0, 2).to_vector<float>());
    Tensor wide = zeros({2, 3, 8}, cuda(1));
    wide.narrow(2, 2, 4).copy_(first);
    CHECK(wide.sum().item() == 24 * 23 / 2);
    CHECK(wide[1][2][5].item() == 23);
    CHECK(wide[1][2][6].item() == 0);
    Tensor half = zeros({2, 3, 4}, {float16, cuda(1)});
    half.copy_(first);
    CHECK(half.to_vector<float>() == x.to_vector<float>());
    CHECK(zeros({0, 3}, cuda(0)).to(cuda(1)).shape() == Shape(0, 3));
    CHECK(empty_like(second).device() == cuda(1));
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("host memory may be written to after a copy, also where a device reads it in its turn", "[cuda]") {
    for (const Device device : {cuda(0), cuda(1)}) {
        const Stream side(device);
        const StreamScope scope(side);
        const auto handle = static_cast<cudaStream_t>(side.native_handle());
        Tensor host = full({1000}, 3, float32);
        emulator::hold(handle);
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
            emulator::release(handle);
        });
        const Tensor x = host.to(device);
        host.fill_(9);
        later.join();
        CHECK(x[999].item() == 3);
    }
}

TEST_CASE("copies between devices go without the host, whoever has enabled that", "[cuda]") {
    int selected = 0;
    cudaGetDevice(&selected);
    cudaSetDevice(1);
    cudaDeviceEnablePeerAccess(0, 0);
    cudaSetDevice(selected);
    cudaGetLastError();
    const Tensor x = arange(5, {float32, cuda(0)}), y = x.to(cuda(1));
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(emulator::has_peer_access(0, 1));
    CHECK(emulator::has_peer_access(1, 0));
    CHECK(y.to_vector<float>() == x.to_vector<float>());
}

TEST_CASE("events, streams and launches belong to one device", "[cuda]") {
    const Stream first(cuda(0)), second(cuda(1));
    cudaEvent_t event = nullptr;
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(second.native_handle())) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(first.native_handle())) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(second.native_handle()), event) == cudaSuccess);
    const cudaLaunchConfig_t config{1, 1, 0, static_cast<cudaStream_t>(second.native_handle()), nullptr, 0};
    CHECK(emulator::launch(config, [] {}) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    cudaGetLastError();
    synchronize();
}
#endif

TEST_CASE("random numbers do not depend on the device", "[cuda]") {
    NEEDS_TWO_DEVICES;
    std::vector<std::vector<float>> drawn;
    for (const Device device : {cpu, cuda(0), cuda(1)}) {
        manual_seed(4);
        drawn.push_back(rand({50}, device).to_vector<float>());
        const std::vector<float> next = rand({50}, device).to_vector<float>();
        drawn.back().insert(drawn.back().end(), next.begin(), next.end());
    }
    CHECK(drawn[1] == drawn[0]);
    CHECK(drawn[2] == drawn[0]);
    // One generator, whichever device asks.
    manual_seed(4);
    std::vector<float> turns = rand({50}, cuda(1)).to_vector<float>();
    const std::vector<float> next = rand({50}, cuda(0)).to_vector<float>();
    turns.insert(turns.end(), next.begin(), next.end());
    CHECK(turns == drawn[0]);
}

TEST_CASE("memory that two devices used is not handed out before both are through", "[cuda]") {
    NEEDS_TWO_DEVICES;
    const Stream reader(cuda(1));
    for (int i = 0; i < 20; ++i) {
        Tensor x = full({5000}, i, cuda(0)), y;
        {
            const StreamScope scope(reader);
            y = x.to(cuda(1));
        }
        x = Tensor();
        const Tensor other = full({5000}, -1, cuda(0));  // where x was
        reader.synchronize();
        CHECK(y[4999].item() == i);
        CHECK(y[0].item() == i);
    }
}

TEST_CASE("a thread for each device", "[cuda]") {
    NEEDS_TWO_DEVICES;
    double sums[2] = {};
    std::vector<std::thread> threads;
    for (const int device : {0, 1}) {
        threads.emplace_back([&sums, device] {
            const DeviceScope scope(cuda(device));
            Generator own(3);  // the default one is of both
            const Tensor w = (randn({30, 30}, own) * 0.1).requires_grad_();
            for (int i = 0; i < 10; ++i) {
                Tape tape;
                tape.backward(sum(square(tanh(matmul(randn({5, 30}, own), w)))));
            }
            if (w.grad().device() == cuda(device)) sums[device] = w.grad().sum().item();
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(sums[0] != 0);
    CHECK(sums[0] == sums[1]);
}

TEST_CASE("an op on tensors of two devices is an error that names both", "[cuda]") {
    NEEDS_TWO_DEVICES;
    const Tensor x = ones({2, 2}, cuda(0)), y = ones({2, 2}, cuda(1));
    const Tensor table = ones({4, 2}, cuda(1)), rows = tensor({0, 1}).to(cuda(0));
    FAILS(DeviceError, "mul: operands are on different devices: (2, 2) on cuda:0 and (2, 2) on cuda:1; move the second with to(cuda(0))", x * y);
    FAILS(DeviceError, "matmul: operands are on different devices: (2, 2) on cuda:1 and (2, 2) on cuda:0", matmul(y, x));
    FAILS(DeviceError, "(2, 2) on cuda:0 and (2, 2) on cuda:1", linear(x, y));
    FAILS(DeviceError, "cuda:0 and (2, 2) on cuda:1", cat({x, y}));
    FAILS(DeviceError, "cuda:0", where(x > 0, x, y));
    FAILS(DeviceError, "cuda:0", embedding(rows, table));
    FAILS(DeviceError, "cuda:0", mse_loss(x, y));
    FAILS(DeviceError, "cuda:0", cross_entropy(y, rows));
    Tensor z = ones({2, 2}, cuda(1));
    FAILS(DeviceError, "cuda:0", z += x);
    CHECK(z.sum().item() == 4);
}

TEST_CASE("device scopes nest", "[cuda]") {
    NEEDS_TWO_DEVICES;
    const DeviceScope outer(cuda(1));
    CHECK(zeros({2}).device() == cuda(1));
    {
        const DeviceScope inner(cuda(0));
        CHECK(nn::Linear(2, 2).weight.device() == cuda(0));
        {
            const DeviceScope innermost(cpu);
            CHECK(tensor({1, 2}).device() == cpu);
        }
        CHECK(default_device() == cuda(0));
    }
    CHECK(default_device() == cuda(1));
    CHECK(Stream::current().device() == cuda(1));
    CHECK((randn({3}) * 2 + 1).device() == cuda(1));
}

TEST_CASE("a model on two devices trains as on the CPU", "[cuda]") {
    NEEDS_TWO_DEVICES;
    struct Split : nn::Module {
        nn::Embedding table{9, 4};
        nn::Linear first{4, 8}, second{8, 3};
        void members(nn::Members& m) override { m("table", table)("first", first)("second", second); }
        Tensor forward(In indices) const {
            const Tensor h = tanh(first(table(indices)));
            return second(h.to(second.weight.device()));
        }
    };
    std::vector<std::vector<double>> losses, weights;
    std::vector<double> norms;
    for (const bool is_split : {false, true}) {
        manual_seed(2);
        Split model;
        optim::Adam adam(model.parameters(), {.lr = 0.01});
        if (is_split) {
            model.table.to(cuda(0));
            model.first.to(cuda(0));
            model.second.to(cuda(1));
        }
        losses.emplace_back();
        for (int step = 0; step < 5; ++step) {
            const Tensor indices = tensor({step, step + 1, 2, 8}).to(model.table.weight.device());
            Tape tape;
            const Tensor scores = model.forward(indices);
            CHECK(scores.device() == model.second.weight.device());
            const Tensor loss = cross_entropy(scores, tensor({0, 2, 1, 1}).to(scores.device()));
            tape.backward(loss);
            CHECK(model.first.weight.grad().device() == model.first.weight.device());
            CHECK(model.second.bias.grad().device() == model.second.bias.device());
            norms.push_back(optim::clip_grad_norm_(model.parameters(), 0.5).item());
            adam.step();
            adam.zero_grad();
            losses.back().push_back(loss.item());
        }
        weights.emplace_back();
        for (const Tensor& p : model.parameters()) {
            for (const double x : p.to_vector<double>()) weights.back().push_back(x);
        }
    }
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(losses[1][i] == Approx(losses[0][i]).epsilon(1e-5));
        CHECK(norms[5 + i] == Approx(norms[i]).epsilon(1e-5));
    }
    for (std::size_t i = 0; i < weights[0].size(); ++i) CHECK(weights[1][i] == Approx(weights[0][i]).margin(1e-4));
}

TEST_CASE("gradients cross devices and streams, twice", "[cuda]") {
    NEEDS_TWO_DEVICES;
    const Stream side(cuda(1));
    const Tensor w = full({50}, 0.3, {float64, cuda(0), true});
    Tape tape;
    const Tensor a = tanh(w);
    Tensor y;
    {
        const StreamScope scope(side);
        y = (a.to(cuda(1)) * a.to(cuda(1))).sum();
    }
    Stream::current(cuda(1)).wait_stream(side);
    const Tensor g = tape.gradient(y, {w}, {.create_graph = true})[0];
    const Tensor gg = tape.gradient(g.sum().to(cuda(1)), {w})[0];
    CHECK(g.device() == cuda(0));
    CHECK(gg.device() == cuda(0));
    const double t = std::tanh(0.3), d = 1 - t * t;
    CHECK(g[49].item() == Approx(2 * t * d));
    CHECK(gg[0].item() == Approx(2 * d * d - 4 * t * t * d));
}

TEST_CASE("each device has streams of its own", "[cuda]") {
    NEEDS_TWO_DEVICES;
    CHECK_FALSE(Stream::default_stream(cuda(0)) == Stream::default_stream(cuda(1)));
    const Stream first(cuda(0)), second(cuda(1));
    {
        const StreamScope one(first);
        CHECK(Stream::current(cuda(0)) == first);
        CHECK(Stream::current(cuda(1)) == Stream::default_stream(cuda(1)));
        const StreamScope two(second);
        CHECK(Stream::current(cuda(0)) == first);
        CHECK(Stream::current(cuda(1)) == second);
        const Tensor x = full({40}, 2, cuda(0)), y = (x * 3).to(cuda(1)) + 1;
        CHECK(y[39].item() == 7);
        // What one waits for on the other device.
        const Event done = second.record_event();
        first.wait_event(done);
        first.wait_stream(second);
        CHECK((y.to(cuda(0)) + x)[0].item() == 9);
    }
    CHECK(Stream::current(cuda(0)) == Stream::default_stream(cuda(0)));
    CHECK(Stream::current(cuda(1)) == Stream::default_stream(cuda(1)));
    synchronize();
}

TEST_CASE("each device counts its own memory", "[cuda]") {
    NEEDS_TWO_DEVICES;
    synchronize();
    const std::int64_t first = memory_stats(cuda(0)).live_bytes, second = memory_stats(cuda(1)).live_bytes;
    {
        const Tensor x = zeros({1000}, cuda(1));
        CHECK(memory_stats(cuda(0)).live_bytes == first);
        CHECK(memory_stats(cuda(1)).live_bytes >= second + 4000);
        nn::Linear layer(100, 100);
        layer.to(cuda(0));
        CHECK(memory_stats(cuda(0)).live_bytes >= first + 40000);
        layer.to(cuda(1));
        CHECK(memory_stats(cuda(0)).live_bytes == first);
        CHECK(memory_stats(cuda(1)).live_bytes >= second + 44000);
    }
    CHECK(memory_stats(cuda(0)).live_bytes == first);
    CHECK(memory_stats(cuda(1)).live_bytes == second);
}
