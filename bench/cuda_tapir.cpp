// cuda_tapir [--smoke]: times Tapir on a GPU for cuda.sh. Reads a work of cuda_work.txt a line, does it and answers
//     ok SECONDS AMOUNT CHECK
// the median time of one, the bytes, operations or trees of one, and a number that cuda_torch.py must get too (0: none).
// --smoke: each only once or twice, to see that it runs. Ends with 77 where there is no CUDA device.
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "convnets.h"
#include "tapir/core/device_impl.h"
#include "tree_lstm.h"

namespace bench {
namespace {

using namespace tapir;
using Clock = std::chrono::steady_clock;

bool smoke = false;

struct Result {
    double seconds;
    double amount = 1;
    double check = 0;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median_of(int rounds, const std::function<double()>& round) {
    std::vector<double> seconds;
    for (int i = 0; i < rounds; ++i) seconds.push_back(round());
    std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
    return seconds[static_cast<std::size_t>(rounds / 2)];
}

// --- Ways to time ------------------------------------------------------------------------------------------------------------

constexpr int kBatch = 500;  // launches that wait for nothing: fewer than a stream takes before the caller has to wait

/// Until the calls return; what they put on the stream is waited for outside of it.
template <class Op>
double host_time(const Op& ops) {
    const int count = smoke ? 5 : kBatch;
    const auto round = [&] {
        synchronize();
        return ops(count) / count;
    };
    for (int i = 0; i < (smoke ? 1 : 3); ++i) round();
    return median_of(smoke ? 1 : 15, round);
}

template <class Op>
double timed(const Op& op) {
    const auto begin = Clock::now();
    op();
    return seconds_since(begin);
}

/// Between two events on the stream.
template <class Op>
double device_time(const Op& op) {
    const int count = smoke ? 1 : 10;
    const auto round = [&] {
        Event begin(true), end(true);
        begin.record();
        for (int i = 0; i < count; ++i) op();
        end.record();
        end.synchronize();
        return begin.elapsed_time(end) * 1e-3 / count;
    };
    round();
    return median_of(smoke ? 1 : 7, round);
}

/// Of the whole, the last kernel in it.
template <class Step>
double wall_time(int count, const Step& step) {
    if (smoke) count = 1;
    const auto round = [&] {
        synchronize();
        return timed([&] {
                   for (int i = 0; i < count; ++i) step();
                   synchronize();
               }) /
            count;
    };
    round();
    return median_of(smoke ? 1 : 5, round);
}

// --- Arguments and values ----------------------------------------------------------------------------------------------------

using Arguments = std::istringstream;

std::int64_t whole(Arguments& in) {
    std::int64_t n = 0;
    in >> n;
    return n;
}
std::string word(Arguments& in) {
    std::string s;
    in >> s;
    return s;
}
DType dtype_of(const std::string& name) { return name == "bfloat16" ? bfloat16 : float32; }

Tensor some(const Shape& shape, DType dtype = float32) { return randn(shape, dtype); }
Tensor some_leaf(const Shape& shape) { return randn(shape).requires_grad_(); }

/// Fixed numbers in [-scale, scale), the same in cuda_torch.py.
Tensor fixed_numbers(const Shape& shape, std::uint32_t seed, double scale) {
    return tensor(fixed_weights(static_cast<std::size_t>(shape.numel()), seed, static_cast<float>(scale))).view(shape);
}
Tensor weight(const Shape& shape, std::uint32_t seed) {
    return fixed_numbers(shape, seed, 1 / std::sqrt(static_cast<double>(shape.back()))).detach().requires_grad_();
}

struct Precision {
    explicit Precision(MatmulPrecision precision) { set_float32_matmul_precision(precision); }
    ~Precision() { set_float32_matmul_precision(MatmulPrecision::highest); }
};

constexpr int kCheckedSteps = 3;

/// Steps until the loss of three is known, then timed ones.
Result train(int count, const std::function<Tensor()>& step) {
    Result result{};
    for (int i = 0; i < kCheckedSteps; ++i) result.check += step().item<double>();
    result.seconds = wall_time(count, step);
    return result;
}

// --- Tiny ops: host time -----------------------------------------------------------------------------------------------------

Result launch(Arguments&) {
    return {host_time([](int n) { return timed([&] { device_api::launch_empty(cuda, n); }); })};
}

template <class Op>
Result forward(const Op& op) {
    return {host_time([&](int n) {
        return timed([&] {
            for (int i = 0; i < n; ++i) op();
        });
    })};
}

// The tape's end, which gives the records back, is in the time.
template <class Op>
Result recorded(const Op& op) {
    return {host_time([&](int n) {
        return timed([&] {
            const Tape tape;
            for (int i = 0; i < n; ++i) op();
        });
    })};
}

template <class Op>
Result backward(const Op& op) {
    Tensor x = some_leaf({4});
    return {host_time([&](int n) {
        x.zero_grad();
        Tape tape;
        Tensor y = x;
        for (int i = 0; i < n; ++i) y = op(y);
        y = sum(y);
        synchronize();
        return timed([&] { tape.backward(y); });
    })};
}

Result add_tiny(Arguments&) {
    const Tensor a = some({4}), b = some({4});
    return forward([&] { return a + b; });
}
Result add_recorded(Arguments&) {
    const Tensor a = some({4}), b = some_leaf({4});
    return recorded([&] { return a + b; });
}
Result tanh_recorded(Arguments&) {
    const Tensor x = some_leaf({4});
    return recorded([&] { return tanh(x); });
}
Result linear_recorded(Arguments&) {
    const Tensor x = some({1, 64}), w = some_leaf({64, 64}), b = some_leaf({64});
    return recorded([&] { return linear(x, w, b); });
}
Result add_backward(Arguments&) {
    const Tensor b = some({4});
    return backward([&](const Tensor& y) { return y + b; });
}
Result tanh_backward(Arguments&) {
    return backward([](const Tensor& y) { return tanh(y); });
}

// --- Large ones: bytes a second ----------------------------------------------------------------------------------------------

/// `arrays`: those of x's size that must be read and written.
template <class Op>
Result moved(const Tensor& x, int arrays, const Op& op) {
    return {device_time(op), static_cast<double>(x.numel()) * static_cast<double>(itemsize(x.dtype())) * arrays};
}

Result copy_large(Arguments& in) {
    const DType dtype = dtype_of(word(in));
    const Tensor x = some({whole(in)}, dtype);
    Tensor y = empty_like(x);
    return moved(x, 2, [&] { y.copy_(x); });
}
Result add_large(Arguments& in) {
    const DType dtype = dtype_of(word(in));
    const Tensor x = some({whole(in)}, dtype), y = randn_like(x);
    return moved(x, 3, [&] { return x + y; });
}
Result tanh_large(Arguments& in) {
    const DType dtype = dtype_of(word(in));
    const Tensor x = some({whole(in)}, dtype);
    return moved(x, 2, [&] { return tanh(x); });
}
Tensor rows(Arguments& in) {
    const DType dtype = dtype_of(word(in));
    const std::int64_t count = whole(in), width = whole(in);
    return some({count, width}, dtype);
}
Result softmax_large(Arguments& in) {
    const Tensor x = rows(in);
    return moved(x, 2, [&] { return softmax(x, 1); });
}
Result layer_norm_large(Arguments& in) {
    const Tensor x = rows(in);
    const Shape width{x.shape()[1]};
    const Tensor w = ones(width, x.dtype()), b = zeros(width, x.dtype());
    return moved(x, 2, [&] { return layer_norm(x, width, w, b); });
}

Result matmul_square(Arguments& in) {
    const std::string kind = word(in);
    const Precision precision(kind == "tf32" ? MatmulPrecision::high : MatmulPrecision::highest);
    const std::int64_t n = whole(in);
    const Tensor a = some({n, n}, dtype_of(kind)), b = some({n, n}, dtype_of(kind));
    const auto size = static_cast<double>(n);
    return {device_time([&] { return matmul(a, b); }), 2 * size * size * size};
}

// --- Training steps: all of the time -----------------------------------------------------------------------------------------

// linear, relu, linear, cross-entropy; SGD.
Result mlp(Arguments& in) {
    const Precision precision(MatmulPrecision::high);
    const std::int64_t batch = whole(in), width = whole(in), hidden = whole(in), classes = whole(in);
    const Tensor w1 = weight({hidden, width}, 1), b1 = weight({hidden}, 2), w2 = weight({classes, hidden}, 3), b2 = weight({classes}, 4);
    optim::SGD optimizer({w1, b1, w2, b2}, {.lr = 0.01});
    const Tensor x = fixed_numbers({batch, width}, 5, 1), target = arange(batch) % classes;
    return train(50, [&] {
        optimizer.zero_grad();
        Tape tape;
        const Tensor loss = cross_entropy(linear(relu(linear(x, w1, b1)), w2, b2), target);
        tape.backward(loss);
        optimizer.step();
        return loss;
    });
}

// One layer over a sequence, cell by cell; mean square error of the last output; Adam.
Result lstm(Arguments& in) {
    const Precision precision(MatmulPrecision::high);
    word(in);  // how PyTorch does it
    const std::int64_t length = whole(in), batch = whole(in), width = whole(in), hidden = whole(in);
    const Tensor w_ih = weight({4 * hidden, width}, 1), w_hh = weight({4 * hidden, hidden}, 2), b_ih = weight({4 * hidden}, 3),
                 b_hh = weight({4 * hidden}, 4);
    nn::LSTMCell cell(width, hidden);
    cell.weight_ih = w_ih;
    cell.weight_hh = w_hh;
    cell.bias_ih = b_ih;
    cell.bias_hh = b_hh;
    optim::Adam optimizer({w_ih, w_hh, b_ih, b_hh}, {.lr = 1e-3});
    const std::vector<Tensor> xs = fixed_numbers({length, batch, width}, 5, 1).unbind();
    const Tensor target = fixed_numbers({batch, hidden}, 6, 1);
    return train(5, [&] {
        optimizer.zero_grad();
        Tape tape;
        LSTMState state;
        for (const Tensor& x : xs) state = cell(x, state);
        const Tensor loss = mse_loss(state.h, target);
        tape.backward(loss);
        optimizer.step();
        return loss;
    });
}

// Self-attention and a feed-forward part, each after a layer norm and added to its input; mean square error; Adam.
Result transformer(Arguments& in) {
    const Precision precision(MatmulPrecision::high);
    word(in);  // how PyTorch does its attention
    const std::int64_t batch = whole(in), length = whole(in), width = whole(in), heads = whole(in), size = width / heads;
    std::vector<Tensor> w;
    for (const Shape& shape : {Shape{3 * width, width}, Shape{3 * width}, Shape{width, width}, Shape{width}, Shape{4 * width, width},
                               Shape{4 * width}, Shape{width, 4 * width}, Shape{width}}) {
        w.push_back(weight(shape, static_cast<std::uint32_t>(w.size()) + 1));
    }
    for (int i = 0; i < 2; ++i) {
        w.push_back(ones({width}).requires_grad_());
        w.push_back(zeros({width}).requires_grad_());
    }
    optim::Adam optimizer(w, {.lr = 1e-3});
    const Tensor x = fixed_numbers({batch, length, width}, 20, 1), target = fixed_numbers({batch, length, width}, 21, 1);
    const double scale = 1 / std::sqrt(static_cast<double>(size));
    return train(10, [&] {
        optimizer.zero_grad();
        Tape tape;
        const Tensor qkv = linear(layer_norm(x, {width}, w[8], w[9]), w[0], w[1]);
        const std::vector<Tensor> parts = qkv.view({batch, length, 3, heads, size}).permute({2, 0, 3, 1, 4}).unbind();
        const Tensor scores = softmax(matmul(parts[0] * scale, parts[1].transpose(-2, -1)), -1);
        const Tensor mixed = matmul(scores, parts[2]).transpose(1, 2).reshape({batch, length, width});
        const Tensor y = x + linear(mixed, w[2], w[3]);
        const Tensor z = y + linear(gelu(linear(layer_norm(y, {width}, w[10], w[11]), w[4], w[5])), w[6], w[7]);
        const Tensor loss = mse_loss(z, target);
        tape.backward(loss);
        optimizer.step();
        return loss;
    });
}

// Blocks of two 3x3 convolutions, each with batch norm, added to their input; the mean over the places; cross-entropy; SGD.
Result resnet(Arguments& in) {
    const Precision precision(MatmulPrecision::high);
    const std::int64_t blocks = whole(in), batch = whole(in), channels = whole(in), side = whole(in), classes = whole(in);
    std::vector<Tensor> weights;
    const auto add = [&](const Tensor& w) { return weights.emplace_back(w); };
    struct Layer {
        Tensor w, scale, shift, mean, var;
    };
    std::vector<Layer> layers;
    for (std::int64_t i = 0; i < 2 * blocks; ++i) {
        const Tensor w =
            fixed_numbers({channels, channels, 3, 3}, static_cast<std::uint32_t>(i) + 1, 1 / std::sqrt(9.0 * static_cast<double>(channels)));
        layers.push_back({add(w.detach().requires_grad_()), add(ones({channels}).requires_grad_()), add(zeros({channels}).requires_grad_()),
                          zeros({channels}), ones({channels})});
    }
    const Tensor last = add(weight({classes, channels}, 100));
    optim::SGD optimizer(weights, {.lr = 0.01, .momentum = 0.9});
    const Tensor x = fixed_numbers({batch, channels, side, side}, 101, 1), target = arange(batch) % classes;
    const auto layer = [](const Layer& l, const Tensor& h) {
        return batch_norm(conv2d(h, l.w, {}, {.padding = 1}), l.mean, l.var, l.scale, l.shift, {.training = true});
    };
    return train(10, [&] {
        optimizer.zero_grad();
        Tape tape;
        Tensor h = x;
        for (std::size_t i = 0; i < layers.size(); i += 2) h = relu(layer(layers[i + 1], relu(layer(layers[i], h))) + h);
        const Tensor loss = cross_entropy(linear(h.mean({2, 3}), last), target);
        tape.backward(loss);
        optimizer.step();
        return loss;
    });
}

/// The layers of a model of convnets.txt, see convnets.h.
struct ConvNetKit {
    using Function = std::function<Tensor(const Tensor&)>;
    std::vector<Tensor> parameters;

    Tensor parameter(const Shape& shape, double scale) {
        const auto seed = static_cast<std::uint32_t>(parameters.size()) + 1;
        return parameters.emplace_back(fixed_numbers(shape, seed, scale).detach().requires_grad_());
    }
    /// Of a scale that keeps the squares' mean through layers with relu.
    Tensor weight(const Shape& shape) {
        return parameter(shape, std::sqrt(6.0 * static_cast<double>(shape[0]) / static_cast<double>(shape.numel())));
    }
    Tensor bias(std::int64_t n) { return parameter({n}, 0.1); }

    Function conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride, std::int64_t padding) {
        const Tensor w = weight({out, in, size, size}), b = bias(out);
        return [=](const Tensor& x) { return tapir::relu(conv2d(x, w, b, {.stride = stride, .padding = padding})); };
    }
    Function linear(std::int64_t in, std::int64_t out) {
        const Tensor w = weight({out, in}), b = bias(out);
        return [=](const Tensor& x) { return tapir::linear(x, w, b); };
    }
    Function max_pool(std::int64_t size, std::int64_t stride, std::int64_t padding) {
        return [=](const Tensor& x) { return max_pool2d(x, size, {.stride = stride, .padding = padding}); };
    }
    Function average(std::int64_t size) {
        return [=](const Tensor& x) { return avg_pool2d(x, size); };
    }
    Function relu() {
        return [](const Tensor& x) { return tapir::relu(x); };
    }
    Function flatten() {
        return [](const Tensor& x) { return x.flatten(1); };
    }
    auto join() {
        return [](const std::vector<Tensor>& parts) { return cat(parts, 1); };
    }
};

// A model of convnets.txt: forward alone, or with backward from the outputs themselves, to the weights but not to the images.
Result convnet(Arguments& in) {
    const Precision precision(word(in) == "tf32" ? MatmulPrecision::high : MatmulPrecision::highest);
    const bool with_backward = word(in) == "backward";
    const std::string name = word(in);
    const std::int64_t batch = whole(in), pixels = whole(in), thinner = whole(in);
    const std::vector<ConvNet> nets = read_convnets();
    const auto net = std::find_if(nets.begin(), nets.end(), [&](const ConvNet& n) { return n.name == name; });
    if (net == nets.end()) throw std::runtime_error("no model '" + name + "'");
    ConvNetKit kit;
    const auto model = ConvNetMaker<Tensor, ConvNetKit>(kit, {pixels, thinner})(*net);
    const Tensor x = fixed_numbers({batch, 3, pixels, pixels}, 1000, 1);
    if (!with_backward) {
        const double check = square(model(x)).mean().item<double>();
        return {wall_time(3, [&] { model(x); }), static_cast<double>(batch), check};
    }
    const auto step = [&] {
        for (Tensor& p : kit.parameters) p.zero_grad();
        Tape tape;
        tape.backward(square(model(x)).sum() * 0.5);  // whose gradient by the outputs are the outputs
    };
    step();
    double check = 0;
    for (const Tensor& p : kit.parameters) check += square(p.grad()).sum().item<double>();
    return {wall_time(2, step), static_cast<double>(batch), std::sqrt(check)};
}

// The first trees of the data: one at a time, a step every kTreesPerStep; or those of a step together, by batch().
Result train_trees(Arguments& in, bool batched) {
    const std::int64_t hidden = whole(in), count = whole(in), per_step = batched ? whole(in) : 1;
    std::size_t words = 0;
    const std::vector<Example>& all = examples(&words);
    if (all.empty()) throw std::runtime_error("no trees: set TAPIR_SST_DIR");
    const std::vector<Example> list(all.begin(), all.begin() + std::min<std::ptrdiff_t>(count, std::ssize(all)));
    const TreeLstm model(hidden, words);
    optim::Adagrad optimizer({model.embedding, model.leaf_w, model.leaf_b, model.inner_w, model.inner_b, model.class_w, model.class_b},
                             {.lr = kAdagradRate});
    const auto pass = [&] {
        double loss_first = 0, loss = 0;
        if (batched) {
            bench::train_batched(model, optimizer, list, static_cast<std::size_t>(per_step), bench::How::node_by_node, &loss_first, &loss);
        } else {
            bench::train(model, optimizer, list, bench::How::node_by_node, &loss_first, &loss);
        }
        return loss;
    };
    const double check = pass();
    return {wall_time(1, pass), static_cast<double>(list.size()), check};
}

Result tree_lstm(Arguments& in) { return train_trees(in, false); }
Result tree_lstm_batched(Arguments& in) { return train_trees(in, true); }

const std::map<std::string, Result (*)(Arguments&)> kWorks = {
    {"launch", launch},
    {"add", add_tiny},
    {"add_recorded", add_recorded},
    {"tanh_recorded", tanh_recorded},
    {"linear_recorded", linear_recorded},
    {"add_backward", add_backward},
    {"tanh_backward", tanh_backward},
    {"copy", copy_large},
    {"add_large", add_large},
    {"tanh_large", tanh_large},
    {"softmax", softmax_large},
    {"layer_norm", layer_norm_large},
    {"matmul", matmul_square},
    {"mlp", mlp},
    {"lstm", lstm},
    {"transformer", transformer},
    {"resnet", resnet},
    {"convnet", convnet},
    {"tree_lstm", tree_lstm},
    {"tree_lstm_batched", tree_lstm_batched},
};

void answer(const std::string& line) {
    Arguments in(line);
    const auto found = kWorks.find(word(in));
    if (found == kWorks.end()) throw std::runtime_error("no work '" + line + "'");
    const Result result = found->second(in);
    if (in.fail()) throw std::runtime_error("arguments are missing: '" + line + "'");
    synchronize();
    empty_cache(cuda);  // for the other program
    std::cout << "ok " << result.seconds << ' ' << result.amount << ' ' << result.check << std::endl;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) != "--smoke") {
            std::cerr << "usage: cuda_tapir [--smoke] <works\n";
            return 2;
        }
        bench::smoke = true;
    }
    if (!tapir::cuda_is_available()) {
        std::cerr << "cuda_tapir: " << tapir::device_api::problem() << "\n";
        return 77;
    }
    const tapir::DeviceScope scope(tapir::cuda);
    std::cout.precision(9);
    for (std::string line; std::getline(std::cin, line);) {
        try {
            bench::answer(line);
        } catch (const std::exception& error) {
            std::cout << "failed " << error.what() << std::endl;
        }
    }
}
