// Gradients that are summed for many uses at once on a device: as on the CPU, in few launches.
#include <functional>

#include "compare.h"
#ifdef TAPIR_CUDA_EMULATED
#include "cuda_runtime.h"
#endif

using namespace tapir;
using test::check_close;

namespace {

struct Cell {
    Tensor weight, bias, scale;
    explicit Cell(Device device) {
        manual_seed(5);
        weight = (randn({12, 8}) * 0.3).to(device).requires_grad_();
        bias = randn({12}).to(device).requires_grad_();
        scale = randn({12}).to(device).requires_grad_();
    }
    std::vector<Tensor> parameters() const { return {weight, bias, scale}; }
};

// The cell over and over, by the result of the last time.
Tensor chain(const Cell& cell, const Tensor& start, int uses) {
    Tensor x = start;
    for (int i = 0; i < uses; ++i) x = tanh(linear(x, cell.weight, cell.bias) * cell.scale).narrow(-1, i % 4, 8);
    return sum(x * x);
}

int launches_of([[maybe_unused]] const std::function<void()>& work) {
#ifdef TAPIR_CUDA_EMULATED
    const int before = emulator::kernels_launched();
    work();
    synchronize();
    return emulator::kernels_launched() - before;
#else
    work();
    return 0;
#endif
}

}  // namespace

TEST_CASE("a weight used many times has the CPU's gradient", "[cuda]") {
    NEEDS_CUDA;
    for (const int rows : {1, 3}) {
        for (const int uses : {1, 2, 3, 64, 65, 150}) {
            INFO(uses << " uses, " << rows << " rows");
            const Cell here(cpu), there(cuda);
            const Tensor start = randn({rows, 8});
            for (int backwards = 0; backwards < 2; ++backwards) {  // the second adds to the first's
                for (const auto& [cell, device] : {std::pair(&here, Device(cpu)), std::pair(&there, Device(cuda))}) {
                    Tape tape;
                    tape.backward(chain(*cell, start.to(device), uses));
                }
            }
            for (std::size_t i = 0; i < 3; ++i) check_close(there.parameters()[i].grad().cpu(), here.parameters()[i].grad(), 1e-4);
        }
    }
}

TEST_CASE("what is collected reaches hooks, gradients() and a second backward", "[cuda]") {
    NEEDS_CUDA;
    const Cell here(cpu), there(cuda);
    const Tensor start = randn({1, 8});
    std::vector<Tensor> want, have;
    for (const auto& [cell, out] : {std::pair(&here, &want), std::pair(&there, &have)}) {
        Tensor weight = cell->weight;
        Tensor seen;
        weight.register_hook([&seen](const Tensor& g) { return seen = g * 2; });
        Tape tape({.persistent = true});
        const Tensor loss = chain(*cell, start.to(weight.device()), 20);
        for (const Tensor& g : tape.gradient(loss, cell->parameters())) out->push_back(g.cpu());
        tape.backward(loss);
        tape.backward(loss);
        out->push_back(seen.cpu());
        for (const Tensor& p : cell->parameters()) out->push_back(p.grad().cpu());
    }
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) check_close(have[i], want[i], 1e-4);
}

TEST_CASE("second derivatives of a weight used many times", "[cuda]") {
    NEEDS_CUDA;
    std::vector<Tensor> results;
    for (const Device device : {Device(cpu), Device(cuda)}) {
        const Cell cell(device);
        manual_seed(6);
        const Tensor start = randn({1, 8}).to(device);
        Tape outer;
        Tensor loss = chain(cell, start, 12);
        const std::vector<Tensor> g = outer.gradient(loss, cell.parameters(), {.create_graph = true});
        outer.backward(sum(g[0] * g[0]) + sum(g[1] * g[1]));
        results.push_back(cell.weight.grad().cpu());
    }
    check_close(results[1], results[0], 1e-3);
}

#ifdef TAPIR_CUDA_EMULATED
TEST_CASE("many uses of a weight take few launches", "[cuda]") {
    NEEDS_CUDA;
    const Cell cell(cuda);
    const Tensor start = randn({1, 8}).to(cuda);
    const auto backward = [&](int uses) {
        Tape tape;
        const Tensor loss = chain(cell, start, uses);
        return launches_of([&] { tape.backward(loss); });
    };
    backward(4);
    const int few = backward(10), many = backward(60);
    // Each use: scatter of the narrowed gradient (zeros and copy), tanh, two products of g and scale, g W: 6 launches and
    // the sums. A product of its own and two additions would be 3 more for each.
    INFO(few << " launches for 10 uses, " << many << " for 60");
    CHECK(many - few <= 50 * 7);
}
#endif
