// Fits formulas to sizes.
//
// A size is assumed to be a sum of products of dimensions, each at most once in a product: c + a*batch + b*time + d*batch*time. On the
// corners of a box of sizes there is exactly one such sum, whose coefficients are differences between the corners. One sample
// outside of the box checks the assumption. Quotients of one dimension by small numbers are found too, single products of powers, and, for
// a single dimension, halves of polynomials with its square.
#include "tapir/autograd/trace/fit_impl.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/core/size_math_impl.h"

namespace tapir::detail {
namespace {

constexpr std::int64_t kStep = 1;    // from the given size to the box's other side
constexpr std::int64_t kBeyond = 5;  // and to the last sample; both differ modulo 2 and 3

// The whole numbers whose product with the factor (or the factor divided by them) gives these numbers. Empty: there are none.
std::vector<std::int64_t> wholes_of(const std::vector<double>& numbers, double factor, bool is_reciprocal, DType dtype) {
    std::vector<std::int64_t> wholes;
    for (const double number : numbers) {
        const double whole = std::round(is_reciprocal ? factor / number : number / factor);
        if (!(std::abs(whole) < 0x1p53) || rewrite::rounded(number_for(factor, whole, is_reciprocal), dtype) != number) return {};
        wholes.push_back(static_cast<std::int64_t>(whole));
    }
    return wholes;
}

// above / below: the first convergent of its continued fraction that is near enough.
std::optional<std::pair<std::int64_t, std::int64_t>> fraction_near(double number, std::int64_t most, double tolerance) {
    std::pair<std::int64_t, std::int64_t> last{1, 0}, fraction{0, 1};
    for (double rest = number; std::abs(rest) <= static_cast<double>(most);) {
        const double whole = std::floor(rest);
        const auto times = static_cast<std::int64_t>(whole);
        const std::pair<std::int64_t, std::int64_t> next{times * last.first + fraction.first, times * last.second + fraction.second};
        fraction = std::exchange(last, next);
        if (std::abs(last.first) > most || last.second > most) return std::nullopt;
        if (std::abs(static_cast<double>(last.first) / static_cast<double>(last.second) - number) <= tolerance * std::abs(number)) return last;
        rest = 1 / (rest - whole);
    }
    return std::nullopt;
}

// The smallest whole numbers with the same ratios as these numbers, or as their reciprocals. Empty: none can be told from
// rounding errors.
std::vector<std::int64_t> ratios_of(const std::vector<double>& numbers, bool is_reciprocal, DType dtype) {
    const std::int64_t most = dtype == float64 ? 1'000'000 : 2000;
    const double tolerance = dtype == float64 ? 1e-14 : 2.5e-7;
    std::vector<std::pair<std::int64_t, std::int64_t>> fractions;  // relative to the first number
    std::int64_t below_all = 1;
    for (const double number : numbers) {
        const auto fraction = fraction_near(is_reciprocal ? numbers[0] / number : number / numbers[0], most, tolerance);
        if (!fraction) return {};
        fractions.push_back(*fraction);
        below_all = std::lcm(below_all, fraction->second);
        if (below_all > most) return {};
    }
    std::vector<std::int64_t> wholes;
    std::int64_t common = 0;
    for (const auto& [above, below] : fractions) {
        wholes.push_back(above * (below_all / below));
        common = std::gcd(common, wholes.back());
    }
    if (common == 0) return {};
    for (std::int64_t& whole : wholes) whole /= common;
    return wholes;
}

// The shortest factor that reproduces each of the numbers.
std::optional<double> factor_of(const std::vector<double>& numbers, const std::vector<std::int64_t>& sizes, bool is_reciprocal, DType dtype) {
    const auto size = static_cast<double>(sizes[0]);
    const double near = is_reciprocal ? numbers[0] * size : numbers[0] / size;
    for (int digits = 1; digits <= 17; ++digits) {
        const double factor = std::strtod(fmt::format("{:.{}e}", near, digits - 1).c_str(), nullptr);
        bool is_right = true;
        for (std::size_t i = 0; i < numbers.size(); ++i)
            is_right &= rewrite::rounded(number_for(factor, static_cast<double>(sizes[i]), is_reciprocal), dtype) == numbers[i];
        if (is_right) return factor;
    }
    return std::nullopt;
}

// v + s m + t m (m - 1), with m the distance from the first size: s is the step to the second, 2 t a whole number.
std::optional<SymInt> with_square(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values) {
    const auto& [name, size] = *samples[0].begin();
    const std::int64_t beyond = samples[2].begin()->second - size, step = values[1] - values[0];
    const std::int64_t rest = 2 * (values[2] - values[0] - step * beyond), pairs = beyond * (beyond - 1);
    if (rest % pairs != 0) return std::nullopt;
    const SymInt more = SymInt::dim(name) + SymInt(-size), squares = more * (more + SymInt(-1));
    if (rest / pairs % 2 == 0) return SymInt(values[0]) + SymInt(step) * more + SymInt(rest / pairs / 2) * squares;
    return (SymInt(2 * values[0]) + SymInt(2 * step) * more + SymInt(rest / pairs) * squares).floor_div(2);
}

}  // namespace

std::vector<DimSizes> samples_of(const DimSizes& first, const DimSizes& far) {
    std::vector<DimSizes> samples;
    for (std::size_t corner = 0; corner < std::size_t{1} << first.size(); ++corner) {
        DimSizes sizes = first;
        std::size_t d = 0;
        for (auto& [name, size] : sizes) {
            if (corner >> d++ & 1) size += kStep;
        }
        samples.push_back(std::move(sizes));
    }
    if (first.empty()) return samples;
    DimSizes beyond = first;
    std::int64_t more = kBeyond;
    for (auto& [name, size] : beyond) {
        size += more;
        more += 6;  // another size for each, with the same remainders
    }
    samples.push_back(std::move(beyond));
    if (far.empty()) return samples;
    samples.push_back(first);
    for (const auto& [name, more_of_it] : far) samples.back().at(name) += more_of_it;
    return samples;
}

std::optional<SymInt> fit(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values) {
    const DimSizes& first = samples[0];
    const std::size_t dims = first.size(), corners = std::size_t{1} << dims;
    std::vector<std::int64_t> c(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(corners));
    for (std::size_t d = 0; d < dims; ++d) {  // differences along each dimension: the coefficients in (size - first size)
        for (std::size_t corner = 0; corner < corners; ++corner) {
            if (corner >> d & 1) c[corner] -= c[corner ^ (std::size_t{1} << d)];
        }
    }
    SymInt formula;
    for (std::size_t corner = 0; corner < corners; ++corner) {
        if (c[corner] == 0) continue;
        SymInt product(c[corner]);
        std::size_t d = 0;
        for (const auto& [name, size] : first) {
            if (corner >> d++ & 1) product = product * (SymInt::dim(name) + SymInt(-size));
        }
        formula = formula + product;
    }
    const auto is_right = [&](const SymInt& f) {
        for (std::size_t i = 0; i < samples.size(); ++i) {
            if (f.value(samples[i]) != values[i]) return false;
        }
        return true;
    };
    if (is_right(formula)) return formula;
    // (a d + b) // q + r, with 0 <= b < q and a small.
    for (const auto& [name, size] : first) {
        for (std::int64_t q = 2; q <= 3; ++q) {
            for (std::int64_t a = 1; a < q; ++a) {
                for (std::int64_t b = 0; b < q; ++b) {
                    const SymInt quotient = (SymInt(a) * SymInt::dim(name) + SymInt(b)).floor_div(q);
                    const SymInt f = quotient + SymInt(values[0] - floor_div(a * size + b, q));
                    if (is_right(f)) return f;
                }
            }
        }
    }
    if (dims == 1) {
        if (const std::optional<SymInt> f = with_square(samples, values); f && is_right(*f)) return f;
    }
    // One product of powers, like the number of elements of (batch, time, time), or one more or less.
    constexpr std::size_t powers = 4, most_factors = 4;
    constexpr double most = 1e12;
    for (std::size_t choice = 1; choice < std::size_t{1} << (2 * dims); ++choice) {
        SymInt product(1);
        std::size_t rest = choice, factors = 0;
        double about = 1;
        for (const auto& [name, size] : first) {
            for (std::size_t power = rest % powers; power > 0 && ++factors <= most_factors; --power) {
                product = product * SymInt::dim(name);
                about *= static_cast<double>(size);
            }
            rest /= powers;
        }
        if (factors > most_factors || about > most) continue;
        const std::int64_t one = product.value(first);
        for (const std::int64_t more : {0, -1, 1}) {
            if (one == 0 || (values[0] - more) % one != 0) continue;
            const SymInt f = SymInt((values[0] - more) / one) * product + SymInt(more);
            if (is_right(f)) return f;
        }
    }
    return std::nullopt;
}

bool is_guess(const SymInt& formula) {
    const SymInt::Parts parts = formula.parts();
    const auto is_one = [](const auto& term) {  // a square, or a product with a quotient
        const SymInt::Product& product = term.first;
        return std::adjacent_find(product.begin(), product.end()) != product.end() || product[0][0] == '(';
    };
    return parts.divisor != 1 || std::any_of(parts.terms.begin(), parts.terms.end(), is_one);
}

std::optional<SizedNumber> fit_numbers(const std::vector<DimSizes>& samples, const std::vector<double>& numbers, DType dtype,
                                       std::span<const KnownSize> known) {
    if (!std::all_of(numbers.begin(), numbers.end(), [](double number) { return std::isfinite(number); })) return std::nullopt;
    std::optional<SizedNumber> guess;
    const auto is_found = [&](const std::vector<std::int64_t>& sizes, double factor, bool is_reciprocal) {
        const std::optional<SymInt> size = known.empty() ? fit(samples, sizes) : fit_sizes(samples, sizes, known);
        if (!size) return false;
        const bool is_sure = !is_guess(*size);
        if (is_sure || !guess) guess = SizedNumber{*size, factor, is_reciprocal};
        return is_sure;
    };
    for (const double factor : {1, 2, 4}) {  // 2 / n: for squares
        for (const bool is_reciprocal : {false, true}) {
            if (factor != 1 && !is_reciprocal) continue;
            const std::vector<std::int64_t> wholes = wholes_of(numbers, factor, is_reciprocal, dtype);
            if (!wholes.empty() && is_found(wholes, factor, is_reciprocal)) return guess;
        }
    }
    if (dtype != float32 && dtype != float64) return guess;
    for (const bool is_reciprocal : {false, true}) {
        // The sizes may have a common factor that their ratios lack: n - 1 for an even one.
        constexpr std::int64_t kMostInCommon = 12;
        const std::vector<std::int64_t> ratios = ratios_of(numbers, is_reciprocal, dtype);
        std::vector<std::int64_t> sizes = ratios;
        for (std::int64_t common = 1; common <= kMostInCommon && !ratios.empty(); ++common) {
            std::transform(ratios.begin(), ratios.end(), sizes.begin(), [common](std::int64_t ratio) { return common * ratio; });
            const std::optional<double> factor = factor_of(numbers, sizes, is_reciprocal, dtype);
            if (factor && is_found(sizes, *factor, is_reciprocal)) return guess;
        }
    }
    return guess;
}

}  // namespace tapir::detail
