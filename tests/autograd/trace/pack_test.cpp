// Packed weights of frozen graphs: the products of one row are those of linear().
#include "passes_check.h"

using namespace tapir;
using passes_check::ops_of;

TEST_CASE("linear layers of one row read packed weights once they are frozen") {
    manual_seed(4);
    for (const std::int64_t k : {1, 2, 7, 33, 300}) {
        for (const std::int64_t n : {1, 5, 16, 31, 128, 150, 201}) {
            const Tensor w = randn({n, k}).requires_grad_(), b = randn({n}).requires_grad_();
            const Tensor x = randn({1, k}), y = randn({k});
            const auto fn = [&](const Tensor& s, const Tensor& t) { return std::vector<Tensor>{linear(s, w, b), linear(t, w)}; };
            Graph graph = trace([&](const std::vector<Tensor>& t) { return fn(t[0], t[1]); }, {{"x", x}, {"y", y}});
            CHECK(pack_weights(graph) == 0);  // parameters may be trained
            freeze(graph);
            Graph packed = graph;
            CHECK(pack_weights(packed) == 2);
            packed.check();
            CHECK(ops_of(packed) == "packed_linear packed_linear");
            const std::vector<Tensor> wanted = {linear(x.to(float64), w.to(float64), b.to(float64)), linear(y.to(float64), w.to(float64))};
            const CompiledGraph run = graph.compile();
            for (int i = 0; i < 3; ++i) {
                const std::array<Tensor, 2> got = run.call<2>(x, y);
                for (std::size_t j = 0; j < 2; ++j) {
                    INFO(k << " " << n << ", output " << j);
                    CHECK(got[j].shape() == wanted[j].shape());
                    CHECK(allclose(got[j].to(float64), wanted[j], 1e-5, 1e-5 * static_cast<double>(k)));
                }
            }
        }
    }
}

TEST_CASE("more rows, other dtypes and large weights are not packed") {
    const auto count = [](const Tensor& x, const Tensor& w) {
        Graph graph = trace([&](const Tensor& t) { return linear(t, w); }, {{"x", x}});
        freeze(graph);
        return pack_weights(graph);
    };
    CHECK(count(randn({1, 1, 4}), randn({3, 4})) == 1);
    CHECK(count(randn({2, 4}), randn({3, 4})) == 0);
    CHECK(count(randn({1, 4}, {float64}), randn({3, 4}, {float64})) == 0);
    CHECK(count(randn({1, 1024}), zeros({513, 1024})) == 0);
}

TEST_CASE("a weight that is not packed is refused") {
    Graph graph;
    Graph::Value* x = graph.add_input("x", float32, {1, 4});
    Graph::Value* w = graph.add_input("w", float32, {12});
    CHECK_THROWS_WITH(graph.insert(nullptr, "packed_linear", {x, w}, {{"out_features", SymInt(std::int64_t{1} << 60)}}),
                      Catch::Contains("packed_linear: (1, 4) and (12,) are no row and packed weight of 1152921504606846976 rows"));
}
