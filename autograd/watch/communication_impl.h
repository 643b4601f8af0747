// What a Profiler sees of calls to other ranks. nn/parallel reports them: it is a library of its own, which this one does not know.
#pragma once

#include <cstdint>
#include <string>

#include "tapir/core/error.h"

namespace tapir::detail {

/// A call to other ranks, reported by the thread that made it. Times are profile_ticks().
struct CommunicationCall {
    const void* channel;   // ranks that are threads have one each
    const char* op;        // outlives the profiler
    std::string of, note;  // "float32 (3, 4), sum"; "step 118"
    Loc loc;
    std::int64_t bytes;
    std::int64_t begin, agreed, end;  // agreed: all ranks had come to it
};

/// The number of the running profiler; 0 if there is none. It does not take what began under another one.
std::uint64_t profile_run() noexcept;
std::int64_t profile_ticks() noexcept;
void note_communication(std::uint64_t run, CommunicationCall call);
/// The program has waited for calls of a channel.
void note_communication_wait(std::uint64_t run, const void* channel, std::int64_t begin, std::int64_t end);

}  // namespace tapir::detail
