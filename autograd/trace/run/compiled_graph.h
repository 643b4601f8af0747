// CompiledGraph: a graph made ready to be run often: called with tensors in order, without names, and without an allocation once it
// has seen inputs of these shapes (as long as what it gave is let go before the run after the next one; some ops, as convolutions, need some).
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

/// The only output of a graph: a Tensor. run(x)[0] is not compiled: of graph({x}), which is a list, [0] is the first output, but of a
/// Tensor it is the first row. Write run({x})[0] or `Tensor y = run(x); y[0]`.
class OnlyOutput : public Tensor {
 public:
    explicit OnlyOutput(Tensor output) noexcept : Tensor(static_cast<Tensor&&>(output)) {}
    Tensor operator[](const Index& index) const& { return Tensor::operator[](index); }
    Tensor operator[](const Index& index) const&& = delete;
};

/// Made by Graph::compile(). What is done to the graph later does not change it; it shares the parameters' tensors, and writes to them where
/// the graph has updates and was compiled without names. Copies speak of the same; several threads may call it at once. Nothing is recorded,
/// or traced: TapeError in a function that is traced.
class CompiledGraph {
 public:
    /// The only output. Throws ValueError where there are several (which call<2>(...) gives, or a list: run({x, h0})[1]), for another number of
    /// inputs than inputs() has names, for undefined ones, and where a guard finds another value than the program saw; ShapeError and DTypeError
    /// for those that the graph was not made for.
    OnlyOutput operator()(In x) const {
        Tensor y;
        const Tensor* const inputs[] = {&x.tensor};
        run(inputs, 1, &y, 1, x.loc);
        return OnlyOutput(static_cast<Tensor&&>(y));
    }
    template <class... More>
    OnlyOutput operator()(In a, In b, const More&... more) const {
        Tensor y;
        const Tensor* const inputs[] = {&a.tensor, &b.tensor, &static_cast<const Tensor&>(more)...};
        run(inputs, 2 + sizeof...(More), &y, 1, a.loc);
        return OnlyOutput(static_cast<Tensor&&>(y));
    }
    /// As many outputs, which are to be all that there are: const auto [h, c] = run.call<2>(x, h0, c0);
    template <std::size_t Count, class... More>
    std::array<Tensor, Count> call(In x, const More&... more) const {
        std::array<Tensor, Count> outputs;
        const Tensor* const inputs[] = {&x.tensor, &static_cast<const Tensor&>(more)...};
        run(inputs, 1 + sizeof...(More), outputs.data(), Count, x.loc);
        return outputs;
    }
    /// Any number of inputs and outputs.
    std::vector<Tensor> operator()(const std::vector<Tensor>& inputs, Loc loc = Loc::current()) const;
    /// run({x}) is a list of one, as in graph({x}); run(x) is the only output itself.
    std::vector<Tensor> operator()(std::initializer_list<Tensor> inputs, Loc loc = Loc::current()) const {
        return (*this)(std::vector<Tensor>(inputs), loc);
    }

    /// The names of the inputs that are to be given, in order: those that the outputs need.
    const std::vector<std::string>& inputs() const noexcept;
    std::size_t output_count() const noexcept;
    /// Of the memory in which the results within it lie, for all shapes that it has seen and keeps.
    std::size_t planned_bytes() const;

 private:
    friend class Graph;
    struct State;
    explicit CompiledGraph(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    void run(const Tensor* const* inputs, std::size_t input_count, Tensor* outputs, std::size_t count, const Loc& loc) const;

    std::shared_ptr<State> state_;
};

}  // namespace tapir
