// Rows of the models of convnets.txt, 16 images each: forward with nothing recorded, and forward with backward.
#include "convnets.h"

#include "layers.h"
#include "rows.h"

namespace bench {
namespace {

/// The layers of convnets.h. The weights' scale keeps the squares' mean through layers with relu.
struct Kit {
    using Function = std::function<Tensor(const Tensor&)>;
    Network net{.gain = std::sqrt(6.0f)};

    static Window window(std::int64_t stride, std::int64_t padding) {
        return {.stride = static_cast<int>(stride), .padding = static_cast<int>(padding)};
    }

    Function conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride, std::int64_t padding) {
        return [layer = Conv2d(net, in, out, size, window(stride, padding))](const Tensor& x) { return relu_of_result(layer(x)); };
    }
    Function linear(std::int64_t in, std::int64_t out) { return Linear(net, in, out); }
    Function max_pool(std::int64_t size, std::int64_t stride, std::int64_t padding) {
        return [=](const Tensor& x) { return max_pool2d(x, static_cast<int>(size), window(stride, padding)); };
    }
    Function average(std::int64_t size) {
        return [=](const Tensor& x) { return avg_pool2d(x, static_cast<int>(size)); };
    }
    Function relu() {
        return [](const Tensor& x) { return relu_of_result(x); };
    }
    Function flatten() {
        return [](const Tensor& x) { return x.flatten(1); };
    }
    auto join() {
        return [](const Tensors& parts) { return lib::cat(parts, 1); };
    }
};

struct Made {
    explicit Made(const ConvNet& net) : images(uniform({16, 3, net.pixels, net.pixels}, 9)) {
        model = ConvNetMaker<Tensor, Kit>(kit, {net.pixels})(net);
    }
    Tensor images;
    Kit kit;
    Kit::Function model;
};

/// Gradients of the weights, not of the images, from the outputs themselves as gradients of the outputs.
void forward_backward(State& state, const ConvNet& net) {
    const Made made(net);
    const Tensors& parameters = made.kit.net.parameters;
    const auto step = [&] { return gradients(parameters, [&] { return lib::square(made.model(made.images)).sum() * 0.5; }); };
    state.counters["loss_first"] = step();
    double squares = 0;
    for (const Tensor& p : parameters) squares += total(lib::square(p.grad()));
    state.counters["check"] = std::sqrt(squares);
    count_work(state, step);
    for (auto _ : state) benchmark::DoNotOptimize(step());
    state.SetItemsProcessed(state.iterations());
}

}  // namespace

void add_convnet_rows() {
    for (const int threads : {1, 2}) {
        for (const ConvNet& net : read_convnets()) {
            const std::string name = "convnet/" + net.name;
            const auto forward = [net] { return [made = Made(net)] { return made.model(made.images); }; };
            add_op(name + "/forward", forward, {.threads = threads, .unit = "ms"});
            add_row(name + "/forward_backward", "ms", [net](State& state) { forward_backward(state, net); }, threads);
        }
    }
}

}  // namespace bench
