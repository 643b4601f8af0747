// What goes wrong on a device, and what is said about it.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <thread>

#include "../fails.h"
#include "check.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;

namespace {

struct Said {
    std::string where, what;  // "error_test.cpp:12", the rest
};

// What f throws, or a wait after it.
template <class E>
Said said(const std::function<void()>& f) {
    try {
        f();
        synchronize();
    } catch (const E& error) {
        const std::string text = error.what();
        const std::size_t end = text.find(": ");
        return {text.substr(0, end), text.substr(end + 2)};
    }
    return {};
}

std::string at_line(int line) { return "error_test.cpp:" + std::to_string(line); }

}  // namespace

TEST_CASE("devices that are not there", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({2});
    FAILS(DeviceError, "to: cuda:99: there", x.to(cuda(99)));
    FAILS(DeviceError, "zeros: cuda:99: there", zeros({2}, cuda(99)));
    FAILS(DeviceError, "Stream: cuda:99: there", Stream(cuda(99)));
    FAILS(DeviceError, "synchronize: cuda:99: there", synchronize(cuda(99)));
    FAILS(DeviceError, "memory_stats: cuda:99: there", memory_stats(cuda(99)));
    FAILS(DeviceError, "cuda_device_name: cuda:99: there", cuda_device_name(99));
}

TEST_CASE("operands on different devices", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({2, 2}), y = ones({2, 2}, cuda);
    FAILS(DeviceError, "add: operands are on different devices: (2, 2) on cpu and (2, 2) on cuda:0; move the first with to(cuda(0))", x + y);
    FAILS(DeviceError, "matmul: operands are on different devices", matmul(y, x));
    FAILS(DeviceError, "linear: operands are on different devices", linear(y, y, ones({2})));
    Tensor z = ones({2, 2}, cuda);
    FAILS(DeviceError, "mul: operands are on different devices", z *= x);
    CHECK((y + ones({}))[1][1].item() == 2);  // a 0-d tensor of the CPU is a number
    CHECK((ones({}) * y)[1][1].item() == 1);
    FAILS(DeviceError, "pin_memory: the tensor is on cuda:0, not on the CPU", y.pin_memory());
    Tensor w = ones({2, 2}, {float32, cuda, true});
    FAILS(DeviceError, "set_grad: operands are on different devices", w.set_grad(x));
    Tape tape;
    const Tensor loss = w * 2;
    FAILS(DeviceError, "backward: operands are on different devices", tape.backward(loss, {.gradient = x}));
}

TEST_CASE("a number of the CPU gets its gradient there", "[cuda]") {
    NEEDS_CUDA;
    const Tensor a = full({}, 3, {float32, cpu, true}), x = arange(4, {float32, cuda});
    Tape tape;
    tape.backward(sum(a * x));
    CHECK(a.grad().device() == cpu);
    CHECK(a.grad().item() == 6);
}

TEST_CASE("values that an op does not take are heard of at the next wait, as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    int line = 0;
    const auto check_same = [&](const std::function<void(Device)>& f) {
        const Said have = said<ValueError>([&] { f(cuda); }), want = said<ValueError>([&] { f(cpu); });
        CHECK(want.what != "");
        CHECK(have.what == want.what);
        CHECK(have.where == at_line(line));
        CHECK(want.where == at_line(line));
    };
    for (const double bad : {-0.25, 1.5, HUGE_VAL, std::nan("")}) {
        for (const DType dtype : {float32, float64, float16, bfloat16}) {
            for (const std::int64_t n : {1, 2000}) {
                INFO(bad << ", " << name(dtype) << ", " << n << " elements");
                Tensor p = full({n}, 0.5, {dtype});
                p[n - 1].fill_(bad);
                check_same([&](Device device) {
                    const Tensor x = p.to(device);
                    line = __LINE__ + 1;
                    bernoulli(x);
                });
                check_same([&](Device device) {
                    const Tensor x = p.to(device);
                    line = __LINE__ + 1;
                    binary_cross_entropy(x, x);
                });
            }
        }
    }
    check_same([&](Device device) {
        const Tensor weights = tensor({0.5, -1.0}).to(device);
        line = __LINE__ + 1;
        multinomial(weights, 1);
    });
    check_same([&](Device device) {
        const Tensor classes = tensor({1, -1}).to(device);
        line = __LINE__ + 1;
        one_hot(classes);
    });
    CHECK(said<Error>([] { binary_cross_entropy(tensor({0.0, 1.0, -0.0}).to(cuda), ones({3}, cuda)); }).what == "");
    const Tensor p = full({3}, 2, {float32, cuda});
    const SyncScope sync;
    FAILS(ValueError, "bernoulli: p must be in [0, 1], got 2", bernoulli(p));
}

TEST_CASE("of several ops with bad numbers the first one throws and tells of the others", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({3, 4}, cuda), index = tensor({1, 7}).to(cuda), p = full({3}, 2, {float32, cuda});
    synchronize();
    const int line = __LINE__ + 2;
    Said error = said<IndexError>([&] {
        embedding(index, x);
        bernoulli(p);
    });
    CHECK(error.where == at_line(line));
    CHECK(error.what == "embedding: index 7 is out of range for dimension 0 of shape (3, 4); and 1 more op: bernoulli at " + at_line(line + 1));
    CHECK(said<Error>([] {}).what == "");  // it is thrown once
    error = said<ValueError>([&] {
        bernoulli(p);
        for (int i = 0; i < 12; ++i) embedding(index, x);
    });
    CHECK(error.what == "bernoulli: p must be in [0, 1], got 2; and 12 more ops: embedding at " + at_line(__LINE__ - 2) + " (12 times)");

    const Stream side(cuda);
    error = said<ValueError>([&] {
        {
            const StreamScope scope(side);
            side.wait_stream(Stream::default_stream(cuda));
            embedding(index, x);
        }
        bernoulli(p);
    });
    CHECK(error.what == "bernoulli: p must be in [0, 1], got 2");
    CHECK(said<IndexError>([] {}).what == "embedding: index 7 is out of range for dimension 0 of shape (3, 4)");
    CHECK(said<Error>([] {}).what == "");
}

TEST_CASE("an index of the CPU without dimensions is a number beside any device", "[cuda]") {
    NEEDS_CUDA;
    const Tensor table = rand({5, 3}), x = rand({4}), bad = tensor(5);
    const Tensor there = table.to(cuda).requires_grad_(), here = table.clone().requires_grad_();
    const Tensor logits = x.to(cuda).requires_grad_(), same = x.clone().requires_grad_();
    for (const Tensor& index : {tensor(2), tensor(2, int32)}) {
        Tape tape;
        const Tensor rows = embedding(index, there), loss = sum(rows * rows) + cross_entropy(logits, index);
        CHECK(rows.device() == cuda);
        tape.backward(loss);
        const Tensor want = embedding(index, here);
        tape.backward(sum(want * want) + cross_entropy(same, index));
    }
    const int64_t ignored = -100;
    CHECK(cross_entropy(logits, tensor(ignored), {.reduction = Reduction::sum}).item() == 0);
    CHECK(amax(abs(there.grad().to(cpu) - here.grad())).item() < 1e-6);
    CHECK(amax(abs(logits.grad().to(cpu) - same.grad())).item() < 1e-6);
    FAILS(IndexError, "embedding: index 5 is out of range for dimension 0 of shape (5, 3)", embedding(bad, there));
    FAILS(DeviceError, "embedding: operands are on different devices: (1,) on cpu", embedding(tensor({1}), there));
}

TEST_CASE("waiting for an event tells of bad numbers before it", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({3, 4}, cuda), index = tensor({1, 7}).to(cuda);
    Event event;
    embedding(index, x);
    event.record(Stream::current(cuda));
    CHECK_THROWS_AS(event.synchronize(), IndexError);
    CHECK_NOTHROW(synchronize());
}

TEST_CASE("an op of several kernels is heard of when the last one reports", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({1, 40000}, cuda), bad = tensor({40000}).to(cuda);  // a line in several parts
    const SyncScope sync;
    FAILS(IndexError, "cross_entropy: target 40000 is out of range for 40000 classes", cross_entropy(x, bad));
    CHECK(said<Error>([] {}).what == "");
}

TEST_CASE("threads that share a stream lose no bad number", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({1, 40000}, cuda), bad = tensor({-1}).to(cuda), y = ones({3}, cuda);
    synchronize();
    std::atomic<int> heard{0};
    std::atomic<bool> is_over{false};
    const auto listen = [&](const std::function<void()>& f) {
        try {
            f();
            Stream::default_stream(cuda).synchronize();
        } catch (const IndexError&) {
            ++heard;
        }
    };
    std::thread other([&] {
        while (!is_over) listen([&] { exp(y); });
    });
    for (int i = 0; i < 100; ++i) listen([&] { cross_entropy(x, bad); });
    is_over = true;
    other.join();
    listen([] {});
    CHECK(heard == 100);
}

// Each op whose kernel may report a number takes one of 1,024 places until something waits.
TEST_CASE("more ops than there are places for bad numbers", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({3, 4}, cuda), good = tensor({1}).to(cuda), bad = tensor({7}).to(cuda);
    synchronize();
    CHECK(said<Error>([&] {
              for (int i = 0; i < 3000; ++i) embedding(good, x);
          }).what == "");
    int given = 0;
    const Said error = said<IndexError>([&] {
        embedding(bad, x);
        for (given = 1; given < 3000; ++given) embedding(good, x);
    });
    CHECK(error.what == "embedding: index 7 is out of range for dimension 0 of shape (3, 4)");
    CHECK(given == 1024);
    // What is left of earlier errors takes no place.
    for (int i = 0; i < 3; ++i) {
        CHECK(said<IndexError>([&] {
                  for (given = 0; given < 1000; ++given) embedding(bad, x);
              }).what != "");
        CHECK(given == 1000);
    }
}

TEST_CASE("a forked process is told that it cannot use CUDA", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({3}, cuda);
    Event event;
    event.record(Stream::current(cuda));
    synchronize();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        int told = 0;
        const auto try_to = [&](const std::function<void()>& f) {
            const std::string what = said<DeviceError>(f).what;
            told += what.find("CUDA cannot be used in a forked process: its parent had begun") != std::string::npos;
        };
        try_to([] { zeros({2}, cuda); });
        try_to([&] { exp(x); });
        try_to([] { synchronize(); });
        try_to([&] { event.query(); });
        try_to([&] { event.synchronize(); });
        const bool has_cpu = sum(ones({3})).item() == 3;
        _exit(told == 5 && has_cpu ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK((x + 1)[2].item() == 2);
}

#ifdef TAPIR_CUDA_EMULATED
namespace {
struct Cleared {
    ~Cleared() {
        emulator::clear_errors();
        try {
            synchronize();
        } catch (const Error&) {}
    }
};
}  // namespace

TEST_CASE("a launch that fails names the op and its line", "[cuda]") {
    const Cleared cleared;
    const Tensor x = ones({3}, cuda);
    emulator::fail_next_launch(cudaErrorInvalidConfiguration);
    FAILS(DeviceError, "exp: kernel launch: invalid configuration argument", exp(x));
    CHECK(exp(x)[0].item() == Approx(std::exp(1.0)));
}

TEST_CASE("an error that shows later names the ops that it can belong to", "[cuda]") {
    const Cleared cleared;
    const Tensor x = ones({3}, cuda);
    synchronize();
    SECTION("one op") {
        emulator::fail_next_kernel(cudaErrorIllegalAddress);
        const int line = __LINE__ + 1;
        const Tensor y = exp(x);
        try {
            synchronize();
            CHECK(false);
        } catch (const DeviceError& error) {
            CHECK(std::string(error.what()) ==
                  "error_test.cpp:" + std::to_string(line) + ": exp: CUDA error: an illegal memory access was encountered");
        }
    }
    SECTION("several ops") {
        emulator::fail_next_kernel(cudaErrorIllegalAddress);
        emulator::hold(nullptr);
        const int line = __LINE__ + 1;
        const Tensor y = exp(x);
        const Tensor z = log(y);
        emulator::release(nullptr);
        try {
            static_cast<void>(z.to_vector<float>());
            CHECK(false);
        } catch (const DeviceError& error) {
            const std::string what = error.what(), where = "error_test.cpp:" + std::to_string(line);
            INFO(what);
            CHECK(what.find(where + ": exp, or an op after it: CUDA error: an illegal memory access was encountered") == 0);
            CHECK(what.find("log at error_test.cpp:" + std::to_string(line + 1)) != std::string::npos);
            CHECK(what.find("TAPIR_SYNC=1 tells which") != std::string::npos);
        }
    }
    SECTION("with SyncScope it is the op itself") {
        const SyncScope sync;
        emulator::fail_next_kernel(cudaErrorIllegalAddress);
        FAILS(DeviceError, "tanh: CUDA error: an illegal memory access was encountered", tanh(x));
    }
    SECTION("in backward the line of the op") {
        const Tensor w = ones({3}, {float32, cuda, true});
        Tape tape;
        const int line = __LINE__ + 1;
        const Tensor y = tanh(w);
        synchronize();
        const SyncScope sync;
        emulator::fail_next_kernel(cudaErrorIllegalAddress);
        try {
            tape.backward(y, {.gradient = y});
            CHECK(false);
        } catch (const DeviceError& error) {
            INFO(error.what());
            CHECK(std::string(error.what()).find("error_test.cpp:" + std::to_string(line) + ": tanh: ") == 0);
        }
    }
}

TEST_CASE("a thread that has used no device yet is told of an error as well", "[cuda]") {
    const Cleared cleared;
    const Tensor x = ones({3}, cuda);
    emulator::fail_next_kernel(cudaErrorIllegalAddress);
    CHECK(said<DeviceError>([&] { exp(x); }).what != "");
    std::string what;
    std::thread([&] { what = said<DeviceError>([] { zeros({2}, cuda); }).what; }).join();
    CHECK(what.find("cudaSetDevice: an illegal memory access was encountered") != std::string::npos);
}

TEST_CASE("ops after an event are not counted as done with it", "[cuda]") {
    const Tensor x = ones({3, 4}, cuda), index = tensor({7}).to(cuda);
    synchronize();
    const Stream first(cuda), second(cuda);
    const auto held = static_cast<cudaStream_t>(second.native_handle());
    Event event, later;
    emulator::hold(held);
    later.record(second);
    {
        const StreamScope scope(first);
        exp(x);
        event.record(first);
        first.wait_event(later);
        embedding(index, x);
    }
    CHECK_NOTHROW(event.synchronize());
    emulator::release(held);
    CHECK(said<IndexError>([] {}).what == "embedding: index 7 is out of range for dimension 0 of shape (3, 4)");
}
#endif

TEST_CASE("what this device alone refuses", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = ones({2}, cuda);
    FAILS(DeviceError, "pin_memory: the tensor is on cuda:0, not on the CPU", x.pin_memory());
    const Tensor endless = tensor(1.0).expand({std::int64_t{1} << 50});
    FAILS(OutOfMemory, "no page-locked memory for 4503599627370496 bytes", endless.pin_memory());
    {
        const DeterministicScope scope;
        FAILS(DeviceError, "scatter_reduce: on CUDA products of floats are made in any order",
              scatter_reduce(x, 0, tensor({0, 0}).to(cuda), x, "prod"));
    }
    if (cuda_device_count() < 2) return;
    Event event;
    event.record(Stream::default_stream(cuda));
    FAILS(DeviceError, "Event::record: the event belongs to cuda:0, the stream to cuda:1", event.record(Stream::default_stream(cuda(1))));
}
