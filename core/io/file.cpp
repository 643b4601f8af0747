// Files, by way of POSIX calls.
#include "tapir/core/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"

namespace tapir::io {
namespace {

constexpr std::size_t kLargestCall = std::size_t{1} << 30;  // Linux moves at most 2 GiB at once

std::string reason() { return std::strerror(errno); }

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.find_last_of('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

constinit StepHook step_hook = nullptr;

InputFile::InputFile(const char* op, const std::string& path, const Loc& loc)
    : op_(op), path_(path), loc_(loc), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (descriptor_ < 0) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
    struct stat status {};
    const bool known = ::fstat(descriptor_, &status) == 0;
    if (!known || !S_ISREG(status.st_mode)) {
        const std::string why = known ? "not a regular file" : reason();
        ::close(descriptor_);
        fail<FileError>(loc_, "{}: {}: {}", op_, path_, why);
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::uint64_t offset, void* to, std::size_t count) const {
    auto* next = static_cast<std::byte*>(to);
    while (count > 0) {
        const ssize_t got = ::pread(descriptor_, next, std::min(count, kLargestCall), static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
        if (got == 0) fail<FileError>(loc_, "{}: {}: the file ends at byte {}, too early", op_, path_, offset);
        next += got;
        offset += static_cast<std::uint64_t>(got);
        count -= static_cast<std::size_t>(got);
    }
}

void InputFile::stop(const std::string& problem) const { fail<FileError>(loc_, "{}: {}: {}", op_, path_, problem); }

AtomicFile::AtomicFile(const char* op, const std::string& path, const Loc& loc) : op_(op), path_(path), target_(path), loc_(loc) {
    struct stat status {};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        fail<FileError>(loc_, "{}: {}: exists and is not a regular file", op_, path_);
    }
    struct stat link {};
    if (exists && ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {  // the link stays, what it leads to is replaced
        char* const real = ::realpath(path.c_str(), nullptr);
        if (!real) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
        target_ = real;
        std::free(real);
    }
    static std::atomic<unsigned> number{0};
    step();
    do {
        temporary_ = fmt::format("{}.{}-{}.tmp", target_, ::getpid(), number.fetch_add(1));
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
    if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) errno = 0;  // not all file systems know modes
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail_system(const char* what) const {
    fail<FileError>(loc_, "{}: {}: {}: {}", op_, path_, what, reason());
}

void AtomicFile::write(const void* from, std::size_t count) {
    const auto* next = static_cast<const std::byte*>(from);
    while (count > 0) {
        step();
        const ssize_t put = ::write(descriptor_, next, std::min(count, kLargestCall));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail_system("writing");
        next += put;
        count -= static_cast<std::size_t>(put);
    }
}

void AtomicFile::commit(const std::function<void()>& before_rename) {
    step();
    if (::fsync(descriptor_) != 0) fail_system("flushing");
    const int closed = ::close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) fail_system("closing");
    if (before_rename) before_rename();
    step();
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_system("renaming");
    temporary_.clear();
    // The rename itself reaches the disk with its folder. Some file systems refuse to flush one; the file is whole anyway.
    const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        step();
        ::fsync(folder);
        ::close(folder);
    }
}

void write_file(const char* op, const std::string& path, std::string_view contents, const Loc& loc) {
    AtomicFile file(op, path, loc);
    file.write(contents.data(), contents.size());
    file.commit();
}

}  // namespace tapir::io

void tapir::write_file(const std::string& path, std::string_view contents, Loc loc) { io::write_file("write_file", path, contents, loc); }
