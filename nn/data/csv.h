// Tables of text: comma-separated values and similar formats (RFC 4180).
//
//     const data::Csv table = data::read_csv("iris.csv");
//     Tensor x = table.numbers({"length", "width"});               // float32 (rows, 2)
//     std::vector<std::string> species = table.text("species");
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir::data {

struct CsvOptions {
    char separator = ',';
    char quote = '"';                    ///< around cells that hold separators, line ends or, doubled, quotes; 0: no quoting
    bool header = true;                  ///< the first row names the columns; else they are "0", "1", ...
    std::optional<double> missing = {};  ///< the number for an empty cell; without it such a cell is an error
};

/// A table in memory. Columns are selected by name, or by number.
class Csv {
 public:
    std::int64_t rows() const noexcept { return rows_; }
    std::int64_t columns() const noexcept { return static_cast<std::int64_t>(names_.size()); }
    const std::vector<std::string>& names() const noexcept { return names_; }
    /// Returns the number of a column. Throws ValueError.
    std::int64_t column(const TextArg& name, Loc loc = Loc::current()) const;
    /// Returns a cell without its quotes. Throws IndexError.
    std::string_view cell(std::int64_t row, std::int64_t column, Loc loc = Loc::current()) const;
    /// Returns a column as text. Throws ValueError.
    std::vector<std::string> text(const TextArg& name, Loc loc = Loc::current()) const;

    /// Returns all columns as numbers: (rows, columns). Spaces around a number are allowed; a bool is 0, 1, true or false. Throws FileError
    /// with path, line and column at the first cell that is not a number, or does not fit the dtype.
    Tensor numbers(DType dtype = float32, Loc loc = Loc::current()) const;
    /// Returns some columns: (rows, names). Throws ValueError, too.
    Tensor numbers(const std::vector<std::string>& names, DType dtype = float32, Loc loc = Loc::current()) const;
    /// Overload for literals, numbers({"length", "width"}), which could otherwise be two ends of one string.
    Tensor numbers(std::initializer_list<const char*> names, DType dtype = float32, Loc loc = Loc::current()) const {
        std::vector<std::string> texts;
        for (const char* name : names) texts.push_back(TextArg(name, loc));
        return numbers(texts, dtype, loc);
    }
    /// Returns one column: (rows,).
    Tensor numbers(const TextArg& name, DType dtype = float32, Loc loc = Loc::current()) const;

 private:
    friend Csv read_csv(const TextArg& path, const CsvOptions& options, Loc loc);
    struct Cell {
        std::size_t begin, end;     // in text_
        std::int64_t line, column;  // where it begins in the file
    };
    void read_number(std::int64_t row, std::int64_t column, DType dtype, std::byte* to, const Loc& loc) const;
    Tensor numbers_of(const std::vector<std::int64_t>& columns, const Shape& shape, DType dtype, const Loc& loc) const;

    std::string path_, text_;  // unquoted
    std::vector<std::string> names_;
    std::vector<Cell> cells_;  // row by row
    std::int64_t rows_ = 0;
    std::optional<double> missing_;
};

/// Reads a table. Rows are lines; empty ones are left out. Line ends may be CRLF, a byte order mark is dropped, a file may be
/// gzipped. Throws FileError with path, line and column for rows of different lengths and for quotes that are not closed or are
/// followed by text, ValueError for a separator or quote that cannot be one.
Csv read_csv(const TextArg& path, const CsvOptions& options = {}, Loc loc = Loc::current());

}  // namespace tapir::data
