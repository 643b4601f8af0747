// Rows of single ops on tensors of about a million numbers, of the largest ones on 16 million, and of gradients of ops.
#include "rows.h"

namespace bench {
namespace {

constexpr std::int64_t kMillion = 1 << 20;

struct Unary {
    const char* name;
    Tensor (*call)(const Tensor&);
    float low, high;  // of the operand's numbers
};

#define UNARY(name, low, high) {#name, [](const Tensor& x) { return Tensor(lib::name(x)); }, low, high}
const Unary kUnary[] = {
    UNARY(abs, -2, 2),     UNARY(neg, -2, 2),          UNARY(sign, -2, 2),       UNARY(square, -2, 2),      UNARY(sqrt, 0.1f, 4),
    UNARY(rsqrt, 0.1f, 4), UNARY(reciprocal, 0.1f, 4), UNARY(floor, -4, 4),      UNARY(round, -4, 4),       UNARY(exp, -4, 4),
    UNARY(expm1, -4, 4),   UNARY(log, 0.1f, 4),        UNARY(log1p, 0, 4),       UNARY(sin, -9, 9),         UNARY(cos, -9, 9),
    UNARY(tan, -1, 1),     UNARY(atan, -4, 4),         UNARY(asin, -1, 1),       UNARY(sinh, -4, 4),        UNARY(tanh, -4, 4),
    UNARY(erf, -3, 3),     UNARY(lgamma, 0.5f, 9),     UNARY(digamma, 0.5f, 9),  UNARY(sigmoid, -4, 4),     UNARY(relu, -4, 4),
    UNARY(gelu, -4, 4),    UNARY(silu, -4, 4),         UNARY(softplus, -4, 4),   UNARY(elu, -4, 4),         UNARY(selu, -4, 4),
    UNARY(mish, -4, 4),    UNARY(hardswish, -4, 4),    UNARY(leaky_relu, -4, 4), UNARY(logical_not, -1, 1), UNARY(isnan, -1, 1),
};
#undef UNARY

struct Binary {
    const char* name;
    Tensor (*call)(const Tensor&, const Tensor&);
    float low, high;  // of the second operand's numbers; the first one's are from 0.1 to 4
};

#define BINARY(name, expression, low, high) {#name, [](const Tensor& a, const Tensor& b) { return Tensor(expression); }, low, high}
const Binary kBinary[] = {
    BINARY(add, a + b, -2, 2),
    BINARY(sub, a - b, -2, 2),
    BINARY(mul, a* b, -2, 2),
    BINARY(div, a / b, 1, 2),
    BINARY(pow, lib::pow(a, b), -2, 2),
    BINARY(atan2, lib::atan2(a, b), -2, 2),
    BINARY(fmod, lib::fmod(a, b), 1, 2),
    BINARY(remainder, lib::remainder(a, b), 1, 2),
    BINARY(maximum, lib::maximum(a, b), 0, 4),
    BINARY(greater, a > b, 0, 4),
    BINARY(where, lib::where(a > b, a, b), 0, 4),
};
#undef BINARY

/// How the numbers of a square operand lie.
enum class Layout { kContiguous, kTransposed, kEverySecond, kColumns, kRow, kColumn };
const char* name_of(Layout layout) {
    switch (layout) {
        case Layout::kContiguous: return "contiguous";
        case Layout::kTransposed: return "transposed";
        case Layout::kEverySecond: return "every_second";
        case Layout::kColumns: return "columns";
        case Layout::kRow: return "row";
        case Layout::kColumn: return "column";
    }
    return "";
}

/// (n, n), or (n) as a row and (n, 1) as a column, which are broadcast.
Tensor laid_out(Layout layout, std::int64_t n, std::uint32_t seed, float low, float high) {
    switch (layout) {
        case Layout::kContiguous: return uniform({n, n}, seed, low, high);
        case Layout::kTransposed: return uniform({n, n}, seed, low, high).transpose(0, 1);
        case Layout::kEverySecond: return uniform({n, n, 2}, seed, low, high).select(2, 0);
        case Layout::kColumns: return uniform({n, n + 8}, seed, low, high).narrow(1, 4, n);
        case Layout::kRow: return uniform({n}, seed, low, high);
        case Layout::kColumn: return uniform({n, 1}, seed, low, high);
    }
    return {};
}

void add_elementwise() {
    for (const Unary& op : kUnary) {
        add_op(std::string("op/") + op.name + "/1M", [op] { return [op, x = uniform({kMillion}, 1, op.low, op.high)] { return op.call(x); }; });
    }
    for (const Binary& op : kBinary) {
        add_op(std::string("op/") + op.name + "/1M",
               [op] { return [op, a = uniform({kMillion}, 1, 0.1f, 4), b = uniform({kMillion}, 2, op.low, op.high)] { return op.call(a, b); }; });
    }
    for (const Layout layout : {Layout::kTransposed, Layout::kEverySecond, Layout::kColumns, Layout::kRow, Layout::kColumn}) {
        add_op(std::string("op/add/1024x1024/") + name_of(layout),
               [layout] { return [a = uniform({1024, 1024}, 1), b = laid_out(layout, 1024, 2, -1, 1)] { return a + b; }; });
    }
    add_op("op/pow_2.5/1M", [] { return [a = uniform({kMillion}, 1, 0.1f, 4)] { return lib::pow(a, 2.5); }; });
    add_op("op/clamp/1M", [] { return [a = uniform({kMillion})] { return lib::clamp(a, -0.5, 0.5); }; });
    add_op("op/mul_int64/1M", [] { return [a = integers({kMillion}, 1, 1000), b = integers({kMillion}, 2, 1000)] { return a * b; }; });
    add_op("op/add_float64/1M", [] { return [a = uniform({kMillion}, 1).to(kFloat64), b = uniform({kMillion}, 2).to(kFloat64)] { return a + b; }; });
    add_op("op/exp_float64/1M", [] { return [a = uniform({kMillion}).to(kFloat64)] { return lib::exp(a); }; });
    add_op("op/tanh_float64/1M", [] { return [a = uniform({kMillion}).to(kFloat64)] { return lib::tanh(a); }; });
    add_op("op/add_bfloat16/1M",
           [] { return [a = uniform({kMillion}, 1).to(kBFloat16), b = uniform({kMillion}, 2).to(kBFloat16)] { return a + b; }; });
    add_op("op/to_float64/1M", [] { return [a = uniform({kMillion})] { return a.to(kFloat64); }; });
    add_op("op/to_int64/1M", [] { return [a = uniform({kMillion}, 1, -9, 9)] { return a.to(kInt64); }; });
    add_op("op/to_bfloat16/1M", [] { return [a = uniform({kMillion}, 1, -9, 9)] { return a.to(kBFloat16); }; });
}

void add_reductions() {
    const auto square = [] { return uniform({1024, 1024}); };
    add_op("op/sum/1M", [] { return [a = uniform({kMillion})] { return a.sum(); }; });
    add_op("op/sum_of_columns/1024x1024", [=] { return [a = square()] { return a.sum({0}); }; });
    add_op("op/sum_of_rows/1024x1024", [=] { return [a = square()] { return a.sum({1}); }; });
    add_op("op/mean_of_channels/32x64x16x16", [] { return [a = uniform({32, 64, 16, 16})] { return a.mean({0, 2, 3}); }; });
    add_op("op/sum_int64/1M", [] { return [a = integers({kMillion}, 1, 1000)] { return a.sum(); }; });
    add_op("op/max/1M", [] { return [a = uniform({kMillion})] { return a.max(); }; });
    add_op("op/max_of_rows/1024x1024", [=] { return [a = square()] { return values(lib::max(a, 1)); }; });
    add_op("op/argmax_of_rows/1024x1024", [=] { return [a = square()] { return lib::argmax(a, 1); }; });
    add_op("op/amax_of_columns/1024x1024", [=] { return [a = square()] { return lib::amax(a, {0}); }; });
    add_op("op/var_of_rows/1024x1024", [=] { return [a = square()] { return a.var({1}); }; });
    add_op("op/std/1M", [] { return [a = uniform({kMillion})] { return a.std(); }; });
    add_op("op/prod_of_rows/1024x1024", [] { return [a = uniform({1024, 1024}, 1, 0.99f, 1.01f)] { return lib::prod(a, 1); }; });
    add_op("op/logsumexp_of_rows/1024x1024", [=] { return [a = square()] { return lib::logsumexp(a, {1}); }; });
    add_op("op/norm/1M", [] { return [a = uniform({kMillion})] { return lib::norm(a); }; });
    add_op("op/cumsum_of_columns/1024x1024", [=] { return [a = square()] { return lib::cumsum(a, 0); }; });
    add_op("op/cumsum_of_rows/1024x1024", [=] { return [a = square()] { return lib::cumsum(a, 1); }; });
    add_op("op/sort/1M", [] { return [a = uniform({kMillion})] { return values(lib::sort(a, 0)); }; });
    add_op("op/sort_of_rows/1024x1024", [=] { return [a = square()] { return values(lib::sort(a, 1)); }; });
    add_op("op/argsort_int64/100K", [] { return [a = integers({100000}, 1, 1000000)] { return a[a.argsort()[50000].item<std::int64_t>()]; }; });
    add_op("op/topk_10_of_rows/1024x1024", [=] { return [a = square()] { return values(lib::topk(a, 10, 1)); }; });
    add_op("op/median_of_rows/1024x1024", [=] { return [a = square()] { return values(lib::median(a, 1)); }; });
    add_op("op/all/1M", [] { return [a = uniform({kMillion}) > -2] { return lib::all(a); }; });
    add_op("op/nonzero/1M", [] { return [a = uniform({kMillion}) > 0] { return lib::nonzero(a); }; });
    add_op("op/masked_select/1M", [] { return [a = uniform({kMillion}, 1), mask = uniform({kMillion}, 2) > 0] { return a.index({mask}); }; });
    add_op("op/bincount/1M", [] { return [a = integers({kMillion}, 1, 1000)] { return lib::bincount(a); }; });
}

void add_moves() {
    const auto square = [] { return uniform({1024, 1024}); };
    constexpr double kRowBytes = 64 * 4;
    add_op("op/cat_of_rows/4x256x1024", [] { return [list = Tensors(4, uniform({256, 1024}))] { return lib::cat(list, 0); }; });
    add_op("op/cat_of_columns/4x1024x256", [] { return [list = Tensors(4, uniform({1024, 256}))] { return lib::cat(list, 1); }; });
    add_op("op/permute_to_channels_last/32x64x28x28",
           [] { return [a = uniform({32, 64, 28, 28})] { return a.permute({0, 2, 3, 1}).contiguous(); }; });
    add_op("op/index_select/10K_of_100Kx64",
           [] { return [a = uniform({100000, 64}), i = integers({10000}, 2, 100000)] { return lib::index_select(a, 0, i); }; },
           {.bytes = 2 * 10000 * kRowBytes});
    add_op("op/index_add/50K_to_10Kx64", [] {
        return [a = uniform({10000, 64}, 1), source = uniform({50000, 64}, 3), i = integers({50000}, 2, 10000)] {
            return lib::index_add(a, 0, i, source);
        };
    });
    add_op("op/gather/1024x1024", [=] { return [a = square(), i = integers({1024, 1024}, 2, 1024)] { return lib::gather(a, 1, i); }; });
    add_op("op/scatter_add/1024x1024", [=] {
        return [a = square(), source = uniform({1024, 1024}, 3), i = integers({1024, 1024}, 2, 1024)] { return lib::scatter_add(a, 0, i, source); };
    });
    add_op("op/one_hot/100K_of_100", [] { return [i = integers({100000}, 2, 100)] { return lib::one_hot(i, 100); }; });
    add_op("op/pad_by_1/32x64x28x28", [] { return [a = uniform({32, 64, 28, 28})] { return pad_by_1(a); }; });
    add_op("op/flip/1024x1024", [=] { return [a = square()] { return lib::flip(a, {1}); }; });
    add_op("op/roll/1024x1024", [=] { return [a = square()] { return lib::roll(a, {3}, {1}); }; });
    add_op("op/tril/1024x1024", [=] { return [a = square()] { return lib::tril(a); }; });
    add_op("op/repeat_2x2/512x512", [] { return [a = uniform({512, 512})] { return a.repeat({2, 2}); }; });
    add_op("op/patches_3x3/32x16x28x28", [] { return [a = uniform({32, 16, 28, 28})] { return patches_3x3(a); }; });
    add_op("op/clone/1M", [] { return [a = uniform({kMillion})] { return a.clone(); }; });
    add_op("op/zeros/1M", [] { return [] { return lib::zeros({kMillion}); }; });
    add_op("op/arange/1M", [] { return [] { return lib::arange(kMillion); }; });
    add_op("op/randn/1M", [] { return [] { return lib::randn({kMillion}); }; }, {.is_random = true});
    add_op("op/rand/1M", [] { return [] { return lib::rand({kMillion}); }; }, {.is_random = true});
    add_op("op/dropout/1M", [] { return [a = uniform({kMillion})] { return lib::dropout(a, 0.5, true); }; }, {.is_random = true});
    add_op("op/randperm/100K", [] { return [] { return lib::randperm(100000); }; });
}

void add_products() {
    for (const std::int64_t n : {17, 64, 128, 256, 512, 1000}) {
        add_op("op/matmul/" + std::to_string(n), [n] { return [a = uniform({n, n}, 1), b = uniform({n, n}, 2)] { return lib::matmul(a, b); }; });
    }
    const auto square = [](std::uint32_t seed) { return uniform({512, 512}, seed); };
    add_op("op/matmul_transposed_a/512", [=] { return [a = square(1).transpose(0, 1), b = square(2)] { return lib::matmul(a, b); }; });
    add_op("op/matmul_transposed_b/512", [=] { return [a = square(1), b = square(2).transpose(0, 1)] { return lib::matmul(a, b); }; });
    add_op("op/matmul_float64/512", [=] { return [a = square(1).to(kFloat64), b = square(2).to(kFloat64)] { return lib::matmul(a, b); }; });
    add_op("op/matmul_vector/4096x4096", [] { return [a = uniform({4096, 4096}, 1), b = uniform({4096}, 2)] { return lib::matmul(a, b); }; });
    add_op("op/matmul_8_rows/4096x1024", [] { return [a = uniform({8, 4096}, 1), b = uniform({4096, 1024}, 2)] { return lib::matmul(a, b); }; });
    add_op("op/linear/64x784x256",
           [] { return [x = uniform({64, 784}, 1), w = uniform({256, 784}, 2), b = uniform({256}, 3)] { return lib::linear(x, w, b); }; });
    add_op("op/bmm/128x64x64", [] { return [a = uniform({128, 64, 64}, 1), b = uniform({128, 64, 64}, 2)] { return lib::bmm(a, b); }; });
    add_op("op/bmm/1024x8x8", [] { return [a = uniform({1024, 8, 8}, 1), b = uniform({1024, 8, 8}, 2)] { return lib::bmm(a, b); }; });
    add_op("op/einsum_bij_bjk/32x64x64",
           [] { return [a = uniform({32, 64, 64}, 1), b = uniform({32, 64, 64}, 2)] { return lib::einsum("bij,bjk->bik", {a, b}); }; });
    add_op("op/outer/1024", [] { return [a = uniform({1024}, 1), b = uniform({1024}, 2)] { return lib::outer(a, b); }; });
    add_op("op/cdist/512x64", [] { return [a = uniform({512, 64}, 1), b = uniform({512, 64}, 2)] { return lib::cdist(a, b); }; });
}

/// Symmetric and positive definite.
Tensor definite(std::int64_t n) {
    const Tensor a = uniform({n, n});
    return lib::matmul(a, a.transpose(0, 1)) + lib::eye(n) * 10;
}

Tensor diagonally_dominant(std::int64_t n) { return uniform({n, n}) + lib::eye(n) * 20; }

void add_factorizations() {
    add_op("op/cholesky/256", [] { return [a = definite(256)] { return cholesky(a); }; });
    add_op("op/solve/256", [] { return [a = diagonally_dominant(256), b = uniform({256, 16}, 2)] { return solve(a, b); }; });
    add_op("op/inverse/256", [] { return [a = diagonally_dominant(256)] { return inverted(a); }; });
    add_op("op/eigvalsh/128", [] { return [a = definite(128)] { return eigvalsh(a); }; });
    add_op("op/svdvals/128", [] { return [a = uniform({128, 128})] { return svdvals(a); }; });
}

/// A row of a convolution's forward pass: `weight` of shape {out, in / groups, sizes...}.
template <class Convolution>
void add_convolution(const std::string& name, const Shape& input, const Shape& weight, const Window& window, const Convolution& call) {
    const std::int64_t channels = name.starts_with("conv_transpose") ? weight[1] : weight[0];
    add_op("op/" + name,
           [=] { return [=, x = uniform(input, 1), w = uniform(weight, 2), b = uniform({channels}, 3)] { return call(x, w, b, window); }; });
}

void add_convolutions() {
    const auto flat = [](const Tensor& x, const Tensor& w, const Tensor& b, const Window& at) { return conv2d(x, w, b, at); };
    add_convolution("conv2d_3x3/16x64x28x28", {16, 64, 28, 28}, {64, 64, 3, 3}, {.padding = 1}, flat);
    add_convolution("conv2d_1x1/16x128x28x28", {16, 128, 28, 28}, {64, 128, 1, 1}, {}, flat);
    add_convolution("conv2d_7x7_stride_2/4x3x112x112", {4, 3, 112, 112}, {64, 3, 7, 7}, {.stride = 2, .padding = 3}, flat);
    add_convolution("conv2d_3x3/1x64x56x56", {1, 64, 56, 56}, {64, 64, 3, 3}, {.padding = 1}, flat);
    add_convolution("conv2d_depthwise/16x64x28x28", {16, 64, 28, 28}, {64, 1, 3, 3}, {.padding = 1, .groups = 64}, flat);
    add_convolution("conv2d_groups_4/16x64x28x28", {16, 64, 28, 28}, {64, 16, 3, 3}, {.padding = 1, .groups = 4}, flat);
    add_convolution("conv1d_5/32x64x256", {32, 64, 256}, {64, 64, 5}, {.padding = 2},
                    [](const Tensor& x, const Tensor& w, const Tensor& b, const Window& at) { return conv1d(x, w, b, at); });
    add_convolution("conv3d_3x3x3/2x16x16x16x16", {2, 16, 16, 16, 16}, {16, 16, 3, 3, 3}, {.padding = 1},
                    [](const Tensor& x, const Tensor& w, const Tensor& b, const Window& at) { return conv3d(x, w, b, at); });
    add_convolution("conv_transpose2d_4x4/16x64x14x14", {16, 64, 14, 14}, {64, 32, 4, 4}, {.stride = 2, .padding = 1},
                    [](const Tensor& x, const Tensor& w, const Tensor& b, const Window& at) { return conv_transpose2d(x, w, b, at); });
}

/// The row of batch_norm on 32x64x28x28.
void add_batch_norm(const char* name, bool training) {
    add_op(name, [training] {
        const Tensor x = uniform({32, 64, 28, 28}, 1), mean = uniform({64}, 2, 0, 0), variance = uniform({64}, 2, 1, 1);
        return [=, w = uniform({64}, 3), b = uniform({64}, 4)] { return batch_norm(x, mean, variance, w, b, training); };
    });
}

void add_layers() {
    const auto images = [] { return uniform({32, 64, 28, 28}); };
    add_op("op/max_pool2d_2x2/32x64x28x28", [=] { return [x = images()] { return max_pool2d(x, 2, {.stride = 2}); }; });
    add_op("op/max_pool2d_3x3/32x64x28x28", [=] { return [x = images()] { return max_pool2d(x, 3, {.stride = 2, .padding = 1}); }; });
    add_op("op/avg_pool2d_2x2/32x64x28x28", [=] { return [x = images()] { return avg_pool2d(x, 2); }; });
    add_batch_norm("op/batch_norm_training/32x64x28x28", true);
    add_batch_norm("op/batch_norm/32x64x28x28", false);
    add_op("op/group_norm_8/32x64x28x28",
           [=] { return [x = images(), w = uniform({64}, 3), b = uniform({64}, 4)] { return lib::group_norm(x, 8, w, b); }; });
    add_op("op/layer_norm/128x768",
           [] { return [x = uniform({128, 768}, 1), w = uniform({768}, 3), b = uniform({768}, 4)] { return layer_norm(x, w, b); }; });
    add_op("op/softmax/64x10", [] { return [x = uniform({64, 10})] { return lib::softmax(x, 1); }; });
    add_op("op/softmax/256x1000", [] { return [x = uniform({256, 1000})] { return lib::softmax(x, 1); }; });
    add_op("op/softmax_of_columns/1024x1024", [] { return [x = uniform({1024, 1024})] { return lib::softmax(x, 0); }; });
    for (const bool causal : {false, true}) {
        const Shape shape = causal ? Shape{1, 4, 1024, 64} : Shape{16, 4, 64, 64};
        add_op(causal ? "op/attention_causal/1x4x1024x64" : "op/attention/16x4x64x64",
               [=] { return [=, q = uniform(shape, 1), k = uniform(shape, 2), v = uniform(shape, 3)] { return attention(q, k, v, causal); }; });
    }
    add_op("op/upsample_nearest/16x32x28x28", [] { return [x = uniform({16, 32, 28, 28})] { return twice_as_large(x, /*bilinear=*/false); }; });
    add_op("op/upsample_bilinear/16x32x28x28", [] { return [x = uniform({16, 32, 28, 28})] { return twice_as_large(x, /*bilinear=*/true); }; });
    add_op("op/cross_entropy/256x32000", [] { return [x = uniform({256, 32000}), y = integers({256}, 2, 32000)] { return cross_entropy(x, y); }; });
}

/// 16M numbers, beyond the caches.
void add_large(int threads) {
    constexpr std::int64_t kN = 16 * kMillion;
    const OpRow row{.threads = threads};
    add_op("large/add/16M", [] { return [a = uniform({kN}, 1), b = uniform({kN}, 2)] { return a + b; }; }, row);
    add_op("large/mul_by_number/16M", [] { return [a = uniform({kN})] { return a * 1.5; }; }, row);
    for (const char* name : {"tanh", "exp", "gelu", "sigmoid", "relu"}) {
        const Unary op = *std::find_if(std::begin(kUnary), std::end(kUnary), [&](const Unary& u) { return std::string_view(u.name) == name; });
        add_op(std::string("large/") + name + "/16M", [op] { return [op, x = uniform({kN}, 1, op.low, op.high)] { return op.call(x); }; }, row);
    }
    add_op("large/sum/16M", [] { return [a = uniform({kN})] { return a.sum(); }; }, row);
    add_op("large/softmax/16384x1024", [] { return [a = uniform({16384, 1024}, 1, -4, 4)] { return lib::softmax(a, 1); }; }, row);
    add_op("large/log_softmax/16384x1024", [] { return [a = uniform({16384, 1024}, 1, -4, 4)] { return lib::log_softmax(a, 1); }; }, row);
    add_op(
        "large/layer_norm/16384x1024",
        [] { return [a = uniform({16384, 1024}, 1), w = uniform({1024}, 2), b = uniform({1024}, 3)] { return layer_norm(a, w, b); }; }, row);
    add_op("large/transposing_copy/4096x4096", [] { return [a = uniform({4096, 4096})] { return a.transpose(0, 1).contiguous(); }; }, row);
    const auto add_in_place = [] {
        return [a = uniform({kN}, 1), b = uniform({kN}, 2, 0, 1e-9f)] {
            Tensor c = a;
            return c.add_(b).narrow(0, 0, 1);
        };
    };
    add_op("large/add_in_place/16M", add_in_place, row);
    for (const std::int64_t n : {1024, 2048}) {
        add_op(
            "large/matmul/" + std::to_string(n), [n] { return [a = uniform({n, n}, 1), b = uniform({n, n}, 2)] { return lib::matmul(a, b); }; }, row);
    }
}

// --- Gradients

void add_gradients_of_ops() {
    add_gradients("tanh/1M", [] {
        const Tensor x = leaf(uniform({kMillion}));
        return std::pair(Tensors{x}, [=] { return lib::tanh(x).sum(); });
    });
    add_gradients("gelu/1M", [] {
        const Tensor x = leaf(uniform({kMillion}));
        return std::pair(Tensors{x}, [=] { return lib::gelu(x).sum(); });
    });
    add_gradients("mul_row_add_column/1024x1024", [] {
        const Tensor x = leaf(uniform({1024, 1024}, 1)), row = leaf(uniform({1024}, 2)), column = leaf(uniform({1024, 1}, 3));
        return std::pair(Tensors{x, row, column}, [=] { return (x * row + column).sum(); });
    });
    add_gradients("softmax/1024x1024", [] {
        const Tensor x = leaf(uniform({1024, 1024}, 1)), u = uniform({1024, 1024}, 2);
        return std::pair(Tensors{x}, [=] { return (lib::softmax(x, 1) * u).sum(); });
    });
    add_gradients("logsumexp/1024x1024", [] {
        const Tensor x = leaf(uniform({1024, 1024}));
        return std::pair(Tensors{x}, [=] { return lib::logsumexp(x, {1}).sum(); });
    });
    add_gradients("cross_entropy/256x32000", [] {
        const Tensor x = leaf(uniform({256, 32000})), y = integers({256}, 2, 32000);
        return std::pair(Tensors{x}, [=] { return cross_entropy(x, y); });
    });
    add_gradients("masked_select/1M", [] {
        const Tensor x = leaf(uniform({kMillion}, 1)), mask = uniform({kMillion}, 2) > 0;
        return std::pair(Tensors{x}, [=] { return lib::tanh(x.index({mask})).sum(); });
    });
    add_gradients("cumsum_of_rows/1024x1024", [] {
        const Tensor x = leaf(uniform({1024, 1024}));
        return std::pair(Tensors{x}, [=] { return lib::cumsum(x, 1).sum(); });
    });
    add_gradients("sort_of_rows/256x1024", [] {
        const Tensor x = leaf(uniform({256, 1024}, 1)), u = uniform({256, 1024}, 2);
        return std::pair(Tensors{x}, [=] { return (values(lib::sort(x, 1)) * u).sum(); });
    });
    add_gradients("index_select/10K_of_100Kx64", [] {
        const Tensor x = leaf(uniform({100000, 64})), i = integers({10000}, 2, 100000);
        return std::pair(Tensors{x}, [=] { return lib::index_select(x, 0, i).sum(); });
    });
    add_gradients("index_add/50K_to_10Kx64", [] {
        const Tensor x = leaf(uniform({50000, 64}, 1)), zero = uniform({10000, 64}, 2), u = uniform({10000, 64}, 4), i = integers({50000}, 3, 10000);
        return std::pair(Tensors{x}, [=] { return (lib::index_add(zero, 0, i, x) * u).sum(); });
    });
}

void add_gradients_of_layers() {
    add_gradients("layer_norm/1024x768", [] {
        const Tensor x = leaf(uniform({1024, 768}, 1)), w = leaf(uniform({768}, 2, 0.9f, 1.1f)), b = leaf(uniform({768}, 3)),
                     u = uniform({1024, 768}, 4);
        return std::pair(Tensors{x, w, b}, [=] { return (layer_norm(x, w, b) * u).sum(); });
    });
    add_gradients("batch_norm/32x64x28x28", [] {
        const Tensor x = leaf(uniform({32, 64, 28, 28}, 1)), mean = uniform({64}, 2, 0, 0), variance = uniform({64}, 2, 1, 1);
        const Tensor w = leaf(uniform({64}, 3, 0.9f, 1.1f)), b = leaf(uniform({64}, 4)), u = uniform({32, 64, 28, 28}, 5);
        return std::pair(Tensors{x, w, b}, [=] { return (batch_norm(x, mean, variance, w, b, /*training=*/true) * u).sum(); });
    });
    add_gradients("linear/64x784x256", [] {
        const Tensor x = uniform({64, 784}, 1), w = leaf(uniform({256, 784}, 2)), b = leaf(uniform({256}, 3));
        return std::pair(Tensors{w, b}, [=] { return lib::linear(x, w, b).sum(); });
    });
    for (const int groups : {1, 64}) {
        add_gradients(groups == 1 ? "conv2d_3x3/16x64x28x28" : "conv2d_depthwise/16x64x28x28", [groups] {
            const Tensor x = leaf(uniform({16, 64, 28, 28}, 1)), w = leaf(uniform({64, 64 / groups, 3, 3}, 2)), b = leaf(uniform({64}, 3));
            return std::pair(Tensors{x, w, b}, [=] { return conv2d(x, w, b, {.padding = 1, .groups = groups}).sum(); });
        });
    }
    add_gradients("max_pool2d/32x64x28x28", [] {
        const Tensor x = leaf(uniform({32, 64, 28, 28}));
        return std::pair(Tensors{x}, [=] { return max_pool2d(x, 2, {.stride = 2}).sum(); });
    });
    add_gradients("attention/16x4x64x64", [] {
        const Tensor q = leaf(uniform({16, 4, 64, 64}, 1)), k = leaf(uniform({16, 4, 64, 64}, 2)), v = leaf(uniform({16, 4, 64, 64}, 3));
        return std::pair(Tensors{q, k, v}, [=] { return attention(q, k, v).sum(); });
    });
    add_gradients("bmm/128x64x64", [] {
        const Tensor a = leaf(uniform({128, 64, 64}, 1)), b = leaf(uniform({128, 64, 64}, 2));
        return std::pair(Tensors{a, b}, [=] { return lib::bmm(a, b).sum(); });
    });
    add_gradients("solve/128", [] {
        const Tensor a = leaf(diagonally_dominant(128)), b = leaf(uniform({128, 8}, 2));
        return std::pair(Tensors{a, b}, [=] { return solve(a, b).sum(); });
    });
    add_gradients("cholesky/128", [] {
        const Tensor a = leaf(definite(128));
        return std::pair(Tensors{a}, [=] { return cholesky(a).sum(); });
    });
}

}  // namespace

void add_op_rows() {
    add_elementwise();
    add_reductions();
    add_moves();
    add_products();
    add_factorizations();
    add_convolutions();
    add_layers();
    add_large(/*threads=*/1);
    add_large(/*threads=*/2);
    add_gradients_of_ops();
    add_gradients_of_layers();
}

// Element-wise ops and reductions of three sizes, with operands in each layout.
void add_sweep_rows() {
    constexpr std::pair<std::int64_t, const char*> kSides[] = {{32, "1K"}, {1024, "1M"}, {4096, "16M"}};
    for (const auto& [side, size] : kSides) {
        const auto name = [size = std::string(size)](const char* op, Layout layout) {
            return "sweep/" + std::string(op) + "/" + size + "/" + name_of(layout);
        };
        for (const Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kEverySecond, Layout::kColumns}) {
            for (const Unary& op : kUnary) {
                add_op(name(op.name, layout), [=, n = side] { return [op, x = laid_out(layout, n, 1, op.low, op.high)] { return op.call(x); }; });
            }
            add_op(name("sum_of_rows", layout), [=, n = side] { return [x = laid_out(layout, n, 1, -1, 1)] { return x.sum({1}); }; });
            add_op(name("sum_of_columns", layout), [=, n = side] { return [x = laid_out(layout, n, 1, -1, 1)] { return x.sum({0}); }; });
            add_op(name("copy", layout), [=, n = side] { return [x = laid_out(layout, n, 1, -1, 1)] { return x.clone(); }; });
        }
        for (const Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kEverySecond, Layout::kRow, Layout::kColumn}) {
            for (const Binary& op : kBinary) {
                add_op(name(op.name, layout), [=, n = side] {
                    return
                        [op, a = laid_out(Layout::kContiguous, n, 1, 0.1f, 4), b = laid_out(layout, n, 2, op.low, op.high)] { return op.call(a, b); };
                });
            }
        }
    }
}

}  // namespace bench
