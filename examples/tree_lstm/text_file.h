// What the example adds to the library's text files (tapir/nn/data/text.h): errors of its own.
#pragma once

#include <tapir/nn/data/text.h>

#include <cstdint>
#include <string>

namespace tree_lstm {

using tapir::data::in_quotes;
using tapir::data::LineReader;

/// An input that cannot be used: `path:line:column: problem`. Lines and columns count from 1, columns in bytes.
class DataError : public tapir::FileError {
 public:
    DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem);
};

}  // namespace tree_lstm
