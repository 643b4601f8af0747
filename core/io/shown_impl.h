// Words of others in messages, inside the library.
#pragma once

#include <string>
#include <string_view>

#include "tapir/core/error.h"

namespace tapir::io {

/// A name out of a file, in quotes: not longer than a line, without control characters.
std::string shown(std::string_view name);

/// An error's text without the line at its beginning, to go into an error of another line.
std::string text_of(const Error& error);

}  // namespace tapir::io
