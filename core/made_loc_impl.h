// Lines that are known only at run time: those of graphs that were read from a file.
#pragma once

#include <string_view>

#include "tapir/core/error.h"

namespace tapir::detail {

/// Returns the Loc of this line. The texts that it points to live as long as the program.
Loc made_loc(std::string_view file, std::string_view function, unsigned line);

}  // namespace tapir::detail
