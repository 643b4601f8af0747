#include "tapir/nn/summary/event_file_impl.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/crc_impl.h"
#include "tapir/core/io/file_impl.h"

namespace tapir::summary {
namespace {

std::uint32_t crc32c(const std::string& bytes) { return io::crc32c(0, bytes.data(), bytes.size()); }

// TFRecord's masking, so that a checksum of bytes that contain checksums still detects errors.
std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8U; }

void put(std::string& to, std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to += static_cast<char>(value >> 8 * i);
}

// Frames an event: length, its checksum, the bytes, their checksum.
std::string framed(const std::string& bytes) {
    std::string record;
    record.reserve(bytes.size() + 16);
    put(record, bytes.size(), 8);
    put(record, masked(crc32c(record)), 4);
    record += bytes;
    put(record, masked(crc32c(bytes)), 4);
    return record;
}

std::string host() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 && *name ? name : "localhost";
}

}  // namespace

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

EventFile::EventFile(const char* op, const std::string& folder, const std::string& suffix, const Loc& loc) {
    io::check_path(op, folder, loc);
    io::check_path(op, suffix, loc);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail<FileError>(loc, "{}: {}: {}", op, folder, error.message());
    static std::atomic<unsigned> number{0};
    const std::string machine = host();
    do {  // TensorBoard reads the files of a folder in the order of their names
        path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{:05}{}", folder, static_cast<std::int64_t>(now()), machine, ::getpid(),
                            number.fetch_add(1), suffix);
        descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail<FileError>(loc, "{}: {}: {}", op, path_, std::strerror(errno));
    Message version;
    version.real(1, now()).text(3, "brain.Event:2");
    try {
        add(op, version, loc);
    } catch (...) {
        ::close(descriptor_);
        ::unlink(path_.c_str());
        throw;
    }
}

EventFile::~EventFile() { ::close(descriptor_); }

void EventFile::add(const char* op, const Message& event, const Loc& loc) {
    const std::string record = framed(event.bytes());
    std::size_t done = 0;
    while (done < record.size()) {
        const ssize_t put = ::pwrite(descriptor_, record.data() + done, record.size() - done, size_ + static_cast<std::int64_t>(done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            const int reason = errno;
            if (done > 0 && ::ftruncate(descriptor_, size_) != 0) errno = 0;  // if this fails, the next event overwrites the part
            fail<FileError>(loc, "{}: {}: {}", op, path_, std::strerror(reason));
        }
        done += static_cast<std::size_t>(put);
    }
    size_ += static_cast<std::int64_t>(record.size());
}

void EventFile::flush(const char* op, const Loc& loc) {
    if (::fdatasync(descriptor_) != 0 && errno != EINVAL) {  // EINVAL: not a file that has a disk
        fail<FileError>(loc, "{}: {}: {}", op, path_, std::strerror(errno));
    }
}

}  // namespace tapir::summary
