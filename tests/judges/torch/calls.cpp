// The table of calls: PyTorch's name of an op (without "nn.functional." and "special."), its parameters, and what it is
// in Tapir. Of several lines with one name the first that takes the arguments is called. Element-wise ops come from
// elementwise.def.
#include "binding.h"

namespace judge {
namespace {

// clang-format off
#define CALL TAPIR_JUDGE_CALL

const std::vector<Call> elementwise_calls = {
#define TAPIR_UNARY0(name, ...) CALL(#name, (In input), tapir::name(input)),
#define TAPIR_UNARY1(name, p0, d0, ...) CALL(#name, (In input, double p0 = d0), tapir::name(input, p0)),
#define TAPIR_UNARY2(name, p0, d0, p1, d1, ...) CALL(#name, (In input, double p0 = d0, double p1 = d1), tapir::name(input, p0, p1)),
#define TAPIR_PREDICATE(name, ...) CALL(#name, (In input), tapir::name(input)),
#define TAPIR_BINARY(name, ...)                                      \
    CALL(#name, (In input, In other), tapir::name(input, other)),     \
    CALL(#name, (In input, Scalar other), tapir::name(input, other)), \
    CALL(#name, (Scalar input, In other), tapir::name(input, other)),
#define TAPIR_COMPARE(name, ...) TAPIR_BINARY(name, )
#define TAPIR_TERNARY(name, ...) CALL(#name, (In a, In b, In c), tapir::name(a, b, c)),
#include "tapir/ops/elementwise/elementwise.def"
};

BagMode bag_mode(const std::string& word) { return word == "sum" ? BagMode::sum : word == "max" ? BagMode::max : BagMode::mean; }

// PyTorch's cross() without a dimension.
Dim first_of_3(In x, In other) {
    const Shape shape = broadcast_tensors({x.tensor, other.tensor})[0].shape();
    for (int d = 0; d < shape.rank(); ++d) {
        if (shape[d] == 3) return d;
    }
    return -1;
}

// What PyTorch's diff() goes along.
Tensor between(const Tensor& prepend, In x, const Tensor& append, Dim dim) {
    std::vector<Tensor> parts;
    for (const Tensor& part : {prepend, x.tensor, append}) {
        if (part.defined()) parts.push_back(part);
    }
    return parts.size() == 1 ? x.tensor : cat(parts, dim);
}

const std::vector<Call> other_calls = {
    // Element-wise ops in other forms and by other names
    CALL("__getitem__", (In x, Indices index), x.tensor.index(index)),
    CALL("__radd__", (In x, Scalar other), other + x),
    CALL("__rand__", (In x, Scalar other), other & x),
    CALL("__rdiv__", (In x, Scalar other), other / x),
    CALL("__rmod__", (In x, Scalar other), other % x),
    CALL("__rmul__", (In x, Scalar other), other * x),
    CALL("__ror__", (In x, Scalar other), other | x),
    CALL("__rpow__", (In x, Scalar other), tapir::pow(other, x)),
    CALL("__rsub__", (In x, Scalar other), other - x),
    CALL("__rxor__", (In x, Scalar other), other ^ x),
#define REVERSED(name, symbol) CALL(name, (In x, In other), other symbol x)
    REVERSED("__radd__", +), REVERSED("__rand__", &), REVERSED("__rdiv__", /), REVERSED("__rmod__", %), REVERSED("__rmul__", *),
    REVERSED("__ror__", |), REVERSED("__rsub__", -), REVERSED("__rxor__", ^), CALL("__rpow__", (In x, In other), tapir::pow(other, x)),
    CALL("__rmatmul__", (In x, In other), matmul(other, x)),
    CALL("true_divide", (In x, In other), x / other),
    CALL("true_divide", (In x, Scalar other), x / other),
    CALL("div", (In x, In other, const char* rounding_mode), div(x, other, rounding_mode)),
    CALL("div", (In x, Scalar other, const char* rounding_mode), div(x, other, rounding_mode)),
    CALL("bitwise_not", (In x), bitwise_not(x)),
    CALL("clamp", (In x, In min, In max), clamp(x, min, max)),
    CALL("clamp", (In x, In min, Nothing max = {}), (void(max), maximum(x, min))),
    CALL("clamp", (In x, Nothing min, In max), (void(min), minimum(x, max))),
    CALL("clamp_min", (In x, In min), maximum(x, min)),
    CALL("clamp_max", (In x, In max), minimum(x, max)),
    CALL("clamp_min", (In x, Scalar min), clamp_min(x, min)),
    CALL("clamp_max", (In x, Scalar max), clamp_max(x, max)),
    CALL("lerp", (In input, In end, Scalar weight), lerp(input, end, weight)),
    CALL("ldexp", (In x, In other), ldexp(x, other)),
    CALL("polygamma", (std::int64_t n, In x), polygamma(n, x)),
    CALL("gelu", (In x, const char* approximate), gelu(x, approximate)),
    CALL("where", (In input, In condition, In other), where(condition, input, other)),  // as the database calls it
    CALL("nan_to_num", (In x, double nan = 0, Opt<double> posinf = {}, Opt<double> neginf = {}), nan_to_num(x, nan, posinf, neginf)),
    CALL("isclose", (In x, In other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false), isclose(x, other, rtol, atol, equal_nan)),
    CALL("allclose", (In x, In other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false), allclose(x, other, rtol, atol, equal_nan)),
    CALL("equal", (In x, In other), equal(x, other)),
    CALL("prelu", (In x, In weight), prelu(x, weight)),
    CALL("threshold", (In x, double threshold, double value), tapir::threshold(x, threshold, value)),
    CALL("glu", (In x, Dim dim = -1), glu(x, dim)),
    CALL("softmin", (In x, Dim dim), softmin(x, dim)),

    // Reductions
#define REDUCTION(name) CALL(#name, (In x, Dims dim = {}, Flag keepdim = false), tapir::name(x, dim, keepdim))
    REDUCTION(sum), REDUCTION(mean), REDUCTION(nansum), REDUCTION(nanmean), REDUCTION(amax), REDUCTION(amin), REDUCTION(all), REDUCTION(any),
    REDUCTION(logsumexp),
    CALL("prod", (In x), prod(x)),
    CALL("prod", (In x, Dim dim, Flag keepdim = false), prod(x, dim, keepdim)),
#define EXTREME(name)                                                              \
    CALL(#name, (In x), tapir::name(x)), CALL(#name, (In x, In other), tapir::name(x, other)), \
    CALL(#name, (In x, Dim dim, Flag keepdim = false), tapir::name(x, dim, keepdim))
    EXTREME(max), EXTREME(min),
#define ALONG_DIM(name) CALL(#name, (In x), tapir::name(x)), CALL(#name, (In x, Dim dim, Flag keepdim = false), tapir::name(x, dim, keepdim))
    ALONG_DIM(argmax), ALONG_DIM(argmin), ALONG_DIM(median), ALONG_DIM(aminmax),
#define SPREAD(name)                                                    \
    CALL(#name, (In x, bool unbiased), tapir::name(x, unbiased)),        \
    CALL(#name, (In x, Dims dim = {}, int correction = 1, Flag keepdim = false), tapir::name(x, dim, correction, keepdim)), \
    CALL(#name, (In x, Dims dim, bool unbiased, Flag keepdim = false), tapir::name(x, dim, unbiased ? 1 : 0, keepdim))
    SPREAD(var), SPREAD(std), SPREAD(var_mean), SPREAD(std_mean),
    CALL("norm", (In x, double p = 2, Dims dim = {}, Flag keepdim = false), tapir::norm(x, p, dim, keepdim)),
    CALL("count_nonzero", (In x, Dims dim = {}), count_nonzero(x, dim)),
    CALL("cumsum", (In x, Dim dim), cumsum(x, dim)),
    CALL("cumprod", (In x, Dim dim), cumprod(x, dim)),
    CALL("cummax", (In x, Dim dim), cummax(x, dim)),
    CALL("cummin", (In x, Dim dim), cummin(x, dim)),
    CALL("logcumsumexp", (In x, Dim dim), logcumsumexp(x, dim)),
    CALL("softmax", (In x, Dim dim), softmax(x, dim)),
    CALL("log_softmax", (In x, Dim dim), log_softmax(x, dim)),
    CALL("sort", (In x, Dim dim = -1, bool descending = false, bool stable = false), (void(stable), sort(x, dim, descending))),
    CALL("argsort", (In x, Dim dim = -1, bool descending = false, bool stable = false), (void(stable), argsort(x, dim, descending))),
    CALL("topk", (In x, std::int64_t k, Dim dim = -1, bool largest = true, bool sorted = true), (void(sorted), topk(x, k, dim, largest))),
    CALL("kthvalue", (In x, std::int64_t k, Dim dim = -1, Flag keepdim = false), kthvalue(x, k, dim, keepdim)),
    CALL("quantile", (In x, double q, Dim dim, Flag keepdim = false, const char* interpolation = "linear"), quantile(x, q, dim, keepdim, interpolation)),
    CALL("quantile", (In x, double q, const char* interpolation = "linear"), quantile(x, q, interpolation)),
    CALL("quantile", (In x, In q, Dim dim, Flag keepdim = false, const char* interpolation = "linear"), quantile(x, q, dim, keepdim, interpolation)),
    CALL("quantile", (In x, In q, const char* interpolation = "linear"), quantile(x, q, interpolation)),
    CALL("unique_consecutive", (In x, bool return_inverse = false, bool return_counts = false, Nothing dim = {}), (void(dim), unique_consecutive(x, return_inverse, return_counts))),
    CALL("unique", (In x, bool sorted = true, bool return_inverse = false, bool return_counts = false, Nothing dim = {}), (void(dim), unique(x, sorted, return_inverse, return_counts))),
    CALL("cov", (In x, int correction = 1, Nothing fweights = {}, Nothing aweights = {}), (void(fweights), void(aweights), cov(x, correction))),
    CALL("corrcoef", (In x), corrcoef(x)),
    CALL("trapezoid", (In y, In x, Dim dim = -1), trapezoid(y, x, dim)),
    CALL("trapezoid", (In y, double dx = 1, Dim dim = -1), trapezoid(y, dx, dim)),
    CALL("trapz", (In y, In x, Dim dim = -1), trapezoid(y, x, dim)),
    CALL("trapz", (In y, double dx = 1, Dim dim = -1), trapezoid(y, dx, dim)),
    CALL("dist", (In x, In other, double p = 2), dist(x, other, p)),
    CALL("pdist", (In x, double p = 2), pdist(x, p)),
    CALL("cdist", (In x1, In x2, double p = 2, const char* compute_mode = "use_mm_for_euclid_dist_if_necessary"), (void(compute_mode), cdist(x1, x2, p))),
    CALL("normalize", (In x, double p = 2, Dim dim = 1, double eps = 1e-12), normalize(x, p, dim, eps)),
    CALL("bincount", (In x, Tensor weights = {}, std::int64_t minlength = 0), bincount(x, weights, minlength)),
    CALL("histc", (In x, std::int64_t bins = 100, double min = 0, double max = 0), histc(x, bins, min, max)),
    CALL("searchsorted", (In sorted_sequence, In input, bool out_int32 = false, bool right = false), searchsorted(sorted_sequence, input, right).to(out_int32 ? int32 : int64)),
    CALL("searchsorted", (In sorted_sequence, In input, bool out_int32, const char* side), searchsorted(sorted_sequence, input, std::string(side) == "right").to(out_int32 ? int32 : int64)),
    CALL("bucketize", (In input, In boundaries, bool out_int32 = false, bool right = false), bucketize(input, boundaries, right).to(out_int32 ? int32 : int64)),
    CALL("isin", (In elements, In test_elements, bool assume_unique = false, bool invert = false), (void(assume_unique), isin(elements, test_elements, invert))),

    // Products and linear algebra
    CALL("matmul", (In x, In other), matmul(x, other)), CALL("mm", (In x, In other), mm(x, other)), CALL("bmm", (In x, In other), bmm(x, other)),
    CALL("mv", (In x, In other), mv(x, other)), CALL("dot", (In x, In other), dot(x, other)), CALL("vdot", (In x, In other), vdot(x, other)),
    CALL("outer", (In x, In other), outer(x, other)), CALL("kron", (In x, In other), kron(x, other)),
    CALL("linear", (In x, In weight, Tensor bias = {}), linear(x, weight, bias)),
    CALL("bilinear", (In x, In other, In weight, Tensor bias = {}), bilinear(x, other, weight, bias)),
    CALL("addmm", (In x, In a, In b, Scalar beta = 1, Scalar alpha = 1), addmm(x, a, b, beta, alpha)),
    CALL("baddbmm", (In x, In a, In b, Scalar beta = 1, Scalar alpha = 1), baddbmm(x, a, b, beta, alpha)),
    CALL("addmv", (In x, In a, In b, Scalar beta = 1, Scalar alpha = 1), addmv(x, a, b, beta, alpha)),
    CALL("tensordot", (In x, In other, int dims = 2), tensordot(x, other, dims)),
    CALL("einsum", (Tensors operands, const char* equation), einsum(equation, operands)),
    CALL("cross", (In x, In other, Dim dim), cross(x, other, dim)), CALL("cross", (In x, In other), cross(x, other, first_of_3(x, other))), CALL("linalg.cross", (In x, In other, Dim dim = -1), cross(x, other, dim)),
    CALL("trace", (In x), trace(x)),
    CALL("linalg.solve", (In A, In B), linalg::solve(A, B)),
    CALL("linalg.solve_triangular", (In A, In B, bool upper, bool left = true, bool unitriangular = false), linalg::solve_triangular(A, B, upper, left, unitriangular)),
    CALL("linalg.inv", (In A), linalg::inv(A)), CALL("linalg.det", (In A), linalg::det(A)), CALL("linalg.slogdet", (In A), linalg::slogdet(A)),
    CALL("logdet", (In A), linalg::logdet(A)), CALL("linalg.cholesky", (In A, bool upper = false), linalg::cholesky(A, upper)),
    CALL("cholesky_solve", (In x, In other, bool upper = false), linalg::cholesky_solve(x, other, upper)),
    CALL("linalg.eigvalsh", (In A, const char* UPLO = "L"), linalg::eigvalsh(A, UPLO)), CALL("linalg.svdvals", (In A), linalg::svdvals(A)),
    CALL("linalg.pinv", (In A, Nothing rtol = {}), (void(rtol), linalg::pinv(A))), CALL("pinverse", (In A), linalg::pinv(A)),
    CALL("linalg.matrix_rank", (In A, Nothing atol = {}, Nothing rtol = {}), (void(atol), void(rtol), linalg::matrix_rank(A))),
    CALL("linalg.matrix_power", (In A, std::int64_t n), linalg::matrix_power(A, n)),
    CALL("linalg.vector_norm", (In x, double ord = 2, Dims dim = {}, Flag keepdim = false), linalg::vector_norm(x, ord, dim, keepdim)),
    CALL("linalg.matrix_norm", (In x, const char* ord = "fro"), linalg::matrix_norm(x, ord)),
    CALL("linalg.matrix_norm", (In x, const char* ord, Dims dim, Flag keepdim = false), linalg::matrix_norm(x, ord, dim, keepdim)),
    CALL("linalg.matrix_norm", (In x, double ord), linalg::matrix_norm(x, ord)),
    CALL("linalg.matrix_norm", (In x, double ord, Dims dim, Flag keepdim = false), linalg::matrix_norm(x, ord, dim, keepdim)),
    CALL("linalg.norm", (In x), linalg::norm(x)),
    CALL("linalg.norm", (In x, Nothing ord, Dims dim = {}, Flag keepdim = false), (void(ord), linalg::vector_norm(x, 2, dim, keepdim))),
    CALL("linalg.norm", (In x, Flag keepdim), linalg::vector_norm(x, 2, {}, keepdim)),
    CALL("linalg.norm", (In x, double ord, Dims dim = {}, Flag keepdim = false), linalg::norm(x, ord, dim, keepdim)),
    CALL("linalg.norm", (In x, const char* ord, Dims dim = {}, Flag keepdim = false), linalg::norm(x, ord, dim, keepdim)),

    // Views and arrangements
    CALL("reshape", (In x, Shape shape), reshape(x, shape)), CALL("view", (In x, Shape shape), x.tensor.view(shape)),
    CALL("reshape_as", (In x, In other), x.tensor.reshape_as(other.tensor)), CALL("view_as", (In x, In other), x.tensor.view_as(other.tensor)),
    CALL("expand", (In x, Shape shape), expand(x, shape)), CALL("expand_as", (In x, In other), x.tensor.expand_as(other.tensor)),
    CALL("broadcast_to", (In x, Shape shape), broadcast_to(x, shape)),
    CALL("flatten", (In x, Dim start_dim = 0, Dim end_dim = -1), flatten(x, start_dim, end_dim)),
    CALL("unflatten", (In x, Dim dim, Shape sizes), unflatten(x, dim, sizes)),
    CALL("transpose", (In x, Dim dim0, Dim dim1), transpose(x, dim0, dim1)), CALL("permute", (In x, Dims dims), permute(x, dims)),
    CALL("t", (In x), x.tensor.t()), CALL("T", (In x), x.tensor.T()), CALL("ravel", (In x), ravel(x)),
    CALL("movedim", (In x, Dims source, Dims destination), movedim(x, source, destination)),
    CALL("squeeze", (In x), squeeze(x)), CALL("squeeze", (In x, Dim dim), squeeze(x, dim)), CALL("unsqueeze", (In x, Dim dim), unsqueeze(x, dim)),
    CALL("narrow", (In x, Dim dim, std::int64_t start, std::int64_t length), narrow(x, dim, start, length)),
    CALL("select", (In x, Dim dim, std::int64_t index), select(x, dim, index)),
    CALL("slice", (In x, Dim dim), slice(x, dim, Slice())), CALL("slice", (In x, Dim dim, std::int64_t start, std::int64_t end, std::int64_t step = 1), slice(x, dim, Slice(start, end, step))),
    CALL("split", (In x, std::int64_t split_size, Dim dim = 0), split(x, split_size, dim)), CALL("split", (In x, Ints sizes, Dim dim = 0), split(x, sizes, dim)),
    CALL("split_with_sizes", (In x, Ints split_sizes, Dim dim = 0), split(x, split_sizes, dim)),
    CALL("chunk", (In x, int chunks, Dim dim = 0), chunk(x, chunks, dim)), CALL("unbind", (In x, Dim dim = 0), unbind(x, dim)),
    CALL("tensor_split", (In x, int sections, Dim dim = 0), tensor_split(x, sections, dim)),
    CALL("tensor_split", (In x, Ints indices, Dim dim = 0), tensor_split(x, indices, dim)),
    CALL("diagonal", (In x, std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1), diagonal(x, offset, dim1, dim2)),
    CALL("linalg.diagonal", (In x, std::int64_t offset = 0, Dim dim1 = -2, Dim dim2 = -1), diagonal(x, offset, dim1, dim2)),
    CALL("select_scatter", (In x, In src, Dim dim, std::int64_t index), select_scatter(x, src, dim, index)),
    CALL("slice_scatter", (In x, In src, Dim dim, std::int64_t start, std::int64_t end, std::int64_t step = 1), slice_scatter(x, src, dim, Slice(start, end, step))),
    CALL("diagonal_scatter", (In x, In src, std::int64_t offset = 0, Dim dim1 = 0, Dim dim2 = 1), diagonal_scatter(x, src, offset, dim1, dim2)),
    CALL("unfold", (In x, Dim dimension, std::int64_t size, std::int64_t step), x.tensor.unfold(dimension, size, step)),
    CALL("tile", (In x, Shape dims), tile(x, dims)), CALL("repeat", (In x, Shape repeats), repeat(x, repeats)),
    CALL("repeat_interleave", (In x, std::int64_t repeats, Dim dim), repeat_interleave(x, repeats, dim)),
    CALL("repeat_interleave", (In x, std::int64_t repeats), repeat_interleave(x, repeats)),
    CALL("repeat_interleave", (In x, In repeats, Dim dim), repeat_interleave(x, repeats, dim)),
    CALL("repeat_interleave", (In x, In repeats), repeat_interleave(x, repeats)),
    CALL("rot90", (In x, int k = 1, Dims dims = {}), dims.empty() ? rot90(x, k) : rot90(x, k, dims)),
    CALL("fliplr", (In x), fliplr(x)), CALL("flipud", (In x), flipud(x)), CALL("flip", (In x, Dims dims), flip(x, dims)),
    CALL("roll", (In x, Shape shifts, Dims dims = {}), roll(x, shifts, dims)),
    CALL("atleast_1d", (In x), atleast_1d(x)), CALL("atleast_2d", (In x), atleast_2d(x)), CALL("atleast_3d", (In x), atleast_3d(x)),
    CALL("broadcast_tensors", (Tensors tensors), broadcast_tensors(tensors)), CALL("meshgrid", (Tensors tensors, const char* indexing = "ij"), meshgrid(tensors, indexing)),
    CALL("diag", (In x, std::int64_t offset = 0), diag(x, offset)), CALL("diag_embed", (In x, std::int64_t offset = 0), diag_embed(x, offset)),
    CALL("diagflat", (In x, std::int64_t offset = 0), diagflat(x, offset)), CALL("block_diag", (Tensors tensors), block_diag(tensors)),
    CALL("column_stack", (Tensors tensors), column_stack(tensors)), CALL("cartesian_prod", (Tensors tensors), cartesian_prod(tensors)),
    CALL("vstack", (Tensors tensors), vstack(tensors)), CALL("hstack", (Tensors tensors), hstack(tensors)), CALL("dstack", (Tensors tensors), dstack(tensors)),
    CALL("cat", (Tensors tensors, Dim dim = 0), cat(tensors, dim)), CALL("stack", (Tensors tensors, Dim dim = 0), stack(tensors, dim)),
    CALL("diff", (In x, int n = 1, Dim dim = -1, Tensor prepend = {}, Tensor append = {}), n == 0 ? x.tensor : diff(between(prepend, x, append, dim), n, dim)), CALL("tril", (In x, std::int64_t diagonal = 0), tril(x, diagonal)),
    CALL("triu", (In x, std::int64_t diagonal = 0), triu(x, diagonal)), CALL("clone", (In x), clone(x)), CALL("contiguous", (In x), contiguous(x)),
    CALL("pad", (In x, Ints pad, const char* mode = "constant", Scalar value = 0.0), tapir::pad(x, pad, PadMode(std::string(mode)), value)),
    CALL("constant_pad_nd", (In x, Ints pad, Scalar value = 0), tapir::pad(x, pad, value)),
    CALL("channel_shuffle", (In x, std::int64_t groups), channel_shuffle(x, groups)),
    CALL("pixel_shuffle", (In x, std::int64_t upscale_factor), pixel_shuffle(x, upscale_factor)),
    CALL("pixel_unshuffle", (In x, std::int64_t downscale_factor), pixel_unshuffle(x, downscale_factor)),
    CALL("linalg.vander", (In x, std::int64_t N = -1), vander(x, N, true)),

    // Indexing
    CALL("gather", (In x, Dim dim, In index), gather(x, dim, index)), CALL("index_select", (In x, Dim dim, In index), index_select(x, dim, index)),
    CALL("scatter", (In x, Dim dim, In index, In src), scatter(x, dim, index, src)), CALL("scatter", (In x, Dim dim, In index, Scalar value), scatter(x, dim, index, value)),
    CALL("scatter_add", (In x, Dim dim, In index, In src), scatter_add(x, dim, index, src)),
    CALL("scatter_reduce", (In x, Dim dim, In index, In src, const char* reduce, Flag include_self = true), scatter_reduce(x, dim, index, src, reduce, include_self)),
    CALL("index_add", (In x, Dim dim, In index, In source, Scalar alpha = 1), index_add(x, dim, index, source, alpha)),
    CALL("index_copy", (In x, Dim dim, In index, In source), index_copy(x, dim, index, source)),
    CALL("index_fill", (In x, Dim dim, In index, Scalar value), index_fill(x, dim, index, value)),
    CALL("index_fill", (In x, Dim dim, In index, In value), index_fill(x, dim, index, value)),
    CALL("index_put", (In x, Indices indices, In values, Flag accumulate = false), x.tensor.index_put(indices, values.tensor, accumulate)),
    CALL("masked_fill", (In x, In mask, Scalar value), masked_fill(x, mask, value)), CALL("masked_fill", (In x, In mask, In value), masked_fill(x, mask, value)),
    CALL("masked_select", (In x, In mask), masked_select(x, mask)), CALL("masked_scatter", (In x, In mask, In source), masked_scatter(x, mask, source)),
    CALL("nonzero", (In x, Nothing as_tuple = {}), (void(as_tuple), nonzero(x))), CALL("argwhere", (In x), argwhere(x)),
    CALL("take_along_dim", (In x, In index, Dim dim), take_along_dim(x, index, dim)), CALL("take_along_dim", (In x, In index), take_along_dim(x, index)),
    // as the database calls it, of leaves that have dense gradients
    CALL("embedding", (In weight, In input, Opt<std::int64_t> padding_idx = {}, Nothing max_norm = {}, double norm_type = 2, Nothing scale_grad_by_freq = {}, Nothing sparse = {}), (void(max_norm), void(norm_type), void(scale_grad_by_freq), void(sparse), embedding(input, weight, padding_idx))),
    CALL("embedding_bag", (In weight, In input, Tensor offsets = {}, Nothing max_norm = {}, double norm_type = 2, Nothing scale_grad_by_freq = {}, const char* mode = "mean", Nothing sparse = {}, Tensor per_sample_weights = {}, bool include_last_offset = false, Opt<std::int64_t> padding_idx = {}), (void(max_norm), void(norm_type), void(scale_grad_by_freq), void(sparse), embedding_bag(input, weight, offsets, {bag_mode(mode), per_sample_weights, include_last_offset, padding_idx}))),
    CALL("one_hot", (In x, std::int64_t num_classes = -1), one_hot(x, num_classes)),

    // Layers
    CALL("conv1d", (In x, In weight, Tensor bias = {}, Shape stride = 1, Padding padding = 0, Shape dilation = 1, std::int64_t groups = 1), conv1d(x, weight, bias, stride, padding, dilation, groups)),
    CALL("conv2d", (In x, In weight, Tensor bias = {}, Shape stride = 1, Padding padding = 0, Shape dilation = 1, std::int64_t groups = 1), conv2d(x, weight, bias, stride, padding, dilation, groups)),
    CALL("conv3d", (In x, In weight, Tensor bias = {}, Shape stride = 1, Padding padding = 0, Shape dilation = 1, std::int64_t groups = 1), conv3d(x, weight, bias, stride, padding, dilation, groups)),
#define CONV_TRANSPOSE(name) CALL(#name, (In x, In weight, Tensor bias = {}, Shape stride = 1, Shape padding = 0, Shape output_padding = 0, std::int64_t groups = 1, Shape dilation = 1), tapir::name(x, weight, bias, stride, padding, output_padding, groups, dilation))
    CONV_TRANSPOSE(conv_transpose1d), CONV_TRANSPOSE(conv_transpose2d), CONV_TRANSPOSE(conv_transpose3d),
#define MAX_POOL(name)                                                                                                                                   \
    CALL(#name, (In x, Shape kernel_size, Shape stride = {}, Shape padding = 0, Shape dilation = 1, Flag ceil_mode = false, bool return_indices = false), \
         give_pool(return_indices, tapir::name##_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)))
#define give_pool(both, pooled) [](bool with, ValuesIndices y) { return with ? Tensors{y.values, y.indices} : Tensors{y.values}; }(both, pooled)
    MAX_POOL(max_pool1d), MAX_POOL(max_pool2d), MAX_POOL(max_pool3d),
    CALL("avg_pool1d", (In x, Shape kernel_size, Shape stride = {}, Shape padding = 0, Flag ceil_mode = false, Flag count_include_pad = true), avg_pool1d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)),
#define AVG_POOL(name) CALL(#name, (In x, Shape kernel_size, Shape stride = {}, Shape padding = 0, Flag ceil_mode = false, Flag count_include_pad = true, std::int64_t divisor_override = 0), tapir::name(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override))
    AVG_POOL(avg_pool2d), AVG_POOL(avg_pool3d),
CALL("nn.functional.unfold", (In x, Shape kernel_size, Shape dilation = 1, Shape padding = 0, Shape stride = 1), tapir::unfold(x, kernel_size, {dilation, padding, stride})),
#define ADAPTIVE(name) CALL(#name, (In x, Shape output_size), tapir::name(x, output_size))
    ADAPTIVE(adaptive_avg_pool1d), ADAPTIVE(adaptive_avg_pool2d), ADAPTIVE(adaptive_avg_pool3d),
#define ADAPTIVE_MAX(name) CALL(#name, (In x, Shape output_size, Nothing return_indices = {}), (void(return_indices), tapir::name(x, output_size)))
    ADAPTIVE_MAX(adaptive_max_pool1d), ADAPTIVE_MAX(adaptive_max_pool2d), ADAPTIVE_MAX(adaptive_max_pool3d),
    CALL("instance_norm", (In x, Nothing running_mean = {}, Nothing running_var = {}, Tensor weight = {}, Tensor bias = {}, bool use_input_stats = true, double momentum = 0.1, double eps = 1e-5), (void(running_mean), void(running_var), void(use_input_stats), void(momentum), instance_norm(x, weight, bias, eps))),
    CALL("layer_norm", (In x, Shape normalized_shape, Tensor weight = {}, Tensor bias = {}, double eps = 1e-5), layer_norm(x, normalized_shape, weight, bias, eps)),
    CALL("rms_norm", (In x, Shape normalized_shape, Tensor weight = {}, double eps = -1), rms_norm(x, normalized_shape, weight, eps)),
    CALL("group_norm", (In x, std::int64_t num_groups, Tensor weight = {}, Tensor bias = {}, double eps = 1e-5), group_norm(x, num_groups, weight, bias, eps)),
    CALL("local_response_norm", (In x, std::int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1.0), local_response_norm(x, size, alpha, beta, k)),
    CALL("batch_norm", (In x, Tensor running_mean, Tensor running_var, Tensor weight = {}, Tensor bias = {}, bool training = false, double momentum = 0.1, double eps = 1e-5), batch_norm(x, running_mean, running_var, weight, bias, {training, momentum, eps})),
    CALL("scaled_dot_product_attention", (In query, In key, In value, Tensor attn_mask = {}, double dropout_p = 0.0, bool is_causal = false, Opt<double> scale = {}, Nothing enable_gqa = {}), (void(enable_gqa), scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale))),
    CALL("grid_sample", (In x, In grid, const char* mode = "bilinear", const char* padding_mode = "zeros", bool align_corners = false), grid_sample(x, grid, {mode, padding_mode, align_corners})),
    CALL("interpolate", (In x, Shape size, Opt<double> scale_factor = {}, const char* mode = "nearest", bool align_corners = false, bool recompute_scale_factor = false), interpolate(x, {size, scale_factor ? ScaleFactor(*scale_factor) : ScaleFactor(), mode, align_corners, recompute_scale_factor})),

    // Losses
#define LOSS(name) CALL(#name, (In input, In target, Reduction reduction = Reduction::mean), tapir::name(input, target, reduction))
    LOSS(mse_loss), LOSS(l1_loss), LOSS(soft_margin_loss), LOSS(multilabel_margin_loss),
    CALL("huber_loss", (In input, In target, Reduction reduction = Reduction::mean, double delta = 1.0), huber_loss(input, target, reduction, delta)),
    CALL("smooth_l1_loss", (In input, In target, Reduction reduction = Reduction::mean, double beta = 1.0), smooth_l1_loss(input, target, reduction, beta)),
    CALL("kl_div", (In input, In target, Reduction reduction = Reduction::mean, bool log_target = false), kl_div(input, target, reduction, log_target)),
    CALL("cross_entropy", (In input, In target, Tensor weight = {}, std::int64_t ignore_index = -100, Reduction reduction = Reduction::mean, double label_smoothing = 0.0), cross_entropy(input, target, {weight, ignore_index, reduction, label_smoothing})),
    CALL("nll_loss", (In input, In target, Tensor weight = {}, std::int64_t ignore_index = -100, Reduction reduction = Reduction::mean), nll_loss(input, target, {.weight = weight, .ignore_index = ignore_index, .reduction = reduction})),
    CALL("binary_cross_entropy", (In input, In target, Tensor weight = {}, Reduction reduction = Reduction::mean), binary_cross_entropy(input, target, weight, reduction)),
    CALL("binary_cross_entropy_with_logits", (In input, In target, Tensor weight = {}, Reduction reduction = Reduction::mean, Tensor pos_weight = {}), binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)),
    CALL("margin_ranking_loss", (In input1, In input2, In target, double margin = 0.0, Reduction reduction = Reduction::mean), margin_ranking_loss(input1, input2, target, margin, reduction)),
    CALL("hinge_embedding_loss", (In input, In target, double margin = 1.0, Reduction reduction = Reduction::mean), hinge_embedding_loss(input, target, margin, reduction)),
    CALL("cosine_embedding_loss", (In input1, In input2, In target, double margin = 0.0, Reduction reduction = Reduction::mean), cosine_embedding_loss(input1, input2, target, margin, reduction)),
    CALL("multi_margin_loss", (In input, In target, int p = 1, double margin = 1.0, Tensor weight = {}, Reduction reduction = Reduction::mean), multi_margin_loss(input, target, p, margin, weight, reduction)),
    CALL("multilabel_soft_margin_loss", (In input, In target, Tensor weight = {}, Reduction reduction = Reduction::mean), multilabel_soft_margin_loss(input, target, weight, reduction)),
    CALL("triplet_margin_loss", (In anchor, In positive, In negative, double margin = 1.0, double p = 2.0, double eps = 1e-6, bool swap = false, Reduction reduction = Reduction::mean), triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction)),
    CALL("poisson_nll_loss", (In input, In target, bool log_input = true, bool full = false, double eps = 1e-8, Reduction reduction = Reduction::mean), poisson_nll_loss(input, target, log_input, full, eps, reduction)),
    CALL("gaussian_nll_loss", (In input, In target, In var, bool full = false, double eps = 1e-6, Reduction reduction = Reduction::mean), gaussian_nll_loss(input, target, var, full, eps, reduction)),
    CALL("ctc_loss", (In log_probs, In targets, In input_lengths, In target_lengths, std::int64_t blank = 0, Reduction reduction = Reduction::mean, bool zero_infinity = false), ctc_loss(log_softmax(log_probs, -1), targets, input_lengths, target_lengths, {.blank = blank, .reduction = reduction, .zero_infinity = zero_infinity})),
    CALL("ctc_loss", (In log_probs, In targets, Ints input_lengths, Ints target_lengths, std::int64_t blank = 0, Reduction reduction = Reduction::mean, bool zero_infinity = false), ctc_loss(log_softmax(log_probs, -1), targets, tapir::tensor(input_lengths), tapir::tensor(target_lengths), {.blank = blank, .reduction = reduction, .zero_infinity = zero_infinity})),
    CALL("cosine_similarity", (In x1, In x2, Dim dim = 1, double eps = 1e-8), cosine_similarity(x1, x2, dim, eps)),
    CALL("pairwise_distance", (In x1, In x2, double p = 2.0, double eps = 1e-6, Flag keepdim = false), pairwise_distance(x1, x2, p, eps, keepdim)),

    // Made of a shape or of another tensor
    CALL("zeros_like", (In x), zeros_like(x)), CALL("ones_like", (In x), ones_like(x)), CALL("full_like", (In x, Scalar value), full_like(x, value)),
#define LIKE(name) CALL(#name, (In x, Opt<DType> dtype = {}, const char* device = "cpu"), (void(device), tapir::name(x, dtype.value_or(x->dtype))))
    LIKE(zeros_like), LIKE(ones_like),
    CALL("full_like", (In x, Scalar value, Opt<DType> dtype = {}, const char* device = "cpu"), (void(device), full_like(x, value, dtype.value_or(x->dtype)))),
    CALL("eye", (std::int64_t n, DType dtype, const char* device = "cpu", Nothing requires_grad = {}), (void(device), void(requires_grad), eye(n, dtype))),
    CALL("eye", (std::int64_t n, std::int64_t m, DType dtype, const char* device = "cpu", Nothing requires_grad = {}), (void(device), void(requires_grad), eye(n, m, dtype))),
        CALL("tril_indices", (std::int64_t row, std::int64_t col, std::int64_t offset = 0, Nothing device = {}), (void(device), tril_indices(row, col, offset))),
    CALL("triu_indices", (std::int64_t row, std::int64_t col, std::int64_t offset = 0, Nothing device = {}), (void(device), triu_indices(row, col, offset))),
    CALL("new_zeros", (In x, Shape size), x.tensor.new_zeros(size)), CALL("new_ones", (In x, Shape size), x.tensor.new_ones(size)),
    CALL("new_full", (In x, Shape size, Scalar fill_value), x.tensor.new_full(size, fill_value)),
    CALL("zeros", (Shape size, DType dtype, const char* device = "cpu"), (void(device), zeros(size, dtype))), CALL("ones", (Shape size, DType dtype, const char* device = "cpu"), (void(device), ones(size, dtype))),
    CALL("full", (Shape size, Scalar fill_value, DType dtype, const char* device = "cpu"), (void(device), full(size, fill_value, dtype))),
    CALL("arange", (Scalar end), arange(end)), CALL("arange", (Scalar start, Scalar end), arange(start, end)), CALL("arange", (Scalar start, Scalar end, Scalar step), arange(start, end, step)),
    CALL("arange", (Scalar end, DType dtype, const char* device = "cpu"), (void(device), arange(end, dtype))), CALL("arange", (Scalar start, Scalar end, DType dtype, const char* device = "cpu"), (void(device), arange(start, end, dtype))),
    CALL("arange", (Scalar start, Scalar end, Scalar step, DType dtype, const char* device = "cpu"), (void(device), arange(start, end, step, dtype))),
    CALL("linspace", (double start, double end, std::int64_t steps, DType dtype, const char* device = "cpu"), (void(device), linspace(start, end, steps, dtype))),
    CALL("logspace", (double start, double end, std::int64_t steps, double base, DType dtype, const char* device = "cpu"), (void(device), logspace(start, end, steps, base, dtype))),
 CALL("zero_", (In x), x.tensor.clone().zero_()),
    CALL("fill", (In x, Scalar value), x.tensor.clone().fill_(value)), CALL("type_as", (In x, In other), x.tensor.type_as(other.tensor)),
    CALL("float", (In x), to(x, float32)), CALL("double", (In x), to(x, float64)), CALL("half", (In x), to(x, float16)), CALL("bfloat16", (In x), to(x, bfloat16)),
    CALL("int", (In x), to(x, int32)), CALL("long", (In x), to(x, int64)), CALL("byte", (In x), to(x, uint8)), CALL("bool", (In x), to(x, bool_)),
};
// clang-format on

}  // namespace

const std::vector<Call>& calls() {
    static const std::vector<Call> all = [] {
        std::vector<Call> both = other_calls;  // first: clamp of tensors, div with a rounding mode
        both.insert(both.end(), elementwise_calls.begin(), elementwise_calls.end());
        return both;
    }();
    return all;
}

}  // namespace judge
