// The treatment, in a trace, of layers that go along a sequence, like nn::LSTM.
//
// Unrolled steps are the fastest graph, but right for one number of steps only. trace() tries that first. If it does not hold for other sizes,
// or needs lengths that only a run knows, trace() traces the program once more, with these layers as scans.
#pragma once

namespace tapir::detail {

struct SequenceLoops {
    bool are_scans = false;
    bool were_met = false;  // in a trace
};
inline thread_local constinit SequenceLoops sequence_loops;

/// Sets the thread's state while it lives, with none met yet; at the end restores are_scans and merges were_met.
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
