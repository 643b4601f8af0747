// Systems of equations, inverses and determinants. The gradients are formulas of public ops, after Giles 2008 ("An extended
// collection of matrix derivative results"). linalg_impl.h declares the routines that compute.
#include "tapir/ops/linalg/linalg_solve.h"
#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/broadcast_impl.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/arrange.h"
#include "tapir/ops/arrange/combine.h"
#include "tapir/ops/batch/batched_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/linalg/linalg.h"
#include "tapir/ops/linalg/linalg_impl.h"
#include "tapir/ops/linear/matmul.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/view/view.h"

namespace tapir {
namespace {

using std::int64_t;
using namespace matrices;

void solve_rule(Backward& b);
void solve_triangular_rule(Backward& b);
void inv_rule(Backward& b);
void det_rule(Backward& b);
void slogdet_rule(Backward& b);

// For samples.
std::vector<Tensor> list(const linalg::SlogdetResult& r) { return {r.sign, r.logabsdet}; }

}  // namespace

TAPIR_OP(linalg_solve, solve_rule, "The x with a x = b.", TAPIR_SAMPLE_AS("f(3,3) f(3,2)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,3,3) f(2,3)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(2,1,2,2) f(3,2,4)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])),
         TAPIR_SAMPLE_AS("f(3,3) f(3)", "linalg.solve(x[0], x[1])", linalg::solve(x[0], x[1])));
TAPIR_OP(linalg_solve_triangular, solve_triangular_rule, "The x with a x = b for a triangular a.",
         TAPIR_SAMPLE_AS("u(3,3) f(3,2)", "linalg.solve_triangular(x[0], x[1], upper=True)", linalg::solve_triangular(x[0], x[1], true)),
         TAPIR_SAMPLE_AS("u(2,3,3) f(2,3)", "linalg.solve_triangular(x[0], x[1], upper=False, left=False)",
                         linalg::solve_triangular(x[0], x[1], false, false)),
         TAPIR_SAMPLE_AS("f(3,3) f(3,2)", "linalg.solve_triangular(x[0], x[1], upper=False, unitriangular=True)",
                         linalg::solve_triangular(x[0], x[1], false, true, true)));
TAPIR_OP(linalg_inv, inv_rule, "The inverse.", TAPIR_SAMPLE_AS("f(3,3)", "linalg.inv(x[0])", linalg::inv(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,2)", "linalg.inv(x[0])", linalg::inv(x[0])),
         TAPIR_SAMPLE_AS("f(3,3)", "linalg.matrix_power(x[0], 5)", linalg::matrix_power(x[0], 5)),
         TAPIR_SAMPLE_AS("f(2,2)", "linalg.matrix_power(x[0], -3)", linalg::matrix_power(x[0], -3)));
TAPIR_OP(linalg_det, det_rule, "The determinant.", TAPIR_SAMPLE_AS("f(3,3)", "linalg.det(x[0])", linalg::det(x[0])),
         TAPIR_SAMPLE_AS("f(2,2,4,4)", "linalg.det(x[0])", linalg::det(x[0])));
TAPIR_OP(linalg_slogdet, slogdet_rule, "The sign of the determinant, and log |det|.",
         TAPIR_SAMPLE_AS("f(3,3)", "linalg.slogdet(x[0])", list(linalg::slogdet(x[0]))),
         TAPIR_SAMPLE_AS("f(2,3,3)", "linalg.slogdet(x[0])", list(linalg::slogdet(x[0]))));

namespace {

// Broadcasts both to one batch.
void broadcast_batches(const char* op, Tensor& a, Tensor& b, const Loc& loc) {
    if (!detail::do_broadcast(batch_of(a), batch_of(b))) {
        fail<ShapeError>(loc, "{}: the batches of a of shape {} and b of shape {} do not broadcast", op, a.shape(), b.shape());
    }
    const Shape batch = broadcast_shapes(batch_of(a), batch_of(b), op, loc);
    a = expand(a, with_sizes(batch, {a.size(-2), a.size(-1)}));
    b = expand(b, with_sizes(batch, {b.size(-2), b.size(-1)}));
}

// --- Systems of equations ------------------------------------------------------------------------------------------------------

Tensor solve_matrices(const In& a, const In& b) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor left = detail::aligned(in, 0, 2), right = detail::aligned(in, 1, 2);
            return solve_matrices(In(left, a.loc), In(right, b.loc));
        };
        if (Tensor y = detail::in_group({linalg_solve_op, a.loc, {&a.tensor, &b.tensor}}, of_group); y.defined()) return y;
    }
    begin(linalg_solve_op, a);
    Tensor x;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        Tensor left = a.tensor, right = b.tensor;
        broadcast_batches("linalg::solve", left, right, a.loc);
        const Tensor columns = columns_of(right);
        if (const Stopped stopped = lu_solve(columns_of(left), columns); stopped.any()) {
            fail_singular("linalg::solve", left, stopped.first(), a.loc);
        }
        x = result_of(columns, a->device);
    }
    record(linalg_solve_op, a.loc, {&a.tensor, &b.tensor}, x, {&a.tensor, &x});
    return x;
}

// dx = a^-1 (db - da x)
void solve_rule(Backward& b) {
    const Tensor a = b.saved(0), x = b.saved(1);
    const Tensor g = linalg::solve(In(mt(a), b.record().loc), b.grad());
    b.give(1, g);
    if (b.needs(0)) b.give(0, -matmul(g, mt(x)));
}

struct TriangularAttrs {
    bool upper, unit;
};

Tensor solve_triangles(const In& a, const In& b, const TriangularAttrs& attrs) {
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor left = detail::aligned(in, 0, 2), right = detail::aligned(in, 1, 2);
            return solve_triangles(In(left, a.loc), In(right, b.loc), attrs);
        };
        const detail::BatchKey key = detail::batch_key(attrs.upper, attrs.unit);
        if (Tensor y = detail::in_group({linalg_solve_triangular_op, a.loc, {&a.tensor, &b.tensor}, key}, of_group); y.defined()) return y;
    }
    begin(linalg_solve_triangular_op, a);
    Tensor x;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        Tensor left = a.tensor, right = b.tensor;
        broadcast_batches("linalg::solve_triangular", left, right, a.loc);
        const Tensor columns = columns_of(right);
        triangular_solve(columns_of(left), columns, attrs.upper, attrs.unit);
        x = result_of(columns, a->device);
    }
    record(linalg_solve_triangular_op, a.loc, {&a.tensor, &b.tensor}, x, {&a.tensor, &x}, attrs);
    return x;
}

void solve_triangular_rule(Backward& b) {
    const auto attrs = b.attrs<TriangularAttrs>();
    const Tensor a = b.saved(0), x = b.saved(1), turned = mt(a);
    const Tensor g = solve_triangles(In(turned, b.record().loc), In(b.grad(), b.record().loc), {!attrs.upper, attrs.unit});
    b.give(1, g);
    if (!b.needs(0)) return;
    const Tensor of_a = -matmul(g, mt(x));
    const int64_t diagonal = attrs.unit ? 1 : 0;
    b.give(0, attrs.upper ? triu(of_a, diagonal) : tril(of_a, -diagonal));
}

// d(a^-1) = -a^-1 da a^-1
void inv_rule(Backward& b) {
    const Tensor x = mt(b.saved(0));
    b.give(0, -matmul(x, matmul(b.grad(), x)));
}

// --- Determinants --------------------------------------------------------------------------------------------------------------

// d det = det tr(a^-1 da)
Tensor times_inverse(const Tensor& g, const Tensor& a, const Loc& loc) { return unsqueeze(unsqueeze(g, -1), -1) * mt(linalg::inv(In(a, loc))); }
// Returns the transposed adjugate, for singular matrices too: for u diag(s) vh, det(u) det(vh) u diag(products of the other s) vh.
Tensor cofactors(const Tensor& a, const Loc& loc) {
    const auto [u, s, vh] = linalg::svd(In(a, loc), /*full_matrices=*/false);
    const Tensor is_own = eye(s.size(-1), -1, {bool_, s.device()});
    const Tensor others = prod(where(is_own, 1, unsqueeze(s, -2)), -1);
    const Tensor sign = linalg::det(In(u, loc)) * linalg::det(In(vh, loc));
    return unsqueeze(unsqueeze(sign, -1), -1) * matmul(u * unsqueeze(others, -2), vh);
}
void det_rule(Backward& b) {
    if (!b.needs(0)) return;
    const Tensor a = b.saved(0), det = b.saved(1), &g = b.grad();
    if (!b.recording() && any(eq(det, 0)).item<bool>()) return b.give(0, unsqueeze(unsqueeze(g, -1), -1) * cofactors(a, b.record().loc));
    b.give(0, times_inverse(g * det, a, b.record().loc));
}
void slogdet_rule(Backward& b) {
    if (b.needs(0) && b.grad(1).defined()) b.give(0, times_inverse(b.grad(1), b.saved(0), b.record().loc));
}

}  // namespace

namespace linalg {

Tensor solve(In a, In b) {
    check_matrices("linalg::solve", a, true);
    detail::check_defined(b, "linalg::solve");
    check_alike("linalg::solve", a, b);
    const bool is_vector = b.tensor.dim() == 1 || (b.tensor.dim() + 1 == a.tensor.dim() && b.tensor.shape() == batch_of(a.tensor, 1));
    if (b.tensor.dim() < 1 || b.tensor.size(is_vector ? -1 : -2) != a.tensor.size(-1)) {
        fail<ShapeError>(a.loc, "linalg::solve: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    if (!is_vector) return solve_matrices(a, b);
    const detail::RecordedParts parts(a.loc);
    const Tensor columns = unsqueeze(b, -1);
    return squeeze(solve_matrices(a, In(columns, a.loc)), -1);
}

Tensor solve_triangular(In a, In b, bool upper, bool left, bool unitriangular) {
    check_matrices("linalg::solve_triangular", a, true);
    check_matrices("linalg::solve_triangular", b, false);
    check_alike("linalg::solve_triangular", a, b);
    if (b.tensor.size(left ? -2 : -1) != a.tensor.size(-1)) {
        fail<ShapeError>(a.loc, "linalg::solve_triangular: a of shape {} does not fit b of shape {}", a.tensor.shape(), b.tensor.shape());
    }
    if (left) return solve_triangles(a, b, {upper, unitriangular});
    const detail::RecordedParts parts(a.loc);
    const Tensor at = mt(a.tensor), bt = mt(b.tensor);  // a^T x^T = b^T
    return mt(solve_triangles(In(at, a.loc), In(bt, a.loc), {!upper, unitriangular}));
}

Tensor inv(In a) {
    check_matrices("linalg::inv", a, true);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return inv(In(in[0], a.loc)); };
        if (Tensor y = detail::in_group({linalg_inv_op, a.loc, {&a.tensor}}, of_group); y.defined()) return y;
    }
    begin(linalg_inv_op, a);
    Tensor x;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        // The inverse of the transposed is the transposed inverse: rows can be taken as columns.
        const Tensor lu = columns_of(mt(a.tensor)), inverse = zeros_like(lu);
        if (const Stopped stopped = invert(lu, inverse); stopped.any()) fail_singular("linalg::inv", a.tensor, stopped.first(), a.loc);
        x = inverse.to(a->device);
    }
    record(linalg_inv_op, a.loc, {&a.tensor}, x, {&x});
    return x;
}

Tensor det(In a) {
    check_matrices("linalg::det", a, true);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return det(In(in[0], a.loc)); };
        if (Tensor y = detail::in_group({linalg_det_op, a.loc, {&a.tensor}}, of_group); y.defined()) return y;
    }
    begin(linalg_det_op, a);
    Tensor d;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        d = determinants(columns_of(a.tensor)).det.to(a->device);
    }
    record(linalg_det_op, a.loc, {&a.tensor}, d, {&a.tensor, &d});
    return d;
}

SlogdetResult slogdet(In a) {
    check_matrices("linalg::slogdet", a, true);
    SlogdetResult result;
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) { return slogdet(In(in[0], a.loc)); };
        const detail::BatchCall call(linalg_slogdet_op, a.loc, {&a.tensor});
        if (detail::in_group(call, of_group, result, &SlogdetResult::sign, &SlogdetResult::logabsdet)) return result;
    }
    begin(linalg_slogdet_op, a);
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        const Determinants all = determinants(columns_of(a.tensor));
        result = {all.sign.to(a->device), all.logarithm.to(a->device)};
    }
    record_many(linalg_slogdet_op, a.loc, {a.tensor}, {result.sign, result.logabsdet}, {a.tensor});
    return result;
}

Tensor logdet(In a) {
    detail::check_defined(a, "linalg::logdet");
    const detail::RecordedParts parts(a.loc);
    const SlogdetResult result = slogdet(a);
    return where(lt(result.sign, 0), std::nan(""), result.logabsdet);
}

Tensor matrix_power(In a, int64_t n) {
    const detail::ComposedOp composed("linalg::matrix_power");
    detail::check_defined(a, "linalg::matrix_power");
    if (a.tensor.dim() < 2 || a.tensor.size(-1) != a.tensor.size(-2)) {
        fail<ShapeError>(a.loc, "linalg::matrix_power: needs square matrices, got shape {}", a.tensor.shape());
    }
    const detail::RecordedParts parts(a.loc);
    if (n == 0) return clone(expand(eye(a.tensor.size(-1), -1, {a->dtype, a->device}), a.tensor.shape()));
    Tensor square = n < 0 ? inv(a) : a.tensor, product;
    for (auto left = n < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(n) : static_cast<std::uint64_t>(n);;) {
        if (left & 1) product = product.defined() ? matmul(product, square) : square;
        left >>= 1;
        if (left == 0) break;
        square = matmul(square, square);
    }
    return product.is_same(a.tensor) ? clone(product) : product;
}

}  // namespace linalg
// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// Checks a x = b, in one batch.
ValueType solved_matrices(const TypeCall& t) {
    using namespace types;
    const ValueType &a = square(t[0]), &b = ranked(t[1], 2);
    need(may_equal(size_of(b, -2), size_of(a, -1)), "a does not fit b");
    return shaped(b, appended(broadcast(leading(a, 2), leading(b, 2)), b, b.rank() - 2));
}

// b may be a vector, or a batch of vectors.
ResultTypes solved(const TypeCall& t) {
    using namespace types;
    const ValueType &a = square(t[0]), &b = ranked(t[1], 1);
    const bool may_be_vectors = b.rank() + 1 == a.rank() && may_equal(b.shape, leading(a, 1));
    if (b.rank() > 1 && !may_be_vectors) return solved_matrices(t);
    if (b.rank() > 1 && !(b.shape == leading(a, 1))) return unstated();
    need(may_equal(size_of(b, -1), size_of(a, -1)), "a does not fit b");
    return shaped(b, leading(a, 2, {size_of(b, -1)}));
}

}  // namespace

TAPIR_PLAIN_FORM(linalg_solve, 2, solved(t), linalg::solve(x[0], x[1]));
TAPIR_FORM(linalg_solve_triangular, 2, TriangularAttrs, solved_matrices(t), linalg::solve_triangular(x[0], x[1], a.upper, /*left=*/true, a.unit),
           f("upper", a.upper)("unitriangular", a.unit));
TAPIR_PLAIN_FORM(linalg_inv, 1, same(square(t[0])), linalg::inv(x[0]));
TAPIR_PLAIN_FORM(linalg_det, 1, shaped(t[0], leading(square(t[0]), 2)), linalg::det(x[0]));
TAPIR_PLAIN_FORM(linalg_slogdet, 1, several(shaped(t[0], leading(square(t[0]), 2)), shaped(t[0], leading(t[0], 2))), list(linalg::slogdet(x[0])));

}  // namespace tapir
