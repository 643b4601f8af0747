// Fits the formula of a size in named dimensions to its values for several sizes of these.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tapir/autograd/sym_int.h"
#include "tapir/core/dtype.h"

namespace tapir::detail {

/// The sizes of the named dimensions to try, beginning with `first`: enough to find products of them, and one more to check the
/// formula. far: added to some for a last sample, since a size that strides make smaller stays the same for a while.
std::vector<DimSizes> samples_of(const DimSizes& first, const DimSizes& far = {});

/// The formula that gives values[i] for samples[i]; nullopt if there is none.
std::optional<SymInt> fit(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values);

/// A size of the graph, and its value for each sample.
struct KnownSize {
    SymInt formula;
    std::vector<std::int64_t> values;
};
/// As fit(), for many samples, also of other sizes: sums, differences and products of these, and quotients of one by numbers up to 8.
/// known: the nearest ones first.
std::optional<SymInt> fit_sizes(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values, std::span<const KnownSize> known);

/// True for formulas other than a polynomial that has each dimension once: samples at a few sizes may fit these by chance.
bool is_guess(const SymInt& formula);

inline double number_for(double factor, double size, bool is_reciprocal) noexcept { return is_reciprocal ? factor / size : factor * size; }
/// A number: number_for(factor, size, is_reciprocal).
struct SizedNumber {
    SymInt size;
    double factor;
    bool is_reciprocal;
};
/// Finds what gives numbers[i], in this dtype, for samples[i], to the last bit; nullopt if nothing does. known: as in fit_sizes().
std::optional<SizedNumber> fit_numbers(const std::vector<DimSizes>& samples, const std::vector<double>& numbers, DType dtype,
                                       std::span<const KnownSize> known = {});

}  // namespace tapir::detail
