#include "text_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

namespace tree_lstm {

DataError::DataError(const std::string& path, std::int64_t line, std::int64_t column, const std::string& problem)
    : std::runtime_error(fmt::format("{}:{}:{}: {}", path, line, column, problem)),
      path_(path),
      line_(line),
      column_(column) {}

LineReader::LineReader(const std::filesystem::path& path) : path_(path.string()) {
    // ifstream opens a directory without complaint and fails only when it is read.
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) throw DataError(path_, 1, 1, "is a directory, not a file");
    errno = 0;
    file_.open(path, std::ios::binary);
    if (!file_) {
        const std::string reason = errno != 0 ? std::strerror(errno) : "unknown reason";
        throw DataError(path_, 1, 1, "cannot open: " + reason);
    }
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    bytes_total_ = error ? 0 : size;
}

bool LineReader::next() {
    if (!std::getline(file_, line_)) {
        if (file_.bad()) throw DataError(path_, line_number_ + 1, 1, "cannot read on");
        return false;
    }
    ++line_number_;
    bytes_read_ += line_.size() + (file_.eof() ? 0 : 1);
    if (line_number_ == 1 && line_.starts_with("\xEF\xBB\xBF")) line_.erase(0, 3);
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
}

void LineReader::require_text() const {
    for (std::size_t i = 0; i < line_.size(); ++i) {
        const auto byte = static_cast<unsigned char>(line_[i]);
        if ((byte < 0x20 && byte != '\t') || byte == 0x7F) {
            fail(i, fmt::format("control character 0x{:02X}: this is not a text file", byte));
        }
    }
}

void LineReader::fail(std::size_t offset, const std::string& problem) const {
    throw DataError(path_, line_number_, static_cast<std::int64_t>(offset) + 1, problem);
}

std::string in_quotes(std::string_view text) {
    constexpr std::size_t kLongest = 40;
    std::string out = "'";
    for (const char c : text.substr(0, kLongest)) {
        if (c >= 0x20 && c < 0x7F) {
            out += c;
        } else {
            out += fmt::format("\\x{:02X}", static_cast<unsigned char>(c));
        }
    }
    if (text.size() > kLongest) out += "...";
    return out + "'";
}

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
