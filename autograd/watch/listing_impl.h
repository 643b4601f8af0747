// Texts about a record in tables and drawings of a tape.
#pragma once

#include <cstddef>
#include <string>

#include "tapir/core/error.h"

namespace tapir {

struct Log;
struct Record;

namespace listing {

/// "tree.cpp:42"
std::string place(const Loc& loc);
/// "lstm_gates", or "lstm_gates #1" for a record that names its further output.
std::string op(const Log& log, std::size_t index);
std::int64_t bytes_of(const Record& record);
/// "float32 (2, 3)"
std::string output(const Record& record);
/// "encoder.cell.weight" for a leaf that a model has named, else "".
const char* parameter_name(const Record& record);
/// The path of the module that the op ran for, or a parameter's name, or "".
std::string module(const Record& record);

}  // namespace listing
}  // namespace tapir
