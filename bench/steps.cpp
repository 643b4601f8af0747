// Rows of training steps: forward, backward and, where the name has an optimizer, its step.
#include "layers.h"
#include "rows.h"

namespace bench {
namespace {

Tensor mean_square(const Tensor& x) { return lib::square(x).mean(); }

/// What makes a step of `optimizer` on loss().
template <class Loss>
auto training(const Network& net, const Optimizer& optimizer, const Loss& loss) {
    return [=] { return train(optimizer, net.parameters, loss); };
}

/// The gradients of the mean of the squared outputs of a library's own module.
auto gradients_of(const Module& module, const Tensor& x) {
    return [=] { return gradients(module.parameters, [&] { return mean_square(module.call(x)); }); };
}

void add_mlps() {
    add_step("mlp_784_256_128_10_adam", [] {
        Network net;
        const Mlp model(net, 784, 256, 128, 10);
        return training(net, adam(net.parameters),
                        [model, x = uniform({64, 784}, 9), y = integers({64}, 10, 10)] { return cross_entropy(model(x), y); });
    });
    add_step("mlp_784_256_10_sgd", [] {
        Network net;
        const Linear first(net, 784, 256), second(net, 256, 10);
        const Tensor x = uniform({64, 784}, 9), y = integers({64}, 10, 10);
        return training(net, sgd(net.parameters, 0.01), [=] { return cross_entropy(second(lib::relu(first(x))), y); });
    });
    add_step("mlp_32_64_64_4_batch_1_sgd", [] {
        Network net;
        const Mlp model(net, 32, 64, 64, 4);
        return training(net, sgd(net.parameters, 1e-3),
                        [model, x = uniform({1, 32}, 9), y = integers({1}, 10, 4)] { return cross_entropy(model(x), y); });
    });
    add_step("mlp_32_64_64_4_batch_32_adam", [] {
        Network net;
        const Mlp model(net, 32, 64, 64, 4);
        return training(net, adam(net.parameters),
                        [model, x = uniform({32, 32}, 9), y = integers({32}, 10, 4)] { return cross_entropy(model(x), y); });
    });
    add_step("vae_784_400_20_adam", [] {
        Network net;
        const Linear encode(net, 784, 400), to_mean(net, 400, 20), to_log(net, 400, 20), first(net, 20, 400), second(net, 400, 784);
        const Tensor x = uniform({128, 784}, 9, 0, 1), noise = uniform({128, 20}, 10);
        return training(net, adam(net.parameters), [=] {
            const Tensor h = lib::relu(encode(x)), mean = to_mean(h), log = to_log(h);
            const Tensor z = mean + lib::exp(log * 0.5) * noise;
            const Tensor distance = (1 + log - lib::square(mean) - lib::exp(log)).mean() * 0.5;
            return lib::binary_cross_entropy_with_logits(second(lib::relu(first(z))), x) - distance;
        });
    });
}

void add_convolutional() {
    for (const bool bfloat16 : {false, true}) {
        add_step(bfloat16 ? "cnn_5x5_32_64_bfloat16_adam" : "cnn_5x5_32_64_adam",
                 [bfloat16] {
                     Network net;
                     const Cnn model(net, 5);
                     const Tensor x = uniform({64, 1, 28, 28}, 9), y = integers({64}, 10, 10);
                     const auto loss = [=] { return cross_entropy(model(x), y); };
                     return training(net, adam(net.parameters), [=] { return bfloat16 ? in_bfloat16(loss) : loss(); });
                 },
                 {.has_losses = !bfloat16});
    }
    add_step("cnn_3x3_32_64_adam", [] {
        Network net;
        const Cnn model(net, 3);
        return training(net, adam(net.parameters),
                        [model, x = uniform({64, 1, 28, 28}, 9), y = integers({64}, 10, 10)] { return cross_entropy(model(x), y); });
    });
    add_step("resnet_32_64_128_sgd", [] {
        Network net;
        const ResNet model(net);
        const Tensor x = uniform({32, 3, 32, 32}, 9), y = integers({32}, 10, 10);
        return training(net, sgd(net.parameters, 1e-2, 0.9), [=] { return cross_entropy(model(x, /*training=*/true), y); });
    });
    add_step("mobilenet_block_32_192_32_sgd", [] {
        Network net;
        const Conv2d up(net, 32, 192, 1), each(net, 192, 192, 3, {.padding = 1, .groups = 192}), down(net, 192, 32, 1);
        const BatchNorm a(net, 192), b(net, 192), c(net, 32);
        const Tensor x = uniform({16, 32, 28, 28}, 9);
        return training(net, sgd(net.parameters, 1e-2, 0.9), [=] {
            const Tensor y = lib::clamp(b(each(lib::clamp(a(up(x)), 0, 6))), 0, 6);
            return mean_square(x + c(down(y)));
        });
    });
    add_step("conv1d_16_64_64_adam", [] {
        Network net;
        const Tensor first = net.weight({64, 16, 7}), first_bias = net.vector(64), second = net.weight({64, 64, 5}), second_bias = net.vector(64);
        const Linear last(net, 64, 10);
        const Tensor x = uniform({32, 16, 512}, 9), y = integers({32}, 10, 10);
        return training(net, adam(net.parameters), [=] {
            const Tensor h = lib::relu(conv1d(x, first, first_bias, {.padding = 3}));
            return cross_entropy(last(lib::relu(conv1d(h, second, second_bias, {.stride = 2, .padding = 2})).mean({2})), y);
        });
    });
    add_step("dcgan_generator_64_128_64_adam", [] {
        Network net;
        const Linear first(net, 64, 128 * 49);
        const BatchNorm a(net, 128), b(net, 64);
        const Tensor second = net.weight({128, 64, 4, 4}), second_bias = net.vector(64), third = net.weight({64, 1, 4, 4}),
                     third_bias = net.vector(1);
        const Tensor z = uniform({32, 64}, 9);
        return training(net, adam(net.parameters), [=] {
            const Window twice{.stride = 2, .padding = 1};
            const Tensor h = lib::relu(a(first(z).view({32, 128, 7, 7})));
            return mean_square(lib::tanh(conv_transpose2d(lib::relu(b(conv_transpose2d(h, second, second_bias, twice))), third, third_bias, twice)));
        });
    });
}

void add_recurrent() {
    add_step("lstm_128_256", [] { return gradients_of(lstm(128, 256), uniform({64, 32, 128}, 9)); });
    add_step("lstm_64_64_two_layers_both_ways",
             [] { return gradients_of(lstm(64, 64, {.count = 2, .bidirectional = true}), uniform({32, 16, 64}, 9)); });
    add_step("gru_32_32_batch_1", [] { return gradients_of(gru(32, 32), uniform({20, 1, 32}, 9)); });
    add_step("gru_characters_96_64_256_adam", [] {
        Network net;
        const Tensor table = net.weight({96, 64});
        const Linear last(net, 256, 96);
        const Module layer = gru(64, 256);
        net.parameters.insert(net.parameters.end(), layer.parameters.begin(), layer.parameters.end());
        const Tensor x = integers({64, 32}, 9, 96), y = integers({64 * 32}, 10, 96);
        return training(net, adam(net.parameters), [=] { return cross_entropy(last(layer.call(embedded(x, table)).reshape({64 * 32, 256})), y); });
    });
    add_step("lstm_cell_64_128_50_steps_sgd", [] {
        Network net;
        const Module cell = lstm_cell_loop(64, 128);
        net.parameters = cell.parameters;
        return training(net, sgd(net.parameters, 1e-3), [cell, x = uniform({50, 1, 64}, 9)] { return mean_square(cell.call(x)); });
    });
    add_step("rnn_of_plain_ops_32_50_steps_sgd", [] {
        Network net;
        const Linear layer(net, 64, 32);
        const Tensor x = uniform({50, 1, 32}, 9);
        return training(net, sgd(net.parameters, 1e-3), [=] {
            Tensor h = lib::zeros({1, 32});
            for (std::int64_t i = 0; i < 50; ++i) h = lib::tanh(layer(lib::cat({x[i], h}, 1)));
            return mean_square(h);
        });
    });
    add_step("ode_2_32_2_100_steps_adam", [] {
        Network net;
        const Linear first(net, 2, 32), second(net, 32, 2);
        const Tensor start = uniform({1, 2}, 9);
        return training(net, adam(net.parameters), [=] {
            Tensor y = start;
            for (int i = 0; i < 100; ++i) y = y + second(lib::tanh(first(y))) * 0.01;
            return lib::square(y).sum();
        });
    });
}

void add_attention() {
    for (const bool bfloat16 : {false, true}) {
        add_step(bfloat16 ? "transformer_layer_256_bfloat16" : "transformer_layer_256",
                 [bfloat16] {
                     const Module layer = encoder_layer(256, 4, 1024, /*dropout=*/0);
                     const Tensor x = uniform({64, 16, 256}, 9);
                     const auto loss = [=] { return mean_square(layer.call(x)); };
                     return [=] { return gradients(layer.parameters, [&] { return bfloat16 ? in_bfloat16(loss) : loss(); }); };
                 },
                 {.has_losses = !bfloat16});
    }
    add_step("transformer_layer_256_dropout", [] { return gradients_of(encoder_layer(256, 4, 1024, /*dropout=*/0.1), uniform({64, 16, 256}, 9)); },
             {.has_losses = false});
    add_step("transformer_block_256", [] {
        Network net;
        const TransformerBlock block(net, 256, 4, /*causal=*/false);
        return [net, block, x = uniform({16, 64, 256}, 9)] { return gradients(net.parameters, [&] { return mean_square(block(x)); }); };
    });
    add_step("gpt_2_layers_128_adamw", [] {
        Network net;
        const Tensor table = net.weight({96, 128}), positions = net.weight({128, 128});
        const TransformerBlock first(net, 128, 4, /*causal=*/true), second(net, 128, 4, /*causal=*/true);
        const LayerNorm norm(net, 128);
        const Linear last(net, 128, 96);
        const Tensor x = integers({8, 128}, 9, 96), y = integers({8 * 128}, 10, 96);
        return [=, optimizer = adamw(net.parameters)] {
            const double loss = gradients(
                net.parameters, [&] { return cross_entropy(last(norm(second(first(embedded(x, table) + positions)))).view({8 * 128, 96}), y); });
            clip(net.parameters, 1);
            optimizer->step();
            return loss;
        };
    });
}

void add_sparse() {
    // Each row that the words name is gathered, its gradient is written, and the step reads both and writes the row (and Adagrad's sums).
    const StepRow skip_gram{.bytes = (512 + 512 * 6) * 128 * 4.0 * 6}, bag{.bytes = 256 * 50 * 64 * 4.0 * 5};
    const auto make_skip_gram = [] {
        Network net;
        const Tensor words = net.weight({50000, 128}), contexts = net.weight({50000, 128});
        const Tensor word = integers({512}, 9, 50000), context = integers({512, 6}, 10, 50000), y = uniform({512, 6}, 11, 0, 1);
        return training(net, sgd(net.parameters, 0.1), [=] {
            const Tensor scores = (sparsely_embedded(word, words).unsqueeze(1) * sparsely_embedded(context, contexts)).sum({2});
            return lib::binary_cross_entropy_with_logits(scores, y);
        });
    };
    add_step("skip_gram_50K_128_sgd", make_skip_gram, skip_gram);
    add_step(
        "embedding_bag_100K_64_adagrad",
        [] {
            Network net;
            const Tensor table = net.weight({100000, 64});
            const Linear last(net, 64, 20);
            const Tensor x = integers({256, 50}, 9, 100000), y = integers({256}, 10, 20);
            return training(net, adagrad(net.parameters, 1e-2), [=] { return cross_entropy(last(embedding_bag(x, table)), y); });
        },
        bag);
    add_step("gcn_10K_nodes_50K_edges_adam", [] {
        Network net;
        const Linear first(net, 64, 64), second(net, 64, 16);
        const Tensor x = uniform({10000, 64}, 9), weight = uniform({50000, 1}, 12, 0, 0.4f), from = integers({50000}, 10, 10000);
        const Tensor to = integers({50000}, 11, 10000), y = integers({10000}, 13, 16);
        const auto gathered = [=](const Tensor& h) {
            return lib::index_add(lib::zeros({10000, h.size(1)}), 0, to, lib::index_select(h, 0, from) * weight);
        };
        return training(net, adam(net.parameters), [=] { return cross_entropy(gathered(second(lib::relu(gathered(first(x))))), y); });
    });
}

/// The norm of the gradient by x is pushed to 1: a gradient of a gradient.
double gradient_penalty_step(const Mlp& model, const Optimizer& optimizer, Tensor x) {
    optimizer->zero_grad();
    const auto loss = [](const Tensor& score, const Tensor& slope) {
        return lib::square(lib::sqrt(lib::square(slope).sum({1}) + 1e-12) - 1).mean() + score.mean();
    };
#ifdef TAPIR_BENCH_TORCH
    x.mutable_grad() = Tensor();
    const Tensor score = model.with_tanh(x);
    const Tensor value = loss(score, torch::autograd::grad({score.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0]);
    value.backward();
#else
    x.zero_grad();
    tapir::Tape tape;
    const Tensor score = model.with_tanh(x);
    const Tensor value = loss(score, tape.gradient(tapir::sum(score), {x}, {.create_graph = true})[0]);
    tape.backward(value);
#endif
    optimizer->step();
    return value.item<double>();
}

void add_optimizers() {
    add_step("gradient_penalty_32_64_64_1_adam", [] {
        Network net;
        const Mlp model(net, 32, 64, 64, 1);
        return [=, optimizer = adam(net.parameters), x = leaf(uniform({64, 32}, 9))] { return gradient_penalty_step(model, optimizer, x); };
    });
    const auto stepping = [](int count, std::int64_t n, const auto& optimizer_of) {
        return [=] {
            Tensors parameters;
            for (int i = 0; i < count; ++i) {
                parameters.push_back(leaf(uniform({n}, static_cast<std::uint32_t>(i))));
                set_gradient(parameters.back(), uniform({n}, static_cast<std::uint32_t>(500 + i)));
            }
            return [optimizer = optimizer_of(parameters), parameters] {
                optimizer->step();
                return 0.0;
            };
        };
    };
    add_step("adam_alone_100x1000", stepping(100, 1000, [](const Tensors& p) { return adam(p); }));
    add_step("adam_alone_4M", stepping(1, 1 << 22, [](const Tensors& p) { return adam(p); }));
    add_step("sgd_momentum_alone_4M", stepping(1, 1 << 22, [](const Tensors& p) { return sgd(p, 1e-2, 0.9); }));
}

#ifdef TAPIR_BENCH_TORCH
/// Adam in one kernel, which PyTorch's C++ optimizer does not call.
auto fused_adam(const Tensors& parameters) {
    Tensors averages, squares, steps;
    for (const Tensor& p : parameters) {
        averages.push_back(torch::zeros_like(p).detach());
        squares.push_back(torch::zeros_like(p).detach());
        steps.push_back(torch::zeros({}));
    }
    return [=] {
        const torch::NoGradGuard guard;
        Tensors slopes;
        for (const Tensor& p : parameters) slopes.push_back(p.grad());
        for (const Tensor& step : steps) step.add_(1);
        at::_fused_adam_(parameters, slopes, averages, squares, {}, steps, /*lr=*/1e-3, 0.9, 0.999, /*weight_decay=*/0, 1e-8, false, false);
    };
}
#else
auto fused_adam(const Tensors& parameters) {
    return [optimizer = adam(parameters)] { optimizer->step(); };
}
#endif

/// The same MLP, in the best way that each of the libraries has beside the plain step.
void add_best_ways() {
    add_step("mlp_784_256_128_10_fused_adam", [] {
        Network net;
        const Mlp model(net, 784, 256, 128, 10);
        const Tensor x = uniform({64, 784}, 9), y = integers({64}, 10, 10);
        return [=, step = fused_adam(net.parameters)] {
            const double loss = gradients(net.parameters, [&] { return cross_entropy(model(x), y); });
            step();
            return loss;
        };
    });
}

#ifndef TAPIR_BENCH_TORCH
/// A whole step traced and compiled.
template <class Model>
auto compiled_training(const Model& model, const Optimizer& optimizer, const Tensor& x, const Tensor& y) {
    const auto step = [=](const Tensor& input, const Tensor& target) {
        tapir::Tape tape;
        Tensor loss = cross_entropy(model(input), target);
        tape.backward(loss);
        optimizer->step();
        optimizer->zero_grad();
        return loss;
    };
    tapir::Graph graph = tapir::trace(step, {{"x", x}, {"y", y}}, {.outputs = {"loss"}});
    tapir::optimize(graph);
    const auto compiled = std::make_shared<tapir::CompiledGraph>(graph.compile());
    return [=] { return (*compiled)(x, y).item<double>(); };
}
#else
template <class Model>
auto compiled_training(const Model& model, const Optimizer& optimizer, const Tensor& x, const Tensor& y) {
    const Tensors parameters = optimizer->param_groups()[0].params();
    return [=] { return train(optimizer, parameters, [&] { return cross_entropy(model(x), y); }); };
}
#endif

/// Compiled by Tapir, beside PyTorch's plain step. Tracing makes a step, so that losses are of later steps.
void add_compiled() {
    add_step("mlp_784_256_128_10_adam_compiled",
             [] {
                 Network net;
                 const Mlp model(net, 784, 256, 128, 10);
                 return compiled_training(model, adam(net.parameters), uniform({64, 784}, 9), integers({64}, 10, 10));
             },
             {.has_losses = false});
    add_step("mlp_32_64_64_4_batch_1_sgd_compiled",
             [] {
                 Network net;
                 const Mlp model(net, 32, 64, 64, 4);
                 return compiled_training(model, sgd(net.parameters, 1e-3), uniform({1, 32}, 9), integers({1}, 10, 4));
             },
             {.has_losses = false});
    add_step("mlp_32_64_64_4_batch_32_adam_compiled",
             [] {
                 Network net;
                 const Mlp model(net, 32, 64, 64, 4);
                 return compiled_training(model, adam(net.parameters), uniform({32, 32}, 9), integers({32}, 10, 4));
             },
             {.has_losses = false});
    add_step("cnn_3x3_32_64_adam_compiled",
             [] {
                 Network net;
                 const Cnn model(net, 3);
                 return compiled_training(model, adam(net.parameters), uniform({64, 1, 28, 28}, 9), integers({64}, 10, 10));
             },
             {.has_losses = false});
}

}  // namespace

void add_step_rows() {
    add_mlps();
    add_convolutional();
    add_recurrent();
    add_attention();
    add_sparse();
    add_optimizers();
    add_best_ways();
    add_compiled();
}

}  // namespace bench
