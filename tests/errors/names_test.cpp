// An error names the op that was called, not one that it is made of: over all example calls, with inputs that do not fit.
#include <catch2/catch.hpp>
#include <cmath>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "../ops/samples.h"
#include "tapir/autograd/trace/trace.h"

using namespace tapir;
using tapir::test::Call;

namespace {

// Examples of what users do not call, with operands that their own callers have checked; and of a function that calls the user's.
bool is_internal(const Call& call) {
    static const std::set<std::string> names{"index_place",
                                             "repeated_indices",
                                             "weighted_exps",
                                             "spread",
                                             "to_largest",
                                             "to_largest_adaptive",
                                             "layer_norm_backward",
                                             "pieces",
                                             "part",
                                             "windows",
                                             "triplet_margin_with_distance_loss",
                                             "sgd",
                                             "adam",
                                             "adamw",
                                             "adamax",
                                             "adagrad",
                                             "adagrad_da",
                                             "adadelta",
                                             "nadam",
                                             "radam",
                                             "rmsprop",
                                             "rprop",
                                             "asgd",
                                             "lion"};
    for (const char* helper : {"symmetric(", "definite(", "matmul(x[0], transpose("}) {  // in the example itself
        if (call.code.find(helper) != std::string::npos) return true;
    }
    static const std::regex first("\\w+");
    std::smatch called;
    const bool is_named = std::regex_search(call.code, called, first);
    return names.count(call.name.substr(0, call.name.find(' '))) == 1 || (is_named && names.count(called[0]) == 1);
}

std::vector<Tensor> others_than(const Tensor& x) {
    std::vector<Tensor> others{x.unsqueeze(0), zeros({}, x.dtype()), zeros({7}, x.dtype()), zeros({2, 1, 3, 1, 2}, x.dtype())};
    if (x.dim() > 0) {
        for (const Tensor& other : {cat({x, x}, 0), cat({x, x}, -1), x.narrow(0, 0, 0)}) others.push_back(other);
        if (x.size(0) > 0) others.push_back(x.select(0, 0));
    }
    for (const DType dtype : {bool_, uint8, int64, float16, float32}) others.push_back(x.to(dtype));
    if (is_floating(x.dtype())) {
        others.push_back(full_like(x, NAN));
    } else if (x.dtype() != bool_) {
        for (const int far : {1000, -1000}) others.push_back(x + far);
    }
    return others;
}

// "mul" of "loss.cpp:88: mul: shapes (3, 4) and (0,) do not broadcast".
std::string op_in(const std::string& text) {
    const std::size_t begin = text.find(": ") + 2;
    return text.substr(begin, text.find(": ", begin) - begin);
}

// Whether the text begins with the op that the example is of, or with one that it calls itself.
bool names_call(const Call& call, const std::string& text) {
    std::string op = op_in(text);
    op = op.substr(op.rfind(':') + 1);
    if (op.ends_with('_')) op.pop_back();
    return op == call.op->name || std::regex_search(call.code, std::regex("\\b" + op + "_?\\b"));
}

// Of the same shape and dtype.
std::vector<Tensor> other_elements_than(const Tensor& x) {
    std::vector<Tensor> others{zeros_like(x)};
    if (is_floating(x.dtype())) {
        for (const double value : {static_cast<double>(NAN), -2.0, 1e4}) others.push_back(full_like(x, value));
    } else if (x.dtype() == bool_) {
        others.push_back(logical_not(x));
    } else {
        for (const int far : {100, -100}) others.push_back(x + far);
    }
    return others;
}

}  // namespace

TEST_CASE("errors name the op that was called, over the op table") {
    int errors = 0;
    for (const Call& call : test::all_calls()) {
        if (call.extreme || is_internal(call)) continue;
        const std::vector<Tensor> inputs = test::make_inputs(call);
        for (std::size_t k = 0; k < inputs.size(); ++k) {
            for (const Tensor& other : others_than(inputs[k])) {
                std::vector<Tensor> changed = inputs;
                changed[k] = other;
                try {
                    call.run(changed);
                } catch (const Error& error) {
                    ++errors;
                    INFO(call.name << ": " << call.code << ", operand " << k << " of shape " << other.shape().str() << ": " << error.what());
                    if (!names_call(call, error.what())) CHECK(op_in(error.what()) == call.op->name);
                }
            }
        }
    }
    CHECK(errors > 5000);
}

TEST_CASE("errors of graphs' nodes name the op that the traced program called, over the op table", "[trace]") {
    int errors = 0;
    for (const Call& call : test::all_calls()) {
        if (call.extreme || is_internal(call)) continue;
        const std::vector<Tensor> inputs = test::make_inputs(call);
        std::vector<TraceInput> named;
        for (const Tensor& x : inputs) named.push_back({"x" + std::to_string(named.size()), x});
        const Graph graph = trace(
            [&](const std::vector<Tensor>& x) {
                std::vector<Tensor> results;
                for (const Tensor& y : call.run(x)) {
                    if (y.defined()) results.push_back(y);
                }
                return results;
            },
            named, {.reads = TraceOptions::Reads::guard});
        for (std::size_t k = 0; k < inputs.size(); ++k) {
            for (const Tensor& other : other_elements_than(inputs[k])) {
                std::vector<Tensor> changed = inputs;
                changed[k] = other;
                try {
                    graph(changed);
                } catch (const Error& error) {
                    if (op_in(error.what()) == "graph") continue;  // a guard
                    ++errors;
                    INFO(call.name << ": " << call.code << ", operand " << k << ": " << error.what());
                    if (!names_call(call, error.what())) CHECK(op_in(error.what()) == call.op->name);
                }
            }
        }
    }
    CHECK(errors > 100);
}
