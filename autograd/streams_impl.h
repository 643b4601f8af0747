// Backward on devices with streams: each rule runs on the stream that its op ran on.
//
// Note [Streams in backward]
// A gradient is allocated on the stream that wrote it. If a rule meets one from another stream, the rule's stream waits for
// that one and the gradient is copied over; sums of gradients do the same. So all that a rule sees was written on its own
// stream, and it may write to it in place. At the end the caller's streams wait for all that were used. A tape that saw only
// one stream, the caller's, does none of this. But a leaf's gradient may come from another backward, of a thread with a
// stream of its own: code that reads it to add to it waits for its stream first.
#pragma once

#include <vector>

#include "tapir/autograd/log_impl.h"

namespace tapir {

class BackwardStreams {
 public:
    /// Does nothing unless the tape has runs on several streams, or on one that is not the thread's current one.
    explicit BackwardStreams(const Log& log);
    /// Makes the caller's streams wait for those that were used, and makes them current again.
    ~BackwardStreams();
    BackwardStreams(const BackwardStreams&) = delete;
    BackwardStreams& operator=(const BackwardStreams&) = delete;

    bool are_several() const noexcept { return several_; }
    /// Makes the stream of this record the current one of its device.
    void follow(std::uint32_t record);
    /// Makes the gradient one that was written on its device's current stream.
    void bring(Tensor& gradient);

 private:
    const Log& log_;
    bool several_ = false;
    std::vector<void*> callers_;  // by device
    std::vector<void*> used_;
};

/// True if it was written on the current stream of its device, so that it may be written to.
bool is_written_here(const Tensor& gradient) noexcept;
/// Makes the current stream of its device wait for the stream that wrote it, if that is another.
void wait_for_writer(const Tensor& gradient);

}  // namespace tapir
