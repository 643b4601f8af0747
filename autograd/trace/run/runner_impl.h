// The plan that runs a graph: its nodes as steps over numbered slots.
//
// A plan runs in frames. A frame belongs to one thread at a time, and to inputs, parameters and constants of certain shapes. Its first run
// calls the ops as the program did, and records which results are views and when each is needed last. Then it lays out memory: each
// result that an op can write into a given place (OpForm::into) gets a place in one block, shared with results whose lifetimes do not
// overlap with its own. Results that leave the graph have a tensor of their own, which later runs write to again once nobody else holds it.
// From then on a step is one call of a kernel's driver, without checks, and views of results in the block are not even made again.
// Steps that cannot write into a given place make their results anew. Steps that are worth a thread each, and do not need each other, run
// at once. Updates of inputs and parameters are written at the end, when nothing can fail any more, except parts of tensors that are read
// later: an error restores these. On a CUDA device, stretches of steps are captured instead, and launched as one (capture.cpp).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir::detail {

/// The steps that compute some outputs. Several threads may run it at once: each takes a Frame.
class Plan {
 public:
    /// outputs: names; empty: all outputs, and updates are written. in_slices: may run for a part of the batch at a time, where nobody replaces
    /// the graph's tensors. Throws ValueError for unknown names.
    Plan(const Graph& graph, std::vector<std::string> outputs, bool in_slices, const Loc& loc);
    ~Plan();
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    const std::vector<std::string>& outputs() const noexcept { return outputs_; }
    /// given: by the graph's inputs, null for those that are not needed.
    void run(const Tensor* const* given, Tensor* results, const Loc& loc);
    std::size_t result_count() const noexcept { return result_slots_.size(); }
    /// The indices of the graph's inputs that are needed.
    std::vector<int> needed_inputs() const;
    /// Bytes of the blocks for results, over all frames, also those of the graphs in its nodes.
    std::size_t planned_bytes();
    struct Captured;

 private:
    friend class MemoryLayout;
    struct Step {
        const Graph::Node* node;
        std::vector<int> inputs;        // slots
        int first_result;               // the slots of its results are consecutive
        std::vector<int> dead;          // slots of results that are not needed after it
        std::vector<int> updates = {};  // for each result: the update whose target it writes, after all others; empty: none
    };
    struct Frame;
    struct Call;
    struct Taken;
    // The frame that a thread used last. Only the first thread touches it, so that no atomic instruction is needed; another may take
    // over after that thread has ended.
    struct AtHand {
        std::atomic<const void*> owner{nullptr};
        std::unique_ptr<Frame> frame;       // null: it is running
        std::atomic<std::size_t> bytes{0};  // size of its block
    };
    class Slots;
    void add_steps(Slots& slots, const std::unordered_set<const Graph::Value*>& needed, const std::unordered_set<const Graph::Value*>& seen);
    void note_dead();
    std::unique_ptr<Frame> take_frame(const Tensor* const* given, AtHand*& place, const Loc& loc);
    std::unique_ptr<Frame> other_frame(const Tensor* const* given, AtHand* place, const Loc& loc);
    void give_back(std::unique_ptr<Frame> frame, AtHand* place);
    std::unique_ptr<Frame> make_frame(const Tensor* const* given, const Loc& loc) const;
    bool fits(const Frame& frame, const Tensor* const* given) const noexcept;
    std::size_t bytes_in(const Frame& frame) const;
    void check_inputs(const Tensor* const* given, const Loc& loc) const;
    void schedule(Frame& frame) const;
    std::int64_t numel_of(const Frame& frame, int slot) const;
    void lay_out(Frame& frame) const;
    void run_at_once(Frame& frame, std::size_t from, std::size_t to) const;
    void plan_updates(Frame& frame) const;
    void run_op(Call& call, Frame& frame, const Loc& loc) const;
    bool make_results(Call& call, Frame& frame, const Loc& loc) const;
    void start_outgoing(Frame& frame, const Loc& loc) const;
    void make_loose(Call& call, Frame& frame) const;
    const Tensor& target_of(int update, const Tensor* const* given) const;
    void start_early(Frame& frame, const Tensor* const* given, const Loc& loc) const;
    void keep_part(const Call& call, Frame& frame) const;
    void leave_early(const Call& call, Frame& frame) const;
    void undo_early(Frame& frame) const noexcept;
    // Running captured CUDA work (capture.cpp).
    void plan_capture(Frame& frame) const;
    bool can_capture(const Frame& frame, std::size_t step, Device device) const;
    bool capture(Frame& frame, const Tensor* const* given, const Loc& loc) const;
    bool capture_steps(Frame& frame, std::size_t begin, std::size_t end, std::size_t& reached, const Loc& loc) const;
    bool run_captured(Frame& frame, const Tensor* const* given, const Loc& loc) const;
    bool run_between(Frame& frame, std::size_t i, const Loc& loc) const;
    void run_first(Frame& frame, const Loc& loc) const;
    void run_or_try(Frame& frame, const Loc& loc) const;
    void run_steps(Frame& frame, const Loc& loc) const;
    void write_updates(Frame& frame, const Tensor* const* given, const Loc& loc) const;

    const Graph graph_;  // a prepared copy of the part that runs
    std::vector<std::string> outputs_;
    bool is_whole_;
    bool writes_inputs_;
    std::vector<Step> steps_;
    std::size_t tail_;              // steps from here on write updates
    std::vector<int> input_slots_;  // -1: not needed
    std::vector<int> result_slots_;
    std::vector<bool> are_constants_;                           // for each result: true if it is a constant of the graph, which is returned as a copy
    std::vector<std::pair<int, const Graph::Value*>> held_;     // parameters and constants: slot, and the owner of the tensor; -1: only written to
    std::vector<std::pair<int, int>> guard_slots_;              // slot, and index of the guard
    std::vector<int> update_slots_;                             // for each update
    std::vector<std::pair<const Graph::Value*, int>> targets_;  // for each update: the owner of the tensor, or the index of the input
    std::vector<int> last_use_;                                 // for each slot: a step
    int slot_count_ = 0;
    std::array<AtHand, 4> at_hand_;  // by thread
    std::mutex mutex_;
    std::vector<std::unique_ptr<Frame>> idle_;
};

/// Graph::run for all outputs: takes the graph's inputs in order, and room for all its outputs.
void run_in_order(const Graph& graph, const Tensor* const* given, Tensor* results, const Loc& loc);
/// The sum of its plans' planned_bytes().
std::size_t planned_bytes(const Graph& graph);

/// Tensors by index, null at first.
struct Given {
    static constexpr std::size_t kFew = 16;
    const Tensor* few[kFew];
    std::vector<const Tensor*> many;
    const Tensor** data = few;

    explicit Given(std::size_t count) {
        if (count > kFew) {
            many.resize(count);
            data = many.data();
        }
        for (std::size_t i = 0; i < count; ++i) data[i] = nullptr;
    }
    Given(const Given&) = delete;
    Given& operator=(const Given&) = delete;
};

/// The time in nanoseconds from which steps are run at once, if they do not need each other and there are threads; 0, for tests: always,
/// without a trial of whether that is faster.
void set_least_parallel_ns(std::int64_t ns) noexcept;
std::int64_t least_parallel_ns() noexcept;

/// True if both are defined and have the same dtype, device and shape.
bool are_alike(const Tensor& a, const Tensor& b) noexcept;
/// True if both have the same shape, dtype and bits.
bool same_elements(const Tensor& a, const Tensor& b);
/// The sizes of named dimensions, from the sizes of the inputs; undefined inputs are skipped. Throws ShapeError, DTypeError.
DimSizes sizes_of_inputs(const Graph& graph, const Tensor* given, const Loc& loc);
/// Throws ShapeError and DTypeError if a parameter's or constant's tensor was replaced by one of another type, ValueError if it is undefined.
void check_held(const Graph::Value& value, const Loc& loc);
/// Checks each parameter and constant.
void check_held(const Graph& graph, const Loc& loc);
/// True if some of its updates write to inputs.
bool writes_inputs(const Graph& graph) noexcept;
/// Throws ValueError if an input that is written to overlaps another input. Undefined tensors are skipped.
void check_written_inputs(const Graph& graph, const Tensor* const* given, const Loc& loc);
/// Writes all updates as if at the same time: from the values before any of the writes.
void write_at_once(std::vector<std::pair<Tensor, Tensor>> updates, const Loc& loc);
/// Throws ValueError if the program might take another branch now.
void check_guard(const Graph::Guard& guard, const Tensor& now, const Loc& loc);

}  // namespace tapir::detail
