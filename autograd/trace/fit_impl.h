// Finding out how a size depends on named dimensions, from what it is for several sizes of these.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tapir/autograd/sym_int.h"
#include "tapir/core/dtype.h"

namespace tapir::detail {

/// Which sizes of the named dimensions to try, the first being given: enough to find products of them, and one more to see whether
/// what was found is right. far: what is added to some for a last one, since a size that strides make smaller stays the same for a while.
std::vector<DimSizes> samples_of(const DimSizes& first, const DimSizes& far = {});

/// The formula that gives values[i] for samples[i]; nothing where there is none.
std::optional<SymInt> fit(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values);

/// A size of the graph, and what it is for each sample.
struct KnownSize {
    SymInt formula;
    std::vector<std::int64_t> values;
};
/// As fit(), for many samples, also of other sizes: their sums, differences and products, and what division by numbers up to 8 makes of one.
/// known: the nearest ones first.
std::optional<SymInt> fit_sizes(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values, std::span<const KnownSize> known);

/// Samples at a few sizes tell which polynomial it is that has each dimension once; other formulas could go through these by chance.
bool is_guess(const SymInt& formula);

inline double number_for(double factor, double size, bool is_reciprocal) noexcept { return is_reciprocal ? factor / size : factor * size; }
/// number_for() of these.
struct SizedNumber {
    SymInt size;
    double factor;
    bool is_reciprocal;
};
/// What gives numbers[i], of this dtype, for samples[i], to the last bit; nothing where nothing does. known: as fit_sizes().
std::optional<SizedNumber> fit_numbers(const std::vector<DimSizes>& samples, const std::vector<double>& numbers, DType dtype,
                                       std::span<const KnownSize> known = {});

}  // namespace tapir::detail
