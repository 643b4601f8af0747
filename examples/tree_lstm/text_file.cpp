#include "text_file.h"

#include <fmt/format.h>

namespace tree_lstm {

DataError::DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem)
    : tapir::FileError(fmt::format("{}:{}:{}: {}", path, line, column, problem), tapir::Loc{}) {}

}  // namespace tree_lstm
