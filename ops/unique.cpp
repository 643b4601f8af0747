// unique: sort, mark the first of each run, and read off the rest. On any device, since its parts are.
#include "tapir/autograd/backward_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/elementwise.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/make.h"
#include "tapir/ops/reduce.h"
#include "tapir/ops/view.h"

namespace tapir {

TAPIR_OP(unique, "Unique", NonDiff, "The distinct elements in ascending order.",
         TAPIR_SAMPLE_AS("i(20)<6", "unique(x[0])", unique(x[0]).values),
         TAPIR_SAMPLE_AS("i(3,4)<5", "unique(x[0], True, True)[1]", unique(x[0], true, true).inverse),
         TAPIR_SAMPLE_AS("i(3,4)<5", "unique(x[0], True, False, True)[1]", unique(x[0], true, false, true).counts),
         TAPIR_SAMPLE_AS("d(3,4)", "unique(x[0])", unique(x[0]).values));

namespace {

// Of neighbours that are equal in a 1-d tensor.
UniqueResult runs(const Tensor& t, bool return_inverse, bool return_counts) {
    const std::int64_t n = t.numel();
    Tensor is_first = ones({n}, {bool_, t.device()});
    if (n > 1) is_first.narrow(0, 1, n - 1).copy_(ne(t.narrow(0, 1, n - 1), t.narrow(0, 0, n - 1)));
    UniqueResult result;
    result.values = masked_select(t, is_first);
    if (return_inverse) result.inverse = cumsum(is_first, 0) - 1;
    if (return_counts) {
        const Tensor begins = reshape(nonzero(is_first), {-1});
        const Tensor ends = cat({begins, full({1}, n, {int64, t.device()})});
        result.counts = ends.narrow(0, n > 0 ? 1 : 0, begins.numel()) - begins;
    }
    return result;
}

}  // namespace

UniqueResult unique(In x, bool /*sorted*/, bool return_inverse, bool return_counts) {
    detail::check_defined(x, "unique");
    const CallerScope caller(x.loc);
    return unrecorded_op(unique_op, x.loc, {&x.tensor}, [&] {
        const Tensor& t = x.tensor;
        const std::int64_t n = t.numel();
        const auto [sorted, order] = sort(reshape(t, {n}));
        UniqueResult result = runs(sorted, return_inverse, return_counts);
        if (return_inverse) result.inverse = reshape(scatter(zeros_like(order), 0, order, result.inverse), t.shape());
        return result;
    });
}

UniqueResult unique_consecutive(In x, bool return_inverse, bool return_counts) {
    detail::check_defined(x, "unique_consecutive");
    const CallerScope caller(x.loc);
    const detail::UnrecordedParts parts;
    UniqueResult result = runs(reshape(x, {-1}), return_inverse, return_counts);
    if (return_inverse) result.inverse = reshape(result.inverse, x.tensor.shape());
    return result;
}

// --- Methods -----------------------------------------------------------------------------------------------------------

UniqueResult Tensor::unique(bool sorted, bool return_inverse, bool return_counts, Loc loc) const {
    return tapir::unique(In(*this, loc), sorted, return_inverse, return_counts);
}

}  // namespace tapir
