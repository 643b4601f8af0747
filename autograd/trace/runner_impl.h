// What a graph is run with: its nodes as steps over numbered slots.
#pragma once

#include <memory>
#include <mutex>

#include "tapir/autograd/trace/graph.h"

namespace tapir::detail {

/// Steps of the nodes that some outputs need. Several threads may run it at once: each takes a State.
class Plan {
 public:
    /// outputs: names; empty: all outputs, and updates are written. Throws ValueError for unknown ones.
    Plan(const Graph& graph, std::vector<std::string> outputs, const Loc& loc);

    const std::vector<std::string>& outputs() const noexcept { return outputs_; }
    /// given: by the graph's inputs, undefined where they are not needed.
    void run(const Tensor* given, Tensor* results, const Loc& loc);
    std::size_t result_count() const noexcept { return result_slots_.size(); }

 private:
    struct Step {
        const Graph::Node* node;
        std::vector<int> inputs, results;  // slots; -1: a result that nobody needs
        std::vector<int> dead;             // slots that are not needed after it
        int reusable = -1;                 // of these one of the result's shape and dtype
    };
    struct State {
        std::vector<Tensor> slots;
        std::vector<std::vector<const Tensor*>> arguments;  // of each step
        std::vector<Attributes> resolved;                   // those that depend on sizes, in the order of steps
        std::vector<const void*> attrs;                     // of each step
        std::vector<Shape> shapes;                          // of each step's first result, where it is known
        std::vector<Shape> given;                           // for which these hold
    };
    std::unique_ptr<State> take_state();
    void prepare(State& state, const Tensor* given, const Loc& loc) const;
    void check_inputs(const Tensor* given, const Loc& loc) const;
    void run_step(std::size_t s, State& state) const;

    const Graph& graph_;
    std::vector<std::string> outputs_;
    bool is_whole_;
    std::vector<Step> steps_;
    std::vector<int> input_slots_;  // -1: not needed
    std::vector<int> result_slots_;
    std::vector<std::pair<int, const Graph::Value*>> held_;  // parameters and constants
    std::vector<std::pair<int, int>> guard_slots_, update_slots_;  // slot, and which
    int slot_count_ = 0;
    std::mutex mutex_;
    std::vector<std::unique_ptr<State>> idle_;
};

/// What the sizes of the inputs say about the named dimensions; undefined ones are left out. Throws ShapeError, DTypeError.
DimSizes sizes_of_inputs(const Graph& graph, const Tensor* given, const Loc& loc);
/// Throws ValueError where the program would go another way now.
void check_guard(const Graph::Guard& guard, const Tensor& now, const Loc& loc);

}  // namespace tapir::detail
