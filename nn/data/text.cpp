// Reads lines.
#include "tapir/nn/data/text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"

namespace tapir::data {

LineReader::LineReader(const TextArg& path, const char* op, Loc loc)
    : path_(path), op_(tapir::detail::given_view(op, loc).data()), loc_(loc), descriptor_(io::open_to_read(op, path, loc)) {
    const CallerScope caller(loc);
    if (descriptor_ < 0) fail<FileError>(loc_, "{}: {}:1:1: cannot open: {}", op_, path_, std::strerror(errno));
    struct stat status{};
    if (::fstat(descriptor_, &status) != 0) return;
    if (S_ISDIR(status.st_mode)) {
        ::close(descriptor_);
        fail<FileError>(loc_, "{}: {}:1:1: is a directory, not a file", op_, path_);
    }
    if (!S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        fail<FileError>(loc_, "{}: {}:1:1: not a regular file", op_, path_);
    }
    bytes_total_ = static_cast<std::uint64_t>(status.st_size);
}

LineReader::~LineReader() { ::close(descriptor_); }

bool LineReader::fill() {
    buffer_.resize(64 * 1024);
    next_ = 0;
    ssize_t got = 0;
    do {
        got = ::read(descriptor_, buffer_.data(), buffer_.size());
    } while (got < 0 && errno == EINTR);
    const int reason = errno;
    buffer_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    if (got < 0) fail<FileError>(loc_, "{}: {}:{}:1: cannot read on: {}", op_, path_, line_number_ + 1, std::strerror(reason));
    return got > 0;
}

bool LineReader::next() {
    if (next_ == buffer_.size() && !fill()) return false;
    line_.clear();
    while (true) {
        const std::size_t end = buffer_.find('\n', next_);
        const bool is_whole = end != std::string::npos;
        const std::size_t count = (is_whole ? end : buffer_.size()) - next_;
        line_.append(buffer_, next_, count);
        bytes_read_ += count + (is_whole ? 1 : 0);
        next_ += count + (is_whole ? 1 : 0);
        if (is_whole || !fill()) break;
    }
    ++line_number_;
    if (line_number_ == 1 && line_.starts_with("\xEF\xBB\xBF")) line_.erase(0, 3);
    if (line_.ends_with('\r')) line_.pop_back();
    return true;
}

void LineReader::require_text() const {
    for (std::size_t i = 0; i < line_.size(); ++i) {
        const auto byte = static_cast<unsigned char>(line_[i]);
        if ((byte < 0x20 && byte != '\t') || byte == 0x7F) {
            fail_at(i, fmt::format("control character 0x{:02X}: this is not a text file", byte));
        }
    }
}

void LineReader::fail_at(std::size_t offset, const std::string& problem) const {
    fail<FileError>(loc_, "{}: {}:{}:{}: {}", op_, path_, line_number_, offset + 1, problem);
}

std::vector<std::string> read_lines(const TextArg& path, Loc loc) {
    const CallerScope caller(loc);
    std::vector<std::string> lines;
    for (LineReader reader(path, "read_lines", loc); reader.next();) lines.push_back(reader.line());
    return lines;
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

}  // namespace tapir::data
