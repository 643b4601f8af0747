// Text files, read line by line and written whole, with errors that name the place: every malformed input of this
// example becomes a DataError whose message starts with `path:line:column: `, which editors can jump to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tree_lstm {

/// An input file that cannot be used. Lines and columns count from 1, columns in bytes; an error about a whole file
/// (missing, empty, a directory) is placed at 1:1.
class DataError : public std::runtime_error {
  public:
    DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem);

    const std::string& path() const { return path_; }
    std::int64_t line() const { return line_; }
    std::int64_t column() const { return column_; }

  private:
    std::string path_;
    std::int64_t line_;
    std::int64_t column_;
};

/// Reads a file one line at a time, so that a file of many gigabytes (GloVe) needs the memory of one line. A byte order
/// mark at the start and a carriage return at a line's end are dropped.
class LineReader {
  public:
    /// Throws DataError when the file is missing, unreadable or a directory.
    explicit LineReader(const std::filesystem::path& path);

    /// Moves to the next line; false at the end of the file. Throws DataError when reading fails.
    bool next();

    const std::string& line() const { return line_; }
    const std::string& path() const { return path_; }
    std::int64_t line_number() const { return line_number_; }
    bool is_blank() const { return line_.find_first_not_of(" \t") == std::string::npos; }
    std::uint64_t bytes_read() const { return bytes_read_; }
    std::uint64_t bytes_total() const { return bytes_total_; }

    /// Throws DataError when the line holds a control character other than a tab: a binary file, not text.
    void require_text() const;

    /// Throws DataError at byte `offset` (from 0) of the current line.
    [[noreturn]] void fail(std::size_t offset, const std::string& problem) const;

  private:
    std::string path_;
    std::ifstream file_;
    std::string line_;
    std::int64_t line_number_ = 0;
    std::uint64_t bytes_read_ = 0;
    std::uint64_t bytes_total_ = 0;
};

/// `text` in quotes for a message: shortened when long, bytes that are not printable ASCII as \xNN.
std::string in_quotes(std::string_view text);

/// Writes the file under a temporary name in the same folder and renames it, so that a reader sees the old file or the
/// new one, never a part. Throws DataError when it cannot be written; then the old file, if any, is still there.
void write_text_file(const std::filesystem::path& path, std::string_view contents);

}  // namespace tree_lstm
