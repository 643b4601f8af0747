// What a traced function gives: structures of tensors become named outputs.
#include <catch2/catch.hpp>
#include <map>

#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

template <class Fn>
std::string outputs_of(Fn&& fn, const Tensor& x) {
    std::string names;
    const Graph graph = trace(fn, {{"x", x}});
    for (const Graph::Output& output : graph.outputs()) names += (names.empty() ? "" : " ") + output.name;
    return names;
}

struct Both {
    Tensor mean, left_out;
    std::pair<Tensor, Tensor> rest;
};

}  // namespace

TEST_CASE("outputs are named by their place, or by their name") {
    const Tensor x = ones({2, 3});
    CHECK(outputs_of([](const Tensor& t) { return t * 2; }, x) == "output");
    CHECK(outputs_of([](const Tensor& t) { return std::vector<Tensor>{t * 2}; }, x) == "output_0");
    CHECK(outputs_of([](const Tensor& t) { return std::pair{t, t * 2}; }, x) == "output_0 output_1");
    CHECK(outputs_of([](const Tensor& t) { return std::tuple{t, std::vector<Tensor>{t, t}, t + 1}; }, x) ==
          "output_0 output_1_0 output_1_1 output_2");
    CHECK(outputs_of([](const Tensor& t) { return Both{t, Tensor(), {t, t * 2}}; }, x) == "output_0 output_2_0 output_2_1");
    CHECK(outputs_of([](const Tensor& t) { return std::map<std::string, Tensor>{{"logits", t}, {"attention", t * 2}}; }, x) == "attention logits");
    CHECK(outputs_of([](const Tensor& t) { return NamedTensors{{"logits", t}, {"state", t * 2}}; }, x) == "logits state");
    nn::LSTM lstm(3, 4);
    CHECK(outputs_of(lstm, randn({5, 2, 3})) == "output_0 output_1_0 output_1_1");
}

TEST_CASE("names that are given go first") {
    const Graph graph = trace([](const Tensor& t) { return std::pair{t + 1, t * 2}; }, {{"x", ones({2})}}, {.outputs = {"more", "twice"}});
    CHECK(equal(graph.run({{"x", ones({2})}}, {"twice"})[0], full({2}, 2.0)));
    CHECK_THROWS_AS(trace([](const Tensor& t) { return t; }, {{"x", ones({2})}}, {.outputs = {"a", "b"}}), ValueError);
}
