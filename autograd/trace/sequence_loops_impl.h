// How layers that go along a sequence, as nn::LSTM does, are traced.
//
// A graph of their steps is the fastest, and right for one number of steps. So trace() tries that first; where it does not hold for other sizes,
// or needs lengths that only a run knows, it traces the program once more, and these layers are scans then.
#pragma once

namespace tapir::detail {

struct SequenceLoops {
    bool are_scans = false;
    bool were_met = false;  // in a trace
};
inline thread_local constinit SequenceLoops sequence_loops;

/// For as long as it lives they are what is said here, and none were met before.
class SequenceLoopsScope {
 public:
    explicit SequenceLoopsScope(bool are_scans) noexcept : outer_(sequence_loops) { sequence_loops = {are_scans, false}; }
    ~SequenceLoopsScope() { sequence_loops = {outer_.are_scans, outer_.were_met || sequence_loops.were_met}; }
    SequenceLoopsScope(const SequenceLoopsScope&) = delete;
    SequenceLoopsScope& operator=(const SequenceLoopsScope&) = delete;

 private:
    SequenceLoops outer_;
};

}  // namespace tapir::detail
