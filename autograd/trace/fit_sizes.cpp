// Fits formulas of sizes to other sizes of the graph: sizes that strides halve, and sizes made from these.
//
// A size that a program takes from another one, s, is nearly always a multiple of it, its quotient by a small number q, or the
// difference to a multiple of q. All these are a slope times s // q plus a number for each remainder s % q. Samples with each remainder
// determine them: the number is a sum of quotients (s + a) // q, each of which increases at one remainder.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>

#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/core/size_math_impl.h"

namespace tapir::detail {
namespace {

using Values = std::vector<std::int64_t>;

constexpr std::int64_t kMostBy = 8;     // largest divisor of a size in one step
constexpr std::size_t kMostSizes = 96;  // sizes to look at, from the nearest

bool is_constant(const Values& values) { return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end(); }

std::size_t distinct(Values values) {
    std::sort(values.begin(), values.end());
    return static_cast<std::size_t>(std::unique(values.begin(), values.end()) - values.begin());
}

// `values` as slope * (s // q) + number[s % q]. nullopt if they are not of this form, or if a remainder was not seen.
std::optional<SymInt> by_remainders(const KnownSize& s, std::int64_t q, const Values& values) {
    const auto count = static_cast<std::size_t>(q);
    constexpr std::size_t none = ~std::size_t{0};
    std::vector<std::size_t> first(count, none);
    std::optional<std::int64_t> slope;
    const auto quotient = [&](std::size_t i) { return floor_div(s.values[i], q); };
    const auto remainder = [&](std::size_t i) { return static_cast<std::size_t>(s.values[i] - q * quotient(i)); };
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::size_t& other = first[remainder(i)];
        if (other == none) other = i;
        const std::int64_t run = quotient(i) - quotient(other), rise = values[i] - values[other];
        if (run == 0 ? rise != 0 : rise % run != 0) return std::nullopt;
        if (run != 0 && slope && *slope != rise / run) return std::nullopt;
        if (run != 0) slope = rise / run;
    }
    if (!slope || std::find(first.begin(), first.end(), none) != first.end()) return std::nullopt;
    std::vector<std::int64_t> number;
    for (const std::size_t i : first) number.push_back(values[i] - *slope * quotient(i));
    SymInt formula = number[0];
    std::int64_t rest = *slope;
    for (std::int64_t r = 1; r < q; ++r) {
        const std::int64_t step = number[static_cast<std::size_t>(r)] - number[static_cast<std::size_t>(r - 1)];
        rest -= step;
        if (step != 0) formula = formula + SymInt(step) * (s.formula + SymInt(q - r)).floor_div(q);
    }
    return rest == 0 ? formula : formula + SymInt(rest) * s.formula.floor_div(q);
}

class Search {
 public:
    Search(const std::vector<DimSizes>& samples, std::span<const KnownSize> known)
        : samples_(samples), known_(known.first(std::min(known.size(), kMostSizes))) {}

    std::optional<SymInt> find(const Values& values, int products) const {
        if (is_constant(values)) return SymInt(values[0]);
        for (const KnownSize& s : known_) {
            if (s.values == values) return s.formula;
        }
        if (std::optional<SymInt> formula = fit(samples_, values)) return formula;
        if (std::optional<SymInt> formula = of_one(values, kMostBy)) return formula;
        for (const KnownSize& s : known_) {  // of two sizes, like the difference to another one
            for (const std::int64_t factor : {1, -1, 2, -2}) {
                Values rest = values;
                for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= factor * s.values[i];
                if (const std::optional<SymInt> formula = of_one(rest, 1)) return *formula + SymInt(factor) * s.formula;
            }
        }
        for (const KnownSize& s : known_) {
            if (products == 0) break;
            Values rest = values;
            bool divides = true;
            for (std::size_t i = 0; i < rest.size() && divides; ++i) {
                divides = s.values[i] > 0 && rest[i] % s.values[i] == 0;
                if (divides) rest[i] /= s.values[i];
            }
            if (!divides) continue;
            if (const std::optional<SymInt> formula = find(rest, products - 1)) return *formula * s.formula;
        }
        return std::nullopt;
    }

 private:
    std::optional<SymInt> of_one(const Values& values, std::int64_t most_by) const {
        if (is_constant(values)) return SymInt(values[0]);
        for (std::int64_t q = 1; q <= most_by; ++q) {
            for (const KnownSize& s : known_) {
                if (distinct(s.values) < static_cast<std::size_t>(q) + 2) continue;  // such formulas fit any two or three values
                if (std::optional<SymInt> formula = by_remainders(s, q, values)) return formula;
            }
        }
        return std::nullopt;
    }

    const std::vector<DimSizes>& samples_;
    std::span<const KnownSize> known_;
};

}  // namespace

std::optional<SymInt> fit_sizes(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values, std::span<const KnownSize> known) {
    constexpr int most_products = 2;
    return Search(samples, known).find(values, most_products);
}

}  // namespace tapir::detail
