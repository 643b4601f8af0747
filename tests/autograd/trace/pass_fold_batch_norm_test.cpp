// Batch normalisation as part of the layer before it.
#include "passes_check.h"
#include "tapir/nn/nn.h"

using namespace passes_check;

namespace {

// A layer of four channels and its normalisation, with statistics and weights that are not the ones of the beginning.
template <class Layer, class Norm>
struct Model {
    Layer layer;
    Norm norm;

    Model(Layer made, Norm before, const Shape& input) : layer(std::move(made)), norm(std::move(before)) {
        for (int i = 0; i < 3; ++i) norm(layer(randn(input) * 2 + 1));
        NoGradScope off;
        for (Tensor* p : {&norm.weight, &norm.bias}) p->add_(rand(p->shape()));
        norm.eval();
    }
    Tensor operator()(const Tensor& x) { return relu(norm(layer(x))); }
};

template <class M>
void folds(M& model, const std::string& op, const Tensor& x) {
    const Graph before = trace([&](const Tensor& in) { return model(in); }, {{"x", x, {"batch"}}});
    INFO(before.str());
    REQUIRE(ops_of(before) == op + " batch_norm relu");
    Graph graph = before;
    CHECK(fold_batch_norm(graph) == 0);  // parameters may be trained
    CHECK(freeze(graph) > 0);
    CHECK(fold_batch_norm(graph) == 1);
    fold_constants(graph);
    CHECK(ops_of(graph) == op + " relu");
    check_same_graphs(graph, before, {x}, 1e-4, 1e-5);
    Graph trained = before;
    CHECK(fold_batch_norm(trained, /*with_parameters=*/true) == 1);
    CHECK(ops_of(trained).find("batch_norm") == std::string::npos);
    check_same_graphs(trained, before, {x}, 1e-4, 1e-5);
    {
        NoGradScope off;
        for (const Graph::Value* parameter : trained.parameters()) Tensor(parameter->data).mul_(1.5);
    }
    check_same_graphs(trained, before, {x}, 1e-4, 1e-5);
}

}  // namespace

TEST_CASE("a listing before and after batch normalisation is folded") {
    const Tensor w = tensor({{2.0}, {-1.0}}, float64), b = tensor({0.5, 0.25}, float64);
    const Tensor mean = tensor({1.0, 2.0}, float64), var = tensor({4.0, 0.25}, float64), gamma = tensor({3.0, 1.0}, float64);
    Graph graph =
        trace([&](const Tensor& x) { return batch_norm(linear(x, w, b), mean, var, gamma, {}, {.eps = 0}); }, {{"x", ones({3, 1}, float64)}});
    const Graph before = graph;
    CHECK(ops_of(before) == "linear batch_norm");
    CHECK(fold_batch_norm(graph) == 1);
    fold_constants(graph);
    // Channel 0: scale 3/2, weight 3, bias (0.5 - 1) * 1.5; channel 1: scale 2, weight -2, bias (0.25 - 2) * 2.
    CHECK(listing(graph) ==
          "input x: float64 (3, 1)\n"
          "constant %1: float64 (2,) = [-0.75, -3.5]\n"
          "constant %2: float64 (2, 1) = [3.0, -2.0]\n"
          "%3: float64 (3, 2) = linear(x, %2, %1)\n"
          "output output = %3\n");
    check_same_graphs(graph, before, {tensor({{0.5}, {-2.0}, {3.0}}, float64)});
}

TEST_CASE("batch normalisation behind convolutions and linear layers") {
    manual_seed(3);
    Model conv2(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), {2, 3, 6, 6});
    folds(conv2, "convolution", randn({2, 3, 6, 6}));
    Model plain(nn::Conv2d(6, 4, 3, {.stride = 2, .padding = 1, .groups = 2, .bias = false}), nn::BatchNorm2d(4), {2, 6, 6, 6});
    folds(plain, "convolution", randn({2, 6, 6, 6}));
    Model conv1(nn::Conv1d(3, 4, 3), nn::BatchNorm1d(4), {2, 3, 6});
    folds(conv1, "convolution", randn({2, 3, 6}));
    Model transposed(nn::ConvTranspose2d(3, 4, 3, {.stride = 2}), nn::BatchNorm2d(4), {2, 3, 5, 5});
    folds(transposed, "conv_transpose", randn({2, 3, 5, 5}));
    Model dense(nn::Linear(3, 4), nn::BatchNorm1d(4), {5, 3});
    folds(dense, "linear", randn({5, 3}));
}

TEST_CASE("training, and what is needed besides, stay") {
    manual_seed(4);
    const Tensor w = randn({4, 3}), stats = rand({4}) + 0.5;
    const auto stays = [&](const auto& fn) {
        Graph graph = trace(fn, {{"x", randn({5, 3})}});
        CHECK(fold_batch_norm(graph, true) == 0);
    };
    stays([&](const Tensor& x) { return batch_norm(linear(x, w), {}, {}, {}, {}, {.training = true}); });
    stays([&](const Tensor& x) {
        const Tensor y = linear(x, w);
        return batch_norm(y, stats, stats) + y;
    });
    stays([&](const Tensor& x) { return batch_norm(tanh(linear(x, w)), stats, stats); });
    // Of three dimensions the second one is normalised, which is not what the layer makes.
    stays([&](const Tensor& x) { return batch_norm(linear(x.reshape({5, 1, 3}).expand({5, 4, 3}), w), stats, stats); });
}

TEST_CASE("a weight of more than a million elements takes the scale of its normalisation in") {
    nn::Linear layer(1100, 1000, {.bias = false});
    nn::BatchNorm1d norm(1000);
    norm(randn({4, 1000}));
    norm.eval();
    Graph graph = trace([&](const Tensor& x) { return relu(norm(layer(x))); }, {{"x", randn({2, 1100})}});
    const Graph before = graph;
    freeze(graph);
    optimize(graph);
    CHECK(ops_of(graph) == "linear relu");
    check_same_graphs(graph, before, {randn({2, 1100})}, 1e-4, 1e-5);
}
