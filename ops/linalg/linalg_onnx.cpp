// Writes linalg_factors.cpp and linalg_solve.cpp as ONNX, which has Det only: loops over columns, for any batch at once.
#include <algorithm>
#include <cmath>

#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/linalg/linalg_factors.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

using std::int64_t;

SymInt rows_of(const OnnxSizes& shape) { return shape.last(2); }
OnnxSizes batch_sizes(const OnnxSizes& shape, int matrix_dims = 2) { return shape.without_last(matrix_dims); }
OnnxSizes with(OnnxSizes shape, const OnnxSizes& more) {
    shape.append(more);
    return shape;
}

OnnxValue product(const OnnxCall& x, const OnnxValue& a, const OnnxValue& b) { return x.node("MatMul", {a, b}); }
OnnxValue identity(const OnnxCall& x, const SymInt& n, DType dtype) { return x.cast(x.unsqueeze(x.range(n), {1}) == x.range(n), dtype); }

// Loops `count` times: body(k, states) returns the next states and the values to gather, a list each. Returns the last states, then the
// gathered values, along a new first dimension.
template <class Body>
OnnxValues loop(const OnnxCall& x, const OnnxValue& count, const OnnxValues& begun, const Body& body) {
    OnnxBuilder& builder = x.builder();
    builder.begin_graph();
    const std::vector<SymInt> scalar;
    const OnnxValue k = builder.graph_input(int64, &scalar), goes_on = builder.graph_input(bool_, &scalar);
    OnnxValues states;
    OnnxDTypes dtypes;
    for (const OnnxValue& state : begun) states.push_back(builder.graph_input(state.dtype(), nullptr));
    const OnnxValues made = body(k, states);
    for (const OnnxValue& result : made) dtypes.push_back(result.dtype());
    OnnxValues results = {goes_on};
    results.append(made);
    const int graph = builder.end_graph(results);
    OnnxValues inputs = {count, x.scalar(true, bool_)};
    inputs.append(begun);
    return x.nodes("Loop", dtypes, inputs, {OnnxAttribute::graph("body", graph)});
}

// Returns gathered values (n, batch ..., m) as (batch ..., n, m), or (batch ..., m, n).
OnnxValue gathered_rows(const OnnxCall& x, const OnnxValue& list, int rank, bool as_columns) {
    OnnxInts order;
    for (int d = 1; d < rank - 1; ++d) order.push_back(d);
    order.push_back(as_columns ? rank - 1 : 0);
    order.push_back(as_columns ? 0 : rank - 1);
    return x.permute(list, order);
}

// Eliminates (batch ..., n, w), w >= n, by Gauss-Jordan with pivots: returns the new right part, rows in order, then the pivots
// (batch ..., n) and the permutation (batch ..., n, n).
OnnxValues eliminated(const OnnxCall& x, const OnnxValue& whole, int rank, const SymInt& n) {
    const DType dtype = whole.dtype();
    const OnnxValue used = x.reduce("ReduceSum", whole, {rank - 1}, false) * 0;  // (batch ..., n): rows that were pivots
    const OnnxValues done = loop(x, x.size_0d(n), {whole, used}, [&](const OnnxValue& k, const OnnxValues& state) -> OnnxValues {
        const OnnxValue column = x.gather(state[0], k, rank - 1);
        const OnnxValue score = where(state[1] > 0, -1, abs(column));
        const OnnxValue best = x.node("ArgMax", int64, {score}, {{"axis", rank - 2}, {"keepdims", 1}});
        const OnnxValue chosen = x.cast(x.range(n) == best, dtype);                   // (batch ..., n)
        const OnnxValue row = product(x, x.unsqueeze(chosen, {rank - 2}), state[0]);  // (batch ..., 1, w)
        const OnnxValue pivot = x.reduce("ReduceSum", chosen * column, {rank - 2}, true);
        const OnnxValue unit = row / x.unsqueeze(where(pivot == 0, INFINITY, pivot), {rank - 2});  // infinity for a singular matrix
        const OnnxValue next = state[0] - product(x, x.unsqueeze(column - chosen, {rank - 1}), unit);
        return {next, state[1] + chosen, chosen, pivot};
    });
    const OnnxValue order = gathered_rows(x, done[2], rank, false);  // row k: the row that was the k-th pivot
    const OnnxValue pivots = x.squeeze(gathered_rows(x, done[3], rank, false), {rank - 1});
    const OnnxValue right = x.slice(done[0], rank - 1, n, OnnxCall::kEnd);
    return {product(x, order, right), pivots, order};
}

OnnxValue solved(const OnnxCall& x, const OnnxValue& a, const OnnxValue& b, const OnnxSizes& batch, const SymInt& n, const SymInt& columns) {
    const int rank = batch.count() + 2;
    const OnnxValue left = x.expand(a, with(batch, {n, n})), right = x.expand(b, with(batch, {n, columns}));
    return eliminated(x, x.concat({left, right}, rank - 1), rank, n)[0];
}

OnnxValue solve_of(const OnnxCall& x, const OnnxValue& a) {
    const auto &of_a = x.shape(0), &of_b = x.shape(1);
    const OnnxSizes one_less = of_a.without_last(1);
    const bool is_vector = of_b.size() == 1 || (of_b.size() + 1 == of_a.size() && of_b == one_less);
    const auto& result = x.result_shape();
    const SymInt n = rows_of(of_a);
    if (!is_vector) return solved(x, a, x.as_result(1), batch_sizes(result), n, result.last());
    return x.squeeze(solved(x, a, x.unsqueeze(x.as_result(1), {of_b.count()}), batch_sizes(result, 1), n, 1), {result.count()});
}

OnnxValue triangular_of(const OnnxCall& x) {
    const bool upper = x.flag("upper");
    OnnxValue a = x.node("Trilu", {x.as_result(0), x.scalar(0, int64)}, {{"upper", upper}});
    if (x.flag("unitriangular")) {
        const OnnxValue one = identity(x, rows_of(x.shape()), x.result_dtype());
        a = where(one != 0, 1, a);
    }
    return solve_of(x, a);
}

OnnxValue inv_of(const OnnxCall& x) {
    const SymInt n = rows_of(x.shape());
    return solved(x, x[0], identity(x, n, x.dtype()), batch_sizes(x.shape()), n, n);
}

OnnxValues slogdet_of(const OnnxCall& x) {
    const int rank = x.rank();
    const OnnxValues found = eliminated(x, x[0], rank, rows_of(x.shape()));
    const OnnxValue signs = x.reduce("ReduceProd", sign(found[1]), {rank - 2}, false);
    return {signs * x.node("Det", {found[2]}), x.reduce("ReduceSum", log(abs(found[1])), {rank - 2}, false)};
}

// Column k of the factor is the rest of that column, divided by the root of its pivot.
OnnxValue cholesky_of(const OnnxCall& x) {
    const int rank = x.rank();
    const SymInt n = rows_of(x.shape());
    const OnnxValues done = loop(x, x.size_0d(n), {x[0]}, [&](const OnnxValue& k, const OnnxValues& state) -> OnnxValues {
        const OnnxValue column = x.gather(state[0], k, rank - 1);
        const OnnxValue below = where(x.range(n) >= k, column, 0);
        const OnnxValue pivot = x.unsqueeze(x.gather(column, k, rank - 2), {rank - 2});
        const OnnxValue l = below / sqrt(pivot);
        return {state[0] - product(x, x.unsqueeze(l, {rank - 1}), x.unsqueeze(l, {rank - 2})), l};
    });
    return gathered_rows(x, done[1], rank, true);
}

// Applies Householder's reflections, with LAPACK's signs: Q (batch ..., m, m) and R (batch ..., m, n).
OnnxValues reflected(const OnnxCall& x, const OnnxValue& a, const OnnxSizes& shape) {
    const int rank = shape.count();
    const SymInt m = rows_of(shape), n = shape.last();
    const DType dtype = a.dtype();
    const OnnxValue count = x.node("Min", {x.size_0d(m), x.size_0d(n)});
    const OnnxValue one = x.expand(identity(x, m, dtype), with(batch_sizes(shape), {m, m}));
    return loop(x, count, {one, a}, [&](const OnnxValue& k, const OnnxValues& state) -> OnnxValues {
        const OnnxValue i = x.range(m), column = x.gather(state[1], k, rank - 1);
        const OnnxValue v = where(i >= k, column, 0);
        const OnnxValue rest = x.reduce("ReduceSum", square(where(i > k, column, 0)), {rank - 2}, true);
        const OnnxValue head = x.unsqueeze(x.gather(column, k, rank - 2), {rank - 2});
        const OnnxValue size = sqrt(rest + head * head);
        const OnnxValue u = v - where(i == k, where(head < 0, size, -size), 0);
        const OnnxValue scale = where(rest == 0, 0, 2 / where(rest == 0, 1, x.reduce("ReduceSum", u * u, {rank - 2}, true)));
        const OnnxValue as_column = x.unsqueeze(u, {rank - 1}), scaled_row = x.unsqueeze(u * scale, {rank - 2});
        const OnnxValue r = state[1] - product(x, as_column, product(x, scaled_row, state[1]));
        const OnnxValue q = state[0] - product(x, product(x, state[0], as_column), scaled_row);
        return {q, r};
    });
}

OnnxValues qr_of(const OnnxCall& x) {
    const auto& shape = x.shape();
    const int rank = x.rank();
    const OnnxValues found = reflected(x, x[0], shape);
    const OnnxValue r = x.node("Trilu", {found[1], x.scalar(0, int64)}, {{"upper", 1}});
    const std::string mode = x.choice("mode");
    if (mode == "complete") return {found[0], r};
    const SymInt m = rows_of(shape), n = shape.last();
    const bool is_known = m.is_number() && n.is_number();
    const OnnxValue k = is_known ? x.ints({std::min(m.number(), n.number())}) : x.node("Min", {x.size_1d(m), x.size_1d(n)});
    const auto first = [&](const OnnxValue& v, int dim) { return x.node("Slice", {v, x.ints({0}), k, x.ints({dim})}); };
    if (mode == "r") return {x.filled(x.result_shape(0), 0, x.dtype()), first(r, rank - 2)};
    return {first(found[0], rank - 1), first(r, rank - 2)};
}

constexpr int kSweeps = 12;

// All pairs of n columns, one after the other, repeatedly: as two lists.
struct Pairs {
    OnnxValue first, second;
    int64_t count;
    Pairs(const OnnxCall& x, const SymInt& size) {
        if (!size.is_number()) x.refuse("of matrices whose sizes are named dimensions");
        const int64_t n = size.number();
        x.need_room({n, n});
        OnnxInts p, q;
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t k = i + 1; k < n; ++k) {
                p.push_back(i);
                q.push_back(k);
            }
        }
        count = p.count();
        if (p.empty()) p = q = {0};
        first = x.ints(p);
        second = x.ints(q);
    }
};

// Jacobi's method: rotates a symmetric matrix in the plane of a pair of dimensions until all elements beside its diagonal vanish. Returns
// eigenvalues in ascending order and eigenvectors as columns.
OnnxValues eigen_of(const OnnxCall& x) {
    const int rank = x.rank();
    const SymInt n = rows_of(x.shape());
    const DType dtype = x.dtype();
    const Pairs pairs(x, n);
    // Reads only the lower triangle.
    const OnnxValue lower = x.node("Trilu", {x[0], x.scalar(0, int64)}, {{"upper", 0}}),
                    strict = x.node("Trilu", {x[0], x.scalar(-1, int64)}, {{"upper", 0}});
    const OnnxValue a = lower + x.matrix_transpose(strict, rank), one = identity(x, n, dtype);
    const OnnxValue all = x.expand(one, x.shape());
    const OnnxValues done = loop(x, x.scalar(pairs.count * kSweeps, int64), {a, all}, [&](const OnnxValue& k, const OnnxValues& state) -> OnnxValues {
        const OnnxValue i = remainder(k, x.scalar(std::max<int64_t>(pairs.count, 1), int64)), p = x.gather(pairs.first, i, 0),
                        q = x.gather(pairs.second, i, 0);
        const auto element = [&](const OnnxValue& r, const OnnxValue& c) { return x.gather(x.gather(state[0], r, rank - 2), c, rank - 2); };
        const OnnxValue between = element(p, q), is_done = between == 0;
        const OnnxValue tau = (element(q, q) - element(p, p)) / (where(is_done, 1, between) * 2);
        const OnnxValue t = where(is_done, 0, where(tau < 0, -1, x.scalar(1, dtype)) / (abs(tau) + sqrt(tau * tau + 1)));
        const OnnxValue c = 1 / sqrt(t * t + 1), s = t * c;
        const OnnxValue ep = x.gather(one, p, 0), eq = x.gather(one, q, 0);
        const auto outer = [&](const OnnxValue& u, const OnnxValue& v) { return x.unsqueeze(u, {1}) * v; };
        const auto spread = [&](const OnnxValue& number) { return x.unsqueeze(number, {rank - 2, rank - 1}); };
        const OnnxValue turn = one + spread(c - 1) * (outer(ep, ep) + outer(eq, eq)) + spread(s) * (outer(ep, eq) - outer(eq, ep));
        return {product(x, product(x, x.matrix_transpose(turn, rank), state[0]), turn), product(x, state[1], turn)};
    });
    const OnnxValue values = x.reduce("ReduceSum", done[0] * one, {rank - 1}, false);
    const OnnxValues sorted = x.nodes("TopK", {dtype, int64}, {values, x.size_1d(n)}, {{"axis", rank - 2}, {"largest", 0}});
    const OnnxValue order = x.expand(x.unsqueeze(sorted[1], {rank - 2}), x.shape());
    return {sorted[0], x.node("GatherElements", {done[1], order}, {{"axis", rank - 1}})};
}

// One-sided Jacobi (Hestenes 1958): rotates columns in pairs until all are orthogonal; their lengths are the singular values. Takes
// (batch ..., m, n) with m >= n, returns U (m, n), S, V (n, n), the largest first.
OnnxValues thin_svd(const OnnxCall& x, const OnnxValue& a, const OnnxSizes& shape) {
    const int rank = shape.count();
    const SymInt n = shape.last();
    const DType dtype = a.dtype();
    const Pairs pairs(x, n);
    const OnnxValue one = identity(x, n, dtype), all = x.expand(one, with(batch_sizes(shape), {n, n}));
    const OnnxValues done = loop(x, x.scalar(pairs.count * kSweeps, int64), {a, all}, [&](const OnnxValue& k, const OnnxValues& state) -> OnnxValues {
        const OnnxValue i = remainder(k, x.scalar(std::max<int64_t>(pairs.count, 1), int64)), p = x.gather(pairs.first, i, 0),
                        q = x.gather(pairs.second, i, 0);
        const OnnxValue u = x.gather(state[0], p, rank - 1), v = x.gather(state[0], q, rank - 1);
        const auto dot = [&](const OnnxValue& r, const OnnxValue& s) { return x.reduce("ReduceSum", r * s, {rank - 2}, false); };
        const OnnxValue between = dot(u, v), is_done = between == 0;
        const OnnxValue tau = (dot(v, v) - dot(u, u)) / (where(is_done, 1, between) * 2);
        const OnnxValue t = where(is_done, 0, where(tau < 0, -1, x.scalar(1, dtype)) / (abs(tau) + sqrt(tau * tau + 1)));
        const OnnxValue c = 1 / sqrt(t * t + 1), s = t * c;
        const OnnxValue ep = x.gather(one, p, 0), eq = x.gather(one, q, 0);
        const auto outer = [&](const OnnxValue& r, const OnnxValue& w) { return x.unsqueeze(r, {1}) * w; };
        const auto spread = [&](const OnnxValue& number) { return x.unsqueeze(number, {rank - 2, rank - 1}); };
        const OnnxValue turn = one + spread(c - 1) * (outer(ep, ep) + outer(eq, eq)) + spread(s) * (outer(ep, eq) - outer(eq, ep));
        return {product(x, state[0], turn), product(x, state[1], turn)};
    });
    const OnnxValue sizes = x.reduce("ReduceL2", done[0], {rank - 2}, false);
    const OnnxValues sorted = x.nodes("TopK", {dtype, int64}, {sizes, x.size_1d(n)}, {{"axis", rank - 2}, {"largest", 1}});
    const auto in_order = [&](const OnnxValue& columns, const SymInt& rows) {
        const OnnxValue order = x.expand(x.unsqueeze(sorted[1], {rank - 2}), with(batch_sizes(shape), {rows, n}));
        return x.node("GatherElements", {columns, order}, {{"axis", rank - 1}});
    };
    const OnnxValue u = in_order(done[0], rows_of(shape)) / x.unsqueeze(where(sorted[0] == 0, 1, sorted[0]), {rank - 2});
    return {u, sorted[0], in_order(done[1], n)};
}

struct Factors {
    OnnxValue u, s, v;  // x = u diag(s) v^T
};
Factors svd(const OnnxCall& x) {
    auto shape = x.shape();
    const int rank = x.rank();
    const SymInt m = rows_of(shape), n = shape.last();
    if (!m.is_number() || !n.is_number()) x.refuse("of matrices whose sizes are named dimensions");
    if (m.number() >= n.number()) {
        const OnnxValues found = thin_svd(x, x[0], shape);
        return {found[0], found[1], found[2]};
    }
    std::swap(shape.last(1), shape.last(2));
    const OnnxValues found = thin_svd(x, x.matrix_transpose(x[0], rank), shape);
    return {found[2], found[1], found[0]};
}

// Adds the columns that are missing for a square matrix: any that are orthogonal to the existing ones.
OnnxValue completed(const OnnxCall& x, const OnnxValue& u, const OnnxSizes& square, const SymInt& columns) {
    const int rank = square.count();
    if (square.last() == columns) return u;
    auto shape = square;
    shape.last() = columns;
    const OnnxValue q = reflected(x, u, shape)[0];
    return x.concat({u, x.slice(q, rank - 1, columns, OnnxCall::kEnd)}, rank - 1);
}

OnnxValues svd_of(const OnnxCall& x) {
    Factors found = svd(x);
    const int rank = x.rank();
    if (x.flag("full_matrices")) {
        const SymInt k = x.result_shape(1).last();
        found.u = completed(x, found.u, x.result_shape(0), k);
        found.v = completed(x, found.v, x.result_shape(2), k);
    }
    return {found.u, found.s, x.matrix_transpose(found.v, rank)};
}

// Finds the values that do not count as 0: those above rtol (by default the dtype's step times the larger side) times the largest.
OnnxValue counts(const OnnxCall& x, const OnnxValue& s) {
    const int rank = x.rank();
    double rtol = x.real("rtol");
    if (rtol < 0) {
        const SymInt m = rows_of(x.shape()), n = x.shape().last();
        rtol = (x.dtype() == DType::float64 ? 0x1p-52 : 0x1p-23) * static_cast<double>(std::max(m.number(), n.number()));
    }
    return s > x.slice(s, rank - 2, 0, 1) * rtol;
}
OnnxValue pinv_of(const OnnxCall& x) {
    const Factors found = svd(x);
    const OnnxValue is_there = counts(x, found.s);
    const OnnxValue back = where(is_there, 1 / where(is_there, found.s, 1), 0);
    return product(x, found.v * x.unsqueeze(back, {x.rank() - 2}), x.matrix_transpose(found.u, x.rank()));
}

}  // namespace

TAPIR_ONNX(linalg_det, x.node("Det", {x[0]}));
TAPIR_ONNX(linalg_slogdet, slogdet_of(x));
TAPIR_ONNX(linalg_inv, inv_of(x));
TAPIR_ONNX(linalg_solve, solve_of(x, x.as_result(0)));
TAPIR_ONNX(linalg_solve_triangular, triangular_of(x));
TAPIR_ONNX(linalg_cholesky, cholesky_of(x));
TAPIR_ONNX(linalg_qr, qr_of(x));
TAPIR_ONNX(linalg_eigh, eigen_of(x));
TAPIR_ONNX(linalg_eigvalsh, eigen_of(x)[0]);
TAPIR_ONNX(linalg_svd, svd_of(x));
TAPIR_ONNX(linalg_svdvals, svd(x).s);
TAPIR_ONNX(linalg_pinv, pinv_of(x));
TAPIR_ONNX(linalg_matrix_rank, x.reduce("ReduceSum", x.cast(counts(x, svd(x).s), int64), {x.rank() - 2}, false));

}  // namespace tapir
