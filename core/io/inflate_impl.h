// Compressed bytes inside the library: deflate by zlib, which a build may lack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tapir/core/io/file_impl.h"

namespace tapir::io {

/// A byte of deflate's output takes at least 1/1032 byte of input. This bounds what a file of a given size can unpack to.
inline constexpr std::uint64_t kMostDeflated = 1032;

/// Inflates a stretch of a file from front to end. Throws FileError, with the file's path, for damaged data and for a
/// build without zlib.
class Inflater {
 public:
    enum class Wrapping { gzip, none };

    /// The file must outlive it.
    Inflater(const InputFile& file, std::uint64_t offset, std::uint64_t count, Wrapping wrapping);
    ~Inflater();
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;

    /// Reads up to `count` bytes; fewer only at the end of the data.
    std::size_t read(void* to, std::size_t count);

 private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Deflates, without wrapping. `sink` receives the output.
class Deflater {
 public:
    using Sink = std::function<void(const void* from, std::size_t count)>;

    Deflater(const char* op, const Loc& loc, Sink sink);
    ~Deflater();
    Deflater(const Deflater&) = delete;
    Deflater& operator=(const Deflater&) = delete;

    void write(const void* from, std::size_t count);
    void finish();

 private:
    struct State;
    void run(int flush);
    std::unique_ptr<State> state_;
};

/// Reads a file from the front to the end, and unpacks gzip.
class InputStream {
 public:
    InputStream(const char* op, const std::string& path, const Loc& loc);

    /// Reads exactly `count` bytes.
    void read(void* to, std::size_t count);
    /// Reads up to `count` bytes; fewer only at the end.
    std::size_t read_some(void* to, std::size_t count);
    /// Reads all that is left.
    std::string read_all();
    /// Returns the most bytes that can still come, even from a hostile file.
    std::uint64_t most_left() const noexcept;
    [[noreturn]] void fail_at(std::uint64_t position, const std::string& problem) const;

 private:
    InputFile file_;
    std::unique_ptr<Inflater> inflater_;  // null: the file is not packed
    std::uint64_t position_ = 0;          // in the bytes that are read
};

}  // namespace tapir::io
