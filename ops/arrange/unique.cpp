// unique: sorts, marks the first of each run, and reads off the rest. It runs on any device, since its parts do.
#include "tapir/ops/arrange/unique.h"
#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/ops/scan/scan.h"
#include "tapir/ops/told_impl.h"
#include "tapir/ops/view/view.h"

namespace tapir {

TAPIR_OP(unique, NonDiff, "The distinct elements in ascending order.", TAPIR_SAMPLE_AS("i(20)<6", "unique(x[0])", unique(x[0]).values),
         TAPIR_SAMPLE_AS("i(3,4)<5", "unique(x[0], True, True)[1]", unique(x[0], true, true).inverse),
         TAPIR_SAMPLE_AS("i(3,4)<5", "unique(x[0], True, False, True)[1]", unique(x[0], true, false, true).counts),
         TAPIR_SAMPLE_AS("d(3,4)", "unique(x[0])", unique(x[0]).values));
TAPIR_OP(unique_consecutive, NonDiff, "The first of each run of equal elements.",
         TAPIR_SAMPLE_AS("i(20)<2", "unique_consecutive(x[0])", unique_consecutive(x[0]).values),
         TAPIR_SAMPLE_AS("i(3,7)<2", "unique_consecutive(x[0], return_inverse=True)[1]", unique_consecutive(x[0], true).inverse),
         TAPIR_SAMPLE_AS("b(19)", "unique_consecutive(x[0], return_counts=True)[1]", unique_consecutive(x[0], false, true).counts));

namespace {

struct UniqueCall {
    bool return_inverse = false, return_counts = false;
};

// Returns the results that were asked for.
std::vector<Tensor> results_of(const UniqueResult& result) {
    std::vector<Tensor> list{result.values};
    if (result.inverse.defined()) list.push_back(result.inverse);
    if (result.counts.defined()) list.push_back(result.counts);
    return list;
}

// Finds the runs of equal neighbours in a 1-d tensor.
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
    UniqueResult result;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        const Tensor& t = x.tensor;
        const std::int64_t n = t.numel();
        const auto [sorted, order] = sort(reshape(t, {n}));
        result = runs(sorted, return_inverse, return_counts);
        if (return_inverse) result.inverse = reshape(scatter(zeros_like(order), 0, order, result.inverse), t.shape());
    }
    if (detail::is_watched()) {
        tell_of(unique_op, x.loc, {x.tensor}, results_of(result), UniqueCall{return_inverse, return_counts});
    }
    return result;
}

UniqueResult unique_consecutive(In x, bool return_inverse, bool return_counts) {
    detail::check_defined(x, "unique_consecutive");
    const CallerScope caller(x.loc);
    UniqueResult result;
    {
        const detail::UnrecordedPartsOf parts(x.loc);
        result = runs(reshape(x, {-1}), return_inverse, return_counts);
        if (return_inverse) result.inverse = reshape(result.inverse, x.tensor.shape());
    }
    if (detail::is_watched()) {
        tell_of(unique_consecutive_op, x.loc, {x.tensor}, results_of(result), UniqueCall{return_inverse, return_counts});
    }
    return result;
}

// --- Methods -----------------------------------------------------------------------------------------------------------

UniqueResult Tensor::unique(bool sorted, bool return_inverse, bool return_counts, Loc loc) const {
    return tapir::unique(In(*this, loc), sorted, return_inverse, return_counts);
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

// Returns the types of the values and the counts; the inverse has the input's shape.
[[maybe_unused]] static ResultTypes types_of(const ValueType& x, const UniqueCall& a) {
    ResultTypes results{types::shaped(x, {types::unknown()})};
    if (a.return_inverse) results.push_back(types::same(x, DType::int64));
    if (a.return_counts) results.push_back(types::shaped(x, {types::unknown()}, DType::int64));
    return results;
}
static std::uint64_t data_sized(const UniqueCall& a) { return 1 | (a.return_counts ? (a.return_inverse ? 4 : 2) : 0); }

TAPIR_DATA_SIZED_FORM(unique, 1, UniqueCall, types_of(t[0], a), data_sized(a), results_of(unique(x[0], true, a.return_inverse, a.return_counts)),
                      f("return_inverse", a.return_inverse)("return_counts", a.return_counts));
TAPIR_DATA_SIZED_FORM(unique_consecutive, 1, UniqueCall, types_of(t[0], a), data_sized(a),
                      results_of(unique_consecutive(x[0], a.return_inverse, a.return_counts)),
                      f("return_inverse", a.return_inverse)("return_counts", a.return_counts));

}  // namespace tapir
