#include "tapir/ops/elementwise/compare.h"

#include <cmath>
#include <limits>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/op.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/composed_op_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/values_impl.h"
#include "tapir/ops/batch/rows_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

TAPIR_OP(isclose, NonDiff, "Equal within a tolerance.", TAPIR_SAMPLE("f(3,4) f(3,4)", isclose(x[0], x[1], 0.1, 0.5)),
         TAPIR_SAMPLE("i(3,4)<3 i(3,4)<3", isclose(x[0], x[1])),
         TAPIR_SAMPLE_AS("r(3,4)[-1,1] r(4)[-1,1]", "isclose(log(x[0]), log(x[1]), equal_nan=True)",
                         isclose(log(x[0]), log(x[1]), 1e-5, 1e-8, true)));
TAPIR_OP(nan_to_num, Composed, "Numbers in place of nan and infinities.", TAPIR_SAMPLE("r(3,4)[-1,1]", nan_to_num(log(x[0]))),
         TAPIR_SAMPLE("i(3,4)<3", nan_to_num((x[0] - 1) / 0.0, 1, 2, 3)), TAPIR_SAMPLE("f(3,4)", nan_to_num(x[0])));

namespace {

struct IscloseCall {
    double rtol = 1e-5, atol = 1e-8;
    bool equal_nan = false;
};

}  // namespace

Tensor isclose(In a, In b, double rtol, double atol, bool equal_nan) {
    const detail::ComposedOp composed("isclose");
    detail::check_defined(a, "isclose");
    detail::check_defined(b, "isclose");
    if (!(rtol >= 0 && atol >= 0)) fail<ValueError>(a.loc, "isclose: tolerances must not be negative, got {} and {}", rtol, atol);
    const CallerScope caller(a.loc);
    if (detail::in_batch()) [[unlikely]] {
        const auto of_group = [&](const detail::Batched& in) {
            const Tensor left = detail::aligned(in, 0, 2), right = detail::aligned(in, 1, 2);
            return isclose(In(left, a.loc), In(right, a.loc), rtol, atol, equal_nan);
        };
        const detail::BatchCall call(isclose_op, a.loc, {&a.tensor, &b.tensor}, detail::batch_key(rtol, atol, equal_nan), {.shared = 0b11});
        if (Tensor y = detail::in_group(call, of_group); y.defined()) return y;
    }
    Tensor result;
    {
        const detail::UnrecordedPartsOf parts(a.loc);
        Tensor close = eq(a, b);
        if (equal_nan) close = logical_or(close, logical_and(isnan(a), isnan(b)));
        const auto number = [](const Tensor& t) { return t.dtype() == bool_ ? t.to(int32) : t; };
        const Tensor distance = abs(number(a.tensor) - number(b.tensor));
        const Tensor allowed = abs(number(b.tensor)) * rtol + atol;
        result = logical_or(close, logical_and(isfinite(distance), le(distance, allowed)));
    }
    record(isclose_op, a.loc, {&a.tensor, &b.tensor}, result, {}, IscloseCall{rtol, atol, equal_nan});
    return result;
}

// Tells the trace that the answer depends on elements, as item()'s does.
static void note_reads(const char* what, const In& a, const In& b) {
    detail::note_read(what, a.tensor, a.loc);
    detail::note_read(what, b.tensor, a.loc);
}

bool allclose(In a, In b, double rtol, double atol, bool equal_nan) {
    const detail::ComposedOp composed("allclose");
    detail::check_defined(a, "allclose");
    detail::check_defined(b, "allclose");
    note_reads("allclose", a, b);
    const detail::UnrecordedPartsOf parts(a.loc);
    const Tensor close = isclose(a, b, rtol, atol, equal_nan);
    return all(close).item<bool>();
}

bool equal(In a, In b) {
    detail::check_defined(a, "equal");
    detail::check_defined(b, "equal");
    if (a.tensor.shape() != b.tensor.shape()) return false;
    note_reads("equal", a, b);
    const CallerScope caller(a.loc);
    const detail::UnrecordedPartsOf parts(a.loc);
    return all(eq(a, b)).item<bool>();
}

Tensor nan_to_num(In x, double nan, std::optional<double> posinf, std::optional<double> neginf) {
    detail::check_defined(x, "nan_to_num");
    const detail::RecordedParts parts(x.loc);
    if (!is_floating(x->dtype)) return clone(x);
    const double inf = std::numeric_limits<double>::infinity(), largest = detail::largest_of(x->dtype);
    const Tensor numbers = where(isnan(x), nan, x), lower = where(eq(x, inf), posinf.value_or(largest), numbers);
    return where(eq(x, -inf), neginf.value_or(-largest), lower);
}

// --- Methods -----------------------------------------------------------------------------------------------------------

Tensor Tensor::isclose(const Tensor& other, double rtol, double atol, bool equal_nan, Loc loc) const {
    return tapir::isclose(In(*this, loc), In(other, loc), rtol, atol, equal_nan);
}
bool Tensor::allclose(const Tensor& other, double rtol, double atol, bool equal_nan, Loc loc) const {
    return tapir::allclose(In(*this, loc), In(other, loc), rtol, atol, equal_nan);
}
bool Tensor::equal(const Tensor& other, Loc loc) const { return tapir::equal(In(*this, loc), In(other, loc)); }
Tensor Tensor::nan_to_num(double nan, Loc loc) const { return tapir::nan_to_num(In(*this, loc), nan); }
Tensor Tensor::nan_to_num(double nan, double posinf, double neginf, Loc loc) const { return tapir::nan_to_num(In(*this, loc), nan, posinf, neginf); }

// --- Forms -------------------------------------------------------------------------------------------------------------------

TAPIR_FORM(isclose, 2, IscloseCall, pointwise(t, DType::boolean), isclose(x[0], x[1], a.rtol, a.atol, a.equal_nan),
           f("rtol", a.rtol)("atol", a.atol)("equal_nan", a.equal_nan));

}  // namespace tapir
