// Computations while a program is traced, or a model is read, that do not belong to the graph.
#pragma once

#include "tapir/core/shapes_only_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/core/trace_mark_impl.h"

namespace tapir::detail {

/// Pauses tracing and ShapesOnly while it lives. Tensors that are made meanwhile are not the trace's.
class OutsideTrace {
 public:
    OutsideTrace() noexcept : trace_(thread.trace), was_outside_(is_outside_trace) {
        thread.trace = 0;
        is_outside_trace = true;
    }
    ~OutsideTrace() {
        thread.trace = trace_;
        is_outside_trace = was_outside_;
    }
    OutsideTrace(const OutsideTrace&) = delete;
    OutsideTrace& operator=(const OutsideTrace&) = delete;

 private:
    PauseRecording pause_;
    ShapesOnly computes_{false};
    std::uint16_t trace_;
    bool was_outside_;
};

}  // namespace tapir::detail
