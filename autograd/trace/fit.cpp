// Formulas of sizes.
//
// A size is taken for a sum of products of dimensions, each at most once in a product: c + a*batch + b*time + d*batch*time. On the
// corners of a box of sizes there is exactly one such sum, whose coefficients are differences between the corners. One sample
// outside of the box shows whether the size is one. Quotients of one dimension by small numbers are found too, and, where there is only
// one, halves of polynomials with its square.
#include "tapir/autograd/trace/fit_impl.h"

#include <cstddef>

namespace tapir::detail {
namespace {

constexpr std::int64_t kStep = 1;   // from the given size to the box's other side
constexpr std::int64_t kBeyond = 5;  // and to the last sample; both differ modulo 2 and 3

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
        more += 6;  // of another size for each, with the same remainders
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
    if (dims != 1) return std::nullopt;
    // v + s m + t m (m - 1), where m is how much larger than the first: s is the step to the second, 2 t a whole number.
    const std::int64_t size = first.begin()->second, beyond = samples[2].begin()->second - size, step = values[1] - values[0];
    const std::int64_t rest = 2 * (values[2] - values[0] - step * beyond), pairs = beyond * (beyond - 1);
    if (rest % pairs != 0) return std::nullopt;
    const SymInt more = SymInt::dim(first.begin()->first) + SymInt(-size);
    const SymInt twice = SymInt(2 * values[0]) + SymInt(2 * step) * more + SymInt(rest / pairs) * more * (more + SymInt(-1));
    const SymInt square = rest / pairs % 2 == 0 ? SymInt(values[0]) + SymInt(step) * more + SymInt(rest / pairs / 2) * more * (more + SymInt(-1))
                                                : twice.floor_div(2);
    if (is_right(square)) return square;
    return std::nullopt;
}

}  // namespace tapir::detail
