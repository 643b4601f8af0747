// Files inside the library: reading at a position, and writing that is all or nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tapir/core/error.h"

namespace tapir::io {

/// Throws FileError for a path with a byte of 0: the system would take the part before it, which may be the name of another file.
void check_path(const char* op, const std::string& path, const Loc& loc);

/// open() for reading; below 0 where that fails. It does not wait for who writes to a FIFO: what is no regular file is for the caller to
/// refuse. Throws FileError as check_path().
int open_to_read(const char* op, const std::string& path, const Loc& loc);

/// An open regular file. Every failure is a FileError that begins with `op` and names the path.
class InputFile {
 public:
    InputFile(const char* op, const std::string& path, const Loc& loc);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    std::uint64_t size() const noexcept { return size_; }
    /// Exactly `count` bytes from `offset`.
    void read(std::uint64_t offset, void* to, std::size_t count) const;
    /// Throws FileError "op: path: problem".
    [[noreturn]] void stop(const std::string& problem) const;
    /// Throws FileError where what is packed in it has more bytes than max_unpacked_bytes().
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

/// A new file beside `path` that takes its place in commit(), or vanishes. Making it removes what killed processes left of theirs.
class AtomicFile {
 public:
    AtomicFile(const char* op, const std::string& path, const Loc& loc);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(const void* from, std::size_t count);
    /// Over what was written from `offset` on.
    void overwrite(std::uint64_t offset, const void* from, std::size_t count);
    /// Flushes to the disk, calls `before_rename` where there is one, and renames.
    void commit(const std::function<void()>& before_rename = nullptr);

 private:
    [[noreturn]] void fail_system(const char* what) const;

    const char* op_;
    const std::string& path_;
    std::string target_;  // what the path leads to
    Loc loc_;
    std::string temporary_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

/// tapir::write_file for a public function of that name.
void write_file(const char* op, const std::string& path, std::string_view contents, const Loc& loc);

}  // namespace tapir::io
