// Backward on devices with streams: each rule runs on the stream that its op ran on.
//
// Note [Streams in backward]
// A gradient is allocated on the stream that wrote it. Where a rule meets one that was written on another stream, its own
// stream waits for that one and the gradient is copied over; where gradients are added up, the same. So whatever a rule
// sees was written on its own stream, and it may write to it in place. At the end the caller's streams wait for all that
// were used. A tape that saw one stream, the caller's, has nothing of all this. But a leaf's gradient may be another
// backward's, of a thread with a stream of its own: what reads it to add to it waits for its stream first.
#pragma once

#include <vector>

#include "tapir/autograd/log_impl.h"

namespace tapir {

class BackwardStreams {
 public:
    /// Nothing happens unless the tape has runs on several streams, or on one that is not the thread's current one.
    explicit BackwardStreams(const Log& log);
    /// The caller's streams wait for those that were used, and are current again.
    ~BackwardStreams();
    BackwardStreams(const BackwardStreams&) = delete;
    BackwardStreams& operator=(const BackwardStreams&) = delete;

    bool are_several() const noexcept { return several_; }
    /// The stream of this record becomes the current one of its device.
    void follow(std::uint32_t record);
    /// Makes the gradient one that was written on the current stream of its device.
    void bring(Tensor& gradient);

 private:
    const Log& log_;
    bool several_ = false;
    std::vector<void*> callers_;  // by device
    std::vector<void*> used_;
};

/// Whether it was written on the current stream of its device, so that it may be written to.
bool is_written_here(const Tensor& gradient) noexcept;
/// The current stream of its device waits for the one that wrote it, if that is another.
void wait_for_writer(const Tensor& gradient);

}  // namespace tapir
