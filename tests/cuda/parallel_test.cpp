// Ranks that are threads, each with a CUDA device of its own. The emulator has two of these, and an NCCL.
#include "tapir/nn/parallel/parallel.h"

#include "../fails.h"
#include "../nn/parallel/cases.h"
#include "compare.h"
#include "tapir/nn/nn.h"
#include "tapir/nn/parallel/replicas.h"
#include "tapir/optim/optim.h"

#ifdef TAPIR_CUDA_EMULATED
#include <cuda_runtime.h>
#include <nccl.h>
#endif

using namespace tapir;
using namespace tapir::test;
using parallel::CommError;
using parallel::Group;
using parallel::Reduce;

namespace {

// run(group) in ranks that share the devices out among them.
void on_devices(int ranks, const std::function<void(const Group&)>& run, const parallel::InitOptions& options = {.timeout = 60}) {
    const int devices = cuda_device_count();
    parallel::spawn(
        ranks,
        [&](const Group& world) {
            const DeviceScope scope(cuda(world.rank() % devices));
            run(world);
        },
        options);
}

struct Mlp : nn::Module {
    nn::Linear first{6, 16}, second{16, 3};
    void members(nn::Members& m) override { m("first", first)("second", second); }
    Tensor forward(In x) const { return second(tanh(first(x))); }
};

// A step's batch, as all devices have it.
std::pair<Tensor, Tensor> batch_of(int step) {
    const Tensor x = sin(arange(8 * 6, float32) * (0.3f + 0.1f * static_cast<float>(step))).view({8, 6});
    return {x, (arange(8, int64) + step) % 3};
}

}  // namespace

TEST_CASE("ranks on CUDA devices compute together", "[cuda]") {
    NEEDS_CUDA;
    for (const cases::Case& one : cases::all_cases()) {
        for (const int ranks : {1, 2, 3}) {  // one has NCCL on any machine; of three, two share a device where there are two
            if (ranks < one.least_ranks) continue;
            INFO(one.name << ", " << ranks << " ranks");
            CHECK_NOTHROW(on_devices(ranks, one.run));
        }
    }
}

TEST_CASE("a model that two devices train is that of one process on the CPU", "[cuda]") {
    NEEDS_CUDA;
    constexpr int ranks = 2, steps = 10;
    manual_seed(1);
    Mlp alone;
    optim::Adam adam(alone.parameters(), {.lr = 0.01});
    for (int step = 0; step < steps; ++step) {
        const auto [x, y] = batch_of(step);
        Tape tape;
        tape.backward(cross_entropy(alone.forward(x), y));
        adam.step();
        adam.zero_grad();
    }
    std::vector<std::vector<Tensor>> trained(ranks);
    on_devices(ranks, [&](const Group& world) {
        manual_seed(static_cast<std::uint64_t>(world.rank()) + 1);
        Mlp model;
        const parallel::Replicas replicas(model, world, {.bucket = 100});
        optim::Adam own(model.parameters(), {.lr = 0.01});
        for (int step = 0; step < steps; ++step) {
            const auto [x, y] = batch_of(step);
            const std::int64_t part = x.size(0) / ranks, begin = world.rank() * part;
            Tape tape;
            tape.backward(cross_entropy(model.forward(x.narrow(0, begin, part)), y.narrow(0, begin, part)));
            own.step();
            own.zero_grad();
        }
        for (const Tensor& p : model.parameters()) {
            cases::require(p.device() == default_device(), "on the rank's device");
            trained[static_cast<std::size_t>(world.rank())].push_back(p.detach().to(cpu));
        }
    });
    const std::vector<Tensor> want = alone.parameters();
    for (std::size_t i = 0; i < want.size(); ++i) {
        check_close(trained[0][i], want[i].detach(), 1e-5);
        CHECK(equal(trained[1][i], trained[0][i]));
    }
}

TEST_CASE("Replicas whose rules run on several streams, of a model that has moved", "[cuda]") {
    NEEDS_CUDA;
    constexpr int steps = 2;  // of which the first is of each rank alone
    const auto batch_here = [](int step, int rank) { return sin(arange(18, float32) * (0.2 + step + 3 * rank)).view({3, 6}); };
    const auto loss_of = [](const Tensor& y) { return square(y).sum(); };
    manual_seed(5);
    Mlp want;
    for (int step = 0; step < steps; ++step) {
        Tape tape;
        tape.backward((loss_of(want.forward(batch_here(step, 0))) + loss_of(want.forward(batch_here(step, 1)))) / 2);
    }
    parallel::spawn(2, [&](const Group& world) {
        const Device device = cuda(world.rank() % cuda_device_count());
        manual_seed(5);
        Mlp have;
        parallel::Replicas replicas(have, world);
        have.to(device);
        const Stream side(device), main = Stream::current(device);
        const auto backward = [&](int step) {
            const Tensor x = batch_here(step, world.rank()).to(device);
            side.wait_stream(main);
            Tape tape;
            Tensor h;
            {
                const StreamScope scope(side);
                h = tanh(have.first(x));
            }
            main.wait_stream(side);
            tape.backward(loss_of(have.second(h)));
        };
        {
            const auto alone = replicas.no_sync();
            backward(0);
        }
        backward(1);
        for (std::size_t i = 0; i < 4; ++i) cases::require_close(have.parameters()[i].grad().to(cpu), want.parameters()[i].grad(), 1e-5);
    });
}

TEST_CASE("collectives on streams of one's own", "[cuda]") {
    NEEDS_CUDA;
    on_devices(2, [](const Group& world) {
        const Device device = default_device();
        const Stream side(device);
        for (int i = 0; i < 30; ++i) {
            Tensor y;
            {
                const StreamScope scope(side);
                Tensor x = full({3000}, i + world.rank(), float32);
                y = world.all_reduce(x);
                x = Tensor();
                const Tensor other = full({3000}, -1.0);  // where x was, once the device is through with it
                y = y * 2;
            }
            Stream::current(device).wait_stream(side);
            cases::require_equal(y, full({3000}, 4 * i + 2, float32));
        }
    });
}

TEST_CASE("the ranks' tensors lie on one kind of device", "[cuda]") {
    NEEDS_CUDA;
    on_devices(2, [](const Group& world) {
        const Tensor x = ones({3}, world.rank() == 0 ? Device(cpu) : default_device());
        const std::string text = cases::message_of<CommError>([&] { world.all_reduce(x); });
        cases::require_in("all_reduce of float32 (3,), sum at parallel_test.cpp:", text);
        cases::require_in("all_reduce of float32 (3,) on CUDA, sum at parallel_test.cpp:", text);
        cases::require_equal(world.all_reduce(ones({2})), full({2}, 2.0));
    });
}

#ifdef TAPIR_CUDA_EMULATED

TEST_CASE("NCCL computes where each rank has a device, and the host where two share one", "[cuda]") {
    const auto runs = [](int ranks) {
        const int before = emulator::collectives_run();
        on_devices(ranks, [](const Group& world) { cases::require_equal(world.all_reduce(ones({2})), full({2}, 1.0 * world.size())); });
        return emulator::collectives_run() - before;
    };
    CHECK(runs(2) == 1);
    CHECK(runs(3) == 0);
    emulator::hide_nccl(true);
    CHECK(runs(2) == 0);
    emulator::hide_nccl(false);
    // Devices that change from call to call, as those of a model on both.
    const int before = emulator::collectives_run();
    parallel::spawn(2, [](const Group& world) {
        for (int i = 0; i < 4; ++i) {
            const Device device = cuda(i < 2 ? 0 : (i + world.rank()) % 2);
            cases::require_equal(world.all_reduce(full({2}, i, {float32, device})), full({2}, 2 * i, {float32, device}));
        }
    });
    CHECK(emulator::collectives_run() - before == 2);
    CHECK(runs(1) == 1);
}

TEST_CASE("backward() of Replicas does not wait for the device", "[cuda]") {
    on_devices(2, [](const Group& world) {
        Mlp model;
        parallel::Replicas replicas(model, world, {.bucket = 200});
        optim::SGD sgd(model.parameters(), {.lr = 0.1});
        const auto step = [&](int i) {
            const Tensor x = full({4, 6}, 0.1 * (i + world.rank()));
            Tape tape;
            tape.backward(square(model.forward(x)).sum());
            sgd.step();
            sgd.zero_grad();
        };
        step(0);  // the communicator is there
        synchronize(default_device());
        world.barrier();
        emulator::hold(nullptr);
        for (int i = 1; i < 4; ++i) step(i);
        cases::require(!Stream::current().query(), "nothing of it is done");
        emulator::release(nullptr);
        for (const Tensor& p : model.parameters()) cases::require_equal(world.broadcast(p.detach()), p.detach());
    });
}

TEST_CASE("a rank whose device fails ends the calls of the others", "[cuda]") {
    std::string texts[2];
    const auto run = [&](const std::function<void(const Group&)>& fail) {
        CHECK_THROWS_AS(on_devices(2,
                                   [&](const Group& world) {
                                       const Tensor x = ones({4});
                                       world.all_reduce(x);
                                       synchronize(default_device());
                                       world.barrier();
                                       if (world.rank() == 1) fail(world);
                                       try {
                                           for (;;) world.all_reduce(x).sum().item();  // the device is not waited for without an end
                                       } catch (const CommError& e) {
                                           texts[world.rank()] = e.what();
                                           throw;
                                       }
                                   }),
                        CommError);
    };
    run([](const Group&) { emulator::fail_next_collective(1, ncclInvalidUsage); });
    CHECK(texts[1].find("all_reduce: NCCL: ncclAllReduce: invalid usage: as a test wants it") != std::string::npos);
    CHECK(texts[0].find("all_reduce: ") != std::string::npos);
    run([](const Group&) { emulator::lose_peers(1); });
    for (const std::string& text : texts) {
        INFO(text);
        CHECK(text.find("all_reduce: ") != std::string::npos);
        CHECK(text.find("NCCL: a collective: remote process exited") != std::string::npos);
    }
    emulator::fail_next_collective(-1, ncclInvalidUsage);
    CHECK_THROWS_WITH(on_devices(2, [](const Group& world) { world.all_reduce(ones({4})); }),
                      Catch::Matchers::Contains("all_reduce: NCCL: ncclGetUniqueId: invalid usage"));
    emulator::fail_next_collective(0, ncclInvalidUsage);
    CHECK_THROWS_WITH(on_devices(2, [](const Group& world) { world.all_to_all(ones({4})); }),
                      Catch::Matchers::Contains("all_to_all: NCCL: ncclSend: invalid usage"));
}

TEST_CASE("an exception of one rank ends the device's work of the others", "[cuda]") {
    std::string text;
    CHECK_THROWS_WITH(on_devices(2,
                                 [&](const Group& world) {
                                     const Tensor x = ones({4});
                                     for (int i = 0; i < 5; ++i) world.all_reduce_(x);
                                     if (world.rank() == 1) throw std::runtime_error("the data are gone");
                                     text = cases::message_of<CommError>([&] {
                                         for (;;) world.all_reduce(x);
                                     });
                                     cases::require_equal(x, full({4}, 32.0));  // what both had called is done
                                 }),
                      "the data are gone");
    CHECK(text.find("the data are gone") != std::string::npos);
}

#endif
