// Mistakes of the caller, one a line: each throws its type of error, the message begins with the caller's file and line
// and says what is wrong, and no tensor has changed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "tapir/autograd/log_impl.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// Tensors of all sorts that the mistakes are made with.
struct Fixture {
    Tensor none;
    Tensor scalar = tensor(1.0);
    Tensor v3 = tensor({1.0, 2.0, 3.0});
    Tensor v4 = tensor({1.0, 2.0, 3.0, 4.0});
    Tensor m23 = tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}});
    Tensor m34 = ones({3, 4});
    Tensor m45 = ones({4, 5});
    Tensor t234 = ones({2, 3, 4});
    Tensor i3 = tensor({0, 1, 2});
    Tensor bad_index = tensor({0, 7});
    Tensor b3 = tensor({true, false, true});
    Tensor half3 = ones({3}, float16);
    Tensor d3 = ones({3}, float64);
    Tensor empty0 = zeros({0});
    Tensor leaf = ones({3}).requires_grad_();

    std::vector<const Tensor*> all() const { return {&scalar, &v3, &v4, &m23, &m34, &m45, &t234, &i3, &bad_index, &b3, &half3, &d3, &empty0, &leaf}; }
};

struct Snapshot {
    std::vector<std::vector<double>> values;
    std::vector<std::uint32_t> versions;
    bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(const Fixture& f) {
    Snapshot s;
    for (const Tensor* t : f.all()) {
        s.values.push_back(t->to_vector<double>());
        s.versions.push_back(t->impl()->storage->version);
    }
    return s;
}

template <class E, class Fn>
void misuse(Fixture& f, int line, const char* code, const std::string& text, const Fn& fn) {
    INFO("line " << line << ": " << code);
    const Snapshot before = snapshot(f);
    const std::int64_t live = memory_stats().live_bytes;
    try {
        fn(f);
        CHECK(std::string("an error") == "nothing thrown");
    } catch (const E& error) {
        const std::string what = error.what();
        const std::string start = "misuse_test.cpp:" + std::to_string(line) + ": ";
        CHECK(what.substr(0, start.size()) == start);
        INFO(what);
        CHECK(what.find(text) != std::string::npos);
        CHECK(std::count(what.begin(), what.end(), '\n') <= 1);
    } catch (const std::exception& error) {
        CHECK(std::string("another type of error: ") + error.what() == "");
    }
    CHECK(snapshot(f) == before);
    if (!is_recording()) CHECK(memory_stats().live_bytes == live);  // the tape may keep arguments
}

#define MISUSE(type, text, ...) \
    misuse<type>(f, __LINE__, #__VA_ARGS__, text, [](Fixture& x) { static_cast<void>(x), static_cast<void>(__VA_ARGS__); })

}  // namespace

TEST_CASE("misuse: undefined tensors", "[misuse]") {
    Fixture f;
    MISUSE(ValueError, "add: the tensor is undefined", x.none + x.v3);
    MISUSE(ValueError, "add: the tensor is undefined", x.v3 + x.none);
    MISUSE(ValueError, "mul: the tensor is undefined", x.none * 2);
    MISUSE(ValueError, "tanh: the tensor is undefined", tanh(x.none));
    MISUSE(ValueError, "undefined", x.none.sigmoid());
    MISUSE(ValueError, "matmul: the tensor is undefined", matmul(x.none, x.m34));
    MISUSE(ValueError, "linear: the tensor is undefined", linear(x.v3, x.none));
    MISUSE(ValueError, "sum: the tensor is undefined", sum(x.none));
    MISUSE(ValueError, "reshape: the tensor is undefined", reshape(x.none, {2}));
    MISUSE(ValueError, "undefined", x.none.view({2}));
    MISUSE(ValueError, "undefined", x.none.item<float>());
    MISUSE(ValueError, "undefined", x.none.data<float>());
    MISUSE(ValueError, "undefined", x.none.to_vector<float>());
    MISUSE(ValueError, "undefined", x.none[0]);
    MISUSE(ValueError, "undefined", x.none.clone());
    MISUSE(ValueError, "undefined", x.none.to(float64));
    MISUSE(ValueError, "undefined", x.none.requires_grad_());
    MISUSE(ValueError, "undefined", x.none.fill_(1));
    MISUSE(ValueError, "undefined", x.v3.copy_(x.none));
    MISUSE(ValueError, "undefined", x.none.copy_(x.v3));
    MISUSE(ValueError, "undefined", cat({x.v3, x.none}));
    MISUSE(ValueError, "undefined", stack({x.none}));
    MISUSE(ValueError, "undefined", softmax(x.none, 0));
    MISUSE(ValueError, "undefined", cross_entropy(x.none, x.i3));
    MISUSE(ValueError, "undefined", x.v3 += x.none);
    MISUSE(ValueError, "undefined", zeros_like(x.none));
    MISUSE(ValueError, "undefined", where(x.none, x.v3, x.v3));
    MISUSE(ValueError, "undefined", embedding(x.none, x.m34));
}

TEST_CASE("misuse: shapes", "[misuse]") {
    Fixture f;
    MISUSE(ShapeError, "add: shapes (3,) and (4,) do not broadcast", x.v3 + x.v4);
    MISUSE(ShapeError, "mul: shapes (2, 3) and (3, 4) do not broadcast", x.m23 * x.m34);
    MISUSE(ShapeError, "maximum: shapes", maximum(x.v3, x.v4));
    MISUSE(ShapeError, "lt: shapes", x.v3 < x.v4);
    MISUSE(ShapeError, "lerp: shapes", lerp(x.v3, x.v3, x.v4));
    MISUSE(ShapeError, "where", where(x.b3, x.v4, x.v4));
    MISUSE(ShapeError, "add_: a result of shape (2, 3) cannot be written into (3,)", x.v3 += x.m23);
    MISUSE(ShapeError, "mul: shapes (3,) and (4,) do not broadcast", x.v3.mul_(x.v4));
    MISUSE(ShapeError, "copy_: shape", x.v3.copy_(x.m23));
    MISUSE(ShapeError, "copy_", x.v3.copy_(x.v4));
    MISUSE(ShapeError, "matmul: inner dimensions differ: (2, 3) x (4, 5)", matmul(x.m23, x.m45));
    MISUSE(ShapeError, "matmul: inner dimensions differ: (2, 3) x (4,)", matmul(x.m23, x.v4));
    MISUSE(ShapeError, "matmul: both operands need at least 1 dimension", matmul(x.scalar, x.v3));
    MISUSE(ShapeError, "do not broadcast", matmul(ones({2, 2, 3}), ones({3, 3, 2})));
    MISUSE(ShapeError, "mm: needs", mm(x.v3, x.m34));
    MISUSE(ShapeError, "bmm: needs", bmm(x.m23, x.m34));
    MISUSE(ShapeError, "bmm: batch sizes differ", bmm(ones({2, 2, 3}), ones({3, 3, 2})));
    MISUSE(ShapeError, "mv: needs", mv(x.v3, x.m23));
    MISUSE(ShapeError, "dot: needs", dot(x.m23, x.v3));
    MISUSE(ShapeError, "dot: inner dimensions differ: (3,) x (4,)", dot(x.v3, x.v4));
    MISUSE(ShapeError, "outer: needs two vectors", outer(x.m23, x.v3));
    MISUSE(ShapeError, "linear: an input of shape (2, 3) does not fit a weight of shape (3, 4)", linear(x.m23, x.m34));
    MISUSE(ShapeError, "linear: a bias of shape (4,) does not fit a weight of shape (2, 3)", linear(x.v3, x.m23, x.v4));
    MISUSE(ShapeError, "linear", linear(x.scalar, x.m23));
    MISUSE(ShapeError, "view: 6 elements of shape (2, 3) do not fit into (4,)", x.m23.view({4}));
    MISUSE(ShapeError, "reshape: 6 elements", reshape(x.m23, {4, -1}));
    MISUSE(ShapeError, "reshape: (-1, -1) is not a shape", x.m23.reshape({-1, -1}));
    MISUSE(ShapeError, "reshape: (-2,) is not a shape", x.m23.reshape({-2}));
    MISUSE(ShapeError, "reshape", x.empty0.reshape({0, -1}));
    MISUSE(ShapeError, "view: strides (1, 3) of shape (3, 2) do not allow (6,) without a copy", x.m23.t().view({6}));
    MISUSE(ShapeError, "expand: shape (3,) cannot be expanded to (4,)", x.v3.expand({4}));
    MISUSE(ShapeError, "expand: (3,) has fewer dimensions than (2, 3)", x.m23.expand({3}));
    MISUSE(ShapeError, "expand", x.v3.expand({-1, 3}));
    MISUSE(ShapeError, "permute: 1 dimensions given for a tensor of 2", x.m23.permute({0}));
    MISUSE(ShapeError, "t: needs at most 2 dimensions", x.t234.t());
    MISUSE(ShapeError, "unflatten", x.v3.unflatten(0, {2, 2}));
    MISUSE(ShapeError, "split: the sizes add up to 5", x.v3.split(std::vector<std::int64_t>{2, 3}));
    MISUSE(ShapeError, "a 0-d tensor", x.scalar.narrow(0, 0, 1));
    MISUSE(ShapeError, "a 0-d tensor", x.scalar.chunk(2));
    MISUSE(ShapeError, "a 0-d tensor", x.scalar.unbind());
    MISUSE(ShapeError, "diagonal: needs two different dimensions", diagonal(x.v3));
    MISUSE(ShapeError, "diagonal", diagonal(x.m23, 0, 1, 1));
    MISUSE(ShapeError, "item: needs exactly one element, got shape (3,)", x.v3.item<float>());
    MISUSE(ShapeError, "item", x.empty0.item<float>());
    MISUSE(ShapeError, "cat", cat({x.m23, x.m34}));
    MISUSE(ShapeError, "cat", cat({x.m23, x.t234}));
    MISUSE(ShapeError, "stack", stack({x.v3, x.v4}));
    MISUSE(ShapeError, "masked_select", masked_select(x.v4, x.b3));
    MISUSE(ShapeError, "masked_fill", masked_fill(x.v4, x.b3, 0));
    MISUSE(ShapeError, "cross_entropy", cross_entropy(x.m23, x.i3));
    MISUSE(ShapeError, "cross_entropy", cross_entropy(x.m34, x.i3, {.weight = x.v3}));
    MISUSE(ShapeError, "mse_loss", mse_loss(x.v3, x.v4));
    MISUSE(ShapeError, "", tensor({{1, 2}, {3}}));
    MISUSE(ShapeError, "", tensor({Literal({1, 2}), Literal(3)}));
    MISUSE(ShapeError, "", amax(x.empty0));
    MISUSE(ShapeError, "", argmax(x.empty0));
    MISUSE(ShapeError, "einsum", einsum("ij,jk->ik", {x.m23, x.m45}));
    MISUSE(ShapeError, "a tensor has at most 8 dimensions", x.v3.view({1, 1, 1, 1, 1, 1, 1, 3}).unsqueeze(0));
    MISUSE(ShapeError, "at most 8 dimensions", zeros(std::vector<std::int64_t>(9, 1)));
    MISUSE(ShapeError, "iteration: a 0-d tensor has nothing to go through; item() gives its number", x.scalar.begin());
    MISUSE(ShapeError, "set_grad", x.leaf.set_grad(x.v4));
    MISUSE(ShapeError, "repeat", repeat(x.m23, {2}));
    MISUSE(ShapeError, "tril", tril(x.v3));
}

TEST_CASE("misuse: indices and dimensions", "[misuse]") {
    Fixture f;
    MISUSE(IndexError, "index 3 is out of range for dimension 0 of shape (3,)", x.v3[3]);
    MISUSE(IndexError, "index -4 is out of range for dimension 0 of shape (3,)", x.v3[-4]);
    MISUSE(IndexError, "0-d", x.scalar[0]);
    MISUSE(IndexError, "", x.m23.index({0, 3}));
    MISUSE(IndexError, "", x.m23.index({0, 0, 0}));
    MISUSE(IndexError, "", x.m23.index({Ellipsis, 0, Ellipsis}));
    MISUSE(IndexError, "", x.v3[x.bad_index]);
    MISUSE(IndexError, "", x.v4[x.b3]);
    MISUSE(IndexError, "", x.v3.index_put_({5}, 1.0));
    MISUSE(IndexError, "", x.v3.index_put_({x.bad_index}, 1.0));
    MISUSE(IndexError, "size: dimension", x.v3.size(1));
    MISUSE(IndexError, "at: index 2 is out of range for dimension 0 of shape (2, 3)", x.m23.at<float>({2, 0}));
    MISUSE(IndexError, "at: needs an index for each of the 2 dimensions of shape (2, 3), got 1", x.m23.at<float>({1}));
    MISUSE(IndexError, "select", x.m23.select(2, 0));
    MISUSE(IndexError, "index 5 is out of range", x.m23.select(1, 5));
    MISUSE(IndexError, "narrow: 3 elements from 1 are out of range for dimension 0", x.m23.narrow(0, 1, 3));
    MISUSE(IndexError, "narrow", x.m23.narrow(0, 0, -1));
    MISUSE(IndexError, "narrow", x.m23.narrow(0, 0, std::numeric_limits<std::int64_t>::max()));
    MISUSE(IndexError, "transpose: dimension 2 is out of range", x.m23.transpose(0, 2));
    MISUSE(IndexError, "permute: dimension 0 is named twice", x.m23.permute({0, 0}));
    MISUSE(IndexError, "permute", x.m23.permute({0, 2}));
    MISUSE(IndexError, "squeeze: dimension", x.m23.squeeze(2));
    MISUSE(IndexError, "unsqueeze: dimension", x.m23.unsqueeze(4));
    MISUSE(IndexError, "flatten: start_dim 1 comes after end_dim 0", flatten(x.m23, 1, 0));
    MISUSE(IndexError, "slice", slice(x.m23, 2, Slice(0, 1)));
    MISUSE(IndexError, "sum: dimension", sum(x.m23, 2));
    MISUSE(IndexError, "sum", sum(x.m23, {0, 0}));
    MISUSE(IndexError, "mean", mean(x.m23, {0, -2}));
    MISUSE(IndexError, "softmax: dimension", softmax(x.m23, 2));
    MISUSE(IndexError, "log_softmax: dimension", log_softmax(x.m23, -3));
    MISUSE(IndexError, "cumsum: dimension", cumsum(x.m23, 5));
    MISUSE(IndexError, "", max(x.m23, 2));
    MISUSE(IndexError, "", argmin(x.m23, -3));
    MISUSE(IndexError, "", sort(x.m23, 2));
    MISUSE(IndexError, "", topk(x.m23, 1, 2));
    MISUSE(IndexError, "cat: dimension", cat({x.v3, x.v3}, 1));
    MISUSE(IndexError, "stack: dimension", stack({x.v3, x.v3}, 2));
    MISUSE(IndexError, "embedding: index 7", embedding(x.bad_index, x.m34));
    MISUSE(IndexError, "index_select", index_select(x.v3, 0, x.bad_index));
    MISUSE(IndexError, "index_add", index_add(x.v3, 0, x.bad_index, ones({2})));
    MISUSE(IndexError, "gather", gather(x.v3, 0, x.bad_index));
    MISUSE(IndexError, "scatter", scatter(x.v3, 0, x.bad_index, ones({2})));
    MISUSE(IndexError, "scatter", scatter(x.v3, 0, x.bad_index, 1.0));
    MISUSE(IndexError, "cross_entropy", cross_entropy(ones({2, 3}), x.bad_index));
    MISUSE(IndexError, "nll_loss", nll_loss(ones({2, 3}), x.bad_index));
    MISUSE(IndexError, "one_hot", one_hot(x.bad_index, 3));
    MISUSE(IndexError, "flip", flip(x.v3, 1));
    MISUSE(IndexError, "chunk: dimension", x.v3.chunk(2, 1));
    MISUSE(IndexError, "unbind: dimension", x.v3.unbind(-2));
}

TEST_CASE("misuse: dtypes and devices", "[misuse]") {
    Fixture f;
    MISUSE(DTypeError, "data: the tensor holds float32, not float64", x.v3.data<double>());
    MISUSE(DTypeError, "the tensor holds int64, not float32", x.i3.at<float>({0}));
    MISUSE(DTypeError, "requires_grad_: only floating tensors have gradients, this one holds int64", x.i3.requires_grad_());
    MISUSE(DTypeError, "requires_grad_", x.b3.requires_grad_());
    MISUSE(DTypeError, "add_: a result of float32 cannot be written into int64", x.i3 += 0.5);
    MISUSE(DTypeError, "mul_: a result of float32 cannot be written into int64", x.i3 *= x.v3);
    MISUSE(DTypeError, "div_", x.i3 /= 2);
    MISUSE(DTypeError, "exp_", x.i3.exp_());
    MISUSE(DTypeError, "add_: a result of int64 cannot be written into bool", x.b3 += 1);
    MISUSE(DTypeError, "mean", mean(x.i3));
    MISUSE(DTypeError, "var", var(x.i3));
    MISUSE(DTypeError, "softmax", softmax(x.i3, 0));
    MISUSE(DTypeError, "linear: input, weight and bias must have one dtype", linear(x.d3, x.m23));
    MISUSE(DTypeError, "linear", linear(x.v3, x.m23, ones({2}, float64)));
    MISUSE(DTypeError, "where", where(x.v3, x.v3, x.v3));
    MISUSE(DTypeError, "masked_fill", masked_fill(x.v3, x.v3, 0));
    MISUSE(DTypeError, "masked_select", masked_select(x.v3, x.i3));
    MISUSE(DTypeError, "embedding", embedding(x.v3, x.m34));
    MISUSE(DTypeError, "index_select", index_select(x.v3, 0, x.v3));
    MISUSE(DTypeError, "gather", gather(x.v3, 0, x.v3));
    MISUSE(DTypeError, "", x.v3[x.v3]);
    MISUSE(DTypeError, "one_hot", one_hot(x.v3));
    MISUSE(DTypeError, "cross_entropy", cross_entropy(x.i3, x.i3));
    MISUSE(DTypeError, "dropout", dropout(x.i3, 0.5));
    MISUSE(DTypeError, "gradcheck: inputs must be float64", gradcheck([](const std::vector<Tensor>& t) { return t[0]; }, {x.v3}));
    MISUSE(DTypeError, "", randn({2}, int64));
    MISUSE(DTypeError, "", rand({2}, bool_));
    MISUSE(DTypeError, "", linspace(0, 1, 5, bool_));
    MISUSE(DeviceError, "to: cuda:200: ", x.v3.to(cuda(200)));
    MISUSE(DeviceError, "to: cuda:200: ", x.v3.cuda(200));
    MISUSE(DeviceError, "zeros: cuda:200: ", zeros({2}, cuda(200)));
}

TEST_CASE("misuse: values", "[misuse]") {
    Fixture f;
    MISUSE(ValueError, "a size must not be negative: (-1,)", zeros({-1}));
    MISUSE(ValueError, "negative", randn({2, -3}));
    MISUSE(OutOfMemory, "larger than any memory", zeros({1ll << 40, 1ll << 40}));
    MISUSE(OutOfMemory, "no memory for", empty({1ll << 50}));
    MISUSE(OutOfMemory, "larger than any memory", x.v3.view({3, 1}).expand({3, 1ll << 62}));
    MISUSE(ValueError, "split: the size of a piece must be positive", x.v3.split(0));
    MISUSE(ValueError, "split: a size must not be negative", x.v3.split(std::vector<std::int64_t>{4, -1}));
    MISUSE(ValueError, "chunk: the number of chunks must be positive", x.v3.chunk(0));
    MISUSE(ValueError, "slice: the step must be positive", x.v3[Slice(0, 3, -1)]);
    MISUSE(ValueError, "slice: the step must be positive", x.v3.slice(0, Slice(0, 3, 0)));
    MISUSE(ValueError, "arange", arange(0, 5, 0));
    MISUSE(ValueError, "arange", arange(0, 5, -1));
    MISUSE(ValueError, "linspace", linspace(0, 1, -1));
    MISUSE(ValueError, "randint", randint(5, 5, {2}));
    MISUSE(ValueError, "randperm", randperm(-1));
    MISUSE(ValueError, "bernoulli", bernoulli({3}, 1.5));
    MISUSE(ValueError, "bernoulli", bernoulli(x.v3));
    MISUSE(ValueError, "multinomial", multinomial(-x.v3, 1));
    MISUSE(ValueError, "multinomial", multinomial(x.v3, 4));
    MISUSE(ValueError, "multinomial", multinomial(zeros({3}), 1));
    MISUSE(ValueError, "dropout", dropout(x.v3, 1.5));
    MISUSE(ValueError, "dropout", dropout(x.v3, -0.1));
    MISUSE(ValueError, "topk", topk(x.v3, 4));
    MISUSE(ValueError, "topk", topk(x.v3, -1));
    MISUSE(ValueError, "cat", cat(std::vector<Tensor>{}));
    MISUSE(ValueError, "stack", stack(std::vector<Tensor>{}));
    MISUSE(ValueError, "gelu: approximate must be", gelu(x.v3, "fast"));
    MISUSE(ValueError, "einsum", einsum("ij,jk->", {x.m23}));
    MISUSE(ValueError, "einsum", einsum("i1->i", {x.m23}));
    MISUSE(ValueError, "einsum", einsum("ij->ijk", {x.m23}));
    MISUSE(ValueError, "cross_entropy", cross_entropy(x.m34, x.i3, {.label_smoothing = 2}));
    MISUSE(ValueError, "huber_loss", huber_loss(x.v3, x.v3, Reduction::mean, -1));
    MISUSE(ValueError, "from_blob", from_blob(nullptr, {2}));
    MISUSE(ValueError, "pad", pad(x.v3, {1}));
    MISUSE(ValueError, "set_num_threads", set_num_threads(0));
    MISUSE(ValueError, "one_hot", one_hot(tensor({-1, 0})));
}

TEST_CASE("misuse: messages that say what to write", "[misuse]") {
    Fixture f;
    MISUSE(DTypeError, "got uint8, float32 and no bias; convert the input with x.to(float32)",
           conv2d(zeros({1, 3, 8, 8}, uint8), zeros({4, 3, 3, 3})));
    MISUSE(DTypeError, "got int64, float32 and no bias; convert the input with x.to(float32)", linear(zeros({2, 4}, int64), x.m34));
    MISUSE(DTypeError, "got float32, float64 and no bias; convert the input with x.to(float64)", linear(x.m34, x.m34.to(float64)));
    MISUSE(ShapeError, "; the classes are dimension 1, not the last: write movedim(input, {2}, {1})",
           cross_entropy(x.t234, zeros({2, 3}, int64)));  // (n, time, classes)
    MISUSE(ShapeError, "; the classes are dimension 1: write targets.squeeze(1)", cross_entropy(x.m34, zeros({3, 1}, int64)));
    MISUSE(ShapeError, "; the classes are dimension 1: take the argmax of one-hot targets", cross_entropy(x.m34, x.m34.to(int64)));
    MISUSE(ShapeError, "(float32) must have the logits' shape (3, 4), got (3,); convert class indices with targets.to(int64)",
           cross_entropy(x.m34, x.v3));
    MISUSE(DTypeError, "targets must be class indices, not float32: convert them with targets.to(int64)", nll_loss(x.m34, x.v3));
    MISUSE(DTypeError, "the mask must hold bools or floats, not int64: convert it with mask.to(bool_)",
           scaled_dot_product_attention(x.m34, x.m34, x.m34, zeros({3, 3}, int64)));
    MISUSE(DTypeError, "the mask must be bool, not int64: convert it with mask.to(bool_)", where(x.i3, x.v3, x.v3));
    MISUSE(ShapeError, "max: no elements", max(x.empty0));
    MISUSE(ShapeError, "min: no elements", x.empty0.min());
    MISUSE(ValueError, "max: the tensor is undefined", max(x.none));
}

TEST_CASE("misuse: the tape", "[misuse]") {
    Fixture f;
    MISUSE(TapeError, "backward: no tape is active", sum(x.leaf).backward());
    MISUSE(TapeError, "gradient: no tape is active", gradient(sum(x.leaf), {x.leaf}));
    MISUSE(TapeError, "register_hook: this tensor is neither a leaf", x.v3.register_hook([](const Tensor& g) { return g; }));
    Tape tape;
    MISUSE(TapeError, "backward: needs a scalar, got shape (3,)", (x.leaf * 2).backward());
    MISUSE(TapeError, "backward: this tensor was not recorded", sum(x.v3).backward());
    MISUSE(TapeError, "a leaf that requires a gradient is written to", x.leaf.add_(1));
    MISUSE(TapeError, "a leaf that requires a gradient is written to", x.leaf.zero_());
    MISUSE(TapeError, "a leaf that requires a gradient is written to", x.leaf.copy_(x.v3));
    MISUSE(TapeError, "a leaf that requires a gradient is written to", x.leaf.index_put_({0}, 1.0));
    MISUSE(TapeError, "writing into a view is not recorded", x.v3[0].add_(sum(x.leaf)));
    MISUSE(TapeError, "writing into a view is not recorded", x.v3[0].copy_(sum(x.leaf)));
    MISUSE(TapeError, "neither a leaf", Tape::current()->gradient(sum(x.leaf), {x.v3}));
    MISUSE(ShapeError, "the gradient has shape (4,), the tensor has (3,)", (x.leaf * 2).backward(x.v4));
}
