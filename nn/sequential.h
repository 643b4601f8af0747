// Sequential: layers one after the other.
#pragma once

#include "tapir/nn/any_module.h"

namespace tapir::nn {

/// Layers are modules with a forward(In), or plain functions and lambdas of a tensor, in any mixture:
///     nn::Sequential net(nn::Linear(784, 256), relu, nn::Dropout(0.2), nn::Linear(256, 10));
///     net[0].as<nn::Linear>().weight;
///     for (const nn::AnyModule& layer : net) x = layer(x);
/// They are copied in; as always, copies of modules share tensors. Parameters are named by position: "0.weight", "3.bias". For a name
/// with several functions, such as tanh beside <cmath>'s, the Tensor(In) is taken, in up to 20 layers; beyond that write nn::Tanh().
class Sequential : public Module {
 public:
    Sequential() = default;
    template <class First, class... Rest>
        requires(!std::is_same_v<std::remove_cvref_t<First>, Sequential> || sizeof...(Rest) > 0)
    explicit Sequential(First first, Rest... rest) {
        add(std::move(first));
        (add(std::move(rest)), ...);
    }

    /// Overload for types that cannot all be deduced, because a name is overloaded.
    explicit Sequential(AnyModule a, AnyModule b = {}, AnyModule c = {}, AnyModule d = {}, AnyModule e = {}, AnyModule f = {}, AnyModule g = {},
                        AnyModule h = {}, AnyModule i = {}, AnyModule j = {}, AnyModule k = {}, AnyModule l = {}, AnyModule m = {}, AnyModule n = {},
                        AnyModule o = {}, AnyModule p = {}, AnyModule q = {}, AnyModule r = {}, AnyModule s = {}, AnyModule t = {});

    /// Throws ValueError for a null function.
    template <class Layer>
    Sequential& push_back(Layer layer, Loc loc = Loc::current()) {
        static_assert(detail::kTakesTensor<Layer>, "a layer of a Sequential needs a forward(In) that gives a Tensor, or is a function of a tensor");
        if constexpr (std::is_same_v<Layer, AnyModule>) {
            layers_.push_back(std::move(layer));
        } else {
            layers_.push_back(AnyModule(std::move(layer), loc));
        }
        return *this;
    }
    Sequential& push_back(Tensor (*function)(In), Loc loc = Loc::current()) {
        layers_.push_back(AnyModule(function, loc));
        return *this;
    }
    std::size_t size() const noexcept { return layers_.size(); }
    /// Returns the module at a position; negative ones count from the end. Throws IndexError, and ValueError for a function.
    Module& at(IndexArg i);
    /// Returns the layer at a position, to call it or to ask for its module. Throws IndexError.
    const AnyModule& operator[](IndexArg i) const { return layers_[detail::place(i, layers_.size(), "Sequential", "layer")]; }
    auto begin() const noexcept { return layers_.begin(); }
    auto end() const noexcept { return layers_.end(); }

    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;

 private:
    // The caller's line is not known here, so a null function is refused when it is called.
    template <class Layer>
    void add(Layer layer) {
        if (tapir::detail::is_null(layer)) {
            layers_.emplace_back();
        } else {
            push_back(std::move(layer));
        }
    }

    std::vector<AnyModule> layers_;
};

}  // namespace tapir::nn
