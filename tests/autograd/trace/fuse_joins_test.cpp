// Images that graphs join along their channels, with the batch normalisation and the relu before and behind that.
#include <cmath>
#include <limits>
#include <vector>

#include "passes_check.h"

using namespace tapir;
using passes_check::ops_of;

namespace {

// An image with its channels last in memory, as behind a convolution.
Tensor image(const Shape& shape) { return conv2d(randn(shape), eye(shape[1]).view({shape[1], shape[1], 1, 1})); }

struct Norm {
    Tensor mean, var, weight, bias;
    explicit Norm(std::int64_t channels) : mean(randn(channels)), var(rand(channels) + 0.5), weight(randn(channels)), bias(randn(channels)) {}
    Tensor operator()(const Tensor& x) const { return batch_norm(x, mean, var, weight, bias); }
};

// The graph of fn at these three images, its joins fused, gives what fn gives, to the bit, for images with their channels last and for others, and for nan
// and infinities. Returns the graph's ops.
template <class Fn>
std::string fused_ops(const Fn& fn, const std::vector<Tensor>& images) {
    const auto of_three = [&](const Tensor& a, const Tensor& b, const Tensor& c) { return fn(std::vector{a, b, c}); };
    const Graph graph = trace(of_three, {{"a", images[0]}, {"b", images[1]}, {"c", images[2]}});
    Graph fused = graph;
    fuse_joins(fused);
    fused.check();
    const CompiledGraph run = graph.compile();
    std::vector<Tensor> strange, plain;
    for (const Tensor& x : images) {
        strange.push_back(x.clone());
        strange.back()[0][0].fill_(std::numeric_limits<float>::quiet_NaN());
        strange.back()[0][1].fill_(-std::numeric_limits<float>::infinity());
        plain.push_back(x.contiguous());
    }
    for (const std::vector<Tensor>& given : {images, strange, plain}) {
        std::vector<Tensor> inputs;  // those that fn needs
        for (std::size_t i = 0; i < 3; ++i) {
            if (!graph.inputs()[i]->uses.empty()) inputs.push_back(given[i]);
        }
        const Tensor y = run(inputs)[0], want = fn(given);
        CHECK(allclose(y, want, 0, 0, /*equal_nan=*/true));
    }
    return ops_of(fused);
}

}  // namespace

TEST_CASE("images are joined in one pass with the normalisation and relu behind that") {
    manual_seed(1);
    const std::vector<Tensor> three = {image({2, 5, 4, 3}), image({2, 33, 4, 3}), image({2, 2, 4, 3})};
    const Norm norm(40);
    const Tensor some = rand(33) + 0.5;
    CHECK(fused_ops([&](const auto& x) { return relu(norm(cat(x, 1))); }, three) == "fused_join");
    CHECK(fused_ops([&](const auto& x) { return norm(cat(x, -3)); }, three) == "fused_join");
    CHECK(fused_ops([&](const auto& x) { return relu(cat(x, 1)); }, three) == "fused_join");
    CHECK(fused_ops([&](const auto& x) { return cat({relu(x[0]), relu(x[1]), relu(x[2])}, 1); }, three) == "fused_join");
    CHECK(fused_ops([&](const auto& x) { return exp(norm(cat(x, 1))); }, three) == "fused_join exp");
    CHECK(fused_ops([&](const auto& x) { return relu(batch_norm(x[1], some, some)); }, three) == "fused_join");
    CHECK(fused_ops([&](const auto& x) { return relu(batch_norm(x[1], some, some, {}, some, {.eps = 0.1})); }, three) == "fused_join");
    const auto twice = [&](const auto& x) {
        const Tensor first = relu(norm(cat(x, 1)));
        return cat({relu(first), relu(x[2])}, 1);
    };
    CHECK(fused_ops(twice, three) == "fused_join fused_join");
    CHECK(fused_ops([&](const auto& x) { return relu(cat(x, 1)); }, {image({1, 600, 9, 9}), image({1, 900, 9, 9}), image({1, 3, 9, 9})}) ==
          "fused_join");
}

TEST_CASE("what is needed elsewhere, of another kind or of other dimensions is not joined") {
    manual_seed(2);
    const std::vector<Tensor> three = {image({2, 3, 4, 3}), image({2, 3, 4, 3}), image({2, 3, 4, 3})};
    const Norm norm(3), of_nine(9);
    CHECK(fused_ops([&](const auto& x) { return cat(x, 1); }, three) == "cat");
    CHECK(fused_ops([&](const auto& x) { return relu(cat(x, 2)); }, three) == "cat relu");
    CHECK(fused_ops([&](const auto& x) { return norm(x[0]) + x[1]; }, three) == "batch_norm add");
    CHECK(fused_ops([&](const auto& x) { return cat({relu(x[0]), x[1]}, 1); }, three) == "relu cat");
    const auto kept = [&](const auto& x) {
        const Tensor joined = cat(x, 1);
        return relu(of_nine(joined)) + joined;
    };
    CHECK(fused_ops(kept, three) == "cat fused_join add");
    const auto kept_relu = [&](const auto& x) {
        const Tensor first = relu(x[0]);
        return cat({first, relu(x[1])}, 1) + cat({first, x[2]}, 1);
    };
    CHECK(fused_ops(kept_relu, three) == "relu cat relu cat add");
    const auto trained = [](const auto& x) { return relu(batch_norm(x[0], {}, {}, {}, {}, {.training = true})); };
    const Graph graph = trace([&](const Tensor& x) { return trained(std::vector<Tensor>{x}); }, {{"x", three[0]}});
    Graph fused = graph;
    CHECK(fuse_joins(fused) == 0);
    CHECK(fused_ops([&](const auto& x) { return relu(cat({x[0].to(float64), x[1].to(float64)}, 1)); }, three) == "to_dtype to_dtype cat relu");
}

TEST_CASE("a text with a fused_join of too few operands is refused") {
    Graph graph = trace([](const Tensor& x) { return relu(cat({x, x}, 1)); }, {{"x", image({1, 2, 3, 3})}});
    fuse_joins(graph);
    std::string text = graph.str();
    CHECK(Graph::parse(text).nodes().size() == 1);
    const std::size_t at = text.find("pieces=2");
    REQUIRE(at != std::string::npos);
    for (const char* pieces : {"pieces=0", "pieces=3"}) CHECK_THROWS_AS(Graph::parse(text.replace(at, 8, pieces)), ValueError);
}
