// Streams, events, scopes and copies: what waits for what. The order is made visible by holding a stream, which only the
// emulator can do; on a GPU a long row of kernels stands in for it.
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "../fails.h"
#include "check.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#endif

using namespace tapir;

namespace {

// Keeps a stream from going on while it lives. Ops that are to return meanwhile must have run before: the first launch of a
// kernel loads it, for which CUDA may wait.
class Held {
 public:
    explicit Held(const Stream& stream) : stream_(stream) {
#ifdef TAPIR_CUDA_EMULATED
        emulator::hold(static_cast<cudaStream_t>(stream.native_handle()));
#else
        const StreamScope scope(stream);
        Tensor x = ones({1 << 25}, cuda);
        for (int i = 0; i < 2000; ++i) x.sin_();  // 0.2 s on an H100
#endif
    }
    void release() {
#ifdef TAPIR_CUDA_EMULATED
        if (held_) emulator::release(static_cast<cudaStream_t>(stream_.native_handle()));
#endif
        held_ = false;
    }
    ~Held() { release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

 private:
    Stream stream_;
    bool held_ = true;
};

double value(const Tensor& x) { return x.item(); }

}  // namespace

TEST_CASE("ops return before they are done, and reading waits for them", "[cuda]") {
    NEEDS_CUDA;
    const Stream stream(cuda);
    const StreamScope scope(stream);
    Tensor x = zeros({1000}, cuda) + 1;
    stream.synchronize();
    Held held(stream);
    x = x + 1;
    CHECK_FALSE(stream.query());
    held.release();
    CHECK(value(x[999]) == 2);
    CHECK(stream.query());
}

TEST_CASE("a stream waits for another where it is told to", "[cuda]") {
    NEEDS_CUDA;
    const Stream first(cuda), second(cuda);
    Tensor x = zeros({1000}, cuda), other = zeros({1000}, cuda);
    static_cast<void>((x.fill_(1) + 1)[0].item());
    x.fill_(0);
    Stream::current(cuda).synchronize();
    SECTION("wait_stream") {
        Held held(first);
        {
            const StreamScope scope(first);
            x.fill_(5);
        }
        second.wait_stream(first);
        Tensor y;
        {
            const StreamScope scope(second);
            y = x + 1;
        }
        CHECK_FALSE(second.query());  // it has not begun
        held.release();
        const StreamScope scope(second);
        CHECK(value(y[999]) == 6);
    }
    SECTION("an event") {
        Held held(first);
        Event event;
        {
            const StreamScope scope(first);
            x.fill_(7);
            event.record(first);
            other.fill_(8);
        }
        CHECK_FALSE(event.query());
        second.wait_event(event);
        held.release();
        event.synchronize();
        const StreamScope scope(second);
        CHECK(value(x[0]) == 7);
    }
    SECTION("without being told it does not") {
        Held held(first);
        {
            const StreamScope scope(first);
            x.fill_(5);
        }
        const StreamScope scope(second);
        CHECK(value(other[0]) == 0);
    }
}

TEST_CASE("what is read on the host is waited for, whichever stream wrote it", "[cuda]") {
    NEEDS_CUDA;
    const Stream side(cuda);
    Tensor x = zeros({1000}, cuda), y;
    static_cast<void>((x.fill_(0) + 1).to(cpu, true));
    side.wait_stream(Stream::default_stream(cuda));
    Held held(side);
    {
        const StreamScope scope(side);
        x.fill_(5);  // which the default stream allocated
        y = x + 1;
    }
    const Tensor converted = x.to(cpu, float64, true), x_here = x.to(cpu, true), y_here = y.to(cpu, true);
    CHECK_FALSE(Stream::default_stream(cuda).query());
    std::thread other([&] { held.release(); });
    CHECK(value(y[999]) == 6);
    CHECK(x.to(cpu)[999].item() == 5);
    CHECK(y.at<float>({0}) == 6);
    other.join();
    Stream::default_stream(cuda).synchronize();
    CHECK(value(x_here[999]) == 5);
    CHECK(value(y_here[999]) == 6);
    CHECK(value(converted[999]) == 5);
}

TEST_CASE("to another device and dtype at once", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = arange(5, float32), there = x.to(cuda, float64), back = there.to(cpu, int32);
    CHECK(there.device() == cuda);
    CHECK(there.dtype() == float64);
    CHECK(back.dtype() == int32);
    CHECK(back.to_vector<int>() == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(x.to(cuda, float16).dtype() == float16);
    CHECK(x.to(cpu, float32).is_same(x));
    const Stream stream(cuda);
    const StreamScope scope(stream);
    static_cast<void>(there.to(cpu, float32).to_vector<float>());
    const Tensor more = there + 1;
    Held held(stream);
    const Tensor later = (more * 2).to(cpu, float32, /*non_blocking=*/true);
    CHECK_FALSE(stream.query());
    held.release();
    stream.synchronize();
    CHECK(later.to_vector<float>() == std::vector<float>{2, 4, 6, 8, 10});
}

TEST_CASE("the current stream without a device is the innermost scope's", "[cuda]") {
    NEEDS_CUDA;
    const Stream side(cuda);
    CHECK(Stream::current() == Stream::current(cpu));
    {
        const StreamScope scope(side);
        CHECK(Stream::current() == side);
        Held held(side);
        Event event;
        event.record();
        CHECK_FALSE(event.query());
        {
            const StreamScope inner(Stream::current(cpu));
            CHECK(Stream::current() == Stream::current(cpu));
        }
        CHECK(Stream::current() == side);
    }
    CHECK(Stream::current() == Stream::current(cpu));
    const DeviceScope scope(cuda);
    CHECK(Stream::current() == Stream::default_stream(cuda));
}

TEST_CASE("events time what lies between them", "[cuda]") {
    NEEDS_CUDA;
    const Stream stream(cuda);
    Event begin(true), end(true);
    begin.record(stream);
    end.record(stream);
    end.synchronize();
    CHECK(begin.elapsed_time(end) >= 0);
    Event plain;
    FAILS(ValueError, "elapsed_time: both events must be made with enable_timing: Event begin(true)", plain.elapsed_time(end));
    Event other(true);
    FAILS(ValueError, "elapsed_time: both events must be recorded and done; synchronize() the second one first", other.elapsed_time(end));
    if (cuda_device_count() < 2) return;
    other.record(Stream::default_stream(cuda(1)));
    FAILS(ValueError, "elapsed_time: one event belongs to cuda:0, the other to cuda:1", begin.elapsed_time(other));
}

TEST_CASE("memory that another stream still uses is not given away", "[cuda]") {
    NEEDS_CUDA;
    const Stream side(cuda);
    Tensor x = full({5000}, 3, cuda);
    static_cast<void>((x + 1).sum().item());
    side.wait_stream(Stream::current(cuda));
    Held held(side);
    Tensor y;
    {
        const StreamScope scope(side);
        y = x + 1;
    }
    const void* place = x.raw_data();
    x = Tensor();
    Tensor z = full({5000}, 100, cuda);  // would take x's place
    CHECK(z.raw_data() != place);
    Stream::current(cuda).synchronize();
    held.release();
    const StreamScope scope(side);
    CHECK(value(y[4999]) == 4);
}

TEST_CASE("memory is used again in the order of its stream", "[cuda]") {
    NEEDS_CUDA;
    const void* place;
    {
        const Tensor x = full({5000}, 3, cuda);
        place = x.raw_data();
    }
    const Tensor y = full({5000}, 4, cuda);
    if (memory_stats(cuda).cached_bytes > 0) CHECK(y.raw_data() == place);
    CHECK(value(y[0]) == 4);
}

TEST_CASE("page-locked memory is copied on the side", "[cuda]") {
    NEEDS_CUDA;
    const bool is_followed = GENERATE(false, true);
    std::optional<MemoryProfiler> memory;
    if (is_followed) memory.emplace();
    const Stream side(cuda);
    const StreamScope scope(side);
    Tensor host = arange(1000, float32).pin_memory();
    {  // leaves page-locked memory for `back` and `other`
        const Tensor back = (host.to(cuda) * 2).to(cpu, /*non_blocking=*/true);
        side.synchronize();
        const Tensor other = back.clone().pin_memory();
    }
    CHECK(host.is_pinned());
    CHECK_FALSE(arange(3).is_pinned());
    CHECK(host.pin_memory().is_same(host));
    Held held(side);
    const Tensor there = host.to(cuda, /*non_blocking=*/true);
    const Tensor back = (there * 2).to(cpu, /*non_blocking=*/true);
    CHECK(back.is_pinned());
    CHECK_FALSE(side.query());
    host = Tensor();  // the copy still reads it
    const Tensor other = full({1000}, -1, float32).pin_memory();
    held.release();
    side.synchronize();
    CHECK(value(back[999]) == 1998);
}

TEST_CASE("copies between devices keep the order of both", "[cuda]") {
    NEEDS_CUDA;
    if (cuda_device_count() < 2) {
        WARN("one CUDA device: copies between two not tested");
        return;
    }
    const Stream first(cuda(0));
    const StreamScope scope(first);
    Held held(first);
    Tensor x = full({300}, 2, cuda(0));
    const Tensor y = x.to(cuda(1));
    x.fill_(9);  // after the copy
    held.release();
    CHECK(y.device() == cuda(1));
    CHECK(value(y[299]) == 2);
    CHECK(value((y + 1).to(cuda(0))[0]) == 3);
    FAILS(DeviceError, "add: operands are on different devices: (300,) on cuda:0 and (300,) on cuda:1; move the second with to(cuda(0))", x + y);
}

TEST_CASE("DeviceScope says where tensors are made", "[cuda]") {
    NEEDS_CUDA;
    const DeviceScope scope(cuda(0));
    CHECK(zeros({2}).device() == cuda);
    CHECK(tensor({1.0, 2.0}).device() == cuda);
    CHECK(randn({2}).device() == cuda);
    CHECK(arange(3).device() == cuda);
    CHECK(zeros({2}, cpu).device() == cpu);
    CHECK(zeros_like(zeros({2}, cpu)).device() == cpu);
    CHECK(default_device() == cuda);
    {
        const DeviceScope inner(cpu);
        CHECK(ones({2}).device() == cpu);
    }
    FAILS(DeviceError, "DeviceScope: cuda:200: there", const DeviceScope none(cuda(200)));
    CHECK(default_device() == cuda);
}

TEST_CASE("backward runs rules on the streams of their ops", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = full({100}, 0.5, {float64, cuda, true}), w = full({100}, 2, {float64, cuda, true});
    const Stream left(cuda), right(cuda), main = Stream::current(cuda);
    Tape tape;
    Tensor a, b;
    left.wait_stream(main);
    right.wait_stream(main);
    {
        const StreamScope scope(left);
        a = tanh(x * w);
    }
    {
        const StreamScope scope(right);
        b = exp(x) * w;
    }
    main.wait_stream(left);
    main.wait_stream(right);
    const Tensor y = a * b;
    Held hold_left(left), hold_right(right);
    tape.backward(y, {.gradient = ones_like(y)});
    CHECK(Stream::current(cuda) == main);
    hold_left.release();
    hold_right.release();
    // y = tanh(x w) exp(x) w at x = 0.5, w = 2
    const double t = std::tanh(1.0), e = std::exp(0.5);
    CHECK(value(x.grad()[99]) == Approx((1 - t * t) * 2 * e * 2 + t * e * 2));
    CHECK(value(w.grad()[0]) == Approx((1 - t * t) * 0.5 * e * 2 + t * e));
}

TEST_CASE("a gradient that another stream still writes is waited for", "[cuda]") {
    NEEDS_CUDA;
    const bool is_table = GENERATE(false, true);
    const Tensor indices = tensor({5, 1, 5}).to(cuda);
    const Stream first(cuda), second(cuda);
    synchronize();
    const auto backward = [&](const Tensor& w, const Stream& stream, double factor) {
        const StreamScope scope(stream);
        Tape tape;
        tape.backward(sum((is_table ? embedding(indices, w) : w) * factor));
    };
    const auto weight = [] { return full({6, 4}, 2, {float32, cuda, true}); };
    const Tensor w = weight(), other = weight();
    for (const Stream& stream : {first, second}) backward(other, stream, 1);
    static_cast<void>(other.grad());
    synchronize();
    Held held(first);
    backward(w, first, 3);
    backward(w, second, 5);
    const StreamScope scope(second);
    const Tensor sum_of_both = w.grad();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it could be done by now
    CHECK_FALSE(second.query());
    held.release();
    CHECK(value(sum_of_both[5][3]) == (is_table ? 16 : 8));
    CHECK(value(sum_of_both[0][0]) == (is_table ? 0 : 8));
}

TEST_CASE("threads with streams of their own add to one gradient", "[cuda]") {
    NEEDS_CUDA;
    const Tensor w = full({40, 40}, 2, {float32, cuda, true}), table = ones({6, 4}, {float32, cuda, true});
    const Tensor indices = tensor({5, 1, 5}).to(cuda), x = ones({40, 40}, cuda);
    synchronize();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            const Stream own(cuda);
            const StreamScope scope(own);
            for (int i = 0; i < 10; ++i) {
                Tape tape;
                tape.backward(sum(embedding(indices, table) * 2) + sum(matmul(x, w)));
            }
            own.synchronize();
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(value(w.grad()[3][3]) == 4 * 10 * 40);
    CHECK(value(table.grad()[5][0]) == 4 * 10 * 4);
    CHECK(value(table.grad()[1][0]) == 4 * 10 * 2);
}

TEST_CASE("streams are made while another thread waits for all", "[cuda]") {
    NEEDS_CUDA;
    std::thread other([] {
        for (int i = 0; i < 40; ++i) synchronize();
    });
    for (int i = 0; i < 40; ++i) {
        const Stream stream(cuda(cuda_device_count() - 1));
        CHECK(stream.query());
    }
    other.join();
}
