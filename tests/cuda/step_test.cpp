// Steps, clipping and unscaling of many parameters on a CUDA device: the CPU's numbers in few launches, and no waiting.
#include <algorithm>
#include <limits>
#include <typeinfo>

#include "compare.h"
#ifdef TAPIR_CUDA_EMULATED
#include "cuda_runtime.h"
#endif

using namespace tapir;
using tapir::test::check_close;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor parameter(const Shape& shape, DType dtype, Device device) {
    Tensor p = randn(shape, {dtype, cpu}).to(device).requires_grad_();
    p.set_grad(randn(shape, {dtype, cpu}).to(device));
    return p;
}

// Of every floating dtype; sizes from none to several blocks; more than one launch takes.
std::vector<Tensor> parameters(Device device, int count = 130) {
    manual_seed(11);
    const DType dtypes[] = {float32, float64, float16, bfloat16};
    const Shape shapes[] = {{1}, {7, 3}, {2048}, {0}, {5000}, {33, 100}};
    std::vector<Tensor> result;
    for (int i = 0; i < count; ++i) result.push_back(parameter(shapes[i % 6], dtypes[i / 3 % 4], device));
    Tensor odd = zeros({8, 3}, {float32, device, true});
    odd.set_grad(randn({3, 8}).to(device).t());  // not contiguous
    result.push_back(odd);
    return result;
}

void check_gradients(const std::vector<Tensor>& have, const std::vector<Tensor>& want) {
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < have.size(); ++i) {
        INFO("gradient " << i);
        check_close(have[i].grad().cpu(), want[i].grad(), std::max(1e-6, test::limit_of(want[i].dtype())));
    }
}

Tensor row_sparse(Device device) {
    const DeviceScope scope(device);
    const nn::Embedding table(6, 4);
    nn::init::ones_(table.weight);
    Tape tape;
    tape.backward(sum(table(tensor({1, 4, 1}, device)) * 3));
    return table.weight;
}

}  // namespace

TEST_CASE("many gradients are clipped as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
        for (const double most : {0.5, 1e9}) {
            INFO("norm " << p << ", at most " << most);
            const std::vector<Tensor> here = parameters(cpu), there = parameters(cuda);
            const Tensor norm = optim::clip_grad_norm_(there, most, p);
            CHECK(norm.device() == cuda);
            CHECK(norm.item() == Approx(optim::clip_grad_norm_(here, most, p).item()).epsilon(1e-6));
            check_gradients(there, here);
        }
    }
    const std::vector<Tensor> here = parameters(cpu), there = parameters(cuda);
    optim::clip_grad_value_(here, 0.7);
    optim::clip_grad_value_(there, 0.7);
    check_gradients(there, here);
    const std::vector<Tensor> again = parameters(cuda), once_more = parameters(cuda);
    CHECK(optim::clip_grad_norm_(again, 1).item() == optim::clip_grad_norm_(once_more, 1).item());  // to the bit
}

TEST_CASE("steps of every optimizer over many parameters are the CPU's", "[cuda]") {
    NEEDS_CUDA;
    const auto check = []<class Opt>(const auto& options) {
        INFO(typeid(Opt).name());
        std::vector<Tensor> here = parameters(cpu, 60), there = parameters(cuda, 60);
        here.push_back(row_sparse(cpu));
        there.push_back(row_sparse(cuda));
        Opt on_cpu(here, options), on_cuda(there, options);
        for (int t = 0; t < 7; ++t) {  // RAdam changes its rule after five
            on_cpu.step();
            on_cuda.step();
        }
        for (std::size_t i = 0; i < here.size(); ++i) {
            INFO("parameter " << i);
            check_close(there[i].cpu(), here[i].detach(), std::max(1e-5, test::limit_of(here[i].dtype())));
        }
    };
    using namespace optim;
    check.operator()<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1});
    check.operator()<Adagrad>(AdagradOptions{.lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.1});
    check.operator()<AdagradDA>(AdagradDAOptions{.lr = 0.3, .l1 = 0.02, .l2 = 0.05});
    check.operator()<RMSprop>(RMSpropOptions{});
    check.operator()<RMSprop>(RMSpropOptions{.weight_decay = 0.1, .momentum = 0.8});
    check.operator()<RMSprop>(RMSpropOptions{.alpha = 0.7, .eps = 1e-3, .momentum = 0.8, .centered = true});
    check.operator()<Adadelta>(AdadeltaOptions{.weight_decay = 0.1});
    check.operator()<Adam>(AdamOptions{.weight_decay = 0.1, .amsgrad = true});
    check.operator()<AdamW>(AdamWOptions{.lr = 0.01});
    check.operator()<Adamax>(AdamaxOptions{.weight_decay = 0.1});
    check.operator()<NAdam>(NAdamOptions{.weight_decay = 0.1});
    check.operator()<RAdam>(RAdamOptions{.lr = 0.01, .weight_decay = 0.1});
    check.operator()<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1});
    check.operator()<Rprop>(RpropOptions{.lr = 0.1, .step_size_max = 0.15});
    check.operator()<ASGD>(ASGDOptions{.lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = 0.1});
}

TEST_CASE("averages of many weights are the CPU's", "[cuda]") {
    NEEDS_CUDA;
    std::vector<Tensor> here = parameters(cpu, 60), there = parameters(cuda, 60);
    optim::ExponentialMovingAverage first(here, {.decay = 0.75, .warmup = true}), second(there, {.decay = 0.75, .warmup = true});
    const std::vector<double> own = there[4].to_vector<double>();
    for (int t = 0; t < 3; ++t) {
        for (const auto* list : {&here, &there}) {
            for (const Tensor& p : *list) p.detach().mul_(1.5);
        }
        first.update();
        second.update();
    }
    {
        const optim::AverageScope on_cpu(first), on_cuda(second);
        for (std::size_t i = 0; i < here.size(); ++i) {
            INFO("parameter " << i);
            check_close(second.averages()[i].cpu(), first.averages()[i], 1e-6);
            check_close(there[i].cpu(), here[i].detach(), test::limit_of(here[i].dtype()));
        }
    }
    CHECK(there[4][0].item() == Approx(own[0] * 1.5 * 1.5 * 1.5));
}

TEST_CASE("L-BFGS on a device", "[cuda]") {
    NEEDS_CUDA;
    const auto train = [](Device device) {
        Tensor w = full({3, 2}, 0.25, {float64, device}).requires_grad_(), b = zeros({2}, {float64, device, true});
        const Tensor x = (sin(arange(24, {float64, cpu})) * 2).reshape({8, 3}).to(device);
        optim::LBFGS lbfgs({w, b}, {.max_iter = 12, .line_search_fn = optim::LineSearch::strong_wolfe});
        lbfgs.step([&] {
            lbfgs.zero_grad();
            Tape tape;
            const Tensor loss = sum(square(tanh(matmul(x, w) + b) - 0.5)) + sum(square(w)) * 0.1;
            tape.backward(loss);
            return loss;
        });
        return cat({w.reshape({-1}), b}).cpu();
    };
    check_close(train(cuda), train(cpu), 1e-6);
}

TEST_CASE("clipping on a device: what is not finite, too large for its dtype, or sparse", "[cuda]") {
    NEEDS_CUDA;
    for (const double p : {2.0, kInfinity}) {
        Tensor a = parameter({3000}, float32, cuda), b = parameter({10}, float16, cuda);
        a.grad().index_put_({2500}, std::numeric_limits<double>::quiet_NaN());
        CHECK(std::isnan(optim::clip_grad_norm_({b, a}, 1, p).item()));
        CHECK(std::isnan(b.grad()[0].item()));
    }
    Tensor large = ones({2}, {float32, cuda, true});
    large.set_grad(full({2}, 1e30, cuda));
    CHECK(optim::clip_grad_norm_({large}, 1).item() == Approx(std::sqrt(2.0) * 1e30));
    CHECK(large.grad()[0].item() == Approx(std::sqrt(0.5)));
    Tensor here = row_sparse(cpu), there = row_sparse(cuda);
    CHECK(optim::clip_grad_norm_({there}, 1).item() == Approx(optim::clip_grad_norm_({here}, 1).item()));
    check_gradients({there}, {here});
    CHECK(optim::clip_grad_norm_({ones({2}, {float32, cuda, true})}, 1).item() == 0);
}

TEST_CASE("a GradScaler unscales many gradients as on the CPU", "[cuda]") {
    NEEDS_CUDA;
    const auto with_table = [](Device device) {
        std::vector<Tensor> result = parameters(device);
        result.push_back(row_sparse(device));
        return result;
    };
    const std::vector<Tensor> here = with_table(cpu), there = with_table(cuda);
    optim::SGD on_cpu(here, {.lr = 0.1}), on_cuda(there, {.lr = 0.1});
    optim::GradScaler first({.init_scale = 8}), second({.init_scale = 8});
    const Tensor kept = there[0].grad();
    const double before = kept[0].item();
    first.unscale_(on_cpu);
    second.unscale_(on_cuda);
    CHECK(kept[0].item() == before);  // whoever holds the old gradient keeps it
    check_gradients(there, here);
    CHECK(first.step(on_cpu));
    CHECK(second.step(on_cuda));
    for (const double bad : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
        for (const bool steps : {true, false}) {
            for (const std::size_t i : {std::size_t{2}, std::size_t{8}, std::size_t{16}, there.size() - 2}) {
                Tensor p = there[i];
                const Tensor g = p.grad();
                Tensor broken = g.clone();
                broken.view({broken.numel()}).index_put_({broken.numel() - 1}, bad);
                p.set_grad(broken);
                optim::GradScaler scaler({.init_scale = 2});
                if (steps) {
                    CHECK_FALSE(scaler.step(on_cuda));
                } else {
                    scaler.unscale_(on_cuda);
                }
                scaler.update();
                CHECK(scaler.get_scale() == 1);
                p.set_grad(g);
            }
        }
    }
    CHECK(optim::GradScaler({.init_scale = 2}).step(on_cuda));
}

#ifdef TAPIR_CUDA_EMULATED

TEST_CASE("many parameters take few launches, and small ones few blocks", "[cuda]") {
    NEEDS_CUDA;
    const auto launches_of = [](const auto& work) {
        const int before = emulator::kernels_launched();
        work();
        return emulator::kernels_launched() - before;
    };
    std::vector<Tensor> many;
    for (int i = 0; i < 90; ++i) many.push_back(parameter({i % 2 ? 300 : 5}, float32, cuda));
    many.push_back(parameter({100000}, float32, cuda));
    optim::Adam adam(many, {.lr = 0.1});
    adam.step();  // makes its buffers
    CHECK(launches_of([&] { optim::clip_grad_norm_(many, 1); }) == 3);
    CHECK(launches_of([&] { optim::clip_grad_value_(many, 1); }) == 1);
    optim::GradScaler scaler;
    CHECK(launches_of([&] { scaler.unscale_(adam); }) == 1);
    const std::int64_t before = emulator::blocks_launched();
    CHECK(launches_of([&] { adam.step(); }) == 4);  // of 24 parameters each
    CHECK(emulator::blocks_launched() - before <= 90 + 100000 / 2048 + 1);
    optim::ExponentialMovingAverage ema(many);
    CHECK(launches_of([&] { ema.update(); }) == 4);
}

TEST_CASE("clipping and unscaling do not wait for the device", "[cuda]") {
    NEEDS_CUDA;
    const std::vector<Tensor> there = parameters(cuda);
    optim::SGD sgd(there, {.lr = 0.1});
    optim::GradScaler scaler;
    synchronize();
    const auto stream = static_cast<cudaStream_t>(Stream::current(cuda).native_handle());
    emulator::hold(stream);
    scaler.unscale_(sgd);
    const Tensor norm = optim::clip_grad_norm_(there, 1);
    optim::clip_grad_value_(there, 1);
    emulator::release(stream);
    CHECK(norm.item() > 0);
    CHECK(scaler.step(sgd));
}
#endif
