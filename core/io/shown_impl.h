// Quotes foreign text in messages, inside the library.
#pragma once

#include <string>
#include <string_view>

#include "tapir/core/error.h"

namespace tapir::io {

/// Returns a name from a file in quotes: at most a line long, without control characters.
std::string shown(std::string_view name);

/// Returns an error's text without the line at its beginning, for use in an error of another line.
std::string text_of(const Error& error);

}  // namespace tapir::io
