// Reads and writes files by POSIX calls.
#include "tapir/core/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/shown_impl.h"

namespace tapir::io {
namespace {

constexpr std::size_t kLargestCall = std::size_t{1} << 30;  // Linux moves at most 2 GiB at once

std::string reason() { return std::strerror(errno); }

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.find_last_of('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Returns the process that owns this temporary file of an AtomicFile ("run.safetensors.1234-0.tmp" of "run.safetensors"); 0 for
// other files.
pid_t owner_of(std::string_view file, std::string_view base) {
    if (!file.starts_with(base) || !file.ends_with(".tmp") || file.size() < base.size() + 5) return 0;
    file = file.substr(base.size(), file.size() - base.size() - 4);
    pid_t pid = 0;
    unsigned number = 0;
    if (file[0] != '.') return 0;
    const char *begin = file.data() + 1, *end = file.data() + file.size();
    const auto [dash, wrong] = std::from_chars(begin, end, pid);
    if (wrong != std::errc() || dash == end || *dash != '-' || pid <= 0) return 0;
    const auto [rest, wrong_too] = std::from_chars(dash + 1, end, number);
    return wrong_too == std::errc() && rest == end ? pid : 0;
}

std::uint64_t quarter_of_memory() noexcept {
    const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) / 4 : std::uint64_t{1} << 32;
}

constinit std::atomic<std::uint64_t> most_unpacked{0};  // 0: not asked for yet

// Removes temporary files of `path` whose processes were killed while they wrote.
void remove_leftovers(const std::string& path) {
    const std::string folder = folder_of(path), base = path.substr(path.find_last_of('/') + 1);
    DIR* directory = ::opendir(folder.c_str());
    if (!directory) return;
    while (const dirent* entry = ::readdir(directory)) {
        const pid_t owner = owner_of(entry->d_name, base);
        if (owner != 0 && ::kill(owner, 0) != 0 && errno == ESRCH) ::unlinkat(::dirfd(directory), entry->d_name, 0);
    }
    ::closedir(directory);
}

}  // namespace

void check_path(const char* op, const std::string& path, const Loc& loc) {
    if (path.find('\0') != std::string::npos) fail<FileError>(loc, "{}: the path {} has a byte of 0", op, shown(path));
}

int open_to_read(const char* op, const std::string& path, const Loc& loc) {
    check_path(op, path, loc);
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

constinit StepHook step_hook = nullptr;

InputFile::InputFile(const char* op, const std::string& path, const Loc& loc)
    : op_(op), path_(path), loc_(loc), descriptor_(open_to_read(op, path, loc)) {
    if (descriptor_ < 0) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
    struct stat status{};
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

void InputFile::check_unpacked(std::uint64_t bytes) const {
    const std::uint64_t most = max_unpacked_bytes();
    if (bytes > most) stop(fmt::format("unpacked it has more than {} bytes, the most that set_max_unpacked_bytes() allows", most));
}

void InputFile::stop_memory() const { fail<OutOfMemory>(loc_, "{}: {}: no memory for what the file holds", op_, path_); }

AtomicFile::AtomicFile(const char* op, const std::string& path, const Loc& loc) : op_(op), path_(path), target_(path), loc_(loc) {
    check_path(op, path, loc);
    struct stat status{};
    const bool exists = ::stat(path.c_str(), &status) == 0;
    if (exists && !S_ISREG(status.st_mode)) {
        fail<FileError>(loc_, "{}: {}: exists and is not a regular file", op_, path_);
    }
    struct stat link{};
    if (exists && ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode)) {  // the link stays, its target is replaced
        char* const real = ::realpath(path.c_str(), nullptr);
        if (!real) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
        target_ = real;
        std::free(real);
    }
    static std::atomic<unsigned> number{0};
    remove_leftovers(target_);
    step();
    do {
        temporary_ = fmt::format("{}.{}-{}.tmp", target_, ::getpid(), number.fetch_add(1));
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail<FileError>(loc_, "{}: {}: {}", op_, path_, reason());
    if (exists && ::fchmod(descriptor_, status.st_mode & 07777) != 0) errno = 0;  // not all file systems have modes
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail_system(const char* what) const { fail<FileError>(loc_, "{}: {}: {}: {}", op_, path_, what, reason()); }

void AtomicFile::write(const void* from, std::size_t count) {
    overwrite(size_, from, count);
    size_ += count;
}

void AtomicFile::overwrite(std::uint64_t offset, const void* from, std::size_t count) {
    const auto* next = static_cast<const std::byte*>(from);
    while (count > 0) {
        step();
        const ssize_t put = ::pwrite(descriptor_, next, std::min(count, kLargestCall), static_cast<off_t>(offset));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail_system("writing");
        next += put;
        offset += static_cast<std::uint64_t>(put);
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
    // Flushing the folder puts the rename itself on the disk. Some file systems refuse that; the file is complete anyway.
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

std::uint64_t tapir::max_unpacked_bytes() noexcept {
    const std::uint64_t most = io::most_unpacked.load(std::memory_order_relaxed);
    return most > 0 ? most : io::quarter_of_memory();
}
void tapir::set_max_unpacked_bytes(std::uint64_t bytes) noexcept { io::most_unpacked.store(bytes > 0 ? bytes : 1, std::memory_order_relaxed); }

void tapir::write_file(const TextArg& path, TextViewArg contents, Loc loc) { io::write_file("write_file", path, contents, loc); }
