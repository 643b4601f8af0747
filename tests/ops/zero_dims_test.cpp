// Tensors without dimensions in every op that takes a dimension, or that needs none. Those that PyTorch 2.15 takes are taken, with
// its values and gradients, along the dimensions 0 and -1; no other dimension is there. Those that it refuses are refused by type.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Tensors = std::vector<Tensor>;
using Call = std::function<Tensors(const Tensor& x, int dim)>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kNone = 1e9;  // no gradient

Tensors both(const ValuesIndices& y) { return {y.values, y.indices}; }
Tensors both(const std::pair<Tensor, Tensor>& y) { return {y.first, y.second}; }

const Tensor zero = tensor(0), at_0 = tensor({0});

struct Row {
    const char* name;
    Call run;
    Shape shape;                 // of each output
    std::vector<double> values;  // of x = 2.5: each output's first element
    double gradient;             // of the outputs' sum
};

// Along a dimension.
const Row rows[] = {
    {"softmax", [](const Tensor& x, int d) { return Tensors{softmax(x, d)}; }, {}, {1}, 0},
    {"log_softmax", [](const Tensor& x, int d) { return Tensors{log_softmax(x, d)}; }, {}, {0}, 0},
    {"softmin", [](const Tensor& x, int d) { return Tensors{softmin(x, d)}; }, {}, {1}, 0},
    {"gumbel_softmax", [](const Tensor& x, int d) { return Tensors{gumbel_softmax(x, 1, false, d)}; }, {}, {1}, 0},
    {"gumbel_softmax hard", [](const Tensor& x, int d) { return Tensors{gumbel_softmax(x, 1, true, d)}; }, {}, {1}, 0},
    {"movedim", [](const Tensor& x, int d) { return Tensors{movedim(x, {d}, {0})}; }, {}, {2.5}, 1},
    {"moveaxis", [](const Tensor& x, int d) { return Tensors{moveaxis(x, {0}, {d})}; }, {}, {2.5}, 1},
    {"swapaxes", [](const Tensor& x, int d) { return Tensors{swapaxes(x, 0, d)}; }, {}, {2.5}, 1},
    {"transpose", [](const Tensor& x, int d) { return Tensors{transpose(x, d, 0)}; }, {}, {2.5}, 1},
    {"flatten", [](const Tensor& x, int d) { return Tensors{flatten(x, 0, d)}; }, {1}, {2.5}, 1},
    {"squeeze", [](const Tensor& x, int d) { return Tensors{squeeze(x, d)}; }, {}, {2.5}, 1},
    {"unsqueeze", [](const Tensor& x, int d) { return Tensors{unsqueeze(x, d)}; }, {1}, {2.5}, 1},
    {"unfold", [](const Tensor& x, int d) { return Tensors{x.unfold(d, 1, 1)}; }, {1}, {2.5}, 1},
    {"stack", [](const Tensor& x, int d) { return Tensors{stack({x, x}, d)}; }, {2}, {2.5}, 2},
    {"flip", [](const Tensor& x, int d) { return Tensors{flip(x, {d})}; }, {}, {2.5}, 1},
    {"gather", [](const Tensor& x, int d) { return Tensors{gather(x, d, zero)}; }, {}, {2.5}, 1},
    {"gather 2", [](const Tensor& x, int d) { return Tensors{gather(x, d, tensor({0, 0}))}; }, {2}, {2.5}, 2},
    {"scatter", [](const Tensor& x, int d) { return Tensors{scatter(x, d, zero, x * 2)}; }, {}, {5}, 2},
    {"scatter 1", [](const Tensor& x, int d) { return Tensors{scatter(x, d, at_0, (x * 2).reshape({1}))}; }, {}, {5}, 2},
    {"scatter number", [](const Tensor& x, int d) { return Tensors{scatter(x, d, zero, 3.0)}; }, {}, {3}, 0},
    {"scatter number 1", [](const Tensor& x, int d) { return Tensors{scatter(x, d, at_0, 3.0)}; }, {}, {3}, 0},
    {"scatter_add", [](const Tensor& x, int d) { return Tensors{scatter_add(x, d, zero, x * 2)}; }, {}, {7.5}, 3},
    {"scatter_add 2", [](const Tensor& x, int d) { return Tensors{scatter_add(x, d, tensor({0, 0}), (x * 2).expand({2}))}; }, {}, {12.5}, 5},
    {"scatter_reduce prod", [](const Tensor& x, int d) { return Tensors{scatter_reduce(x, d, zero, x * 2, "prod")}; }, {}, {12.5}, 10},
    {"scatter_reduce amax", [](const Tensor& x, int d) { return Tensors{scatter_reduce(x, d, zero, x * 2, "amax")}; }, {}, {5}, 2},
    {"scatter_reduce mean", [](const Tensor& x, int d) { return Tensors{scatter_reduce(x, d, zero, x * 2, "mean")}; }, {}, {3.75}, 1.5},
    {"index_select", [](const Tensor& x, int d) { return Tensors{index_select(x, d, at_0)}; }, {}, {2.5}, 1},
    {"index_select 0-d", [](const Tensor& x, int d) { return Tensors{index_select(x, d, zero)}; }, {}, {2.5}, 1},
    {"index_add", [](const Tensor& x, int d) { return Tensors{index_add(x, d, at_0, x * 2)}; }, {}, {7.5}, 3},
    {"index_copy", [](const Tensor& x, int d) { return Tensors{index_copy(x, d, at_0, x * 2)}; }, {}, {5}, 2},
    {"index_copy of a vector", [](const Tensor& x, int d) { return Tensors{index_copy(x, d, at_0, (x * 2).reshape({1}))}; }, {}, {5}, 2},
    {"index_fill", [](const Tensor& x, int d) { return Tensors{index_fill(x, d, at_0, 3.0)}; }, {}, {3}, 0},
    {"index_fill 0-d", [](const Tensor& x, int d) { return Tensors{index_fill(x, d, zero, tensor(3.0))}; }, {}, {3}, 0},
    {"repeat_interleave", [](const Tensor& x, int d) { return Tensors{repeat_interleave(x, 2, d)}; }, {2}, {2.5}, 2},  // PyTorch: an error
    {"repeat_interleave by tensor", [](const Tensor& x, int d) { return Tensors{repeat_interleave(x, tensor({3}), d)}; }, {3}, {2.5}, 3},
    {"roll", [](const Tensor& x, int d) { return Tensors{roll(x, 1, {d})}; }, {}, {2.5}, 1},
    {"sum", [](const Tensor& x, int d) { return Tensors{sum(x, {d})}; }, {}, {2.5}, 1},
    {"sum keepdim", [](const Tensor& x, int d) { return Tensors{sum(x, {d}, true)}; }, {}, {2.5}, 1},
    {"nansum", [](const Tensor& x, int d) { return Tensors{nansum(x, {d})}; }, {}, {2.5}, 1},
    {"mean", [](const Tensor& x, int d) { return Tensors{mean(x, {d})}; }, {}, {2.5}, 1},
    {"nanmean", [](const Tensor& x, int d) { return Tensors{nanmean(x, {d})}; }, {}, {2.5}, 1},
    {"prod", [](const Tensor& x, int d) { return Tensors{prod(x, d)}; }, {}, {2.5}, 1},
    {"prod keepdim", [](const Tensor& x, int d) { return Tensors{prod(x, d, true)}; }, {}, {2.5}, 1},
    {"amax", [](const Tensor& x, int d) { return Tensors{amax(x, {d})}; }, {}, {2.5}, 1},
    {"amin", [](const Tensor& x, int d) { return Tensors{amin(x, {d}, true)}; }, {}, {2.5}, 1},
    {"max", [](const Tensor& x, int d) { return both(max(x, d)); }, {}, {2.5, 0}, 1},
    {"min", [](const Tensor& x, int d) { return both(min(x, d, true)); }, {}, {2.5, 0}, 1},
    {"argmax", [](const Tensor& x, int d) { return Tensors{argmax(x, d)}; }, {}, {0}, kNone},
    {"argmin", [](const Tensor& x, int d) { return Tensors{argmin(x, d, true)}; }, {}, {0}, kNone},
    {"all", [](const Tensor& x, int d) { return Tensors{all(x, {d})}; }, {}, {1}, kNone},
    {"any", [](const Tensor& x, int d) { return Tensors{any(x, {d}, true)}; }, {}, {1}, kNone},
    {"count_nonzero", [](const Tensor& x, int d) { return Tensors{count_nonzero(x, {d})}; }, {}, {1}, kNone},
    {"var", [](const Tensor& x, int d) { return Tensors{var(x, {d}, 0)}; }, {}, {0}, 0},
    {"var of one", [](const Tensor& x, int d) { return Tensors{var(x, {d})}; }, {}, {kNan}, kNan},
    {"std", [](const Tensor& x, int d) { return Tensors{tapir::std(x, {d}, 0)}; }, {}, {0}, 0},
    {"std of one", [](const Tensor& x, int d) { return Tensors{tapir::std(x, {d})}; }, {}, {kNan}, kNan},
    {"var_mean", [](const Tensor& x, int d) { return both(var_mean(x, {d}, 0)); }, {}, {0, 2.5}, 1},
    {"std_mean", [](const Tensor& x, int d) { return both(std_mean(x, {d}, 0)); }, {}, {0, 2.5}, 1},
    {"norm", [](const Tensor& x, int d) { return Tensors{norm(x, 2, {d})}; }, {}, {2.5}, 1},
    {"norm 3", [](const Tensor& x, int d) { return Tensors{norm(x, 3, {d}, true)}; }, {}, {2.5}, 1},
    {"linalg::norm", [](const Tensor& x, int d) { return Tensors{linalg::norm(x, 2, {d})}; }, {}, {2.5}, 1},
    {"vector_norm", [](const Tensor& x, int d) { return Tensors{linalg::vector_norm(x, 1, {d})}; }, {}, {2.5}, 1},
    {"logsumexp", [](const Tensor& x, int d) { return Tensors{logsumexp(x, {d})}; }, {}, {2.5}, 1},
    {"cumsum", [](const Tensor& x, int d) { return Tensors{cumsum(x, d)}; }, {}, {2.5}, 1},
    {"cumprod", [](const Tensor& x, int d) { return Tensors{cumprod(x, d)}; }, {}, {2.5}, 1},
    {"logcumsumexp", [](const Tensor& x, int d) { return Tensors{logcumsumexp(x, d)}; }, {}, {2.5}, 1},
    {"cummax", [](const Tensor& x, int d) { return both(cummax(x, d)); }, {}, {2.5, 0}, 1},
    {"cummin", [](const Tensor& x, int d) { return both(cummin(x, d)); }, {}, {2.5, 0}, 1},
    {"sort", [](const Tensor& x, int d) { return both(sort(x, d)); }, {}, {2.5, 0}, 1},
    {"sort descending", [](const Tensor& x, int d) { return both(sort(x, d, true)); }, {}, {2.5, 0}, 1},
    {"argsort", [](const Tensor& x, int d) { return Tensors{argsort(x, d)}; }, {}, {0}, kNone},
    {"topk", [](const Tensor& x, int d) { return both(topk(x, 1, d)); }, {}, {2.5, 0}, 1},
    {"kthvalue", [](const Tensor& x, int d) { return both(kthvalue(x, 1, d)); }, {}, {2.5, 0}, 1},
    {"median", [](const Tensor& x, int d) { return both(median(x, d)); }, {}, {2.5, 0}, 1},
    {"quantile", [](const Tensor& x, int d) { return Tensors{quantile(x, 0.3, d)}; }, {}, {2.5}, 1},
    {"quantile keepdim", [](const Tensor& x, int d) { return Tensors{quantile(x, 0.3, d, true)}; }, {}, {2.5}, 1},
    {"quantile 2", [](const Tensor& x, int d) { return Tensors{quantile(x, tensor({0.3, 0.5}, float64), d)}; }, {2}, {2.5}, 2},
    {"aminmax", [](const Tensor& x, int d) { return both(aminmax(x, d)); }, {}, {2.5, 2.5}, 2},
    {"normalize", [](const Tensor& x, int d) { return Tensors{normalize(x, 2, d)}; }, {}, {1}, 0},
    {"cosine_similarity", [](const Tensor& x, int d) { return Tensors{cosine_similarity(x, x * 3, d)}; }, {}, {1}, 0},
};

// Without one.
const Row plain[] = {
    {"flip", [](const Tensor& x, int) { return Tensors{flip(x, {})}; }, {}, {2.5}, 1},
    {"roll", [](const Tensor& x, int) { return Tensors{roll(x, 1)}; }, {}, {2.5}, 1},
    {"permute", [](const Tensor& x, int) { return Tensors{permute(x, {})}; }, {}, {2.5}, 1},
    {"t", [](const Tensor& x, int) { return Tensors{x.t()}; }, {}, {2.5}, 1},
    {"tensordot", [](const Tensor& x, int) { return Tensors{tensordot(x, x, 0)}; }, {}, {6.25}, 5},
    {"einsum", [](const Tensor& x, int) { return Tensors{einsum(",->", {x, x})}; }, {}, {6.25}, 5},
    {"kron", [](const Tensor& x, int) { return Tensors{kron(x, x)}; }, {}, {6.25}, 5},
    {"tile", [](const Tensor& x, int) { return Tensors{tile(x, 2)}; }, {2}, {2.5}, 2},
    {"tile {}", [](const Tensor& x, int) { return Tensors{tile(x, {})}; }, {}, {2.5}, 1},
    {"repeat", [](const Tensor& x, int) { return Tensors{repeat(x, {2, 2})}; }, {2, 2}, {2.5}, 4},
    {"repeat {}", [](const Tensor& x, int) { return Tensors{repeat(x, {})}; }, {}, {2.5}, 1},
    {"repeat_interleave", [](const Tensor& x, int) { return Tensors{repeat_interleave(x, 2)}; }, {2}, {2.5}, 2},
    {"pad", [](const Tensor& x, int) { return Tensors{pad(x, {})}; }, {}, {2.5}, 1},
    {"diagflat", [](const Tensor& x, int) { return Tensors{diagflat(x)}; }, {1, 1}, {2.5}, 1},
    {"block_diag", [](const Tensor& x, int) { return Tensors{block_diag({x, x})}; }, {2, 2}, {2.5}, 2},
    {"meshgrid", [](const Tensor& x, int) { return meshgrid({x, x}); }, {1, 1}, {2.5, 2.5}, 2},
    {"hstack", [](const Tensor& x, int) { return Tensors{hstack({x, x})}; }, {2}, {2.5}, 2},
    {"vstack", [](const Tensor& x, int) { return Tensors{vstack({x, x})}; }, {2, 1}, {2.5}, 2},
    {"dstack", [](const Tensor& x, int) { return Tensors{dstack({x, x})}; }, {1, 1, 2}, {2.5}, 2},
    {"column_stack", [](const Tensor& x, int) { return Tensors{column_stack({x, x})}; }, {1, 2}, {2.5}, 2},
    {"atleast_1d", [](const Tensor& x, int) { return Tensors{atleast_1d(x)}; }, {1}, {2.5}, 1},
    {"atleast_2d", [](const Tensor& x, int) { return Tensors{atleast_2d(x)}; }, {1, 1}, {2.5}, 1},
    {"atleast_3d", [](const Tensor& x, int) { return Tensors{atleast_3d(x)}; }, {1, 1, 1}, {2.5}, 1},
    {"masked_select", [](const Tensor& x, int) { return Tensors{masked_select(x, x > 0)}; }, {1}, {2.5}, 1},
    {"masked_fill", [](const Tensor& x, int) { return Tensors{masked_fill(x, x < 0, 3)}; }, {}, {2.5}, 1},
    {"nonzero", [](const Tensor& x, int) { return Tensors{nonzero(x)}; }, {1, 0}, {}, kNone},
    {"histc", [](const Tensor& x, int) { return Tensors{histc(x, 2, 0, 3)}; }, {2}, {0}, kNone},
    {"bucketize", [](const Tensor& x, int) { return Tensors{bucketize(x, tensor({1.0, 2.0, 3.0}, float64))}; }, {}, {2}, kNone},
    {"isin", [](const Tensor& x, int) { return Tensors{isin(x, x)}; }, {}, {1}, kNone},
    {"cov", [](const Tensor& x, int) { return Tensors{cov(x)}; }, {}, {kNan}, kNan},
    {"corrcoef", [](const Tensor& x, int) { return Tensors{corrcoef(x)}; }, {}, {kNan}, kNan},
    {"pairwise_distance", [](const Tensor& x, int) { return Tensors{pairwise_distance(x, x * 2)}; }, {}, {2.5 - 1e-6}, 1},
    {"multi_margin_loss", [](const Tensor& x, int) { return Tensors{multi_margin_loss(x, zero)}; }, {}, {0}, 0},
    {"multilabel_margin_loss", [](const Tensor& x, int) { return Tensors{multilabel_margin_loss(x, zero)}; }, {}, {0}, 0},
    {"prelu", [](const Tensor& x, int) { return Tensors{prelu(-x, tensor(0.5, float64))}; }, {}, {-1.25}, -0.5},
    {"dropout", [](const Tensor& x, int) { return Tensors{dropout(x, 0)}; }, {}, {2.5}, 1},
    {"alpha_dropout", [](const Tensor& x, int) { return Tensors{alpha_dropout(x, 0)}; }, {}, {2.5}, 1},
};

bool same(double have, double want) { return std::isnan(want) ? std::isnan(have) : std::abs(have - want) < 1e-9; }

void check(const Row& row, int dim) {
    INFO(row.name << " along " << dim);
    const Tensor x = tensor(2.5, float64).requires_grad_();
    Tape tape;
    Tensors outputs;
    CHECK_NOTHROW(outputs = row.run(x, dim));
    if (outputs.empty()) return;
    Tensor total;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
        CHECK(outputs[k].shape() == row.shape);
        if (k < row.values.size()) CHECK(same(outputs[k].reshape({-1})[0].item(), row.values[k]));
        if (!is_floating(outputs[k].dtype()) || !outputs[k].requires_grad()) continue;
        total = total.defined() ? total + sum(outputs[k]) : sum(outputs[k]);
    }
    CHECK(total.defined() == (row.gradient != kNone));
    if (total.defined()) CHECK(same(tape.gradient(total, {x})[0].item(), row.gradient));
}

struct Refused {
    const char* name;
    Call run;
};

// PyTorch refuses these as well.
const Refused refused[] = {
    {"glu", [](const Tensor& x, int d) { return Tensors{glu(x, d)}; }},
    {"rot90", [](const Tensor& x, int d) { return Tensors{rot90(x, 1, {0, d})}; }},
    {"tensor_split", [](const Tensor& x, int d) { return tensor_split(x, 1, d); }},
    {"diff", [](const Tensor& x, int d) { return Tensors{diff(x, 1, d)}; }},
    {"cross", [](const Tensor& x, int d) { return Tensors{cross(x, x, d)}; }},
    {"cat", [](const Tensor& x, int d) { return Tensors{cat({x, x}, d)}; }},
    {"trapezoid", [](const Tensor& x, int d) { return Tensors{trapezoid(x, 1, d)}; }},
    {"trapezoid at", [](const Tensor& x, int d) { return Tensors{trapezoid(x, x, d)}; }},
    {"permute", [](const Tensor& x, int d) { return Tensors{permute(x, {d})}; }},
    {"narrow", [](const Tensor& x, int d) { return Tensors{narrow(x, d, 0, 1)}; }},
    {"select", [](const Tensor& x, int d) { return Tensors{select(x, d, 0)}; }},
    {"slice", [](const Tensor& x, int d) { return Tensors{slice(x, d, Slice(0, 1))}; }},
    {"split", [](const Tensor& x, int d) { return split(x, 1, d); }},
    {"chunk", [](const Tensor& x, int d) { return chunk(x, 1, d); }},
    {"unbind", [](const Tensor& x, int d) { return unbind(x, d); }},
    {"select_scatter", [](const Tensor& x, int d) { return Tensors{select_scatter(x, x, d, 0)}; }},
    {"slice_scatter", [](const Tensor& x, int d) { return Tensors{slice_scatter(x, x, d)}; }},
    {"index_select 2", [](const Tensor& x, int d) { return Tensors{index_select(x, d, tensor({0, 0}))}; }},
    {"diagonal", [](const Tensor& x, int d) { return Tensors{diagonal(x, 0, d, d)}; }},
    {"diag", [](const Tensor& x, int) { return Tensors{diag(x)}; }},
    {"tril", [](const Tensor& x, int) { return Tensors{tril(x)}; }},
    {"outer", [](const Tensor& x, int) { return Tensors{outer(x, x)}; }},
    {"dot", [](const Tensor& x, int) { return Tensors{dot(x, x)}; }},
    {"linear", [](const Tensor& x, int) { return Tensors{linear(x, x)}; }},
    {"cdist", [](const Tensor& x, int) { return Tensors{cdist(x, x)}; }},
    {"vander", [](const Tensor& x, int) { return Tensors{vander(x)}; }},
    {"cross_entropy", [](const Tensor& x, int) { return Tensors{cross_entropy(x, zero)}; }},
    {"multinomial", [](const Tensor& x, int) { return Tensors{multinomial(x, 1)}; }},
    {"layer_norm", [](const Tensor& x, int) { return Tensors{layer_norm(x, {})}; }},
    {"rms_norm", [](const Tensor& x, int) { return Tensors{rms_norm(x, {})}; }},
    {"size", [](const Tensor& x, int d) { return Tensors{tensor(x.size(d))}; }},
};

template <class Fn>
void is_refused(const Fn& fn) {
    try {
        fn();
        CHECK(std::string("an error") == "nothing thrown");
    } catch (const Error& error) {  // of this line of the program
        INFO(error.what());
        CHECK(std::string(error.what()).find("zero_dims_test.cpp:") == 0);
    }
}

}  // namespace

TEST_CASE("a tensor without dimensions has the dimensions 0 and -1 wherever PyTorch says so", "[ops]") {
    for (const Row& row : rows) {
        for (const int dim : {0, -1}) check(row, dim);
        for (const int dim : {1, -2, 7}) {
            INFO(row.name << " along " << dim);
            is_refused([&] { row.run(tensor(2.5, float64), dim); });
        }
    }
    for (const Row& row : plain) check(row, 0);
}

TEST_CASE("what has no meaning without dimensions is refused", "[ops]") {
    for (const Refused& one : refused) {
        for (const int dim : {0, -1}) {
            INFO(one.name << " along " << dim);
            is_refused([&] { one.run(tensor(2.5, float64), dim); });
        }
    }
}
