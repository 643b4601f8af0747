// A plan's frame: its state for inputs, parameters and constants of certain shapes (runner_impl.h explains its purpose).
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

// The properties of a tensor on which a frame's layout depends.
struct Geometry {
    Shape shape, strides;
    DType dtype = float32;
    Device device;
    bool is_defined = false, is_contiguous = false, is_channels_last = false;  // the latter two exclude each other

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
    /// Makes a fresh tensor like it.
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
// program may pass the last run's result to the next run.
struct Outgoing {
    int slot;
    Tensor other;
    std::vector<int> before;  // slots of the tensors whose parts were written to make it, one after the other: they share its memory
};

// An input or a parameter of which parts are written before it is read: they are written in place at once, instead of copying all of it.
struct EarlyWrite {
    int update;              // the update, which is written at the end otherwise
    std::vector<int> slots;  // the results of the writes; the last is the update's value
    std::vector<int> calls;  // the calls that write
    bool is_active = false;  // in this run; else a tensor beside it is written
};

/// True if its into() writes to any tensor without gaps, also to those with their channels last.
bool takes_any_layout(const OpForm& form) noexcept;

// A step of a frame.
struct Plan::Call {
    FormCall call;
    bool (*into)(const FormCall&, const Tensor&);  // null: makes its results itself
    const Step* step;
    Tensor* results;
    std::vector<int> dead = {};  // slots to be emptied after it
    bool stays = false;          // once made, is kept: views of results in the block, and what depends on constants only
    bool is_made = false;
    bool is_done = false;          // already run, in parallel with others
    bool gives_more = false;       // it returns more results than the node has
    int early = -1;                // index of its EarlyWrite
    const OpForm* part = nullptr;  // then: the op that returns the old part
};

struct Plan::Frame {
    std::vector<Geometry> given;                                  // by the graph's inputs
    std::vector<Tensor> slots;                                    // results
    std::vector<const Tensor*> where;                             // the tensor of each slot: here, in the graph, or among the inputs
    std::vector<const Tensor*> arguments;                         // for all calls
    std::vector<std::pair<const Tensor**, int>> input_arguments;  // places in it and in `where`, with the index of the input that belongs there
    std::vector<Call> calls;
    std::vector<Attributes> resolved;                              // attributes that depend on sizes
    std::vector<Tensor> made = std::vector<Tensor>(kMostResults);  // results of the op that runs
    std::vector<Tensor> held;  // parameters and constants, as of the first run, or of the last planning of updates
    bool is_learned = false, is_laid_out = false, writes_directly = false;
    std::vector<int> roots;       // for each slot: the slot whose elements it shows; itself, kOutside
    std::vector<Geometry> seen;   // for each slot
    std::vector<bool> is_placed;  // true: in the block
    std::vector<int> loose;       // slots to empty at the end
    std::vector<Outgoing> outgoing;
    std::vector<EarlyWrite> early;
    struct Undo {
        const Call* call;
        std::array<Tensor, kMostOfPart> operands;  // the last is the old part
    };
    std::vector<Undo> undo;   // for the parts that were written early in this run
    std::vector<int> order;   // the calls but those of updates, in running order
    std::vector<int> stages;  // the index in `order` where each begins: calls of one stage may run at once
    // Trials of running stages at once: it may be slower if the machine is busy.
    int tries = 0;
    bool runs_at_once = false, is_faster_at_once = false;
    double seconds[2][2] = {};     // the best two, sequential and at once
    std::vector<int> tail_inputs;  // inputs that updates read directly
    std::vector<bool> is_written;  // for each update
    Tensor block;
    std::shared_ptr<Captured> captured;  // null: nothing of it runs on a CUDA device
    const void* ran_on = nullptr;        // the thread that ran it op by op last
};

#ifdef TAPIR_WITH_CUDA
inline constexpr bool kCanCapture = true;
#else
inline constexpr bool kCanCapture = false;
#endif
/// True if it lies in memory that captured work writes to.
bool is_captured(const Tensor& x) noexcept;
std::size_t bytes_of(const Plan::Captured& captured) noexcept;

}  // namespace tapir::detail
