// Floating types of 8 and 4 bits: the values of their codes, and rounding to them. float32 holds each exactly.
// E4M3FN, E5M2: Micikevicius et al. 2022; FNUZ: Noune et al. 2022; E2M1, E8M0: the OCP's microscaling formats, 2023.
#include <cmath>
#include <limits>

#include "tapir/autograd/trace/onnx/import_impl.h"
#include "tapir/autograd/trace/outside_trace_impl.h"
#include "tapir/ops/arrange/counting.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/mask.h"
#include "tapir/ops/index/gather.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

namespace tapir::detail {
namespace {

struct SmallFloat {
    int type, bits, mantissa, bias;
    bool is_signed;
    int nans;  // the number of largest codes that are nan; with has_infinity the code before is infinite
    bool has_infinity;
    bool is_unsigned_zero;  // the code of -0 is the only nan
};
constexpr SmallFloat kSmallFloats[] = {
    {onnx_types::kE4m3fn, 8, 3, 7, true, 1, false, false}, {onnx_types::kE4m3fnuz, 8, 3, 8, true, 0, false, true},
    {onnx_types::kE5m2, 8, 2, 15, true, 3, true, false},   {onnx_types::kE5m2fnuz, 8, 2, 16, true, 0, false, true},
    {onnx_types::kE2m1, 4, 1, 1, true, 0, false, false},   {onnx_types::kE8m0, 8, 0, 127, false, 1, false, false},
};

const SmallFloat* find(int type) noexcept {
    for (const SmallFloat& small : kSmallFloats) {
        if (small.type == type) return &small;
    }
    return nullptr;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// The value of a code without its sign, as if all codes were finite.
double magnitude(const SmallFloat& small, int code) {
    if (!small.is_signed) return std::ldexp(1.0, code - small.bias);
    const int fraction = code & ((1 << small.mantissa) - 1), exponent = code >> small.mantissa;
    const int whole = exponent == 0 ? 0 : 1 << small.mantissa;
    return std::ldexp(static_cast<double>(whole + fraction), std::max(exponent, 1) - small.bias - small.mantissa);
}

int codes(const SmallFloat& small) { return 1 << (small.is_signed ? small.bits - 1 : small.bits); }
int finite_codes(const SmallFloat& small) { return codes(small) - small.nans - (small.has_infinity ? 1 : 0); }

// The number from which on the next code is nearer.
double bound_after(const SmallFloat& small, int code, const std::string& round_mode) {
    const double here = magnitude(small, code), next = magnitude(small, code + 1), middle = (here + next) / 2;
    if (small.is_signed) return code % 2 == 0 ? std::nextafter(middle, kInfinity) : middle;
    return round_mode == "up" ? std::nextafter(here, kInfinity) : round_mode == "down" ? next : middle;
}

}  // namespace

int small_float_bits(int type) noexcept {
    const SmallFloat* small = find(type);
    return small ? small->bits : 0;
}

std::vector<float> small_float_values(int type) {
    const SmallFloat& small = *find(type);
    const int count = codes(small), finite = finite_codes(small);
    std::vector<float> values;
    for (int code = 0; code < 1 << small.bits; ++code) {
        const int unsigned_code = code % count;
        double value = unsigned_code < finite ? magnitude(small, unsigned_code) : small.has_infinity && unsigned_code == finite ? kInfinity : kNan;
        if (code >= count) value = small.is_unsigned_zero && unsigned_code == 0 ? kNan : -value;
        values.push_back(static_cast<float>(value));
    }
    return values;
}

Tensor small_float(const Tensor& x, int type, bool saturate, const std::string& round_mode) {
    const SmallFloat& small = *find(type);
    const int finite = finite_codes(small);
    std::vector<double> bounds;
    std::vector<float> values;
    for (int code = 0; code < finite; ++code) {
        bounds.push_back(bound_after(small, code, round_mode));
        values.push_back(static_cast<float>(magnitude(small, code)));
    }
    const bool has_no_other = small.nans == 0 && !small.is_unsigned_zero;
    values.push_back(saturate || has_no_other ? values.back() : static_cast<float>(small.has_infinity ? kInfinity : kNan));
    Tensor bound, value;
    {
        const OutsideTrace outside;
        bound = tensor(bounds, float64);
        value = tensor(values, float32);
    }
    const Tensor wide = x.to(float64), size = small.is_signed ? abs(wide) : clamp_min(wide, 0);
    const Tensor place = bucketize(size, bound, /*right=*/true);
    const Tensor flat = index_select(value, 0, reshape(clamp_max(place, finite), {-1}));
    Tensor y = reshape(flat, x.shape());
    if (small.is_signed) y = copysign(y, wide.to(float32));
    if (small.is_unsigned_zero) y = where(eq(y, 0), 0, y);
    if (!small.is_signed && !saturate) y = where(wide < magnitude(small, 0), kNan, y);
    return where(isnan(wide), has_no_other ? 0.0 : kNan, y);  // types without nan have 0 in its place
}

}  // namespace tapir::detail
