// A plan's frame: what it knows and holds for inputs, parameters and constants of certain shapes (runner_impl.h says what it is for).
#pragma once

#include <climits>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir::detail {

inline constexpr int kOutside = -1;             // a root: an input, a parameter or a constant
inline constexpr int kToTheEnd = INT_MAX;       // a last use
inline constexpr std::size_t kMostWritten = 8;  // results of a step that writes updates
inline constexpr int kMostOfPart = 4;           // operands of an op that replaces a part, which may be written early

inline std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }

// What a tensor must be for its place to be found in a frame.
struct Geometry {
    Shape shape, strides;
    DType dtype = float32;
    Device device;
    bool is_defined = false, is_contiguous = false, is_channels_last = false;  // not both of the latter

    Geometry() = default;
    explicit Geometry(const Tensor& x) {
        if (!x.defined()) return;
        shape = x.shape();
        strides = x.strides();
        dtype = x.dtype();
        device = x.device();
        is_defined = true;
        is_contiguous = x.is_contiguous();
        is_channels_last = !is_contiguous && detail::is_channels_last(x.impl());
    }
    bool lies_as(const Geometry& other) const noexcept {
        return is_contiguous == other.is_contiguous && is_channels_last == other.is_channels_last && shape == other.shape;
    }
    /// A fresh tensor like it.
    Tensor make(const Loc& loc) const {
        return is_channels_last ? make_channels_last(shape, dtype, device, loc) : make_empty(shape, dtype, device, loc);
    }
    bool has_shape_of(const TensorImpl* x) const noexcept {
        if (x->rank != shape.rank()) return false;
        for (int d = 0; d < x->rank; ++d) {
            if (x->sizes[d] != shape.raw(d)) return false;
        }
        return true;
    }
    std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * itemsize(dtype); }
};

// A result that leaves the graph: the tensors of the last two runs, in the slot and here, one of which may be written to again. Two, since a
// program may give a run what the last one gave it.
struct Outgoing {
    int slot;
    Tensor other;
    std::vector<int> before;  // slots of what parts were written into to make it, one after the other: they lie there, too
};

// An input or a parameter of which parts are written before it is read: they are written there at once, where copies of all of it would be made.
struct EarlyWrite {
    int update;              // what is written at the end, were it not for this
    std::vector<int> slots;  // what the writes give, the last of which is what the update wants
    std::vector<int> calls;  // that write
    bool is_active = false;  // in this run; else it is done in a tensor beside it
};

/// Whether its into() writes to any tensor without gaps, as those with their channels last.
bool takes_any_layout(const OpForm& form) noexcept;

// A step of a frame.
struct Plan::Call {
    FormCall call;
    bool (*into)(const FormCall&, const Tensor&);  // null: its results are made
    const Step* step;
    Tensor* results;
    std::vector<int> dead = {};  // slots to be emptied after it
    bool stays = false;          // once made: views of what lies in the block, and what depends on constants only
    bool is_made = false;
    bool is_done = false;          // at once with others
    bool gives_more = false;       // results than the node has
    int early = -1;                // number of the EarlyWrite that it is one of
    const OpForm* part = nullptr;  // then: the op that gives the part as it was
};

struct Plan::Frame {
    std::vector<Geometry> given;                                  // by the graph's inputs
    std::vector<Tensor> slots;                                    // results
    std::vector<const Tensor*> where;                             // of each slot: here, in the graph, or among the inputs
    std::vector<const Tensor*> arguments;                         // of all calls
    std::vector<std::pair<const Tensor**, int>> input_arguments;  // places in it and in `where`, and which input belongs there
    std::vector<Call> calls;
    std::vector<Attributes> resolved;                              // those that depend on sizes
    std::vector<Tensor> made = std::vector<Tensor>(kMostResults);  // by the op that runs
    std::vector<Tensor> held;  // parameters and constants, as they were in the first run, or when updates were planned last
    bool is_learned = false, is_laid_out = false, writes_directly = false;
    std::vector<int> roots;       // of each slot: whose elements it shows; itself, kOutside
    std::vector<Geometry> seen;   // of each slot
    std::vector<bool> is_placed;  // in the block
    std::vector<int> loose;       // slots to be emptied at the end
    std::vector<Outgoing> outgoing;
    std::vector<EarlyWrite> early;
    struct Undo {
        const Call* call;
        std::array<Tensor, kMostOfPart> operands;  // the last is the part as it was
    };
    std::vector<Undo> undo;   // of the parts that were written early in this run
    std::vector<int> order;   // of the calls but those of updates
    std::vector<int> stages;  // where each begins in it: calls of one stage may run at once
    // Whether that is faster is tried: a machine may have others to do.
    int tries = 0;
    bool runs_at_once = false, is_faster_at_once = false;
    double seconds[2][2] = {};     // the best two, one after the other and at once
    std::vector<int> tail_inputs;  // inputs that updates read directly
    std::vector<bool> is_written;  // of each update
    Tensor block;
    std::shared_ptr<Captured> captured;  // null: nothing of it runs on a CUDA device
    const void* ran_on = nullptr;        // the thread that ran it op by op last
};

#ifdef TAPIR_WITH_CUDA
inline constexpr bool kCanCapture = true;
#else
inline constexpr bool kCanCapture = false;
#endif
/// Whether it lies in memory that captured work writes to.
bool is_captured(const Tensor& x) noexcept;
std::size_t bytes_of(const Plan::Captured& captured) noexcept;

}  // namespace tapir::detail
