// Lines that are known at run time only: of graphs that were read from a file.
#pragma once

#include <string_view>

#include "tapir/core/error.h"

namespace tapir::detail {

/// The Loc of this line. What it names lives as long as the program.
Loc made_loc(std::string_view file, std::string_view function, unsigned line);

}  // namespace tapir::detail
