// TensorBoard's event files: TFRecords, each an Event message.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/error.h"
#include "tapir/nn/summary/wire_impl.h"

namespace tapir::summary {

/// Seconds since 1970.
double now();

/// A new file in a folder, which is made if need be. Each event is handed to the system as a whole and at once: what add() was called
/// with is there for every reader, and stays when the program is killed. Not to be used by two threads at once.
class EventFile {
 public:
    /// `op` is what messages begin with. Throws FileError.
    EventFile(const char* op, const std::string& folder, const std::string& suffix, const Loc& loc);
    ~EventFile();
    EventFile(const EventFile&) = delete;
    EventFile& operator=(const EventFile&) = delete;

    /// Throws FileError; the file ends behind the last whole event then, and the next one goes there.
    void add(const char* op, const Message& event, const Loc& loc);
    /// Waits until the disk has it.
    void flush(const char* op, const Loc& loc);
    const std::string& path() const noexcept { return path_; }

 private:
    std::string path_;
    int descriptor_ = -1;
    std::int64_t size_ = 0;  // of the whole events
};

}  // namespace tapir::summary
