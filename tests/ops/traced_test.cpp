// Every op can be traced: the graph of each sample gives what the op does, on other numbers than it was traced with, and so does
// the graph of its gradient.
#include <algorithm>
#include <catch2/catch.hpp>

#include "samples.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// The inputs with other floating numbers, which are as good.
std::vector<Tensor> others(const std::vector<Tensor>& inputs) {
    std::vector<Tensor> list;
    for (const Tensor& x : inputs) list.push_back(is_floating(x.dtype()) ? x * 0.96875 + 0.0078125 : x.clone());
    return list;
}

std::vector<TraceInput> named(const std::vector<Tensor>& inputs) {
    std::vector<TraceInput> list;
    for (std::size_t i = 0; i < inputs.size(); ++i) list.push_back({"x" + std::to_string(i), inputs[i]});
    return list;
}

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
    CHECK(got.size() == wanted.size());
    for (std::size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
        INFO("output " << i);
        CHECK(got[i].dtype() == wanted[i].dtype());
        CHECK(got[i].shape() == wanted[i].shape());
        if (got[i].shape() == wanted[i].shape()) CHECK(allclose(got[i].to(float64), wanted[i].to(float64), 1e-10, 1e-10, /*equal_nan=*/true));
    }
}

using Traced = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

void check_trace(const Traced& fn, const std::vector<Tensor>& inputs) {
    manual_seed(5);
    const Graph graph = trace(fn, named(inputs));
    INFO(graph.str());
    const std::vector<Tensor> fresh = others(inputs);
    manual_seed(7);
    const std::vector<Tensor> got = graph(fresh);
    manual_seed(7);
    check_same(got, fn(fresh));
}

}  // namespace

TEST_CASE("every op can be traced", "[ops]") {
    for (const test::Call& call : test::all_calls()) {
        INFO(call.name << ": " << call.torch);
        try {
            check_trace(call.run, test::make_inputs(call));
        } catch (const Error& error) {
            FAIL_CHECK(error.what());
        }
    }
}

TEST_CASE("the gradient of every op can be traced", "[ops]") {
    for (const test::Call& call : test::all_calls()) {
        if (!call.differentiable) continue;
        INFO(call.name << ": " << call.torch);
        try {
            const std::vector<Tensor> inputs = test::make_inputs(call);
            manual_seed(5);
            if (test::gradients(call, inputs).empty()) continue;
            check_trace([&](const std::vector<Tensor>& x) { return test::gradients(call, x); }, inputs);
        } catch (const Error& error) {
            if (!test::is_gradient_sized_by_data(call, error)) FAIL_CHECK(error.what());
        }
    }
}
