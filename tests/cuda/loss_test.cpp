// Losses on a CUDA device: every way that lines of classes may be worked on (see cuda/lines.cuh), sums of many blocks, and
// what is found out late.
#include "compare.h"

using namespace tapir;
using namespace tapir::test;

namespace {

OpCall cross_entropy_with(const CrossEntropyOptions& options) {
    return [=](const auto& x) {
        CrossEntropyOptions here = options;
        if (here.weight.defined()) here.weight = options.weight.to(x[0].device()).to(x[0].dtype());
        return cross_entropy(x[0], x[1], here);
    };
}

}  // namespace

TEST_CASE("cross_entropy of any number of classes", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(1);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t classes : {1, 2, 5, 37, 256, 1000, 2000, 2048, 17001}) {
            INFO(name(dtype) << ", " << classes << " classes");
            const Tensor x = (randn({3, classes}) * 2).to(dtype), targets = randint(classes, {3});
            const Tensor weight = rand({classes}) + 0.5;
            for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
                compare({x, targets}, limit_of(dtype), cross_entropy_with({.reduction = reduction}));
            }
            const CrossEntropyOptions all{.weight = weight, .ignore_index = targets.to_vector<std::int64_t>()[1], .label_smoothing = 0.1};
            compare({x, targets}, limit_of(dtype), cross_entropy_with(all));
        }
    }
}

TEST_CASE("cross_entropy of classes that lie apart, and of many positions", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(2);
    for (const std::int64_t classes : {2, 3, 20, 300, 700}) {
        INFO(classes << " classes");
        const Tensor x = randn({2, classes, 3, 2}), targets = randint(classes, {2, 3, 2});
        compare({x, targets}, 1e-5, cross_entropy_with({.reduction = Reduction::none, .label_smoothing = 0.2}));
        compare({x.to(float16), targets}, 4e-3, cross_entropy_with({.weight = rand({classes}), .label_smoothing = 0.2}));
        compare({x.to(float64), targets.to(int32)}, 1e-12, cross_entropy_with({.ignore_index = 1}));
    }
    const Tensor x = randn({30001, 3}), targets = randint(3, {30001});
    compare({x, targets}, 1e-5, cross_entropy_with({}));
    compare_on({x, targets}, {shifted(x), targets.to(cuda)}, 1e-5, cross_entropy_with({.reduction = Reduction::none}));
    const Tensor strided = randn({3, 400});
    compare({strided, targets}, 1e-5, [](const auto& in) { return cross_entropy(in[0].t(), narrow(in[1], 0, 0, 400)); });
}

TEST_CASE("cross_entropy of large and masked logits", "[cuda]") {
    NEEDS_CUDA;
    const double inf = HUGE_VAL;
    for (const std::int64_t classes : {4, 1500, 17000}) {
        Tensor x = randn({4, classes}) + 1e4;
        narrow(narrow(x, 0, 1, 1), 1, 0, 3).fill_(-inf);
        narrow(narrow(x, 0, 2, 1), 1, 1, 1).fill_(inf);
        const Tensor targets = tensor({3, 3, 3, -7});
        for (const double smoothing : {0.0, 0.3}) {
            INFO(classes << " classes, smoothing " << smoothing);
            compare({x, targets}, 1e-4, cross_entropy_with({.ignore_index = -7, .reduction = Reduction::none, .label_smoothing = smoothing}));
        }
    }
    compare({randn({2, 3}), tensor({5, 5})}, 1e-5, cross_entropy_with({.ignore_index = 5}));  // nan
    compare({zeros({0, 3}), zeros({0}, int64)}, 1e-5, cross_entropy_with({}));
    compare({zeros({0, 3}), zeros({0}, int64)}, 1e-5, cross_entropy_with({.reduction = Reduction::sum}));
    compare({zeros({2, 0}), tensor({5, 5})}, 1e-5, cross_entropy_with({.ignore_index = 5, .reduction = Reduction::none}));
}

TEST_CASE("cross_entropy and nll_loss find targets out of range", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = randn({3, 4}).to(cuda);
    Tensor (*const losses[])(In, In, const CrossEntropyOptions&) = {cross_entropy, nll_loss};
    for (const auto loss : losses) {
        for (const std::int64_t bad : {4, -1}) {
            const Tensor targets = tensor({1, bad, 3}).to(cuda);
            const std::string text = "target " + std::to_string(bad) + " is out of range for 4 classes";
            CHECK_THROWS_WITH(loss(x, targets, {}).item<float>(), Catch::Contains(text));
        }
        CHECK_NOTHROW(loss(x, tensor({1, 2, 3}).to(cuda), {}).item<float>());
    }
    CHECK_THROWS_AS(cross_entropy(zeros({2, 0}, cuda), tensor({0, 0}).to(cuda)).item<float>(), IndexError);
}

TEST_CASE("nll_loss on the device", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(3);
    const Tensor x = log_softmax(randn({40, 5, 7}), 1), targets = randint(5, {40, 7}), weight = rand({5});
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
            INFO(name(dtype) << ", reduction " << static_cast<int>(reduction));
            compare({x.to(dtype), targets}, limit_of(dtype), [&](const auto& in) {
                return nll_loss(in[0], in[1],
                                {.weight = weight.to(in[0].device()).to(dtype), .ignore_index = 2, .reduction = reduction, .label_smoothing = 0.1});
            });
        }
    }
}

TEST_CASE("mse_loss of few and many elements", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(4);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        for (const std::int64_t n : {0, 1, 3, 4, 1000, 70001}) {
            INFO(name(dtype) << ", " << n << " elements");
            const std::vector<Tensor> inputs{randn({n}).to(dtype), randn({n}).to(dtype)};
            const auto mean = [](const auto& x) { return mse_loss(x[0], x[1]); };
            compare(inputs, limit_of(dtype), mean);
            compare_on(inputs, {shifted(inputs[0]), inputs[1].to(cuda)}, limit_of(dtype), mean);
        }
        const std::vector<Tensor> inputs{randn({20, 30}).to(dtype), randn({30, 20}).to(dtype)};
        compare(inputs, limit_of(dtype), [](const auto& x) { return mse_loss(x[0], x[1].t(), Reduction::sum); });
        compare(inputs, limit_of(dtype), [](const auto& x) { return mse_loss(x[0], x[1].t(), Reduction::none); });
    }
    compare({randn({9}), randn({9}, float64)}, 1e-6, [](const auto& x) { return mse_loss(x[0], x[1]); });
}

TEST_CASE("binary_cross_entropy of all that it takes", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    const Tensor x = tensor({0.0, 0.0, 1.0, 1.0, 0.5, 0.25, 1e-30, -0.0});
    const Tensor t = tensor({0.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.3, 0.0});
    const auto each = [](const auto& in) { return binary_cross_entropy(in[0], in[1], {}, Reduction::none); };
    for (const DType dtype : {float32, float64}) compare({x.to(dtype), t.to(dtype)}, limit_of(dtype), each);
    for (const DType dtype : {float32, float64, float16, bfloat16}) {
        const std::vector<Tensor> inputs{rand({5003}).to(dtype), rand({5003}).to(dtype)};
        compare(inputs, limit_of(dtype), each);
        compare_on(inputs, {shifted(inputs[0]), inputs[1].to(cuda)}, limit_of(dtype), each);
    }
}

TEST_CASE("losses are differentiated twice", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(6);
    const Tensor x = randn({4, 5, 3}), targets = randint(5, {4, 3}), y = rand({4, 5, 3}) * 0.9 + 0.05;
    for (const DType dtype : {float32, float64, float16}) {
        INFO(name(dtype));
        for (const double smoothing : {0.0, 0.2}) {
            compare_twice({x.to(dtype), targets}, limit_of(dtype), [=](const auto& in) {
                return cross_entropy(
                    in[0], in[1],
                    {.weight = tensor({1.0, 2.0, 0.5, 0.0, 1.0}, {dtype, in[0].device()}), .ignore_index = 1, .label_smoothing = smoothing});
            });
            compare_twice({x.to(dtype), targets}, limit_of(dtype),
                          [=](const auto& in) { return cross_entropy(in[0], in[1], {.reduction = Reduction::none, .label_smoothing = smoothing}); });
        }
        compare_twice({x.to(dtype), y.to(dtype)}, limit_of(dtype), [](const auto& in) { return mse_loss(in[0], in[1]); });
        compare_twice({y.to(dtype), y.to(dtype)}, 10 * limit_of(dtype),
                      [](const auto& in) { return binary_cross_entropy(in[0], in[1], {}, Reduction::none); });
    }
}

TEST_CASE("ctc_loss of short and long targets, of one example and of many", "[cuda]") {
    NEEDS_CUDA;
    manual_seed(5);
    const auto with = [](const CTCLossOptions& options) {
        return [options](const auto& x) { return ctc_loss(log_softmax(x[0], 2), x[1], x[2], x[3], options); };
    };
    for (const DType dtype : {float64, float32, float16}) {
        INFO(name(dtype));
        const double limit = dtype == float64 ? 1e-10 : dtype == float32 ? 1e-4 : 1e-2;
        const Tensor x = randn({330, 3, 6}).to(dtype);
        const Tensor labels = randint(1, 6, {3, 150}), steps = tensor({330, 100, 0});
        const Tensor counts = tensor({150, 7, 0});  // 301 places: more than threads
        compare({x, labels, steps, counts}, limit, with({}));
        compare({x, labels, steps, counts}, limit, with({.reduction = Reduction::none}));
        compare({x.narrow(0, 0, 20), labels.narrow(1, 0, 15), tensor({20, 9, 3}), tensor({12, 9, 0})}, limit,
                with({.reduction = Reduction::sum, .zero_infinity = true}));
        compare({x.narrow(1, 0, 1), zeros({1, 0}, int64), tensor({300}), tensor({0})}, limit, with({}));
    }
    const Tensor x = randn({5, 2, 4}, {float64, cpu});
    compare_twice({x, tensor({{1, 1}, {2, 3}}), tensor({5, 4}), tensor({2, 2})}, 1e-9, with({}));
}

TEST_CASE("ctc_loss reports a target out of range later", "[cuda]") {
    NEEDS_CUDA;
    const Tensor x = zeros({4, 1, 3}, cuda), bad = tensor({{1, 7}}).to(cuda), lengths = tensor({4}), counts = tensor({2});
    const Tensor loss = ctc_loss(x, bad, lengths, counts);
    CHECK_THROWS_AS(synchronize(), IndexError);
}
