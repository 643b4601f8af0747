// Sizes, counts, places and steps at the ends of int64: each call throws a typed error that names its line, or gives the small result
// that there is; none crashes, runs on for ever, or gives what numbers that wrapped around would give.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

using std::int64_t;
using Numbers = std::vector<int64_t>;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t k62 = int64_t{1} << 62, k48 = int64_t{1} << 48, k32 = int64_t{1} << 32;

// Sizes that no memory holds, and steps that leave every tensor.
const Numbers huge = {kMost, kMost - 1, k62, k62 + 1, k48, kLeast, kLeast + 1, -k48, -k62};
const Numbers beyond = {kMost, kMost - 1, k62, k62 + 1, k48, k32, kLeast, kLeast + 1, -k48, -k32, -k62};

using Fn = std::function<Tensor(int64_t)>;
/// What is right for the number; undefined: an error.
using Right = std::function<Tensor(int64_t)>;

struct Row {
    const char* name;
    Fn run;
    Right right = [](int64_t) { return Tensor(); };
};

void check(const Row& row, const Numbers& numbers) {
    for (const int64_t n : numbers) {
        INFO(row.name << " of " << n);
        const Tensor want = row.right(n);
        try {
            const Tensor have = row.run(n);
            if (!want.defined()) {
                INFO("a result of shape " << have.shape());
                CHECK(std::string("an error") == "nothing thrown");
                continue;
            }
            REQUIRE(have.shape() == want.shape());
            CHECK(have.to(float64).to_vector<double>() == want.to(float64).to_vector<double>());
        } catch (const Error& error) {
            INFO(error.what());
            CHECK_FALSE(want.defined());
            CHECK(std::string(error.what()).find("huge_sizes_test.cpp:") == 0);
        }
    }
}

Tensor line() { return arange(4.0f); }
Tensor square() { return arange(9.0f).reshape({3, 3}); }
Tensor image() { return arange(16.0f).reshape({1, 1, 4, 4}); }
Tensor wide() { return ones({1}).expand({int64_t{1} << 40}); }  // as many as no memory holds; a view
Tensor none(int64_t) { return line().narrow(0, 0, 0); }

}  // namespace

TEST_CASE("sizes that no memory holds", "[ops]") {
    const Row rows[] = {
        {"zeros", [](int64_t n) { return zeros({n}); }},
        {"ones, two", [](int64_t n) { return ones({n, n}); }},
        {"full, beside others", [](int64_t n) { return full({3, n, 7}, 2.0); }},
        {"empty", [](int64_t n) { return empty({n, 2}, uint8); }},
        {"rand", [](int64_t n) { return rand({n}); }},
        {"randn", [](int64_t n) { return randn({n, 4}); }},
        {"randint", [](int64_t n) { return randint(3, {n}); }},
        {"bernoulli", [](int64_t n) { return bernoulli({n}, 0.5); }},
        {"randperm", [](int64_t n) { return randperm(n); }},
        {"multinomial", [](int64_t n) { return multinomial(ones({3}), n, true); }},
        {"eye", [](int64_t n) { return eye(n); }},
        {"linspace", [](int64_t n) { return linspace(0, 1, n); }},
        {"logspace", [](int64_t n) { return logspace(0, 1, n); }},
        {"tril_indices", [](int64_t n) { return tril_indices(n, 3); }},
        {"triu_indices", [](int64_t n) { return triu_indices(n, n); }},
        {"repeat", [](int64_t n) { return repeat(line(), {n}); }},
        {"repeat, two", [](int64_t n) { return repeat(square(), {n, n}); }},
        {"tile", [](int64_t n) { return tile(line(), {n}); }},
        {"tile, four", [](int64_t n) { return tile(line(), {n, n, n, n}); }},
        {"repeat_interleave", [](int64_t n) { return repeat_interleave(line(), n); }},
        {"repeat_interleave along", [](int64_t n) { return repeat_interleave(square(), n, 1); }},
        {"repeat_interleave by one", [](int64_t n) { return repeat_interleave(line(), tensor({n, n, n, n})); }},
        {"pad", [](int64_t n) { return pad(line(), {n, 1}); }},
        {"pad both", [](int64_t n) { return pad(line(), {n, n}); }},
        {"pad replicate", [](int64_t n) { return pad(image(), {n, 1, 0, 0}, "replicate"); }},
        {"pad reflect", [](int64_t n) { return pad(image(), {n, n, 0, 0}, "reflect"); }},
        {"pad circular", [](int64_t n) { return pad(image(), {0, 0, n, 1}, "circular"); }},
        {"one_hot", [](int64_t n) { return one_hot(tensor({0, 1}), n); }},
        {"diag", [](int64_t n) { return diag(line(), n); }},
        {"diag_embed", [](int64_t n) { return diag_embed(line(), n); }},
        {"diagflat", [](int64_t n) { return diagflat(line(), n); }},
        {"vander", [](int64_t n) { return vander(line(), n); }},
        {"histc", [](int64_t n) { return histc(line(), n, 0, 1); }},
        {"histogram", [](int64_t n) { return histogram(line(), n).hist; }},
        {"interpolate", [](int64_t n) { return interpolate(image(), {.size = n}); }},
        {"interpolate bilinear", [](int64_t n) { return interpolate(image(), {.size = {4, n}, .mode = "bilinear"}); }},
        {"interpolate area", [](int64_t n) { return interpolate(image(), {.size = n, .mode = "area"}); }},
        {"affine_grid", [](int64_t n) { return affine_grid(ones({1, 2, 3}), {1, 1, n, n}); }},
        {"fold", [](int64_t n) { return fold(ones({1, 4, 9}), {n, n}, 2); }},
        {"pixel_shuffle", [](int64_t n) { return pixel_shuffle(image(), n); }},
        {"pixel_unshuffle", [](int64_t n) { return pixel_unshuffle(image(), n); }},
        {"channel_shuffle", [](int64_t n) { return channel_shuffle(image(), n); }},
        {"adaptive_avg_pool2d", [](int64_t n) { return adaptive_avg_pool2d(image(), n); }},
        {"adaptive_max_pool1d", [](int64_t n) { return adaptive_max_pool1d(ones({1, 1, 4}), n); }},
        {"view", [](int64_t n) { return line().view({n, 4}); }},
        {"view with -1", [](int64_t n) { return line().view({n, -1}); }},
        {"reshape", [](int64_t n) { return line().reshape({n, n}); }},
        {"unflatten", [](int64_t n) { return line().unflatten(0, {n, 4}); }},
        {"unflatten with -1", [](int64_t n) { return line().unflatten(0, {n, -1}); }},
        {"split", [](int64_t n) { return line().split({n, n})[0]; }},
        {"split to 4", [](int64_t n) { return line().split({n, 4, -n})[0]; }},
        {"topk", [](int64_t n) { return topk(line(), n).values; }},
        {"kthvalue", [](int64_t n) { return kthvalue(line(), n).values; }},
        {"select", [](int64_t n) { return line().select(0, n); }},
        {"index", [](int64_t n) { return line()[n]; }},
        {"narrow start", [](int64_t n) { return line().narrow(0, n, 1); }},
        {"narrow length", [](int64_t n) { return line().narrow(0, 1, n); }},
        {"narrow both", [](int64_t n) { return line().narrow(0, n, n); }},
        {"unfold size", [](int64_t n) { return line().unfold(0, n, 1); }},
        {"select_scatter", [](int64_t n) { return select_scatter(line(), tensor(1.0f), 0, n); }},
        {"transpose", [](int64_t n) { return square().transpose(0, n); }},
        {"softmax", [](int64_t n) { return softmax(line(), n); }},
        {"sum", [](int64_t n) { return sum(line(), {n}); }},
        {"unsqueeze", [](int64_t n) { return line().unsqueeze(n); }},
        {"size", [](int64_t n) { return tensor(line().size(n)); }},
        {"group_norm", [](int64_t n) { return group_norm(image(), n); }},
    };
    for (const Row& row : rows) check(row, huge);
    check({"expand", [](int64_t n) { return line().expand({n, 4}); }}, {kMost, k62, kLeast, -k48});
    check({"expand one", [](int64_t n) { return ones({1}).expand({n, n}); }}, huge);
    // A product that wraps around to the number of elements.
    check({"view that wraps", [](int64_t n) { return line().view({n, 4}); }}, {k62 + 1});
    check({"view of nothing that wraps", [](int64_t n) { return zeros({0}).view({n, n}); }}, {k32});
    check({"reshape of nothing that wraps", [](int64_t n) { return zeros({0}).reshape({n, n, n, n}); }}, {int64_t{1} << 16});
    check({"unflatten that wraps", [](int64_t n) { return line().unflatten(0, {n, 4}); }}, {k62 + 1});
    // Dimensions of no elements beside huge ones are shapes.
    CHECK(zeros({k48, 0}).shape() == Shape{k48, 0});
    CHECK(sum(zeros({0, k48})).item() == 0);
    check({"zeros of none", [](int64_t n) { return zeros({n, 0, n}); }}, huge);  // PyTorch takes it
}

TEST_CASE("places and steps beyond every tensor", "[ops]") {
    const auto first = [](int64_t) { return line().narrow(0, 0, 1); };
    const Row rows[] = {
        {"slice from", [](int64_t n) { return line()[Slice(n, None)]; }, [](int64_t n) { return n < 0 ? line() : none(n); }},
        {"slice to", [](int64_t n) { return line()[Slice(None, n)]; }, [](int64_t n) { return n > 0 ? line() : none(n); }},
        {"slice between", [](int64_t n) { return line()[n == kLeast ? Slice(kMost, n + 1) : Slice(-n, n)]; },
         [](int64_t n) { return n > 0 ? line() : none(n); }},
        {"slice step", [](int64_t n) { return line()[Slice(0, 4, n)]; }, [&](int64_t n) { return n > 0 ? first(n) : Tensor(); }},
        {"slice step on", [](int64_t n) { return line()[Slice(2, n, n)]; }, [](int64_t n) { return n > 0 ? line().narrow(0, 2, 1) : Tensor(); }},
        {"slice_scatter", [](int64_t n) { return slice_scatter(line(), ones({1}), 0, Slice(3, n, n)); },
         [](int64_t n) { return n > 0 ? tensor({0.0f, 1.0f, 2.0f, 1.0f}) : Tensor(); }},
        {"unfold step", [](int64_t n) { return line().unfold(0, 2, n).reshape({2}); },
         [](int64_t n) { return n > 0 ? line().narrow(0, 0, 2) : Tensor(); }},
        {"split", [](int64_t n) { return line().split(n)[0]; }, [](int64_t n) { return n > 0 ? line() : Tensor(); }},
        {"tensor_split", [](int64_t n) { return tensor_split(line(), Numbers{n})[0]; }, [](int64_t n) { return n > 0 ? line() : none(n); }},
        {"tensor_split rest", [](int64_t n) { return tensor_split(line(), Numbers{n, n})[2]; }, [](int64_t n) { return n > 0 ? none(n) : line(); }},
        {"roll", [](int64_t n) { return roll(line(), n); },
         [](int64_t n) {
             Tensor y = line();
             for (int64_t i = 0; i < 4; ++i) y[((n % 4 + i) % 4 + 4) % 4] = static_cast<double>(i);
             return y;
         }},
        {"tril", [](int64_t n) { return tril(square(), n); }, [](int64_t n) { return n > 0 ? square() : zeros({3, 3}); }},
        {"triu", [](int64_t n) { return triu(square(), n); }, [](int64_t n) { return n > 0 ? zeros({3, 3}) : square(); }},
        {"tril_indices", [](int64_t n) { return tril_indices(2, 2, n); },
         [](int64_t n) { return n > 0 ? tensor({{0, 0, 1, 1}, {0, 1, 0, 1}}) : zeros({2, 0}, int64); }},
        {"triu_indices", [](int64_t n) { return triu_indices(2, 2, n); },
         [](int64_t n) { return n > 0 ? zeros({2, 0}, int64) : tensor({{0, 0, 1, 1}, {0, 1, 0, 1}}); }},
        {"diagonal", [](int64_t n) { return square().diagonal(n); }, none},
        {"diag of a matrix", [](int64_t n) { return diag(square(), n); }, none},
        {"diagonal_scatter", [](int64_t n) { return diagonal_scatter(square(), zeros({0}), n); }, [](int64_t) { return square(); }},
        {"movedim", [](int64_t n) { return movedim(square(), {0}, {n}); }},
        {"rot90", [](int64_t n) { return rot90(square(), static_cast<int>(n % 4) + 4 * (1 << 28)); },
         [](int64_t n) { return rot90(square(), static_cast<int>(n % 4)); }},
        {"cross_entropy ignore",
         [](int64_t n) { return cross_entropy(square(), tensor({0, 1, 2}), {.ignore_index = n, .reduction = Reduction::none}); },
         [](int64_t) { return cross_entropy(square(), tensor({0, 1, 2}), Reduction::none); }},
        {"embedding padding", [](int64_t n) { return embedding(tensor({0}), square(), n); }},
    };
    for (const Row& row : rows) check(row, beyond);
    // Two rolls at once, which add up beyond int64.
    CHECK(roll(square(), {kMost, kMost}, {0, 0}).shape() == Shape{3, 3});
}

TEST_CASE("indices beyond every tensor", "[ops]") {
    const Row rows[] = {
        {"index_select", [](int64_t n) { return index_select(line(), 0, tensor({n})); }},
        {"gather", [](int64_t n) { return gather(line(), 0, tensor({n})); }},
        {"scatter", [](int64_t n) { return scatter(line(), 0, tensor({n}), 1.0); }},
        {"scatter_add", [](int64_t n) { return scatter_add(line(), 0, tensor({n}), ones({1})); }},
        {"scatter_reduce", [](int64_t n) { return scatter_reduce(line(), 0, tensor({n}), ones({1}), "amax"); }},
        {"index_add", [](int64_t n) { return index_add(line(), 0, tensor({n}), ones({1})); }},
        {"index_copy", [](int64_t n) { return index_copy(line(), 0, tensor({n}), ones({1})); }},
        {"index_fill", [](int64_t n) { return index_fill(line(), 0, tensor({n}), 1.0); }},
        {"take_along_dim", [](int64_t n) { return take_along_dim(line(), tensor({n}), 0); }},
        {"index by tensor", [](int64_t n) { return line()[tensor({n})]; }},
        {"index_put", [](int64_t n) { return line().index_put({tensor({n})}, 1.0); }},
        {"embedding", [](int64_t n) { return embedding(tensor({n}), square()); }},
        {"embedding_bag", [](int64_t n) { return embedding_bag(tensor({n, int64_t{0}}).unsqueeze(0), square()); }},
        {"embedding_bag offsets", [](int64_t n) { return embedding_bag(tensor({0, 1}), square(), tensor({int64_t{0}, n})); }},
        {"one_hot", [](int64_t n) { return one_hot(tensor({n})); }},
        {"one_hot of 3", [](int64_t n) { return one_hot(tensor({n}), 3); }},
        {"bincount", [](int64_t n) { return bincount(tensor({n})); }},
        {"cross_entropy", [](int64_t n) { return cross_entropy(square(), tensor({int64_t{0}, n, int64_t{1}})); }},
        {"nll_loss", [](int64_t n) { return nll_loss(square(), tensor({int64_t{0}, n, int64_t{1}})); }},
        {"multi_margin_loss", [](int64_t n) { return multi_margin_loss(square(), tensor({int64_t{0}, n, int64_t{1}})); }},
        {"multilabel_margin_loss", [](int64_t n) { return multilabel_margin_loss(line(), tensor({int64_t{0}, n, int64_t{-1}, int64_t{0}})); }},
        {"ctc_loss lengths", [](int64_t n) { return ctc_loss(log_softmax(ones({3, 1, 3}), 2), tensor({{1, 2}}), tensor({n}), tensor({2})); }},
        {"ctc_loss target lengths", [](int64_t n) { return ctc_loss(log_softmax(ones({3, 1, 3}), 2), tensor({{1, 2}}), tensor({3}), tensor({n})); }},
        {"ctc_loss two target lengths",
         [](int64_t n) { return ctc_loss(log_softmax(ones({3, 2, 3}), 2), tensor({1, 2}), tensor({3, 3}), tensor({n, -n})); }},
        {"ctc_loss blank",
         [](int64_t n) { return ctc_loss(log_softmax(ones({3, 1, 3}), 2), tensor({{1, 2}}), tensor({3}), tensor({2}), {.blank = n}); }},
        {"minlength", [](int64_t n) { return bincount(tensor({0, 1}), {}, n < 0 ? -n - 1 > 0 ? n : kMost : n); }},
    };
    for (const Row& row : rows) check(row, {kMost, kMost - 1, k62, k48, kLeast, kLeast + 1, -k62});
}

TEST_CASE("windows of extreme numbers", "[ops]") {
    const auto x1 = [] { return ones({1, 3, 4}); };
    const auto w1 = [] { return ones({3, 3, 3}); };
    // One window is left of a step that leaves the input; padding and dilation of as much fit nothing.
    const auto one_window = [](int64_t n) { return n > 0 && n <= std::numeric_limits<std::int32_t>::max() ? full({1, 3, 1}, 9.0) : Tensor(); };
    const Row rows[] = {
        {"conv1d stride", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.stride = n}); }, one_window},
        {"conv1d padding", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.padding = n}); }},
        {"conv1d dilation", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.dilation = n}); }},
        {"conv1d same", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.padding = "same", .dilation = n}); }},
        {"conv1d groups", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.groups = n}); }},
        {"conv1d all", [&](int64_t n) { return conv1d(x1(), w1(), {}, {.stride = n, .padding = n, .dilation = n}); }},
        {"conv2d", [](int64_t n) { return conv2d(image(), ones({1, 1, 2, 2}), {}, {.stride = {1, n}, .padding = {n, 0}}); }},
        {"conv3d", [](int64_t n) { return conv3d(ones({1, 1, 2, 2, 2}), ones({1, 1, 2, 2, 2}), {}, {.padding = {0, n, n}}); }},
        {"conv_transpose1d stride", [&](int64_t n) { return conv_transpose1d(x1(), w1(), {}, {.stride = n}); }},
        {"conv_transpose1d padding", [&](int64_t n) { return conv_transpose1d(x1(), w1(), {}, {.padding = n}); }},
        {"conv_transpose1d dilation", [&](int64_t n) { return conv_transpose1d(x1(), w1(), {}, {.dilation = n}); }},
        {"conv_transpose1d output_padding", [&](int64_t n) { return conv_transpose1d(x1(), w1(), {}, {.output_padding = n}); }},
        {"conv_transpose1d all",
         [&](int64_t n) { return conv_transpose1d(x1(), w1(), {}, {.stride = n, .padding = n, .output_padding = n - 1, .dilation = n}); }},
        {"conv_transpose2d", [](int64_t n) { return conv_transpose2d(image(), ones({1, 1, 2, 2}), {}, {.stride = {n, 1}, .padding = {n, 0}}); }},
        {"max_pool2d kernel", [](int64_t n) { return max_pool2d(image(), n); }},
        {"max_pool2d padding", [](int64_t n) { return max_pool2d(image(), 2, {.padding = n}); }},
        {"max_pool2d dilation", [](int64_t n) { return max_pool2d(image(), 2, {.dilation = n}); }},
        {"max_pool2d kernel and padding", [](int64_t n) { return max_pool2d(image(), n, {.padding = n / 2}); }},
        {"max_pool1d indices", [&](int64_t n) { return max_pool1d_with_indices(x1(), {n}, {.stride = 1}).indices; }},
        {"max_pool3d", [](int64_t n) { return max_pool3d(ones({1, 2, 2, 2}), {1, n, 1}); }},
        {"avg_pool2d kernel", [](int64_t n) { return avg_pool2d(image(), n); }},
        {"avg_pool2d padding", [](int64_t n) { return avg_pool2d(image(), 2, {.padding = n}); }},
        {"avg_pool2d kernel and padding", [](int64_t n) { return avg_pool2d(image(), n, {.stride = 1, .padding = n / 2}); }},
        {"lp_pool1d", [&](int64_t n) { return lp_pool1d(x1(), 2, n); }},
        {"unfold kernel", [](int64_t n) { return unfold(image(), n); }},
        {"unfold dilation", [](int64_t n) { return unfold(image(), 2, {.dilation = n}); }},
        {"unfold padding", [](int64_t n) { return unfold(image(), 2, {.padding = n}); }},
        {"fold kernel", [](int64_t n) { return fold(ones({1, 4, 9}), {4, 4}, n); }},
        {"fold dilation", [](int64_t n) { return fold(ones({1, 4, 9}), {4, 4}, 2, {.dilation = n}); }},
        {"fold padding", [](int64_t n) { return fold(ones({1, 4, 9}), {4, 4}, 2, {.padding = n}); }},
    };
    for (const Row& row : rows) check(row, huge);
    const auto windows = [](int64_t n) { return n > 0; };
    const Row strides[] = {
        {"max_pool2d stride", [](int64_t n) { return max_pool2d(image(), 2, {.stride = n}); },
         [&](int64_t n) { return windows(n) ? full({1, 1, 1, 1}, 5.0) : Tensor(); }},
        {"max_pool2d stride and ceil_mode", [](int64_t n) { return max_pool2d(image(), 2, {.stride = n, .ceil_mode = true}); },
         [&](int64_t n) { return windows(n) ? full({1, 1, 1, 1}, 5.0) : Tensor(); }},
        {"avg_pool2d stride", [](int64_t n) { return avg_pool2d(image(), 2, {.stride = n}); },
         [&](int64_t n) { return windows(n) ? full({1, 1, 1, 1}, 2.5) : Tensor(); }},
        {"lp_pool2d stride", [](int64_t n) { return lp_pool2d(image(), 1, 2, {.stride = n, .ceil_mode = true}); },
         [&](int64_t n) { return windows(n) ? full({1, 1, 1, 1}, 10.0) : Tensor(); }},
        {"unfold stride", [](int64_t n) { return unfold(image(), 2, {.stride = n}).reshape({4}); },
         [&](int64_t n) { return windows(n) ? tensor({0.0, 1.0, 4.0, 5.0}) : Tensor(); }},
    };
    // Beyond the library's limit of strides an error is as good as the one window.
    for (const Row& row : strides) {
        for (const int64_t n : huge) {
            INFO(row.name << " of " << n);
            try {
                const Tensor have = row.run(n);
                REQUIRE(row.right(n).defined());
                CHECK(have.to_vector<float>() == row.right(n).to_vector<float>());
            } catch (const Error& error) {
                CHECK(std::string(error.what()).find("huge_sizes_test.cpp:") == 0);
            }
        }
    }
    CHECK(avg_pool2d(image(), 2, {.divisor_override = kMost}).numel() == 4);
    CHECK(avg_pool2d(image(), 2, {.divisor_override = kLeast}).numel() == 4);
    for (const double scale : {1e9, 1e18, 1e300, HUGE_VAL, -1e300, double(NAN)}) {
        for (const char* mode : {"nearest", "bilinear", "bicubic", "area", "nearest-exact"}) {
            check({"interpolate scale", [&](int64_t) { return interpolate(image(), {.scale_factor = scale, .mode = mode}); }}, {0});
        }
    }
    check({"local_response_norm", [](int64_t n) { return local_response_norm(image(), n); }}, {kLeast, kLeast + 1, -k48});
}

TEST_CASE("results that views of many elements would have", "[ops]") {
    const Tensor v = wide(), m = ones({1, 1}).expand({k32, k32 / 64});
    const Row rows[] = {
        {"outer", [&](int64_t) { return outer(v, v); }},
        {"matmul", [&](int64_t) { return matmul(v.unsqueeze(1), v.unsqueeze(0)); }},
        {"add", [&](int64_t) { return v.unsqueeze(1) + v; }},
        {"where", [&](int64_t) { return where(v.unsqueeze(1) > 0, v, 0); }},
        {"einsum", [&](int64_t) { return einsum("i,j->ij", {v, v}); }},
        {"tensordot", [&](int64_t) { return tensordot(v, v, 0); }},
        {"kron", [&](int64_t) { return kron(v, v); }},
        {"cartesian_prod", [&](int64_t) { return cartesian_prod({v, v}); }},
        {"meshgrid", [&](int64_t) { return meshgrid({v, v})[0]; }},
        {"cat", [&](int64_t) { return cat({m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m}); }},
        {"stack", [&](int64_t) { return stack({m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m}); }},
        {"hstack", [&](int64_t) { return hstack({v, v}); }},
        {"block_diag", [&](int64_t) { return block_diag({m, m}); }},
        {"diag", [&](int64_t) { return diag(v); }},
        {"diag_embed", [&](int64_t) { return diag_embed(v); }},
        {"cdist", [&](int64_t) { return cdist(v.unsqueeze(1), v.unsqueeze(1)); }},
        {"repeat", [&](int64_t) { return repeat(v, {k32}); }},
        {"unfold", [&](int64_t) { return v.unfold(0, k32, 1) + 0; }},
        {"flatten", [&](int64_t) { return flatten(v.unsqueeze(0).expand({k32 / 8, v.size(0)})) + 0; }},
        {"bilinear", [&](int64_t) { return bilinear(v.unsqueeze(1), v.unsqueeze(1), ones({k32 / 8, 1, 1})); }},
        {"clone", [&](int64_t) { return v.clone(); }},
        {"exp", [&](int64_t) { return exp(v); }},
        {"sort", [&](int64_t) { return sort(v).values; }},
        {"cumsum", [&](int64_t) { return cumsum(v, 0); }},
        {"to", [&](int64_t) { return v.to(float64); }},
        {"contiguous", [&](int64_t) { return v.contiguous(); }},
        {"pad", [&](int64_t) { return pad(v, {k32, k32}); }},
        {"one_hot", [&](int64_t) { return one_hot(zeros({1}, int64).expand({k32}), k32); }},
        {"embedding", [&](int64_t) { return embedding(zeros({1}, int64).expand({k32}), ones({1, 1}).expand({1, k32})); }},
        {"index_select", [&](int64_t) { return index_select(ones({1, 1}).expand({1, k32}), 0, zeros({1}, int64).expand({k32})); }},
    };
    for (const Row& row : rows) check(row, {0});
}

TEST_CASE("arithmetic at the ends of int64", "[ops]") {
    const auto number = [](const Tensor& t) { return t.item<int64_t>(); };
    CHECK(arange(kMost - 2, kMost).to_vector<int64_t>() == Numbers{kMost - 2, kMost - 1});
    CHECK(arange(kLeast, kLeast + 2).to_vector<int64_t>() == Numbers{kLeast, kLeast + 1});
    CHECK(arange(kLeast, kMost, kMost).to_vector<int64_t>() == Numbers{kLeast, -1, kMost - 1});
    CHECK(arange(kMost, kLeast, kLeast).to_vector<int64_t>() == Numbers{kMost, -1});
    CHECK(arange(0, 5, kMost).to_vector<int64_t>() == Numbers{0});
    check({"arange", [](int64_t n) { return n > 0 ? arange(n) : arange(n, 0); }}, huge);
    check({"arange of all", [](int64_t n) { return arange(kLeast, n); }}, {kMost, 0});
    check({"arange by fractions", [](int64_t n) { return arange(0.0, static_cast<double>(n), 0.5); }}, {kMost, k62, kLeast, k48});
    for (const Tensor& y : {randint(kLeast, kMost, {3}), randint(kMost - 1, kMost, {3}), randint(kLeast, kLeast + 1, {3})}) CHECK(y.numel() == 3);
    CHECK(number(randint(kMost - 1, kMost, {1})) == kMost - 1);
    const Tensor least = tensor({kLeast}), minus = tensor({int64_t{-1}});
    CHECK(number(div(least, minus, "floor")) == kLeast);  // wraps around, as additions do
    CHECK(number(div(least, minus, "trunc")) == kLeast);
    CHECK(number(div(least, -1, "floor")) == kLeast);
    CHECK(number(floor_divide(least, minus)) == kLeast);
    CHECK(number(remainder(least, minus)) == 0);
    CHECK(number(remainder(least, -1)) == 0);
    CHECK(number(fmod(least, minus)) == 0);
    CHECK(number(fmod(least, -1)) == 0);
    CHECK(number(abs(least)) == kLeast);
    CHECK(number(-least) == kLeast);
    CHECK(number(pow(tensor({int64_t{2}}), tensor({kMost}))) == 0);
    CHECK(number(pow(minus, tensor({kMost}))) == -1);
    CHECK(number(pow(minus, tensor({kLeast}))) == 1);
    CHECK(number(pow(tensor({int64_t{3}}), kMost)) != 0);  // odd
    CHECK(number(bitwise_left_shift(tensor({int64_t{1}}), tensor({kMost}))) == 0);
    CHECK(number(bitwise_left_shift(tensor({int64_t{1}}), tensor({kLeast}))) == 0);
    CHECK(number(bitwise_right_shift(minus, tensor({kMost}))) == -1);
    CHECK(linalg::matrix_power(eye(2), kMost).to_vector<float>() == eye(2).to_vector<float>());
    CHECK(linalg::matrix_power(eye(2), kLeast).to_vector<float>() == eye(2).to_vector<float>());
    for (const int64_t n : {kMost, k62, k32}) {
        const Tensor y = polygamma(n, tensor({1.5}));
        CHECK(y.numel() == 1);
    }
    check({"polygamma", [](int64_t n) { return polygamma(n, tensor({1.5})); }}, {kLeast, -k32});
    CHECK(std::isnan(var(line(), {0}, INT32_MAX).item()) == false);
    CHECK(diff(line(), INT32_MAX).numel() == 0);
}

TEST_CASE("layers of extreme sizes", "[ops]") {
    const Row rows[] = {
        {"Linear", [](int64_t n) { return nn::Linear(n, n).weight; }},
        {"Linear in", [](int64_t n) { return nn::Linear(n, 3).weight; }},
        {"Bilinear", [](int64_t n) { return nn::Bilinear(n, n, n).weight; }},
        {"Embedding", [](int64_t n) { return nn::Embedding(n, 4).weight; }},
        {"Embedding width", [](int64_t n) { return nn::Embedding(4, n).weight; }},
        {"LayerNorm", [](int64_t n) { return nn::LayerNorm({n, n}).weight; }},
        {"BatchNorm1d", [](int64_t n) { return nn::BatchNorm1d(n).weight; }},
        {"GroupNorm", [](int64_t n) { return nn::GroupNorm(n, n).weight; }},
        {"Conv2d channels", [](int64_t n) { return nn::Conv2d(n, 4, 3).weight; }},
        {"Conv2d out", [](int64_t n) { return nn::Conv2d(4, n, 3).weight; }},
        {"Conv2d kernel", [](int64_t n) { return nn::Conv2d(4, 4, n).weight; }},
        {"Conv2d groups", [](int64_t n) { return nn::Conv2d(n, n, 1, {.groups = n}).weight; }},
        {"ConvTranspose1d", [](int64_t n) { return nn::ConvTranspose1d(n, n, n).weight; }},
        {"LSTM hidden", [](int64_t n) { return nn::LSTM(3, n).weights[0].weight_ih; }},
        {"LSTM input", [](int64_t n) { return nn::LSTM(n, 3).weights[0].weight_ih; }},
        {"GRU hidden", [](int64_t n) { return nn::GRU(3, n).weights[0].weight_ih; }},
        {"LSTMCell hidden", [](int64_t n) { return nn::LSTMCell(3, n).weight_ih; }},
        {"GRUCell hidden", [](int64_t n) { return nn::GRUCell(3, n).weight_ih; }},
        {"NaryTreeLSTMCell", [](int64_t n) { return nn::NaryTreeLSTMCell(3, n, 2).weight_ih; }},
        {"ChildSumTreeLSTMCell", [](int64_t n) { return nn::ChildSumTreeLSTMCell(3, n).weight_ih; }},
        {"MultiheadAttention", [](int64_t n) { return nn::MultiheadAttention(n, 1).in_proj_weight; }},
        {"TransformerEncoderLayer", [](int64_t n) { return nn::TransformerEncoderLayer(4, 2, {.dim_feedforward = n}).linear1.weight; }},
    };
    for (const Row& row : rows) check(row, huge);
    // Four gates of 2^62 are 2^64, which would wrap around to 0.
    check({"LSTMCell that wraps", [](int64_t n) { return nn::LSTMCell(3, n).weight_ih; }}, {k62});
    check({"LSTM that wraps", [](int64_t n) { return nn::LSTM(3, n).weights[0].weight_ih; }}, {k62});
}
