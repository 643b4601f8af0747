// Containers of modules of several types, members behind pointers and keys, losses as modules, and the table of parameters.
#include <map>
#include <memory>
#include <optional>

#include "../fails.h"
#include "check.h"
#include "tapir/optim/optim.h"

using namespace tapir;

namespace {

std::vector<std::string> names(const nn::Module& module) {
    std::vector<std::string> list;
    for (const NamedTensor& t : module.state_dict()) list.push_back(t.name);
    return list;
}

using Names = std::vector<std::string>;

struct Heads : nn::Module {
    nn::ModuleList layers{nn::Linear(3, 4), nn::Tanh(), nn::Linear(4, 3, false)};
    nn::ModuleDict heads{{"mean", nn::Linear(3, 1, false)}, {"class", nn::Linear(3, 5)}};
    void members(nn::Members& m) override { m("layers", layers)("heads", heads); }
    Tensor forward(In x, const std::string& task) const {
        Tensor y = x.tensor;
        for (const nn::AnyModule& layer : layers) y = layer(y);
        return heads[task](y);
    }
};

}  // namespace

TEST_CASE("a list and a dictionary of modules name, call and find them") {
    Heads model;
    CHECK(names(model) ==
          Names{"layers.0.weight", "layers.0.bias", "layers.2.weight", "heads.mean.weight", "heads.class.weight", "heads.class.bias"});
    CHECK(model.forward(ones({2, 3}), "class").shape() == Shape(2, 5));
    CHECK(model.forward(ones({2, 3}), "mean").shape() == Shape(2, 1));
    CHECK(model.layers.size() == 3);
    CHECK(model.layers[0].as<nn::Linear>().weight.shape() == Shape(4, 3));
    CHECK(nn::ModuleList().append(nn::Linear(4, 3)).append(nn::ReLU()).size() == 2);
    model.heads.insert("more", nn::Linear(3, 2));
    CHECK(model.heads.contains("more"));
    CHECK(!model.heads.contains("less"));
    model.layers.push_back(nn::Dropout(0.5));
    model.eval();
    CHECK(!model.layers[3].module().is_training());
    std::string keys;
    for (const auto& [key, module] : model.heads) keys += key + " ";
    CHECK(keys == "mean class more ");
    // A copy has modules of its own, with the same tensors.
    Heads copy = model;
    CHECK(&copy.layers[0].module() != &model.layers[0].module());
    CHECK(copy.layers[0].as<nn::Linear>().weight.is_same(model.layers[0].as<nn::Linear>().weight));
    copy.train();
    CHECK(!model.layers[3].module().is_training());
    CHECK(model.str() ==
          "Heads, 59 parameters\n  layers: ModuleList\n    0: Linear(3, 4)\n      weight (4, 3)\n      bias (4,)\n    1: Tanh\n"
          "    2: Linear(4, 3, no bias)\n      weight (3, 4)\n    3: Dropout(0.5)\n  heads: ModuleDict\n    mean: Linear(3, 1, no bias)\n"
          "      weight (1, 3)\n    class: Linear(3, 5)\n      weight (5, 3)\n      bias (5,)\n    more: Linear(3, 2)\n"
          "      weight (2, 3)\n      bias (2,)");
}

TEST_CASE("lists and dictionaries of modules refuse what is not there, with the user's line") {
    Heads model;
    const auto here = [](int line) { return "containers_test.cpp:" + std::to_string(line) + ": "; };
    CHECK(check::begins(check::message<IndexError>([&] { model.layers.at(3); }), here(__LINE__)));
    CHECK(check::begins(check::message<IndexError>([&] { model.heads.at("no"); }), here(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { model.heads.insert("mean", nn::Tanh()); }), here(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { model.heads.insert("a.b", nn::Tanh()); }), here(__LINE__)));
    CHECK(check::begins(check::message<ValueError>([&] { model.layers[0].as<nn::Tanh>(); }), here(__LINE__)));
    const nn::ModuleList cells{nn::LSTMCell(2, 2)};
    CHECK(check::begins(check::message<ValueError>([&] { cells[0](ones({1, 2})); }), here(__LINE__)));
}

TEST_CASE("members behind pointers and keys") {
    struct Model : nn::Module {
        std::map<std::string, nn::Linear> by_key;
        std::map<std::string, Tensor> scales;
        std::vector<std::unique_ptr<nn::Module>> mixed;
        std::shared_ptr<nn::Linear> shared, missing;
        std::optional<nn::Linear> maybe;
        void members(nn::Members& m) override {
            m("by_key", by_key)("scales", scales)("mixed", mixed)("shared", shared)("missing", missing)("maybe", maybe);
        }
    } model;
    model.by_key.emplace("b", nn::Linear(1, 1, false));
    model.by_key.emplace("a", nn::Linear(1, 1, false));
    model.scales["x"] = ones({2}).requires_grad_();
    model.mixed.push_back(std::make_unique<nn::Tanh>());
    model.mixed.push_back(std::make_unique<nn::Linear>(1, 2));
    model.shared = std::make_shared<nn::Linear>(2, 1, false);
    CHECK(names(model) == Names{"by_key.a.weight", "by_key.b.weight", "scales.x", "mixed.1.weight", "mixed.1.bias", "shared.weight"});
    model.maybe.emplace(1, 1, false);
    CHECK(names(model).back() == "maybe.weight");
    model.to(float64);
    CHECK(model.scales["x"].dtype() == float64);
    CHECK(model.by_key.at("a").weight.dtype() == float64);
    CHECK(model.shared->weight.dtype() == float64);
}

TEST_CASE("losses are modules, and their weights are buffers") {
    const Tensor x = check::values({2, 3}, 1), y = check::values({2, 3}, 2), z = check::values({2, 3}, 3), classes = tensor({2, 0});
    const Tensor weight = tensor({0.5, 1.0, 2.0}, float64), signs = tensor({1, -1}), probabilities = sigmoid(x);
    const auto is = [](const Tensor& have, const Tensor& want) { CHECK(have.to_vector<double>() == want.to_vector<double>()); };
    using R = Reduction;
    is(nn::L1Loss(R::none)(x, y), l1_loss(x, y, R::none));
    is(nn::MSELoss(R::sum)(x, y), mse_loss(x, y, R::sum));
    is(nn::SoftMarginLoss()(x, y), soft_margin_loss(x, y));
    is(nn::MultiLabelMarginLoss()(x, tensor({{0, 1, -1}, {2, -1, 0}})), multilabel_margin_loss(x, tensor({{0, 1, -1}, {2, -1, 0}})));
    is(nn::HuberLoss({.delta = 0.2})(x, y), huber_loss(x, y, R::mean, 0.2));
    is(nn::SmoothL1Loss({.beta = 0.2})(x, y), smooth_l1_loss(x, y, R::mean, 0.2));
    is(nn::KLDivLoss({.reduction = R::sum, .log_target = true})(x, y), kl_div(x, y, R::sum, true));
    is(nn::KLDivLoss({.reduction = R::batchmean})(x, probabilities), kl_div(x, probabilities, R::batchmean));
    is(nn::HingeEmbeddingLoss({.margin = 0.3})(x, y), hinge_embedding_loss(x, y, 0.3));
    is(nn::PoissonNLLLoss({.full = true})(x, y), poisson_nll_loss(x, y, true, true));
    is(nn::CrossEntropyLoss({.weight = weight, .label_smoothing = 0.1})(x, classes),
       cross_entropy(x, classes, {.weight = weight, .label_smoothing = 0.1}));
    is(nn::NLLLoss({.weight = weight, .reduction = R::sum})(x, classes), nll_loss(x, classes, {.weight = weight, .reduction = R::sum}));
    is(nn::BCELoss({.weight = weight})(probabilities, probabilities), binary_cross_entropy(probabilities, probabilities, weight));
    is(nn::BCEWithLogitsLoss({.pos_weight = weight})(x, probabilities), binary_cross_entropy_with_logits(x, probabilities, {}, weight));
    is(nn::MultiMarginLoss({.p = 2, .margin = 0.4, .weight = weight})(x, classes), multi_margin_loss(x, classes, 2, 0.4, weight));
    is(nn::MultiLabelSoftMarginLoss({.weight = weight})(x, probabilities), multilabel_soft_margin_loss(x, probabilities, weight));
    is(nn::GaussianNLLLoss({.full = true})(x, y, probabilities), gaussian_nll_loss(x, y, probabilities, true));
    is(nn::MarginRankingLoss({.margin = 0.4})(x, y, z), margin_ranking_loss(x, y, z, 0.4));
    is(nn::CosineEmbeddingLoss({.margin = 0.4})(x, y, signs), cosine_embedding_loss(x, y, signs, 0.4));
    is(nn::TripletMarginLoss({.margin = 2, .swap = true})(x, y, z), triplet_margin_loss(x, y, z, 2, 2, 1e-6, true));
    const auto distance = [](const Tensor& a, const Tensor& b) { return sum(abs(a - b), {1}); };
    is(nn::TripletMarginWithDistanceLoss({.distance_function = distance})(x, y, z), triplet_margin_with_distance_loss(x, y, z, distance));
    is(nn::CosineSimilarity(0)(x, y), cosine_similarity(x, y, 0));
    is(nn::PairwiseDistance(1)(x, y), pairwise_distance(x, y, 1));
    const Tensor log_probs = check::values({4, 2, 3}, 4), targets = tensor({{1, 2}, {2, 0}});
    const Tensor steps = tensor({4, 3}), counts = tensor({2, 1});
    is(nn::CTCLoss({.reduction = R::sum})(log_probs, targets, steps, counts), ctc_loss(log_probs, targets, steps, counts, {.reduction = R::sum}));
    nn::CrossEntropyLoss loss({.weight = weight.to(float32)});
    CHECK(names(loss) == Names{"weight"});
    CHECK(loss.parameters().empty());
    loss.to(float64);
    is(loss(x, classes), cross_entropy(x, classes, {.weight = weight}));
    CHECK(names(nn::CrossEntropyLoss()).empty());
}

TEST_CASE("the table of parameters") {
    struct Model : nn::Module {
        nn::Embedding words{1000, 3};
        nn::Linear hidden{3, 3}, out{3, 1000, false};
        Tensor seen = zeros({}, int64);
        Model() { out.weight = words.weight; }
        void members(nn::Members& m) override { m("words", words)("hidden", hidden)("out", out).buffer("seen", seen); }
    } model;
    model.hidden.weight.requires_grad_(false);
    const std::string table = model.parameter_table();
    CHECK(table ==
          "name           shape      dtype    device  count   bytes  kind\n"
          "words.weight   (1000, 3)  float32  cpu     3,000  12,000  trained\n"
          "hidden.weight  (3, 3)     float32  cpu         9      36  frozen\n"
          "hidden.bias    (3,)       float32  cpu         3      12  trained\n"
          "out.weight     (1000, 3)  float32  cpu     3,000  12,000  the same as words.weight\n"
          "seen           ()         int64    cpu         1       8  buffer\n"
          "2 trained: 3,003 numbers, 12,012 bytes\n"
          "1 frozen: 9 numbers, 36 bytes\n"
          "1 buffers: 1 numbers, 8 bytes\n");
    CHECK(nn::Tanh().parameter_table() == "name  shape  dtype  device  count  bytes  kind\n0 trained: 0 numbers, 0 bytes\n");
    model.to(bfloat16);
    CHECK(check::contains(model.parameter_table(), "words.weight   (1000, 3)  bfloat16  cpu     3,000  6,000  trained"));
}

TEST_CASE("lists and dictionaries say on the user's line what they do not have") {
    const nn::ModuleList list{nn::Linear(2, 3), nn::ReLU()};
    const nn::ModuleDict heads{{"mean", nn::Linear(3, 1)}, {"class", nn::Linear(3, 5)}};
    const std::string task = "none";
    FAILS(IndexError, "ModuleList: there is no module 7 of 2", list[7]);
    FAILS(IndexError, "ModuleList: there is no module -3 of 2", list[-3]);
    CHECK(list[-2].get() == list[0].get());
    CHECK(list.at(-1).get() == list[1].get());
    FAILS(IndexError, "ModuleDict: there is no module \"none\"; there are: mean, class", heads[task]);
    FAILS(IndexError, "ModuleDict: there is no module \"x\"", heads["x"]);
    CHECK(list[0](ones({2})).shape() == Shape{3});
    CHECK(heads["mean"](ones({3})).shape() == Shape{1});
}

TEST_CASE("lists and dictionaries hold functions, too") {
    nn::ModuleList list{nn::Linear(2, 3), tanh, [](const Tensor& x) { return x * 2; }};
    nn::ModuleDict dict{{"squash", sigmoid}, {"layer", nn::Linear(3, 1, {.bias = false})}};
    CHECK(names(list) == Names{"0.weight", "0.bias"});
    CHECK(names(dict) == Names{"layer.weight"});
    const Tensor x = tensor({0.5, -1.0});
    CHECK(allclose(list[2](list[1](x)), tanh(x) * 2, 0, 0));
    CHECK(allclose(dict["squash"](x), sigmoid(x), 0, 0));
    list.eval();
    CHECK(!list[0].module().is_training());
}

TEST_CASE("members that may hold functions, or nothing, are passed over where they do") {
    struct Model : nn::Module {
        std::vector<nn::AnyModule> list{nn::Linear(2, 3, {.bias = false}), tanh, nn::AnyModule(), nn::Dropout(0.5)};
        std::map<std::string, nn::AnyModule> by_key{{"squash", sigmoid}, {"layer", nn::Linear(3, 1, {.bias = false})}};
        nn::AnyModule head = nn::Linear(1, 1), none, function = relu;
        void members(nn::Members& m) override { m("list", list)("by_key", by_key)("head", head)("none", none)("function", function); }
    } model;
    CHECK(names(model) == Names{"list.0.weight", "by_key.layer.weight", "head.weight", "head.bias"});
    CHECK(model.parameters().size() == 4);
    model.eval();
    CHECK(!model.list[3].module().is_training());
    CHECK(!model.head.module().is_training());
    std::vector<std::string> modules;
    for (const nn::NamedModule& m : model.named_modules()) modules.push_back(m.name);
    CHECK(modules == Names{"", "list.0", "list.3", "by_key.layer", "head"});
    const Model own = nn::clone(model);
    CHECK(!own.parameters()[0].is_same(model.parameters()[0]));
    CHECK(!nn::clone(nn::AnyModule()).has_value());
}

namespace {

struct Doubling : nn::Module {
    Tensor forward(const Tensor& x) const { return x * 2; }
};
struct Halving : nn::Module {
    Tensor forward(Tensor x) const { return x / 2; }
};

}  // namespace

TEST_CASE("containers hold modules whose forward() takes a tensor, by reference or by value") {
    const nn::Sequential net(Doubling{}, Halving{}, Doubling{});
    CHECK(net(tensor({1.0, 3.0})).to_vector<double>() == std::vector<double>{2, 6});
    const nn::ModuleList list{Doubling{}, Halving{}};
    CHECK(list[0](tensor(3.0)).item() == 6);
    CHECK(list[1](tensor(3.0)).item() == 1.5);
}
