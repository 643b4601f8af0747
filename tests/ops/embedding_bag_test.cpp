// embedding_bag and its layer: gradients, corner cases and what is refused. Values: the op table's test, against PyTorch.
#include <cmath>
#include <limits>

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
    CHECK(embedding_bag(tensor({9, 9, 1}), bag.weight, tensor({0}), {.mode = BagMode::sum, .padding_idx = -1}).to_vector<float>() ==
          bag.weight.detach()[1].to_vector<float>());
    CHECK(nn::EmbeddingBag(10, 3, {.padding_idx = -1}).describe() == "10, 3, mean, padding_idx 9");
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

TEST_CASE("embedding_bag: weighted rows of 16 bits are rounded once, at the end") {
    manual_seed(9);
    for (const DType dtype : {float16, bfloat16}) {
        const Tensor table = randn({10, 5}, dtype) * 5, scale = randn({6, 8}, dtype) * 5, index = randint(0, 10, {6, 8});
        const Tensor y = embedding_bag(index, table, {}, {.mode = BagMode::sum, .per_sample_weights = scale});
        const Tensor exact = embedding_bag(index, table.to(float64), {}, {.mode = BagMode::sum, .per_sample_weights = scale.to(float64)});
        CHECK(y.dtype() == dtype);
        CHECK(allclose(y.to(float64), exact, dtype == float16 ? 0x1p-11 : 0x1p-8, 1e-5));
    }
}

TEST_CASE("embedding_bag: indices end at the last offset, and negative ones are refused") {
    const Tensor weight = pow(10.0, arange(0, 4, 1, float64)).view({4, 1}), index = tensor({0, 1, 2, 3});
    using V = std::vector<double>;
    const auto last = [&](BagMode mode, const Tensor& offsets, const Tensor& scale = {}) {
        return embedding_bag(index, weight, offsets, {.mode = mode, .per_sample_weights = scale, .include_last_offset = true});
    };
    CHECK(last(BagMode::sum, tensor({0, 1, 2})).to_vector<double>() == V{1, 10});
    CHECK(last(BagMode::sum, tensor({0, 1, 2}), tensor({2, 3, 4, 5}).to(float64)).to_vector<double>() == V{2, 30});
    CHECK(last(BagMode::mean, tensor({0, 1, 3})).to_vector<double>() == V{1, 55});
    CHECK(last(BagMode::max, tensor({0, 1, 3})).to_vector<double>() == V{1, 100});
    CHECK(last(BagMode::sum, tensor({0})).shape() == Shape{0, 1});
    const Tensor below = tensor({{0, -1, 1}});
    for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
        for (const DType dtype : {float64, float16}) {  // which take different ways
            Tensor table = weight.to(dtype);
            table.requires_grad_();
            FAILS_IN(IndexError, "embedding_bag: index -1 is out of range for dimension 0 of shape (4, 1)", "",
                     embedding_bag(below, table, {}, {.mode = mode, .padding_idx = 3}));
            Tape tape;
            tape.backward(sum(embedding_bag(tensor({{0, 3, 1}}), table, {}, {.mode = mode, .padding_idx = -1})));
            CHECK(table.grad()[1].item() > 0);
            CHECK(table.grad()[3].item() == 0);
        }
    }
}

TEST_CASE("embedding_bag: largest elements, by their definition") {
    manual_seed(5);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const DType dtype : {float64, float32, bfloat16}) {
        Tensor weight = randint(0, 9, {20, 5}).to(dtype) - 12;  // with equal elements, all below 0
        weight[7].fill_(nan);
        weight.requires_grad_();
        const Tensor index = randint(0, 20, {700}), offsets = cat({zeros({2}, int64), sort(randint(0, 700, {100})).values, tensor({700})});
        const Tensor g = randn({103, 5}).to(dtype);
        std::vector<double> want(103 * 5, 0), want_grad(20 * 5, 0);
        const auto w = weight.detach().to(float64).to_vector<double>(), gs = g.to(float64).to_vector<double>();
        const auto at = index.to_vector<int64_t>(), begin = offsets.to_vector<int64_t>();
        for (std::size_t bag = 0; bag < 103; ++bag) {
            const int64_t end = bag + 1 < 103 ? begin[bag + 1] : 700;
            for (std::size_t k = 0; k < 5; ++k) {
                int64_t best = -1;
                for (int64_t i = begin[bag]; i < end; ++i) {
                    const int64_t row = at[static_cast<std::size_t>(i)];
                    if (row == 3) continue;  // padding
                    const auto value = [&](int64_t r) { return w[static_cast<std::size_t>(r) * 5 + k]; };
                    if (best < 0 || value(row) > value(best) || (std::isnan(value(row)) && !std::isnan(value(best)))) best = row;
                }
                if (best < 0) continue;
                want[bag * 5 + k] = w[static_cast<std::size_t>(best) * 5 + k];
                want_grad[static_cast<std::size_t>(best) * 5 + k] += gs[bag * 5 + k];
            }
        }
        const auto run = [&] { return embedding_bag(index, weight, offsets, {.mode = BagMode::max, .padding_idx = 3}); };
        Tape tape;
        const Tensor y = run();
        const Tensor unrecorded = [&] {
            const NoGradScope no_grad;
            return run();
        }();
        tape.backward(sum(y * g));
        CHECK(allclose(y.to(float64), tensor(want).view({103, 5}), 0, 0, /*equal_nan=*/true));
        CHECK(allclose(unrecorded.to(float64), y.to(float64), 0, 0, /*equal_nan=*/true));
        CHECK(allclose(weight.grad().to(float64), tensor(want_grad).view({20, 5}), dtype == bfloat16 ? 0.1 : 1e-5, dtype == bfloat16 ? 0.3 : 1e-5));
    }
}

TEST_CASE("embedding_bag of one bag of many indices") {
    const Tensor weight = arange(1, 7, 1, float64).view({6, 1}), index = tensor({{0, 5, 2, 4, 3}});
    CHECK(embedding_bag(index, weight, {}, {.mode = BagMode::sum}).item() == 21 - 2);
    CHECK(embedding_bag(index, weight).item() == Approx(19.0 / 5));
    CHECK(embedding_bag(index, weight, {}, {.mode = BagMode::max}).item() == 6);
}
