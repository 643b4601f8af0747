// What is computed while a model is read is none of its graph.
#pragma once

#include "tapir/core/thread_impl.h"

namespace tapir::detail {

/// Nothing is traced while it lives, and tensors that are made are none of the trace's.
class OutsideTrace {
 public:
    OutsideTrace() noexcept : trace_(thread.trace) { thread.trace = 0; }
    ~OutsideTrace() { thread.trace = trace_; }
    OutsideTrace(const OutsideTrace&) = delete;
    OutsideTrace& operator=(const OutsideTrace&) = delete;

 private:
    PauseRecording pause_;
    std::uint16_t trace_;
};

}  // namespace tapir::detail
