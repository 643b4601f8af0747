// TensorBoard's event files: TFRecords, each an Event message.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/error.h"
#include "tapir/nn/summary/wire_impl.h"

namespace tapir::summary {

/// Returns the seconds since 1970.
double now();

/// A new file in a folder, which is made if needed. Each event goes to the system at once and as a whole: after add() every
/// reader can see it, and it stays if the program is killed. Two threads must not use it at once.
class EventFile {
 public:
    /// Messages begin with `op`. Throws FileError.
    EventFile(const char* op, const std::string& folder, const std::string& suffix, const Loc& loc);
    ~EventFile();
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;

    /// Throws FileError; then the file ends behind the last whole event, and the next one goes there.
    void add(const char* op, const Message& event, const Loc& loc);
    /// Waits until the data is on the disk.
    void flush(const char* op, const Loc& loc);
    const std::string& path() const noexcept { return path_; }

 private:
    std::string path_;
    int descriptor_ = -1;
    std::int64_t size_ = 0;  // of all whole events
};

}  // namespace tapir::summary
