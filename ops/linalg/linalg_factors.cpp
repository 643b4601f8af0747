// Factors of matrices (Cholesky, QR, eigenvalues, singular values) and ops that use them. The gradients are formulas of public
// ops, after Giles 2008 ("An extended collection of matrix derivative results"), Walter & Lehmann 2010 (QR), Murray 2016 (Cholesky)
// and Townsend 2016 (SVD). linalg_impl.h declares the routines that compute.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/linalg/linalg.h"
#include "tapir/ops/linalg/linalg_factors.h"
#include "tapir/ops/linalg/linalg_impl.h"
#include "tapir/ops/linalg/linalg_solve.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/reduce/reduce_impl.h"
#include "tapir/ops/view/view.h"
#include "tapir/ops/view/view_composed.h"

namespace tapir {
namespace {

using std::int64_t;
using namespace matrices;

void cholesky_rule(Backward& b);
void qr_rule(Backward& b);
void eigh_rule(Backward& b);
void eigvalsh_rule(Backward& b);
void svd_rule(Backward& b);
void svdvals_rule(Backward& b);
void pinv_rule(Backward& b);

// For samples: matrices that are symmetric, and positive definite.
Tensor symmetric(const Tensor& x) { return x + transpose(x, -1, -2); }
Tensor definite(const Tensor& x) { return matmul(x, transpose(x, -1, -2)) + eye(x.size(-2), -1, {x.dtype(), x.device()}); }
#define TAPIR_SYMMETRIC "(x[0] + x[0].mT)"
#define TAPIR_DEFINITE "(x[0] @ x[0].mT + eye(x[0].shape[-2], dtype=x[0].dtype))"

std::vector<Tensor> list(const linalg::QRResult& r) { return r.q.defined() ? std::vector{r.q, r.r} : std::vector{r.r}; }
// Vectors are determined up to their signs: these return the parts of a result that do not depend on them.
std::vector<Tensor> without_signs(const linalg::EighResult& r) { return {r.eigenvalues, square(r.eigenvectors)}; }
std::vector<Tensor> without_signs(const linalg::SVDResult& r) {
    return {r.s, square(r.u), square(r.vh), matmul(r.u * unsqueeze(r.s * r.s, -2), r.vh)};
}

}  // namespace

TAPIR_OP(linalg_cholesky, cholesky_rule, "The triangular l with l l^T = a.",
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.cholesky(" TAPIR_DEFINITE ")", linalg::cholesky(definite(x[0]))),
         TAPIR_SAMPLE_AS("f(2,3,3)", "linalg.cholesky(" TAPIR_DEFINITE ", upper=True)", linalg::cholesky(definite(x[0]), true)),
         TAPIR_SAMPLE_AS("f(3,2) u(3,3)", "cholesky_solve(x[0], x[1].tril())", linalg::cholesky_solve(x[0], tril(x[1]))));
TAPIR_OP(linalg_qr, qr_rule, "Orthogonal columns times an upper triangle.", TAPIR_SAMPLE_AS("f(4,3)", "linalg.qr(x[0])", list(linalg::qr(x[0]))),
         TAPIR_SAMPLE_AS("f(2,2,4)", "linalg.qr(x[0])", list(linalg::qr(x[0]))),
         TAPIR_SAMPLE_AS("f(5,2) f(5,3)", "linalg.lstsq(x[0], x[1])[0]", linalg::lstsq(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,4) f(2,1)", "linalg.lstsq(x[0], x[1])[0]", linalg::lstsq(x[0], x[1])));
TAPIR_OP(linalg_eigh, eigh_rule, "Eigenvalues and eigenvectors of symmetric matrices.",
         TAPIR_SAMPLE_AS("f(3,3)", "(lambda r: (r[0], r[1] ** 2))(linalg.eigh(" TAPIR_SYMMETRIC "))", without_signs(linalg::eigh(symmetric(x[0])))));
TAPIR_OP(linalg_eigvalsh, eigvalsh_rule, "Eigenvalues of symmetric matrices.",
         TAPIR_SAMPLE_AS("f(2,4,4)", "linalg.eigvalsh(" TAPIR_SYMMETRIC ")", linalg::eigvalsh(symmetric(x[0]))));
TAPIR_OP(linalg_svd, svd_rule, "Singular values and vectors.",
         TAPIR_SAMPLE_AS("f(4,3)",
                         "(lambda r: (r[1], r[0] ** 2, r[2] ** 2, r[0] @ (r[1] ** 2).diag_embed() @ r[2]))(linalg.svd(x[0], full_matrices=False))",
                         without_signs(linalg::svd(x[0], false))),
         TAPIR_SAMPLE_AS("f(2,2,3)",
                         "(lambda r: (r[1], r[0] ** 2, r[2] ** 2, r[0] @ (r[1] ** 2).diag_embed() @ r[2]))(linalg.svd(x[0], full_matrices=False))",
                         without_signs(linalg::svd(x[0], false))));
TAPIR_OP(linalg_svdvals, svdvals_rule, "Singular values.", TAPIR_SAMPLE_AS("f(3,4)", "linalg.svdvals(x[0])", linalg::svdvals(x[0])),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], 'nuc')", linalg::matrix_norm(x[0], "nuc")),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], 2)", linalg::matrix_norm(x[0], 2)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0], -1)", linalg::matrix_norm(x[0], -1)),
         TAPIR_SAMPLE_AS("f(2,3,4)", "linalg.matrix_norm(x[0])", linalg::matrix_norm(x[0])),
         TAPIR_SAMPLE_AS("f(3,2,4)", "linalg.matrix_norm(x[0], 'nuc', (2, 0), True)", linalg::matrix_norm(x[0], "nuc", {2, 0}, true)),
         TAPIR_SAMPLE_AS("f(3,2,4)", "linalg.matrix_norm(x[0], 1, (0, 1))", linalg::matrix_norm(x[0], 1, {0, 1})),
         TAPIR_SAMPLE_AS("f(3,2,4)", "linalg.norm(x[0], inf, (0, 2), True)", linalg::norm(x[0], __builtin_inf(), {0, 2}, true)),
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.norm(x[0], -2)", linalg::norm(x[0], -2)),
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.norm(x[0], 'fro')", linalg::norm(x[0], "fro")),
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.norm(x[0], 3, 1, True)", linalg::norm(x[0], 3, {1}, true)),
         TAPIR_SAMPLE_AS("f(4)", "linalg.norm(x[0], 1)", linalg::norm(x[0], 1)));
TAPIR_OP(linalg_pinv, pinv_rule, "The Moore-Penrose inverse.", TAPIR_SAMPLE_AS("f(4,3)", "linalg.pinv(x[0])", linalg::pinv(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,3)", "linalg.pinv(x[0])", linalg::pinv(x[0])));
TAPIR_OP(linalg_matrix_rank, NonDiff, "How many singular values are not 0.",
         TAPIR_SAMPLE_AS("f(3,4)", "linalg.matrix_rank(x[0])", linalg::matrix_rank(x[0])),
         TAPIR_SAMPLE_AS("f(2,3,1)", "linalg.matrix_rank(x[0] @ x[0].mT)", linalg::matrix_rank(matmul(x[0], transpose(x[0], -1, -2)), 1e-4)));

namespace {

// Returns the lower triangle with half the diagonal.
Tensor halved(const Tensor& x) { return tril(x) - diag_embed(diagonal(x, 0, -2, -1)) * 0.5; }

// Implements Murray 2016, equation 10.
void cholesky_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor l = b.saved(0), lt = mt(l);
    const Loc& loc = b.record().loc;
    const Tensor p = halved(matmul(lt, b.grad()));
    const Tensor left = linalg::solve_triangular(In(lt, loc), In(p, loc), /*upper=*/true);                  // l^-T p
    const Tensor s = linalg::solve_triangular(In(l, loc), In(left, loc), /*upper=*/false, /*left=*/false);  // l^-T p l^-1
    b.give(0, (s + mt(s)) * 0.5);
}

enum class QRMode : std::int32_t { reduced, complete, r };
struct SVDAttrs {
    bool full_matrices = true;
};
struct RankAttrs {
    double rtol = -1;  // negative: the dtype's default
};

// Implements Walter & Lehmann 2010 for q r = a with square r.
Tensor gradient_of_qr(const Tensor& q, const Tensor& r, const Tensor& gq, const Tensor& gr, const Loc& loc) {
    const Tensor m = matmul(r, mt(gr)) - matmul(mt(gq), q);
    const Tensor lower = tril(m, -1), symmetric_m = lower + mt(lower) + diag_embed(diagonal(m, 0, -2, -1));
    const Tensor sum_of = gq + matmul(q, symmetric_m), rt = mt(r);
    return linalg::solve_triangular(In(rt, loc), In(sum_of, loc), /*upper=*/false, /*left=*/false);
}

void qr_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Loc& loc = b.record().loc;
    const Tensor q = b.saved(0), r = b.saved(1);
    const int64_t n = q.size(-2), m = r.size(-1);
    const auto mode = b.attrs<QRMode>();
    if (mode == QRMode::r) fail<ValueError>(loc, "linalg::qr: there is no gradient in mode \"r\"; use \"reduced\"");
    if (mode == QRMode::complete && n > m)
        fail<ValueError>(loc, "linalg::qr: there is no gradient in mode \"complete\" of more rows than columns; use \"reduced\"");
    const Tensor gq = b.grad_or_zeros(0), gr = b.grad_or_zeros(1);
    if (n >= m) return b.give(0, gradient_of_qr(q, r, gq, gr, loc));
    // a = [x | y], q r = [q u | q v]: y = q v
    const auto first = [&](const Tensor& t) { return narrow(t, -1, 0, n); };
    const auto rest = [&](const Tensor& t) { return narrow(t, -1, n, m - n); };
    const Tensor y = matmul(q, rest(r)), gv = rest(gr);
    const Tensor gx = gradient_of_qr(q, first(r), gq + matmul(y, mt(gv)), first(gr), loc);
    b.give(0, cat({gx, matmul(q, gv)}, -1));
}

// Returns 1 / (x_j - x_i), 0 on the diagonal; x (..., n)
Tensor inverse_differences(const Tensor& x) {
    const Tensor is_diagonal = eye(x.size(-1), -1, {bool_, x.device()});
    const Tensor differences = unsqueeze(x, -2) - unsqueeze(x, -1);
    return where(is_diagonal, 0, reciprocal(where(is_diagonal, 1, differences)));
}

// Implements Giles 2008, section 3.1. The symmetric part of v^T dL/dv would turn the vectors into ones that symmetric matrices do not
// have: only the antisymmetric part counts, and the gradient is symmetric.
void eigh_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor w = b.saved(0), v = b.saved(1), vt = mt(v);
    Tensor inner;
    if (b.grad(1).defined()) {
        const Tensor turn = matmul(vt, b.grad(1));
        inner = (turn - mt(turn)) * 0.5 * inverse_differences(w);
    }
    if (b.grad(0).defined()) inner = inner.defined() ? inner + diag_embed(b.grad(0)) : diag_embed(b.grad(0));
    if (inner.defined()) b.give(0, matmul(v, matmul(inner, vt)));
}

void eigvalsh_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor v = linalg::eigh(In(b.saved(0), b.record().loc)).eigenvectors;
    b.give(0, matmul(v * unsqueeze(b.grad(), -2), mt(v)));
}
void svdvals_rule(Backward& b) {
    if (!b.needs(0)) return;
    const auto [u, s, vh] = linalg::svd(In(b.saved(0), b.record().loc), /*full_matrices=*/false);
    b.give(0, matmul(u * unsqueeze(b.grad(), -2), vh));
}

// Implements Townsend 2016.
void svd_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor u = b.saved(0), s = b.saved(1), vh = b.saved(2);
    const Tensor &gu = b.grad(0), &gs = b.grad(1), &gvh = b.grad(2);
    const int64_t n = u.size(-2), m = vh.size(-1), k = s.size(-1);
    if ((gu.defined() || gvh.defined()) && (u.size(-1) > k || vh.size(-2) > k)) {
        fail<ValueError>(b.record().loc, "linalg::svd: there is no gradient of u and vh with full_matrices; use full_matrices = false");
    }
    const auto few = [&](const Tensor& t, int d) { return t.size(d) > k ? narrow(t, d, 0, k) : t; };
    const Tensor u_k = few(u, -1), vh_k = few(vh, -2), column = unsqueeze(s, -1), line = unsqueeze(s, -2);
    Tensor inner = gs.defined() ? diag_embed(gs) : zeros(with_sizes(batch_of(s, 1), {k, k}), {s.dtype(), s.device()});
    const auto skew = [](const Tensor& t) { return t - mt(t); };
    Tensor factor;
    if (gu.defined() || gvh.defined()) factor = inverse_differences(square(s));
    if (gu.defined()) inner = inner + skew(matmul(mt(u), gu)) * factor * line;
    if (gvh.defined()) inner = inner + column * (skew(matmul(vh, mt(gvh))) * factor);
    Tensor left = matmul(u_k, inner);
    if (gu.defined() && n > k) left = left + (gu - matmul(u, matmul(mt(u), gu))) / line;
    Tensor g = matmul(left, vh_k);
    if (gvh.defined() && m > k) g = g + matmul(u / line, gvh - matmul(matmul(gvh, mt(vh)), vh));
    b.give(0, g);
}

// Implements Golub & Pereyra 1973, equation 4.12, transposed.
void pinv_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor a = b.saved(0), p = b.saved(1), pt = mt(p), gt = mt(b.grad());
    if (a.size(-2) <= a.size(-1)) {
        const Tensor k = matmul(gt, p), kpt = matmul(k, pt);
        b.give(0, kpt - mt(matmul(p, k)) - matmul(matmul(a, p), kpt) + matmul(matmul(pt, p), gt - matmul(k, a)));
    } else {
        const Tensor k = matmul(p, gt), ptk = matmul(pt, k);
        b.give(0, ptk - mt(matmul(k, p)) + matmul(matmul(gt - matmul(a, k), p), pt) - matmul(matmul(ptk, p), a));
    }
}

}  // namespace

namespace linalg {

Tensor cholesky(In a, bool upper) {
    check_matrices("linalg::cholesky", a, true);
    if (upper) {
        const detail::RecordedParts parts(a.loc);
        const Tensor turned = mt(a.tensor);
        return mt(cholesky(In(turned, a.loc)));
    }
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return cholesky(In(in[0], a.loc)); };
        if (Tensor y = detail::in_group({linalg_cholesky_op, a.loc, {&a.tensor}}, of_group); y.defined()) return y;
    }
    begin(linalg_cholesky_op, a);
    Tensor l;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        Tensor columns = columns_of(a.tensor);
        if (const Stopped stopped = factor_definite(columns); stopped.any()) {
            fail<ValueError>(a.loc, "linalg::cholesky: {} is not positive definite", which(a.tensor, stopped.first()));
        }
        l = result_of(columns, a->device);
        // LAPACK takes nan for positive. Each nan of the triangle that it read reaches the diagonal.
        if (const Tensor is_nan = any(isnan(diagonal(l, 0, -2, -1)), {-1}); l.numel() > 0 && any(is_nan).item<bool>()) {
            fail<ValueError>(a.loc, "linalg::cholesky: {} is not positive definite: it has nan",
                             which(a.tensor, argmax(is_nan.to(uint8).reshape({-1})).item<int64_t>()));
        }
    }
    record(linalg_cholesky_op, a.loc, {&a.tensor}, l, {&l});
    return l;
}

Tensor cholesky_solve(In b, In l, bool upper) {
    const detail::ComposedOp composed("linalg::cholesky_solve");
    check_matrices("linalg::cholesky_solve", l, true);
    check_matrices("linalg::cholesky_solve", b, false);
    const detail::RecordedParts parts(b.loc);
    const Tensor turned = mt(l.tensor);
    const In lower = upper ? In(turned, b.loc) : l, higher = upper ? l : In(turned, b.loc);
    return solve_triangular(higher, solve_triangular(lower, b, false), true);
}

QRResult qr(In a, const char* mode) {
    check_matrices("linalg::qr", a, false);
    const std::string word = detail::checked_word("linalg::qr", mode, a.loc);
    if (word != "reduced" && word != "complete" && word != "r") {
        fail<ValueError>(a.loc, "linalg::qr: mode is \"reduced\", \"complete\" or \"r\", not \"{}\"", word);
    }
    const QRMode attrs = word == "reduced" ? QRMode::reduced : word == "complete" ? QRMode::complete : QRMode::r;
    QRResult result;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return qr(In(in[0], a.loc), mode); };
        const detail::BatchCall call(linalg_qr_op, a.loc, {&a.tensor}, detail::batch_key(attrs));
        if (detail::in_group(call, of_group, result, &QRResult::q, &QRResult::r)) return result;
    }
    begin(linalg_qr_op, a);
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        const int64_t n = a.tensor.size(-2), m = a.tensor.size(-1), k = attrs == QRMode::complete ? n : std::min(n, m);
        const Device place = place_of(a.tensor);
        const Tensor r = detail::make_empty(with_sizes(batch_of(a.tensor), {m, k}), a->dtype, place, a.loc);
        Tensor q;
        if (attrs != QRMode::r) q = detail::make_empty(with_sizes(batch_of(a.tensor), {k, n}), a->dtype, place, a.loc);
        factor_orthogonal(columns_of(a.tensor), q, r);
        result = {q.defined() ? result_of(q, a->device) : q, result_of(r, a->device)};
    }
    if (attrs == QRMode::r) {
        record_many(linalg_qr_op, a.loc, {a.tensor}, {result.r}, {result.r, result.r}, attrs);
    } else {
        record_many(linalg_qr_op, a.loc, {a.tensor}, {result.q, result.r}, {result.q, result.r}, attrs);
    }
    return result;
}

namespace {

// Without vectors it computes the values alone; they differ in the last digits from those computed beside vectors.
EighResult eigh_of(const In& a, const char* uplo, bool vectors) {
    const std::string word = detail::checked_word("linalg::eigh", uplo, a.loc);
    if (word != "L" && word != "U") fail<ValueError>(a.loc, "linalg::eigh: uplo is \"L\" or \"U\", not \"{}\"", word);
    if (word == "U") {
        const detail::RecordedParts parts(a.loc);
        const Tensor turned = mt(a.tensor);
        return eigh_of(In(turned, a.loc), "L", vectors);
    }
    const OpInfo& op = vectors ? linalg_eigh_op : linalg_eigvalsh_op;
    EighResult result;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return eigh_of(In(in[0], a.loc), "L", vectors); };
        const detail::BatchCall call(op, a.loc, {&a.tensor});
        if (detail::in_group(call, of_group, result, &EighResult::eigenvalues, &EighResult::eigenvectors)) return result;
    }
    begin(op, a);
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        const Tensor columns = columns_of(a.tensor);
        const Tensor values = detail::make_empty(batch_of(a.tensor, 1), a->dtype, columns.device(), a.loc);
        if (const Stopped stopped = eigen(columns, values, vectors); stopped.any())
            fail_to_converge("linalg::eigh", a.tensor, stopped.first(), a.loc);
        result.eigenvalues = values.to(a->device);
        if (vectors) result.eigenvectors = result_of(columns, a->device);
    }
    if (vectors) {
        record_many(linalg_eigh_op, a.loc, {a.tensor}, {result.eigenvalues, result.eigenvectors}, {result.eigenvalues, result.eigenvectors});
    } else {
        record(linalg_eigvalsh_op, a.loc, {&a.tensor}, result.eigenvalues, {&a.tensor});
    }
    return result;
}

// Handles matrices without rows or columns, which no routine takes: any orthogonal matrices do.
SingularValues of_no_values(const In& a, char job) {
    const auto no_columns = [&](int64_t size, bool turned) {
        const int64_t count = job == 'A' ? size : 0;
        const Shape shape = with_sizes(batch_of(a.tensor), {turned ? size : count, turned ? count : size});
        return clone(expand(eye(shape[shape.rank() - 2], shape[shape.rank() - 1], {a->dtype, a->device}), shape));
    };
    const Tensor s = zeros(with_sizes(batch_of(a.tensor), {0}), {a->dtype, a->device});
    if (job == 'N') return {{}, s, {}, {}};
    return {no_columns(a.tensor.size(-2), false), s, no_columns(a.tensor.size(-1), true), {}};
}

SVDResult svd_of(const In& a, char job) {
    const OpInfo& op = job == 'N' ? linalg_svdvals_op : linalg_svd_op;
    SVDResult result;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return svd_of(In(in[0], a.loc), job); };
        const detail::BatchCall call(op, a.loc, {&a.tensor}, detail::batch_key(job));
        if (detail::in_group(call, of_group, result, &SVDResult::u, &SVDResult::s, &SVDResult::vh)) return result;
    }
    begin(op, a);
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        SingularValues made;
        if (std::min(a.tensor.size(-2), a.tensor.size(-1)) > 0) {
            made = singular_values(columns_of(a.tensor), job);
            if (made.stopped.any()) fail_to_converge("linalg::svd", a.tensor, made.stopped.first(), a.loc);
        } else {
            made = of_no_values(a, job);
        }
        result.s = made.s.to(a->device);
        if (job != 'N') {
            result.u = result_of(made.u, a->device);
            result.vh = result_of(made.vt, a->device);
        }
    }
    if (job != 'N') {
        record_many(linalg_svd_op, a.loc, {a.tensor}, {result.u, result.s, result.vh}, {result.u, result.s, result.vh}, SVDAttrs{job == 'A'});
    } else {
        record(linalg_svdvals_op, a.loc, {&a.tensor}, result.s, {&a.tensor});
    }
    return result;
}

double default_tolerance(const Tensor& a) {
    const double epsilon = a.dtype() == float64 ? 0x1p-52 : 0x1p-23;
    return static_cast<double>(std::max(a.size(-1), a.size(-2))) * epsilon;
}

// Returns 1 where a singular value counts, else 0.
Tensor is_counted(const Tensor& s, double rtol) {
    if (s.size(-1) == 0) return ones_like(s, {bool_});
    return gt(s, amax(s, {-1}, true) * rtol);
}

}  // namespace

EighResult eigh(In a, const char* uplo) {
    check_matrices("linalg::eigh", a, true);
    return eigh_of(a, uplo, true);
}

Tensor eigvalsh(In a, const char* uplo) {
    const detail::ComposedOp composed("linalg::eigvalsh");
    check_matrices("linalg::eigvalsh", a, true);
    return eigh_of(a, uplo, false).eigenvalues;
}

SVDResult svd(In a, bool full_matrices) {
    check_matrices("linalg::svd", a, false);
    return svd_of(a, full_matrices ? 'A' : 'S');
}

Tensor svdvals(In a) {
    const detail::ComposedOp composed("linalg::svdvals");
    check_matrices("linalg::svdvals", a, false);
    return svd_of(a, 'N').s;
}

Tensor lstsq(In a, In b) {
    check_matrices("linalg::lstsq", a, false);
    check_matrices("linalg::lstsq", b, false);
    check_alike("linalg::lstsq", a, b);
    if (b.tensor.size(-2) != a.tensor.size(-2)) {
        fail<ShapeError>(a.loc, "linalg::lstsq: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    if (a.tensor.size(-2) >= a.tensor.size(-1)) {  // r x = q^T b
        const auto [q, r] = qr(a);
        return solve_triangular(In(r, a.loc), In(matmul(mt(q), b), a.loc), true);
    }
    const Tensor turned = mt(a.tensor);  // a = r^T q^T: x = q r^-T b
    const auto [q, r] = qr(In(turned, a.loc));
    return matmul(q, solve_triangular(In(mt(r), a.loc), b, false));
}

Tensor pinv(In a, double rtol) {
    const detail::ComposedOp composed("linalg::pinv");
    check_matrices("linalg::pinv", a, false);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return pinv(In(in[0], a.loc), rtol); };
        if (Tensor y = detail::in_group({linalg_pinv_op, a.loc, {&a.tensor}, detail::batch_key(rtol)}, of_group); y.defined()) return y;
    }
    begin(linalg_pinv_op, a);
    Tensor p;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        const auto [u, s, vh] = svd_of(a, 'S');
        const Tensor counted = is_counted(s, rtol < 0 ? default_tolerance(a.tensor) : rtol);
        const Tensor inverse = where(counted, reciprocal(where(counted, s, 1)), 0);
        p = matmul(mt(vh) * unsqueeze(inverse, -2), mt(u));
    }
    record(linalg_pinv_op, a.loc, {&a.tensor}, p, {&a.tensor, &p}, RankAttrs{rtol});
    return p;
}

Tensor matrix_rank(In a, double rtol) {
    const detail::ComposedOp composed("linalg::matrix_rank");
    check_matrices("linalg::matrix_rank", a, false);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return matrix_rank(In(in[0], a.loc), rtol); };
        if (Tensor y = detail::in_group({linalg_matrix_rank_op, a.loc, {&a.tensor}, detail::batch_key(rtol)}, of_group); y.defined()) return y;
    }
    begin(linalg_matrix_rank_op, a);
    const CallerScope caller(a.loc);
    return unrecorded_op(
        linalg_matrix_rank_op, a.loc, {&a.tensor},
        [&] {
            const Tensor s = svd_of(a, 'N').s;
            return sum(is_counted(s, rtol < 0 ? default_tolerance(a.tensor) : rtol), {-1});
        },
        RankAttrs{rtol});
}

Tensor vector_norm(In x, double p, const Dims& dims, Flag keepdim) { return reduction::norm_of("linalg::vector_norm", x, p, dims, keepdim); }
Tensor norm(In x) { return reduction::norm_of("linalg::norm", x, 2, {}, false); }

namespace {

Tensor norm_of_matrices(const char* op, const In& a, const NormOrd& ord, const Dims& dims, bool keepdim) {
    check_matrices(op, a, false);
    if (dims.rank() != 2) fail<ShapeError>(a.loc, "{}: the norm of matrices is over two dimensions, got {}", op, dims);
    const int rank = a.tensor.dim(), rows = detail::wrap_dim(dims[0], rank, op, a.loc), columns = detail::wrap_dim(dims[1], rank, op, a.loc);
    if (rows == columns) fail<IndexError>(a.loc, "{}: dimension {} is named twice", op, rows);
    const std::string word = ord.word() ? ord.word() : "";
    const double size = std::abs(ord.number());
    if (ord.word() ? word != "fro" && word != "nuc" : size != 1 && size != 2 && !std::isinf(size)) {
        fail<ValueError>(a.loc, "{}: of matrices, ord is \"fro\", \"nuc\", 1, 2, infinity or minus these, not {}", op,
                         ord.word() ? '"' + word + '"' : fmt::format("{}", ord.number()));
    }
    const detail::RecordedParts parts(a.loc);
    if (word == "fro") return tapir::norm(a, 2, {rows, columns}, keepdim);
    const Tensor matrices = movedim(a, {rows, columns}, {-2, -1});
    Tensor values;
    if (ord.word() || size == 2) {
        values = svdvals(matrices);
    } else {
        values = sum(abs(matrices), {size == 1 ? -2 : -1});
    }
    values = ord.word() ? sum(values, {-1}) : ord.number() > 0 ? amax(values, {-1}) : amin(values, {-1});
    return keepdim ? unsqueeze(unsqueeze(values, std::min(rows, columns)), std::max(rows, columns)) : values;
}

}  // namespace

Tensor matrix_norm(In a, NormOrd ord, const Dims& dims, Flag keepdim) {
    const detail::ComposedOp composed("linalg::matrix_norm");
    return norm_of_matrices("linalg::matrix_norm", a, ord, dims, keepdim);
}

Tensor norm(In x, NormOrd ord, const Dims& dims, Flag keepdim) {
    const detail::ComposedOp composed("linalg::norm");
    detail::check_defined(x, "linalg::norm");
    const int rank = x.tensor.dim();
    if (dims.empty() ? rank != 1 && rank != 2 : dims.rank() > 2) {
        fail<ShapeError>(x.loc, "linalg::norm: needs a vector or a matrix, or one or two dimensions; got shape {} and dimensions {}",
                         x.tensor.shape(), dims);
    }
    if (dims.rank() == 2 || (dims.empty() && rank == 2)) {
        return norm_of_matrices("linalg::norm", x, ord, dims.empty() ? Dims{0, 1} : dims, keepdim);
    }
    if (ord.word()) fail<ValueError>(x.loc, "linalg::norm: \"{}\" is a norm of matrices, but this is one of vectors", ord.word());
    return reduction::norm_of("linalg::norm", x, ord.number(), dims, keepdim);
}

}  // namespace linalg
// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tensor> qr_of(const Tensor& a, QRMode mode) {
    const char* const words[] = {"reduced", "complete", "r"};
    return list(linalg::qr(a, words[static_cast<int>(mode)]));
}
std::vector<Tensor> eigh_of(const Tensor& a) {
    const auto [values, vectors] = linalg::eigh(a);
    return {values, vectors};
}
std::vector<Tensor> svd_of(const Tensor& a, bool full_matrices) {
    const auto [u, s, vh] = linalg::svd(a, full_matrices);
    return {u, s, vh};
}

ResultTypes types_of(const ValueType& x, QRMode mode) {
    using namespace types;
    const SymInt &n = size_of(ranked(x, 2), -2), &m = size_of(x, -1), k = mode == QRMode::complete ? n : smaller(n, m);
    const ValueType q = shaped(x, leading(x, 2, {n, k})), r = shaped(x, leading(x, 2, {k, m}));
    return mode == QRMode::r ? ResultTypes(r) : ResultTypes{q, r};
}

ResultTypes types_of(const ValueType& x, const SVDAttrs& a) {
    using namespace types;
    const SymInt &n = size_of(ranked(x, 2), -2), &m = size_of(x, -1), k = smaller(n, m);
    const ValueType u = shaped(x, leading(x, 2, {n, a.full_matrices ? n : k})), vh = shaped(x, leading(x, 2, {a.full_matrices ? m : k, m}));
    return {u, shaped(x, leading(x, 2, {k})), vh};
}

}  // namespace

TAPIR_PLAIN_FORM(linalg_cholesky, 1, same(square(t[0])), linalg::cholesky(x[0]));
TAPIR_FORM(linalg_qr, 1, QRMode, types_of(t[0], a), qr_of(x[0], a), f("mode", a, {"reduced", "complete", "r"}));
TAPIR_PLAIN_FORM(linalg_eigh, 1, several(shaped(t[0], leading(square(t[0]), 1)), same(t[0])), eigh_of(x[0]));
TAPIR_PLAIN_FORM(linalg_eigvalsh, 1, shaped(t[0], leading(square(t[0]), 1)), linalg::eigvalsh(x[0]));
TAPIR_FORM(linalg_svd, 1, SVDAttrs, types_of(t[0], a), svd_of(x[0], a.full_matrices), f("full_matrices", a.full_matrices));
TAPIR_PLAIN_FORM(linalg_svdvals, 1, types_of(t[0], SVDAttrs{})[1], linalg::svdvals(x[0]));
TAPIR_FORM(linalg_pinv, 1, RankAttrs, swapped(ranked(t[0], 2), -1, -2), linalg::pinv(x[0], a.rtol), f("rtol", a.rtol));
TAPIR_FORM(linalg_matrix_rank, 1, RankAttrs, shaped(t[0], leading(t[0], 2), DType::int64), linalg::matrix_rank(x[0], a.rtol), f("rtol", a.rtol));

}  // namespace tapir
