// Dimensions without elements: a sum of no terms is zeros, and so is its gradient. Every op whose gradient is known, with each
// dimension of each input empty, and every dimension of one size: where the forward runs, the backward does, to the second order.
//
// What this does not cover: ops that overwrite a tensor, which gives what was there no gradient; and the values (table_test.cpp).
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "../fails.h"
#include "samples.h"
#include "tapir/autograd/gradcheck.h"
#include "tapir/optim/optim.h"

using namespace tapir;
using tapir::test::Call;

namespace {

// Gradients of views, which are given the shapes that they have in the sample, and ops that overwrite what they are given.
bool is_left_out(const Call& call) {
    const std::string name = call.op->name;
    return !call.differentiable || call.extreme || name == "place" || name == "index_place" || name == "copy" || call.op->is_given_numbers();
}

// Each dimension of each input empty, and all dimensions of one size.
std::vector<test::Variant> empty_variants(const Call& call) {
    std::vector<test::Variant> result;
    for (test::Variant& variant : test::variants(call)) {
        if (variant.name.find(" -> 0") != std::string::npos) result.push_back(std::move(variant));
    }
    const std::vector<Tensor> inputs = test::make_inputs(call);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        for (int d = 0; d < inputs[i].dim(); ++d) {
            test::Variant variant{fmt::format("x[{}], dimension {}", i, d), inputs};
            variant.inputs[i] = inputs[i].narrow(d, 0, 0).clone();
            result.push_back(std::move(variant));
        }
    }
    return result;
}

bool is_zeros(const Tensor& t) {
    for (const double v : t.to_vector<double>()) {
        if (v != 0) return false;
    }
    return true;
}

// The sum of the results that a gradient flows through; undefined where there is none. `has_elements`: one of them has some.
Tensor total_of(const std::vector<Tensor>& results, bool& has_elements) {
    Tensor total;
    has_elements = false;
    for (const Tensor& y : results) {
        if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
        has_elements |= y.numel() > 0;
        const Tensor part = sum(y.to(float64));
        total = total.defined() ? total + part : part;
    }
    return total;
}

// The gradients of leaves, or of what is computed from them, where hooks see them on the way.
std::vector<Tensor> leaf_gradients(const Call& call, const std::vector<Tensor>& inputs, bool is_computed, bool& has_elements) {
    std::vector<Tensor> leaves, used, seen(inputs.size());
    Tape tape;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        leaves.push_back(inputs[i].clone());
        if (is_floating(inputs[i].dtype())) leaves.back().requires_grad_();
        used.push_back(is_computed && is_floating(inputs[i].dtype()) ? leaves.back() * 1 : leaves.back());
        if (!used.back().requires_grad()) continue;
        used.back().register_hook([&seen, i](const Tensor& g) {
            seen[i] = g;
            return Tensor();
        });
    }
    const Tensor total = total_of(call.run(used), has_elements);
    if (!total.defined()) return {};
    tape.backward(total);
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!is_floating(inputs[i].dtype())) continue;
        INFO("input " << i);
        CHECK((seen[i].defined() && seen[i].shape() == inputs[i].shape()));
        gradients.push_back(leaves[i].grad());
    }
    return gradients;
}

void check_gradients(const Call& call, const std::vector<Tensor>& inputs) {
    std::vector<Tensor> floating;
    for (const Tensor& x : inputs) {
        if (is_floating(x.dtype())) floating.push_back(x);
    }
    for (const bool is_computed : {false, true}) {
        INFO((is_computed ? "computed" : "leaves"));
        bool has_elements = false;
        const std::vector<Tensor> gradients = leaf_gradients(call, inputs, is_computed, has_elements);
        if (gradients.empty()) return;
        REQUIRE(gradients.size() == floating.size());
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            INFO("gradient " << i);
            REQUIRE(gradients[i].defined());
            CHECK(gradients[i].shape() == floating[i].shape());
            CHECK(gradients[i].dtype() == floating[i].dtype());
            if (!has_elements) CHECK(is_zeros(gradients[i]));
        }
    }
}

bool are_finite(const std::vector<Tensor>& results) {
    for (const Tensor& y : results) {
        for (const double v : y.to_vector<double>()) {
            if (!std::isfinite(v)) return false;
        }
    }
    return true;
}

// First and second derivatives against differences; where a result has no elements, all of them are zeros.
void check_differences(const Call& call, const std::vector<Tensor>& inputs, const std::vector<Tensor>& results) {
    if (!are_finite(results)) return;  // the mean of nothing
    for (std::size_t k = 0; k < results.size(); ++k) {
        if (!is_floating(results[k].dtype())) continue;
        INFO("output " << k);
        const auto fn = [&](const std::vector<Tensor>& x) { return call.run(x)[k]; };
        CHECK(gradcheck(fn, inputs, {.raise_exception = false}).message == "");
        CHECK(gradgradcheck(fn, inputs, {.raise_exception = false}).message == "");
    }
}

}  // namespace

TEST_CASE("what runs on dimensions without elements has a gradient", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (is_left_out(call)) continue;
        for (const test::Variant& variant : empty_variants(call)) {
            INFO(call.name << ", " << variant.name << ": " << call.code << " of " << call.inputs);
            for (const DType dtype : {float64, float32}) {
                INFO(name(dtype));
                std::vector<Tensor> inputs, results;
                for (const Tensor& x : variant.inputs) inputs.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
                try {
                    results = call.run(inputs);
                } catch (const Error&) {
                    continue;  // refused
                }
                CHECK_NOTHROW(check_gradients(call, inputs));
                if (dtype == float64) CHECK_NOTHROW(check_differences(call, inputs, results));
            }
        }
    }
}

TEST_CASE("a batch of no examples leaves a weight as it leaves a bias", "[ops]") {
    // Momentum goes on with a gradient of zeros, as PyTorch's does.
    Tensor weight = ones({2, 3}).requires_grad_(), bias = ones({2}).requires_grad_();
    optim::SGD optimizer({weight, bias}, {.lr = 0.5, .momentum = 0.5});
    for (const std::int64_t batch : {1, 0, 1}) {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(sum(linear(ones({batch, 3}), weight, bias)));
        REQUIRE(weight.grad().defined());
        optimizer.step();
    }
    // Steps of 0.5 times 1, 0.5 and 1.25.
    CHECK(weight.to_vector<float>() == std::vector<float>(6, -0.375f));
    CHECK(bias.to_vector<float>() == std::vector<float>(2, -0.375f));
}

TEST_CASE("the gradient of a computed weight of a product without rows is zeros", "[ops]") {
    const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> all = {
        {"linear", [](const Tensor& w) { return linear(zeros({0, 5}), w); }},
        {"mm", [](const Tensor& w) { return mm(zeros({0, 3}), w); }},
        {"addmm", [](const Tensor& w) { return addmm(zeros({5}), zeros({0, 3}), w); }},
        {"addmv", [](const Tensor& w) { return addmv(zeros({0}), zeros({0, 15}), w.flatten()); }},
        {"baddbmm", [](const Tensor& w) { return baddbmm(zeros({1, 1, 1}), zeros({2, 0, 3}), w.expand({2, 3, 5})); }},
        {"matmul", [](const Tensor& w) { return matmul(zeros({4, 0, 3}), w); }},
        {"einsum", [](const Tensor& w) { return einsum("bi,ij->bj", {zeros({0, 3}), w}); }},
        {"tensordot", [](const Tensor& w) { return tensordot(zeros({2, 0, 3}), w, 1); }},
        {"bilinear", [](const Tensor& w) { return bilinear(zeros({0, 3}), zeros({0, 5}), w.unsqueeze(0)); }},
        {"attention", [](const Tensor& w) { return scaled_dot_product_attention(zeros({0, 5}), w, w); }},
        {"cdist", [](const Tensor& w) { return cdist(zeros({0, 5}), w); }},
        {"embedding", [](const Tensor& w) { return embedding(zeros({0}, int64), w); }},
        {"index_select", [](const Tensor& w) { return index_select(w, 0, zeros({0}, int64)); }},
        {"conv1d", [](const Tensor& w) { return conv1d(zeros({0, 3, 9}), w.unsqueeze(0)); }},
    };
    for (const auto& [op, product] : all) {
        for (const auto& [kind, computed] : std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>>{
                 {"leaf", [](const Tensor& w) { return w; }},
                 {"w * 2", [](const Tensor& w) { return w * 2; }},
                 {"w.t().t()", [](const Tensor& w) { return w.t().t(); }},
                 {"exp", [](const Tensor& w) { return exp(w); }},
                 {"softmax", [](const Tensor& w) { return softmax(w, 1); }},
                 {"cat", [](const Tensor& w) { return cat({w.narrow(0, 0, 1), w.narrow(0, 1, 2)}); }}}) {
            INFO(op << " of " << kind);
            const Tensor w = ones({3, 5}).requires_grad_();
            Tape tape;
            const Tensor y = product(computed(w));
            CHECK(y.numel() == 0);
            const Tensor g = tape.gradient(sum(y), {w}, {.create_graph = true})[0];
            CHECK((g.shape() == w.shape() && is_zeros(g)));
            tape.backward(sum(y) + sum(g));
            REQUIRE(w.grad().defined());
            CHECK((w.grad().shape() == w.shape() && is_zeros(w.grad())));
        }
    }
}

TEST_CASE("a product over a dimension of no elements is zeros, and so are its gradients", "[ops]") {
    const std::pair<Shape, Shape> shapes[] = {{{5, 5, 0}, {0, 5}}, {{3, 4, 0}, {0}},    {{2, 0}, {0, 3}},
                                              {{0}, {0, 3}},       {{2, 0}, {2, 0, 4}}, {{0}, {0}}};
    for (const auto& [of_a, of_b] : shapes) {
        const Tensor a = ones(of_a).requires_grad_(), b = ones(of_b).requires_grad_();
        Tape tape;
        const Tensor y = matmul(a, b);
        CHECK(is_zeros(y));
        tape.backward(sum(y));
        CHECK((a.grad().shape() == of_a && b.grad().shape() == of_b));
    }
    const Tensor x = ones({3, 4, 0}).requires_grad_(), w = ones({2, 0}).requires_grad_(), bias = ones({2}).requires_grad_();
    Tape tape;
    tape.backward(sum(linear(x, w, bias)));
    CHECK((x.grad().shape() == x.shape() && w.grad().shape() == w.shape()));
    CHECK(bias.grad().to_vector<float>() == std::vector<float>{12, 12});
}

TEST_CASE("a mask that holds nowhere leaves masked_scatter's gradients", "[ops]") {
    const Tensor x = ones({3}).requires_grad_(), source = ones({2}).requires_grad_(), none = ones({0}).requires_grad_();
    for (const Tensor& src : {source, none}) {
        Tape tape;
        const std::vector<Tensor> g = tape.gradient(sum(masked_scatter(x, zeros({3}, bool_), src) * 3), {x, src});
        CHECK(g[0].to_vector<float>() == std::vector<float>{3, 3, 3});
        CHECK((g[1].shape() == src.shape() && is_zeros(g[1])));
    }
}
