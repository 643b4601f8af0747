// embedding_bag and its layer: gradients, corner cases and what is refused. Values: the op table's test, against PyTorch.
#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("embedding_bag: row-sparse gradients, empty bags, and what is refused") {
    manual_seed(2);
    nn::EmbeddingBag bag(10, 3, {.mode = BagMode::sum, .padding_idx = 0});
    CHECK(bag.weight[0].to_vector<float>() == std::vector<float>{0, 0, 0});
    CHECK(bag.describe() == "10, 3, sum, padding_idx 0");
    const Tensor index = tensor({1, 0, 4, 4}), offsets = tensor({0, 2, 2});
    {
        Tape tape;
        const Tensor y = bag(index, offsets);
        CHECK(y.shape() == Shape{3, 3});
        CHECK(y[1].to_vector<float>() == std::vector<float>{0, 0, 0});
        CHECK(allclose(y[2], bag.weight[4] * 2));
        tape.backward(sum(y));
    }
    CHECK(sum(bag.weight.grad(), {1}).to_vector<float>() == std::vector<float>{0, 3, 0, 0, 6, 0, 0, 0, 0, 0});
    for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
        CHECK(embedding_bag(zeros({0}, int64), bag.weight, tensor({0, 0}), {.mode = mode}).to_vector<float>() == std::vector<float>(6, 0));
        CHECK(embedding_bag(tensor({0, 0}).view({1, 2}), bag.weight, {}, {.mode = mode, .padding_idx = 0}).to_vector<float>() ==
              std::vector<float>(3, 0));
    }
    FAILS(ValueError, "offsets must rise from 0 to 4, got 1 first", embedding_bag(index, bag.weight, tensor({1, 2})));
    FAILS(ValueError, "offsets must rise from 0 to 4, got 1 after 2", embedding_bag(index, bag.weight, tensor({0, 2, 1})));
    FAILS(ValueError, "offsets go with indices of one dimension", embedding_bag(index, bag.weight));
    FAILS(ValueError, "per_sample_weights are for mode sum", embedding_bag(index, bag.weight, offsets, {.per_sample_weights = ones({4})}));
    FAILS(IndexError, "index 10 is out of range", embedding_bag(tensor({{10}}), bag.weight));
    FAILS(IndexError, "padding_idx 10 is out of range for 10 rows", embedding_bag(index, bag.weight, offsets, {.padding_idx = 10}));
}

TEST_CASE("embedding_bag of many bags, at any number of threads, is what its rows add up to") {
    manual_seed(4);
    const Tensor index = randint(0, 50, {4000}), weight = randn({50, 7}, float64), scale = randn({4000}, float64);
    const Tensor offsets = cat({zeros({1}, int64), sort(randint(0, 4000, {300})).values});
    const Tensor bag = searchsorted(offsets, arange(4000), true) - 1;
    const Tensor rows = embedding(index, weight) * unsqueeze(scale, 1);
    const Tensor want = index_add(zeros({301, 7}, float64), 0, bag, rows);
    const auto run = [&] { return embedding_bag(index, weight, offsets, {.mode = BagMode::sum, .per_sample_weights = scale}); };
    CHECK(allclose(run(), want));
    CHECK(allclose(embedding_bag(index.view({40, 100}), weight), mean(embedding(index.view({40, 100}), weight), {1})));
    const Tensor many = run();
    const int threads = num_threads();
    set_num_threads(1);
    CHECK(equal(run(), many));
    set_num_threads(threads);
}
