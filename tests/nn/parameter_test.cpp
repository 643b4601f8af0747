// Parameters that are assigned, and those that members() forgets.
#include <string>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct Forgetful : nn::Module {
    nn::Linear known{2, 3}, forgotten{3, 1};
    nn::Parameter scale{ones({1})};
    void members(nn::Members& m) override { m("known", known)("scale", scale); }
    Tensor forward(const Tensor& x) const { return forgotten(known(x)) * scale; }
};

}  // namespace

TEST_CASE("a weight that is assigned stays a parameter") {
    nn::Linear layer(2, 2);
    layer.weight = randn({2, 2});
    layer.bias = zeros({2});
    CHECK(layer.weight.requires_grad());
    CHECK(layer.bias.requires_grad());
    optim::SGD sgd(layer.parameters(), {.lr = 1});
    {
        Tape tape;
        tape.backward(sum(layer(ones({1, 2}))));
    }
    sgd.step();
    CHECK(layer.bias.to_vector<float>() == std::vector<float>{-1, -1});
    CHECK(layer.weight.grad().to_vector<float>() == std::vector<float>{1, 1, 1, 1});
}

TEST_CASE("every layer's parameters stay parameters") {
    nn::Linear linear(2, 2);
    nn::Bilinear bilinear(2, 2, 2);
    nn::PReLU prelu;
    nn::Embedding embedding(3, 2);
    nn::EmbeddingBag bag(3, 2);
    nn::LayerNorm layer_norm({2});
    nn::Conv2d conv(1, 2, 3);
    nn::BatchNorm2d batch_norm(2);
    nn::GroupNorm group_norm(1, 2);
    nn::RMSNorm rms_norm({2});
    nn::LSTMCell lstm(2, 2);
    nn::GRUCell gru(2, 2);
    nn::MultiheadAttention attention(4, 2);
    nn::Parameter* const all[] = {&linear.weight,
                                  &linear.bias,
                                  &bilinear.weight,
                                  &bilinear.bias,
                                  &prelu.weight,
                                  &embedding.weight,
                                  &bag.weight,
                                  &layer_norm.weight,
                                  &layer_norm.bias,
                                  &conv.weight,
                                  &conv.bias,
                                  &batch_norm.weight,
                                  &batch_norm.bias,
                                  &group_norm.weight,
                                  &group_norm.bias,
                                  &rms_norm.weight,
                                  &lstm.weight_ih,
                                  &lstm.weight_hh,
                                  &lstm.bias_ih,
                                  &lstm.bias_hh,
                                  &gru.weight_ih,
                                  &attention.in_proj_weight,
                                  &attention.in_proj_bias};
    for (nn::Parameter* parameter : all) {
        const Tensor data = randn(parameter->shape());
        *parameter = data;
        CHECK(parameter->requires_grad());
        CHECK(parameter->is_leaf());
        CHECK(parameter->shares_storage(data));
        CHECK(!data.requires_grad());
    }
}

TEST_CASE("what is assigned to a parameter, and what it becomes") {
    nn::Linear a(2, 2), b(2, 2);
    b.weight = a.weight;
    CHECK(b.weight.is_same(a.weight));
    const Tensor leaf = randn({2, 2}).requires_grad_();
    a.weight = leaf;
    CHECK(a.weight.is_same(leaf));
    a.bias = Tensor();
    CHECK(!a.bias.defined());
    nn::Linear frozen(2, 2);
    frozen.requires_grad_(false);
    frozen.weight = ones({2, 2});
    CHECK(!frozen.weight.requires_grad());
    FAILS(DTypeError, "only floating tensors have gradients", b.weight = zeros({2, 2}, int64));
    Tape tape;
    b.weight = leaf * 2;  // made by another net
    CHECK(tape.gradient(sum(b(ones({1, 2}))), leaf).to_vector<float>() == std::vector<float>{2, 2, 2, 2});
}

TEST_CASE("members that members() forgets are found") {
    Forgetful model;
    const Tensor x = ones({4, 2}).requires_grad_();
    Tape tape;
    const Tensor y = model.forward(x);
    const std::vector<nn::ForgottenLeaf> found = nn::forgotten_leaves(model, tape, {x});
    REQUIRE(found.size() == 2);
    CHECK(found[0].leaf.is_same(model.forgotten.weight));
    CHECK(std::string(found[0].first_used.file_name()).find("parameter_test.cpp") != std::string::npos);
    CHECK(found[0].module == "Linear");
    FAILS_IN(ValueError, "check_members: members() of this Forgetful does not name 2 of the tensors",
             "(1, 3) first used at parameter_test.cpp:", nn::check_members(model, tape, {x}));
    FAILS(ValueError, "does not name 3 of the tensors", nn::check_members(model, tape));
    nn::check_members(model.forgotten, tape, {x, model.known.weight, model.known.bias, model.scale});
}
