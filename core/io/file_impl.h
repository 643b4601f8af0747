// Files inside the library: reads at a position, and writes that are all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tapir/core/error.h"

namespace tapir::io {

/// Throws FileError for a path that contains a 0 byte: the system would use only the part before it, which may name another file.
void check_path(const char* op, const std::string& path, const Loc& loc);

/// Opens for reading; returns a negative number if that fails. Does not wait for the writer of a FIFO; the caller must refuse what is not a
/// regular file. Throws FileError as check_path().
int open_to_read(const char* op, const std::string& path, const Loc& loc);

/// An open regular file. Every failure is a FileError that begins with `op` and names the path.
class InputFile {
 public:
    InputFile(const char* op, const std::string& path, const Loc& loc);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    std::uint64_t size() const noexcept { return size_; }
    /// Reads exactly `count` bytes from `offset`.
    void read(std::uint64_t offset, void* to, std::size_t count) const;
    /// Throws FileError "op: path: problem".
    [[noreturn]] void stop(const std::string& problem) const;
    /// Throws FileError if its unpacked contents have more bytes than max_unpacked_bytes().
    void check_unpacked(std::uint64_t bytes) const;
    /// Throws OutOfMemory.
    [[noreturn]] void stop_memory() const;

 private:
    const char* op_;
    const std::string& path_;
    Loc loc_;
    int descriptor_;
    std::uint64_t size_ = 0;
};

/// Called before each call that changes the disk, for tests that end the process there.
using StepHook = void (*)();
extern constinit StepHook step_hook;
inline void step() {
    if (step_hook) [[unlikely]]
        step_hook();
}

/// A new file beside `path` that replaces it in commit(), or is deleted. Its constructor removes leftovers of killed processes.
class AtomicFile {
 public:
    AtomicFile(const char* op, const std::string& path, const Loc& loc);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* from, std::size_t count);
    /// Overwrites what was written from `offset` on.
    void overwrite(std::uint64_t offset, const void* from, std::size_t count);
    /// Flushes to the disk, calls `before_rename` if given, and renames.
    void commit(const std::function<void()>& before_rename = nullptr);

 private:
    [[noreturn]] void fail_system(const char* what) const;

    const char* op_;
    const std::string& path_;
    std::string target_;  // the path with links resolved
    Loc loc_;
    std::string temporary_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

/// tapir::write_file for a public function named `op`.
void write_file(const char* op, const std::string& path, std::string_view contents, const Loc& loc);

}  // namespace tapir::io
