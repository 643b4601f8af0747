// Rows of inference, each of them also compiled by Tapir, beside PyTorch's plain call.
#include "layers.h"
#include "rows.h"

namespace bench {
namespace {

#ifdef TAPIR_BENCH_TORCH
template <class Model>
auto compiled(const Model& model, const Tensor& x) {
    return [=] { return model(x); };
}
#else
template <class Model>
auto compiled(const Model& model, const Tensor& x) {
    tapir::Graph graph = tapir::trace(model, {{"x", x}}, {.outputs = {"y"}});
    tapir::freeze(graph);
    tapir::optimize(graph);
    const auto made = std::make_shared<tapir::CompiledGraph>(graph.compile());
    return [=] { return (*made)(x); };
}
#endif

/// make(net) makes the model: a function from a tensor to a tensor.
template <class Make>
void add_model(const std::string& name, const Shape& input, const Make& make) {
    add_op("infer/" + name, [=] {
        Network net;
        return [model = make(net), x = uniform(input, 9)] { return model(x); };
    });
    add_op("infer/" + name + "/compiled", [=] {
        Network net;
        return compiled(make(net), uniform(input, 9));
    });
}

/// One token after 128 others, whose keys and values are there.
auto decoder(Network& net) {
    const Linear query(net, 256, 256), key(net, 256, 256), value(net, 256, 256), out(net, 256, 256), up(net, 256, 1024), down(net, 1024, 256);
    const LayerNorm attention_norm(net, 256), norm(net, 256);
    const Tensor keys = uniform({1, 4, 128, 64}, 8), all_values = uniform({1, 4, 128, 64}, 7);
    return [=](const Tensor& x) {
        const auto in_heads = [](const Tensor& t) { return t.view({1, 1, 4, 64}).transpose(1, 2); };
        const Tensor h = attention_norm(x);
        const Tensor k = lib::cat({keys, in_heads(key(h))}, 2), v = lib::cat({all_values, in_heads(value(h))}, 2);
        const Tensor y = x + out(attention(in_heads(query(h)), k, v).transpose(1, 2).reshape({1, 1, 256}));
        return y + down(lib::gelu(up(norm(y))));
    };
}

}  // namespace

void add_inference_rows() {
    add_model("mlp_784_256_128_10/batch_1", {1, 784},
              [](Network& net) { return [model = Mlp(net, 784, 256, 128, 10)](const Tensor& x) { return model(x); }; });
    add_model("mlp_4_64_64_2/batch_1", {1, 4}, [](Network& net) { return [model = Mlp(net, 4, 64, 64, 2)](const Tensor& x) { return model(x); }; });
    add_model("cnn_3x3_32_64/batch_1", {1, 1, 28, 28}, [](Network& net) { return [model = Cnn(net, 3)](const Tensor& x) { return model(x); }; });
    for (const std::int64_t batch : {1, 32}) {
        add_model("resnet_32_64_128/batch_" + std::to_string(batch), {batch, 3, 32, 32},
                  [](Network& net) { return [model = ResNet(net)](const Tensor& x) { return model(x, /*training=*/false); }; });
    }
    add_model("transformer_2_blocks_256/batch_1", {1, 128, 256}, [](Network& net) {
        const TransformerBlock first(net, 256, 4, /*causal=*/false), second(net, 256, 4, /*causal=*/false);
        return [=](const Tensor& x) { return second(first(x)); };
    });
    add_model("decode_1_token_256", {1, 1, 256}, decoder);
}

}  // namespace bench
