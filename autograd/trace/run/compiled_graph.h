// CompiledGraph: a graph prepared for frequent runs: called with tensors in order, without names, and without allocations once it
// has seen inputs of these shapes (if its outputs are released before the run after the next one; some ops, like convolutions, need some).
//
//     const auto run = graph.compile({"logits"});
//     Tensor logits = run(x);
//     const auto [h, c] = cell.compile().call<2>(x, h0, c0);
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tapir/autograd/trace/graph/graph.h"

namespace tapir {

/// Made by Graph::compile(). Later changes of the graph do not affect it. It shares the parameters' tensors, and writes to them if
/// the graph has updates and was compiled without names. Copies share one state; several threads may call it at once. It is neither recorded
/// nor traced: TapeError in a function that is traced.
class CompiledGraph {
 public:
    /// The only output. Throws ValueError if there are several (use call<2>(...), or a list: run({x, h0})[1]), for another number of
    /// inputs than inputs() has names, for undefined ones, and if a guard finds another value than the program saw; ShapeError and DTypeError
    /// for inputs that the graph was not made for.
    OnlyOutput operator()(In x) const {
        Tensor y;
        const Tensor* const inputs[] = {&x.tensor};
        run_in_order(inputs, 1, &y, 1, x.loc);
        return OnlyOutput(static_cast<Tensor&&>(y));
    }
    template <class... More>
    OnlyOutput operator()(In a, In b, const More&... more) const {
        Tensor y;
        const Tensor* const inputs[] = {&a.tensor, &b.tensor, &static_cast<const Tensor&>(more)...};
        run_in_order(inputs, 2 + sizeof...(More), &y, 1, a.loc);
        return OnlyOutput(static_cast<Tensor&&>(y));
    }
    /// All outputs, of which there must be Count: const auto [h, c] = run.call<2>(x, h0, c0);
    template <std::size_t Count, class... More>
    std::array<Tensor, Count> call(In x, const More&... more) const {
        std::array<Tensor, Count> outputs;
        const Tensor* const inputs[] = {&x.tensor, &static_cast<const Tensor&>(more)...};
        run_in_order(inputs, 1 + sizeof...(More), outputs.data(), Count, x.loc);
        return outputs;
    }
    /// Any number of inputs and outputs.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) const;
    /// run({x}) returns a list of one, like graph({x}); run(x) returns the only output itself.
    std::vector<Tensor> operator()(std::initializer_list<Tensor> inputs, Loc loc = Loc::current()) const {
        return (*this)(std::vector<Tensor>(inputs), loc);
    }

    /// Inputs by their names, as Graph::run(); the outputs are those that compile() was given. Throws ValueError for unknown names and missing
    /// inputs, and as above.
    std::vector<Tensor> run(const Graph::Inputs& inputs, Loc loc = Loc::current()) const;

    /// The names of the inputs to pass, in order: those that the outputs need.
    const std::vector<std::string>& inputs() const noexcept;
    std::size_t output_count() const noexcept;
    /// Bytes of the memory for inner results, for all shapes that it has seen and keeps.
    std::size_t planned_bytes() const;

 private:
    friend class Graph;
    struct State;
    explicit CompiledGraph(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    void run_in_order(const Tensor* const* inputs, std::size_t input_count, Tensor* outputs, std::size_t count, const Loc& loc) const;

    std::shared_ptr<State> state_;
};

}  // namespace tapir
