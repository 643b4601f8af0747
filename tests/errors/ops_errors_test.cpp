// Messages of ops that no other test asks for. catalogue.py sees to it that none is left.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct Operands {
    const Tensor scalar = tensor(1.0), v = tensor({1.0, 2.0, 3.0}), m = ones({2, 3}), square = ones({3, 3}), cube = ones({2, 3, 4});
    const Tensor whole = tensor({0, 1, 2}), wide = ones({1, 1, 1, 1, 1, 1, 1, 1}), yes = tensor({true, false, true});
};

}  // namespace

TEST_CASE("errors of ops that arrange") {
    const Operands x;
    FAILS(OutOfMemory, "repeat_interleave: 4611686018427387904 copies of 3 elements", repeat_interleave(x.v, std::int64_t{1} << 62, 0));
    FAILS(DTypeError, "repeat_interleave: repeats must be int64 or int32, not float32", repeat_interleave(x.v, x.v, 0));
    FAILS(ShapeError, "rot90: needs two dimensions, got (0, 1, 2) of shape (2, 3, 4)", rot90(x.cube, 1, {0, 1, 2}));
    FAILS(ShapeError, "rot90: needs two different dimensions, got (0, -2)", rot90(x.m, 1, {0, -2}));
    FAILS(ShapeError, "fliplr: needs at least two dimensions, got shape (3,)", fliplr(x.v));
    FAILS(ShapeError, "flipud: needs at least one dimension, got shape ()", flipud(x.scalar));
    FAILS(ShapeError, "movedim: 2 dimensions to 1 place", movedim(x.m, {0, 1}, {0}));
    FAILS(ShapeError, "diag_embed: a 0-d tensor has no diagonal", diag_embed(x.scalar));
    FAILS(ShapeError, "diag: needs one or two dimensions, got shape (2, 3, 4)", diag(x.cube));
    FAILS(ValueError, "meshgrid: needs at least one tensor", meshgrid(std::vector<Tensor>{}));
    FAILS(ShapeError, "meshgrid: needs tensors of one dimension, got shape (2, 3)", meshgrid({x.v, x.m}));
    FAILS(ShapeError, "cartesian_prod: needs tensors of one dimension, got shape (2, 3)", cartesian_prod({x.v, x.m}));
    FAILS(ShapeError, "diff: a 0-d tensor has no neighbours", diff(x.scalar));
    FAILS(ValueError, "diff: n must not be negative, got -1", diff(x.v, -1));
    FAILS(ShapeError, "cross: shapes (3,) and (2, 3) differ in their number of dimensions", cross(x.v, x.m));
    FAILS(ShapeError, "kron: shapes (1, 1, 1, 1, 1, 1, 1, 1) and (3,) have more than 4 dimensions", kron(x.wide, x.v));
    FAILS(ShapeError, "vander: needs one dimension, got shape (2, 3)", vander(x.m));
    FAILS(ValueError, "vander: the number of columns must not be negative, got -2", vander(x.v, -2));
    FAILS(ShapeError, "block_diag: a tensor of shape (2, 3, 4) is no matrix", block_diag({x.m, x.cube}));
    FAILS(ShapeError, "take_along_dim: x (2, 3) and index (3,) need equally many dimensions", take_along_dim(x.m, x.whole, 0));
    FAILS(DTypeError, "masked_scatter: the mask must hold bools, not float32", masked_scatter(x.v, x.v, x.v));
    FAILS(DTypeError, "masked_scatter: x is float32, src is int64", masked_scatter(x.v, x.yes, x.whole));
    FAILS(ShapeError, "stack: at most 8 dimensions, got 9", stack({x.wide, x.wide}));
    FAILS(ShapeError, "unfold: a window of 2 elements does not fit into dimension 0 of shape (1,)", x.scalar.unfold(0, 2, 1));
    FAILS(ShapeError, "index_select: an index of shape (2,) for a 0-d tensor, which has one slice", index_select(x.scalar, 0, tensor({0, 0})));
    FAILS(ShapeError, "unflatten: a 0-d tensor has no dimension 0", unflatten(x.scalar, 0, {1}));
    FAILS(IndexError, "slice: a 0-d tensor cannot be sliced", slice(x.scalar, 0, Slice(0, 1)));
    FAILS(ShapeError, "tensor_split: a tensor without dimensions cannot be split", tensor_split(x.scalar, 2));
    FAILS(ShapeError, "tensor_split: a tensor without dimensions cannot be split", tensor_split(x.scalar, std::vector<std::int64_t>{1}));
    FAILS(ValueError, "tensor_split: the number of parts must be above 0, got 0", tensor_split(x.v, 0));
    FAILS(ValueError, "tril_indices: negative sizes: -1, 2", tril_indices(-1, 2));
    FAILS(ValueError, "pixel_shuffle: upscale_factor must be at least 1, got 0", pixel_shuffle(x.cube, 0));
    FAILS(ValueError, "pixel_unshuffle: downscale_factor must be at least 1, got 0", pixel_unshuffle(x.cube, 0));
    // Factors whose squares, or what they make of a size, are no 64-bit numbers.
    for (const std::int64_t factor : {std::int64_t{1} << 32, std::int64_t{1} << 40, INT64_MAX}) {
        FAILS(ShapeError, "pixel_shuffle: 4 channels do not divide by " + std::to_string(factor) + "^2", pixel_shuffle(ones({1, 4, 2, 2}), factor));
        FAILS(ShapeError, "pixel_shuffle: 0 channels do not divide by", pixel_shuffle(ones({1, 0, 2, 2}), factor));
        FAILS(ShapeError, "pixel_unshuffle: 4 channels are too many", pixel_unshuffle(ones({1, 4, 0, 0}), factor));
    }
    FAILS(ShapeError, "pixel_shuffle: an image of 4294967296 x 2 is too large",
          pixel_shuffle(ones({1, 0, std::int64_t{1} << 32, 2}), std::int64_t{1} << 31));
    const Tensor none = zeros({0, std::int64_t{1} << 40});
    FAILS(OutOfMemory, "split: 1099511627776 pieces", split(none, 1, 1));
    FAILS(OutOfMemory, "unbind: 1099511627776 pieces", unbind(none, 1));
    FAILS(OutOfMemory, "chunk: 2147483647 pieces", chunk(none, INT32_MAX, 0));
    FAILS(ShapeError, "split: the sizes add up to more", split(ones({4}), std::vector<std::int64_t>{INT64_MAX, INT64_MAX, 6}));
    FAILS(ShapeError, "channel_shuffle: needs (batch, channels, spatial...), got (2, 3)", channel_shuffle(x.m, 1));
    FAILS(ValueError, "a scale factor has at most 3 numbers, got 4", static_cast<void>(ScaleFactor{1, 1, 1, 1}));
    FAILS(ValueError, "not \"area\"", interpolate(x.cube, {.size = 2, .mode = "area", .align_corners = true}));
}

TEST_CASE("errors of ops that count and choose") {
    const Operands x;
    FAILS(ShapeError, "bincount: needs one dimension, got shape (2, 3)", bincount(x.m.to(int64)));
    FAILS(ValueError, "bincount: minlength must not be negative, got -1", bincount(x.whole, {}, -1));
    FAILS(ValueError, "histc: needs at least one bin, got 0", histc(x.v, 0));
    FAILS(ValueError, "histc: the range from 0 to inf is not finite", histc(x.v, 2, 0, std::numeric_limits<double>::infinity()));
    FAILS(ShapeError, "quantile: q needs at most one dimension, got shape (2, 3)", quantile(x.v, x.m, 0));
    FAILS(DTypeError, "quantile: q is float64, x is float32", quantile(x.v, tensor({0.5}, float64), 0));
    Tensor written = ones({3});
    FAILS(DTypeError, "bitwise_and_: not defined for float32", written.bitwise_and_(x.v));
    FAILS(ShapeError, "cov: needs (variables, observations), got shape (2, 3, 4)", cov(x.cube));
    FAILS(ShapeError, "trapezoid: y has no dimensions", trapezoid(x.scalar));
    FAILS(ShapeError, "trapezoid: y has no dimensions", trapezoid(x.scalar, x.scalar));
    FAILS(ShapeError, "trapezoid: places of shape (3,) for y of shape (2, 3), dimension 0", trapezoid(x.m, x.v, 0));
    FAILS(ShapeError, "pdist: needs (n, d), got shape (3,)", pdist(x.v));
    FAILS(ValueError, "pdist: p must not be negative, got -1", pdist(x.m, -1));
    FAILS(ValueError, "multinomial: the sum of the weights is infinite", multinomial(full({2}, 1e308, float64), 1));
    const Tensor zeros_twice = tensor({0.0, 0.0, 1.0}).requires_grad_();
    const Tensor start = ones({2}).requires_grad_();
    Tape tape;
    const Tensor y = scatter_reduce(start, 0, tensor({0, 0, 1}), zeros_twice, "prod").sum();
    const int line = __LINE__ - 1;
    fails<ValueError>(__FILE__, line, "scatter_reduce: ", "the second derivative of \"prod\" is not there where several zeros meet",
                      [&] { tape.gradient(y, {zeros_twice}, {.create_graph = true}); });
}

TEST_CASE("errors of products and layers' ops") {
    const Operands x;
    FAILS(ShapeError, "tensordot: the result would have 16 dimensions", tensordot(x.wide, x.wide, 0));
    FAILS(ShapeError, "linalg::lstsq: a of shape (2, 3) does not fit b of shape (3, 3)", linalg::lstsq(x.m, x.square));
    FAILS(ShapeError, "linalg::solve_triangular: a of shape (3, 3) does not fit b of shape (2, 3)", linalg::solve_triangular(x.square, x.m, true));
    FAILS(ShapeError, "linalg::matrix_power: needs square matrices, got shape (2, 3)", linalg::matrix_power(x.m, 2));
    FAILS(ShapeError, "linalg::inv: matrices of shape (600000000, 600000000) are too large", linalg::inv(x.scalar.expand({600000000, 600000000})));
    const Tensor not_finite = full({3, 3}, std::numeric_limits<double>::quiet_NaN(), float64);
    FAILS(ValueError, "linalg::svd: the algorithm did not converge for the matrix, which may hold nan or infinities", linalg::svd(not_finite));
    FAILS(ShapeError, "bilinear: needs (..., n), (..., m) and a weight (outputs, n, m): (3,), (3,), (2, 3)", bilinear(x.v, x.v, x.m));
    FAILS(ShapeError, "bilinear: leading dimensions differ: (2, 3), (3, 3)", bilinear(x.m, x.square, ones({4, 3, 3})));
    FAILS(ShapeError, "bilinear: a bias of shape (3,) does not fit a weight of shape (4, 3, 3)", bilinear(x.m, x.m, ones({4, 3, 3}), x.v));
    FAILS(ShapeError, "embedding_bag: offsets need one dimension, got shape ()", embedding_bag(x.whole, x.square, tensor(0)));
    FAILS(DTypeError, "embedding_bag: offsets must be int64 or int32, not float32", embedding_bag(x.whole, x.square, tensor({0.0})));
    FAILS(ShapeError, "embedding_bag: there is no last offset", embedding_bag(x.whole, x.square, zeros({0}, int64), {.include_last_offset = true}));
    FAILS(ShapeError, "embedding_bag: needs indices of one or two dimensions, got ()", embedding_bag(tensor(0), x.square));
    FAILS(DTypeError, "embedding_bag: the weight must be floating, got int64; convert it with to(float32)",
          embedding_bag(tensor({0, 1}, int64), tensor({{1, 2}, {3, 4}}, int64), tensor({0}, int64)));
    FAILS(ShapeError, "embedding_bag: the weight must be (rows, width), got shape (3,)", embedding_bag(x.whole, x.v, tensor({0})));
    FAILS(ValueError, "embedding_bag: 3 indices for no bags", embedding_bag(x.whole, x.square, zeros({0}, int64)));
    const EmbeddingBagOptions weighted{.mode = BagMode::sum, .per_sample_weights = ones({2})};
    FAILS(ShapeError, "embedding_bag: per_sample_weights of shape (2,) for indices of shape (3,)",
          embedding_bag(x.whole, x.square, tensor({0}), weighted));
    FAILS(DTypeError, "gru_gates: the input's gates have dtype float64, h has float32", gru_gates(ones({2, 9}, float64), ones({2, 9}), ones({2, 3})));
    FAILS(ShapeError, "gru_gates: h must have at least one dimension", gru_gates(x.scalar, x.scalar, x.scalar));
    FAILS(ShapeError, "layer_norm: the bias has shape (2,), expected (3,)", layer_norm(x.m, {3}, x.v, ones({2})));
    FAILS(ShapeError, "rms_norm: the weight has shape (2,), expected (3,)", rms_norm(x.m, {3}, ones({2})));
    const std::vector<Tensor> children(101, x.v);
    FAILS(ValueError, "tree_lstm_gates: 101 children, at most 100 are possible", tree_lstm_gates(x.v, children));
    FAILS(ShapeError, "multi_margin_loss: needs an input (n, classes) or (classes,), got (2, 3, 4)", multi_margin_loss(x.cube, x.whole));
    const Tensor endless = x.scalar.expand({1, 1, std::int64_t{1} << 32});
    FAILS(ShapeError, "max_pool1d: more than 2^31 elements in a channel: (1, 1, 4294967296)", max_pool1d(endless, 2));
    FAILS(ValueError, "adaptive_avg_pool2d: output_size needs 1 number or 2, got (1, 2, 3)", adaptive_avg_pool2d(x.cube, {1, 2, 3}));
}

TEST_CASE("errors of ops that others are made of name the op that was called") {
    const Tensor x = zeros({3, 4}), v = zeros({2});
    FAILS(ShapeError, "hstack: shapes (3, 4) and (2,) differ in their number of dimensions", hstack({x, v}));
    FAILS(ShapeError, "vstack: shapes (3, 4) and (1, 2) differ in another dimension than 0", vstack({x, v}));
    FAILS(ShapeError, "dstack: shapes (3, 4, 1) and (1, 2, 1) differ in another dimension than 2", dstack({x, v}));
    FAILS(ShapeError, "column_stack: shapes (3, 4) and (2, 1) differ in another dimension than 1", column_stack({x, v}));
    FAILS(ValueError, "tile: a number of copies must not be negative: (1, -1)", tile(x, {-1}));
    FAILS(ShapeError, "vdot: needs a 1-d and a 1-d tensor, got (3, 4) and (3, 4)", vdot(x, x));
    const Tensor whole = zeros({2}, int64);
    FAILS(DTypeError, "var_mean: needs a floating dtype, got int64", static_cast<void>(var_mean(whole)));
    FAILS(IndexError, "std_mean: dimension 9 is out of range", static_cast<void>(std_mean(x, {9})));
    FAILS(IndexError, "linalg::vector_norm: dimension 9 is out of range", linalg::vector_norm(x, 2, {9}));
    FAILS(DTypeError, "linalg::norm: needs a floating dtype, got int64", linalg::norm(whole));
}
