// Reads text files line by line, with errors that name the place as editors read it: path:line:column.
//
//     for (data::LineReader lines("train.txt"); lines.next();) use(lines.line());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/error.h"

namespace tapir::data {

/// Reads a file one line at a time; a file of many gigabytes needs the memory of one line. Drops a byte order mark at the start and a
/// carriage return at the end of a line.
class LineReader {
 public:
    /// Messages begin with `op`. Throws FileError if the file is missing, unreadable or no regular file.
    explicit LineReader(const TextArg& path, const char* op = "LineReader", Loc loc = Loc::current());
    ~LineReader();
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;

    /// Moves to the next line; returns false at the end of the file. Throws FileError if reading fails.
    bool next();

    const std::string& line() const noexcept { return line_; }
    const std::string& path() const noexcept { return path_; }
    /// The number of the line, from 1 on.
    std::int64_t line_number() const noexcept { return line_number_; }
    bool is_blank() const noexcept { return line_.find_first_not_of(" \t") == std::string::npos; }
    std::uint64_t bytes_read() const noexcept { return bytes_read_; }
    /// Returns the size of the file.
    std::uint64_t bytes_total() const noexcept { return bytes_total_; }

    /// Throws FileError if the line holds a control character other than a tab, as binary files do.
    void require_text() const;
    /// Throws FileError at byte `offset` (from 0) of the current line.
    [[noreturn]] void fail_at(std::size_t offset, const std::string& problem) const;

 private:
    bool fill();

    std::string path_;
    const char* op_;
    Loc loc_;
    int descriptor_;
    std::string buffer_;  // bytes read ahead
    std::size_t next_ = 0;
    std::string line_;
    std::int64_t line_number_ = 0;
    std::uint64_t bytes_read_ = 0, bytes_total_ = 0;
};

/// Returns all lines of a file. Throws FileError.
std::vector<std::string> read_lines(const TextArg& path, Loc loc = Loc::current());

/// Returns `text` in quotes for a message: shortened if long, bytes that are not printable ASCII as \xNN.
std::string in_quotes(std::string_view text);

}  // namespace tapir::data
