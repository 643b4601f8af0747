#include "text_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace tree_lstm {

DataError::DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem)
    : tapir::FileError(fmt::format("{}:{}:{}: {}", path, line, column, problem), tapir::Loc{}) {}

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

// True when every byte has reached the file system; errno holds the reason when not.
bool write_all(const std::string& path, std::string_view contents) {
    std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
    if (!file) return false;
    if (std::fwrite(contents.data(), 1, contents.size(), file.get()) != contents.size()) return false;
    // A full disk may show only when the buffer is flushed; a crash after the rename must not leave an empty file.
    if (std::fflush(file.get()) != 0) return false;
    return ::fsync(::fileno(file.get())) == 0;
}

}  // namespace

void write_text_file(const std::filesystem::path& path, std::string_view contents) {
    // The process id keeps two programs that write the same file apart.
    const std::string temporary = fmt::format("{}.{}.tmp", path.string(), ::getpid());
    errno = 0;
    if (write_all(temporary, contents) && std::rename(temporary.c_str(), path.c_str()) == 0) return;
    const int reason = errno;
    std::remove(temporary.c_str());
    throw DataError(path.string(), 1, 1, fmt::format("cannot write: {}", std::strerror(reason)));
}

}  // namespace tree_lstm
