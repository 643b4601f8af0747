// What ops give in float16 and bfloat16 beside float64 of the same inputs, in units in the last place of the 16-bit result: an op rounds
// once, at its end. What it computes on the way is float32, whose errors are too small to be seen in 16 bits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "samples.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/tapir.h"

using namespace tapir;
using tapir::test::Call;

namespace {

// The distance between neighbours at x.
double ulp(double x, DType dtype) {
    const int digits = dtype == float16 ? 11 : 8, least = dtype == float16 ? -14 : -126;
    const int exponent = x == 0 ? least : std::max(std::ilogb(x), least);
    return std::ldexp(1.0, exponent - digits + 1);
}

// How far `have` is from `want`, both finite or both the same infinity or nan; infinity where they are not.
double ulps(double have, double want, DType dtype) {
    if (std::isnan(want) || std::isnan(have)) return std::isnan(want) && std::isnan(have) ? 0 : HUGE_VAL;
    const double largest = dtype == float16 ? 65520 : 0x1.ffp127;  // from here on numbers round to infinity
    if (std::isinf(have)) return std::abs(want) >= largest && (have > 0) == (want > 0) ? 0 : HUGE_VAL;
    return std::abs(have - want) / ulp(want, dtype);
}

bool is_elementwise(const Call& call) {
    return std::any_of(std::begin(elementwise_ops), std::end(elementwise_ops), [&](const ElementwiseOp& op) { return &op.info == call.op; });
}

std::vector<Tensor> cast(const std::vector<Tensor>& inputs, DType dtype) {
    std::vector<Tensor> result;
    for (const Tensor& x : inputs) result.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
    return result;
}

}  // namespace

// What rounds more than once on purpose.
bool rounds_more(const Call& call) {
    return call.torch.find("stepped(") == 0;  // two steps of an optimizer, between which the parameter has 16 bits
}

TEST_CASE("ops of 16-bit floats round once", "[ops]") {
    for (const Call& call : test::all_calls()) {
        if (call.torch == "random" || call.extreme || call.wide_only || rounds_more(call)) continue;
        for (const DType dtype : {float16, bfloat16}) {
            INFO(call.name << ": " << call.code << " of " << call.inputs << " in " << name(dtype));
            const std::vector<Tensor> rounded = cast(test::make_inputs(call), dtype);
            const std::vector<Tensor> want = call.run(cast(rounded, float64)), have = call.run(rounded);
            REQUIRE(have.size() == want.size());
            double worst = 0;
            for (std::size_t k = 0; k < want.size(); ++k) {
                if (!is_floating(want[k].dtype())) {
                    CHECK(have[k].to_vector<double>() == want[k].to_vector<double>());
                    continue;
                }
                const std::vector<double> a = have[k].to_vector<double>(), b = want[k].to_vector<double>();
                for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, ulps(a[i], b[i], dtype));
            }
            CHECK(worst <= (is_elementwise(call) ? 1 : 2));
        }
    }
}
