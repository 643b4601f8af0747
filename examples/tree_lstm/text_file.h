// What the example adds to the library's text files (tapir/nn/data/text.h): errors of its own, and files written whole.
#pragma once

#include <tapir/nn/data/text.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tree_lstm {

using tapir::data::in_quotes;
using tapir::data::LineReader;

/// An input that cannot be used: `path:line:column: problem`. Lines and columns count from 1, columns in bytes.
class DataError : public tapir::FileError {
  public:
    DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem);
};

/// Writes the file under a temporary name in the same folder and renames it, so that a reader sees the old file or the
/// new one, never a part. Throws DataError when it cannot be written; then the old file, if any, is still there.
void write_text_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace tree_lstm
