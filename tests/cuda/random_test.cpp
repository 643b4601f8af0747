// Random numbers on a CUDA device are those of the CPU: Note [The numbers of a draw] in core/generator.h.
#include "compare.h"

using namespace tapir;
using namespace tapir::test;

namespace {

// make(device) after the same seed; the generator is as far on afterwards.
void check_same_draw(double limit, const std::function<Tensor(Device)>& make) {
    for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{0xfffffffd}}) {
        default_generator().set_state({0x123456789abcdef0, offset});
        const Tensor want = make(cpu);
        const Generator::State after = default_generator().state();
        default_generator().set_state({0x123456789abcdef0, offset});
        const Tensor have = make(cuda);
        CHECK(have.device() == Device(cuda));
        CHECK(default_generator().state().offset == after.offset);
        check_close(have.to(cpu), want, limit);
    }
}

}  // namespace

TEST_CASE("uniform and normal numbers on the device", "[cuda]") {
    NEEDS_CUDA;
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t n : {0, 1, 3, 4, 5, 8, 15, 1000, 10007}) {
            INFO(name(dtype) << ", " << n << " numbers");
            check_same_draw(0, [=](Device device) { return rand({n}, {dtype, device}); });
            check_same_draw(dtype == float64       ? 1e-14
                                : dtype == float32 ? 2e-6
                                                   : limit_of(dtype),
                            [=](Device device) { return randn({n}, {dtype, device}); });
        }
    }
    Generator g(5), same(5);
    check_close(rand({7, 3}, g, cuda), rand({7, 3}, same), 0);
    check_same_draw(0, [](Device device) { return rand_like(zeros({3, 5}, {float64, device})); });
    check_same_draw(2e-6, [](Device device) { return randn_like(zeros({3, 5}, device)); });
    CHECK(rand({2}, {float32, cuda, true}).requires_grad());
}

TEST_CASE("a generator of one's own, and tensors filled with random numbers, on the device", "[cuda]") {
    NEEDS_CUDA;
    const Generator::State before = default_generator().state();
    const auto check = [](double limit, const std::function<Tensor(Device, Generator&)>& make) {
        Generator here(6), there(6);
        const Tensor want = make(cpu, here), have = make(cuda, there);
        CHECK(have.device() == Device(cuda));
        CHECK(here.state().offset == there.state().offset);
        check_close(have.to(cpu), want, limit);
    };
    const Tensor p = tensor({0.2, 0.5, 0.9}).expand({40, 3}).contiguous();
    check(0, [](Device device, Generator& g) { return randint(-7, 100, {300}, g, device); });
    check(0, [&](Device device, Generator& g) { return bernoulli(p.to(device), g); });
    check(0, [](Device device, Generator& g) { return bernoulli({300}, 0.4, g, device); });
    check(0, [&](Device device, Generator& g) { return multinomial(p.to(device), 2, false, g); });
    check(1e-6, [](Device device, Generator& g) { return zeros({300}, device).uniform_(-3, 5, g); });
    check(2e-6, [](Device device, Generator& g) { return zeros({30, 10}, device).t().normal_(1, 0.5, g); });
    check(0, [](Device device, Generator& g) { return zeros({300}, {uint8, device}).bernoulli_(0.3, g); });
    CHECK(default_generator().state().offset == before.offset);
}

TEST_CASE("integers and coin tosses on the device", "[cuda]") {
    NEEDS_CUDA;
    for (const DType dtype : {int64, int32, uint8, bool_, float32, float64, float16, bfloat16}) {
        INFO(name(dtype));
        for (const std::int64_t n : {0, 1, 5, 16, 31, 3001}) {
            check_same_draw(0, [=](Device device) { return randint(0, dtype == bool_ ? 2 : 100, {n}, {dtype, device}); });
            check_same_draw(0, [=](Device device) { return bernoulli({n}, 0.3, {dtype, device}); });
        }
        check_same_draw(0, [=](Device device) { return bernoulli({9}, 1.0, {dtype, device}); });
        check_same_draw(0, [=](Device device) { return bernoulli({9}, 0.0, {dtype, device}); });
    }
    check_same_draw(0, [](Device device) { return randint(INT64_MIN, INT64_MAX, {100}, device); });
    check_same_draw(0, [](Device device) { return randint_like(zeros({4, 4}, {int32, device}), -5, 1 << 30); });
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        const Tensor p = (arange(1001) / 1000.0).to(dtype);
        check_same_draw(0, [&](Device device) { return bernoulli(p.to(device)); });
    }
}

TEST_CASE("permutations and choices on the device", "[cuda]") {
    NEEDS_CUDA;
    check_same_draw(0, [](Device device) {
        const DeviceScope scope(device);
        return randperm(1000);
    });
    const Tensor weights = rand({3, 20});
    for (const bool replacement : {false, true}) {
        check_same_draw(0, [&](Device device) { return multinomial(weights.to(device), 7, replacement); });
    }
    CHECK_THROWS_AS(multinomial(zeros({4}, cuda), 1), ValueError);
}

TEST_CASE("dropout on the device", "[cuda]") {
    NEEDS_CUDA;
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t n : {0, 1, 4, 7, 16, 10007}) {
            for (const double p : {0.0, 0.3, 1.0}) {
                INFO(name(dtype) << ", " << n << " elements, p " << p);
                const Tensor x = randn({n}).to(dtype);
                const auto f = [=](const auto& in) {
                    manual_seed(3);
                    return dropout(in[0], p);
                };
                compare({x}, 1e-7, f);
                compare_on({x}, {shifted(x)}, 1e-7, f);
                manual_seed(3);
                const Tensor unrecorded = dropout(x.to(cuda), p);
                check_close(unrecorded, f(std::vector<Tensor>{x}), 1e-7);
            }
        }
    }
    compare_twice({randn({6, 4})}, 1e-6, [](const auto& in) {
        manual_seed(3);
        return square(dropout(in[0].t(), 0.5));
    });
    Generator g(5), same(5);
    check_close(dropout(ones({30}, cuda), 0.5, true, g), dropout(ones({30}), 0.5, true, same), 0);
    CHECK(g.state().offset == same.state().offset);
}
