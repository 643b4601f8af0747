// batch() on a CUDA device: a group is one launch, and what comes out is what comes out on the CPU.
#include <optional>
#include <string>
#include <vector>

#include "../numbers.h"
#include "compare.h"
#include "tapir/core/fiber_impl.h"
#ifdef TAPIR_CUDA_EMULATED
#include "cuda_runtime.h"
#endif

using namespace tapir;
using tapir::test::check_close;
using tapir::test::numbers;

namespace {

struct Model {
    nn::NaryTreeLSTMCell cell{3, 4, 2};
    nn::Linear head{4, 2};

    LSTMState encode(int size) const {
        if (size < 2) return cell(full({3}, 0.1 * size));
        const std::vector<int> parts = {size / 2, size - size / 2 - 1};
        const std::vector<LSTMState> states = batch(parts, [&](int part) { return encode(part); });
        return cell(states[0], states[1]);
    }
    Tensor loss(int size) const {
        const Tensor h = encode(size).h;
        return square(tanh(head(h.sum().item() > 0 ? h : h * 2)) - 0.5).sum();
    }
    std::vector<Tensor> parameters() const { return {cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh, head.weight, head.bias}; }
};

std::vector<Tensor> outcome(Device device, bool together, BatchReport* report = nullptr) {
    manual_seed(1);
    Model model;
    const std::vector<Tensor> own = model.parameters();
    std::vector<Tensor> values;
    for (const Tensor& p : own) values.push_back(p.detach().clone());
    const DeviceScope scope(device);
    Model there;
    for (std::size_t k = 0; k < own.size(); ++k) {
        const NoGradScope pause;
        there.parameters()[k].copy_(values[k]);
    }
    Tape tape;
    const std::vector<Tensor> losses = batch(numbers(10), [&](int n) { return there.loss(1 + n % 6); }, {.together = together, .report = report});
    std::vector<Tensor> results = tape.gradient(sum(stack(losses)), there.parameters());
    results.push_back(stack(losses));
    for (Tensor& t : results) t = t.cpu();
    return results;
}

}  // namespace

TEST_CASE("trees in a batch on a device have the CPU's losses and gradients", "[cuda]") {
    NEEDS_CUDA;
    BatchReport report;
    const std::vector<Tensor> wanted = outcome(cpu, false), have = outcome(cuda, true, &report), alone = outcome(cuda, false);
    for (std::size_t k = 0; k < wanted.size(); ++k) {
        check_close(have[k], wanted[k], 1e-5);
        check_close(alone[k], wanted[k], 1e-5);
    }
    if (!detail::has_fibers()) return;
    CHECK(report.unbatched.empty());
    CHECK(report.ops.at("lstm_gates").together > 3 * report.ops.at("lstm_gates").groups);
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("a group on a device is one launch", "[cuda]") {
    NEEDS_CUDA;
    if (!detail::has_fibers()) return;
    const std::vector<Tensor> x = randn({20, 5}, cuda).unbind();
    const auto launches_of = [&](int count) {
        const std::vector<int> items = numbers(count);
        const auto run = [&] { return batch(items, [&](int n) { return exp(tanh(x[static_cast<std::size_t>(n)])) * 2; }); };
        static_cast<void>(run());  // whatever the first time makes
        const int before = emulator::kernels_launched();
        static_cast<void>(run());
        synchronize();
        return emulator::kernels_launched() - before;
    };
    CHECK(launches_of(20) == launches_of(2));
}

TEST_CASE("items that read values on a device share the copy and the wait", "[cuda]") {
    NEEDS_CUDA;
    if (!detail::has_fibers()) return;
    const Tensor x = arange(20.0).to(cuda) - 9.5;
    const std::vector<Tensor> rows = x.unbind();
    const auto read = [&](int n) { return tanh(rows[static_cast<std::size_t>(n)]).item() > 0; };
    const int before = emulator::copies_to_host();
    const std::vector<bool> have = batch(numbers(20), [&](int n) { return read(n); });
    CHECK(emulator::copies_to_host() - before == 1);
    for (int n = 0; n < 20; ++n) CHECK(have[static_cast<std::size_t>(n)] == (n > 9));
}

TEST_CASE("the gradients of a group's rows take as many launches for many rows as for few", "[cuda]") {
    NEEDS_CUDA;
    if (!detail::has_fibers()) return;
    const Tensor w = randn({6, 6}, cuda).requires_grad_(), start = randn({6}, cuda);
    const auto launches_of = [&](int count) {
        const auto run = [&] {
            Tape tape;
            const std::vector<Tensor> losses = batch(numbers(count), [&](int n) {
                Tensor h = start, sum_of = start;
                for (int i = 0; i <= n % 5; ++i) {
                    h = tanh(linear(h, w));
                    sum_of = sum_of + h;
                }
                return sum(sum_of * h);
            });
            const Tensor loss = sum(stack(losses));
            synchronize();
            const int before = emulator::kernels_launched();
            static_cast<void>(tape.gradient(loss, {w}));
            synchronize();
            return emulator::kernels_launched() - before;
        };
        static_cast<void>(run());
        return run();
    };
    CHECK(launches_of(40) <= launches_of(10));
}
#endif

TEST_CASE("a device that an item asks for is that item's alone", "[cuda]") {
    NEEDS_CUDA;
    const std::vector<Tensor> made = batch(numbers(6), [](int n) {
        std::optional<DeviceScope> there;
        if (n % 2) there.emplace(cuda);
        const Tensor x = tanh(full({3}, n));  // others run here
        return x + ones({3});
    });
    for (std::size_t n = 0; n < made.size(); ++n) {
        CHECK(made[n].device() == (n % 2 ? cuda : cpu));
        check_close(made[n].cpu(), tanh(full({3}, static_cast<double>(n))) + 1, 1e-6);
    }
}

TEST_CASE("items on streams of their own form groups of their own, whose memory outlives their use", "[cuda]") {
    NEEDS_CUDA;
    const Stream side(cuda);
    const Tensor start = randn({6, 1000}).to(cuda);
    const Tensor wanted = (tanh(start.cpu()) * 2).exp();
    for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<Tensor> made = batch(numbers(6), [&](int n) {
            Tensor h = tanh(start[n]);
            if (n % 2 == 0) return exp(h * 2);
            side.wait_stream(Stream::current(cuda));
            const StreamScope scope(side);
            h = exp(h * 2);  // a row of the default stream's group, used here
            return h;
        });
        Stream::current(cuda).wait_stream(side);
        for (int n = 0; n < 6; ++n) check_close(made[static_cast<std::size_t>(n)].cpu(), wanted[n], 1e-5);
    }
}
