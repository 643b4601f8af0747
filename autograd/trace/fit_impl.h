// Finding out how a size depends on named dimensions, from what it is for several sizes of these.
#pragma once

#include <optional>

#include "tapir/autograd/trace/sym_int.h"

namespace tapir::detail {

/// Which sizes of the named dimensions to try, the first being given: enough to find products of them, and one more to see whether
/// what was found is right.
std::vector<DimSizes> samples_of(const DimSizes& first);

/// The formula that gives values[i] for samples[i]; nothing where there is none.
std::optional<SymInt> fit(const std::vector<DimSizes>& samples, const std::vector<std::int64_t>& values);

}  // namespace tapir::detail
