// Reading a tensor's elements.
#include "tapir/core/values_impl.h"

#include <cmath>
#include <limits>

#include "tapir/core/fail_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

double largest_of(DType dtype) noexcept {
    switch (dtype) {
        case DType::float16: return 65504;
        case DType::bfloat16: return 0x1.fep127;
        case DType::float32: return std::numeric_limits<float>::max();
        default: return std::numeric_limits<double>::max();
    }
}

Values values_of(const Tensor& x) {
    const PauseRecording pause;
    const PartsOfOp parts;
    const Tensor here = x.to(cpu).to(float64).contiguous();
    const auto* element = static_cast<const double*>(here.raw_data());
    Values v;
    v.numel = here.numel();
    double sum = 0;
    for (std::int64_t i = 0; i < v.numel; ++i) {
        const double e = element[i];
        if (!std::isfinite(e)) {
            ++(std::isnan(e) ? v.nan : v.inf);
            v.negatives += e < 0;
            continue;
        }
        if (v.nan + v.inf == i || e < v.min) v.min = e;
        if (v.nan + v.inf == i || e > v.max) v.max = e;
        v.zeros += e == 0;
        v.negatives += e < 0;
        sum += e;
    }
    if (v.finite() > 0) v.mean = sum / static_cast<double>(v.finite());
    return v;
}

std::string describe(const Tensor& x, const Values& v) {
    std::string text = fmt::format("{} {}", name(x.dtype()), x.shape());
    const char* separator = ": ";
    const auto add = [&](const std::string& what) {
        text += separator + what;
        separator = ", ";
    };
    const auto count = [&](std::int64_t n, const char* one, const char* many) {
        if (n > 0) add(fmt::format("{} {}", n, n == 1 ? one : many));
    };
    if (v.finite() > 0) add(fmt::format("min {:.6g}, max {:.6g}, mean {:.6g}", v.min, v.max, v.mean));
    count(v.zeros, "zero", "zeros");
    count(v.nan, "nan", "nan");
    count(v.inf, "inf", "inf");
    if (v.nan + v.inf > 0) text += fmt::format(" of {} element{}", v.numel, v.numel == 1 ? "" : "s");
    if (v.numel == 0) add("no elements");
    return text;
}

bool is_readable(const Tensor& x) noexcept { return x.impl()->device == cpu && !is_tracing(); }

bool fits(Scalar value, DType dtype) noexcept {
    if (dtype == bool_ || value.kind() == Scalar::Kind::boolean) return true;
    const double number = value.as_double();
    if (is_floating(dtype)) {  // numbers that round to the largest one fit
        const auto real = static_cast<float>(number);
        const float rounded = dtype == float16 ? static_cast<float>(Half(real)) : dtype == bfloat16 ? static_cast<float>(BFloat16(real)) : real;
        return dtype == float64 || !std::isfinite(number) || std::isfinite(rounded);
    }
    const bool is_whole = value.kind() == Scalar::Kind::integer;
    if (dtype == int64) return is_whole || (number >= -0x1p63 && number < 0x1p63);
    if (dtype == int32) return number > -0x1p31 - 1 && number < 0x1p31;
    return number < 256 && (is_whole ? number > -256 : number >= 0);
}

void check_fits(const char* op, Scalar value, DType dtype, const Loc& loc) {
    if (fits(value, dtype)) [[likely]]
        return;
    const bool is_whole = value.kind() == Scalar::Kind::integer;
    const std::string number = is_whole ? fmt::format("{}", value.as_int64()) : fmt::format("{}", value.as_double());
    fail<ValueError>(loc, "{}: {} does not fit into {}", op, number, name(dtype));
}

std::string checked_word(const char* op, const char* word, const Loc& loc) {
    if (!word) fail<ValueError>(loc, "{}: a word that was given is a null pointer", op);
    return word;
}

}  // namespace tapir::detail
