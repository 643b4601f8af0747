// Sequential: layers one after the other.
#pragma once

#include <type_traits>
#include <utility>

#include "tapir/nn/module.h"

namespace tapir::nn {

/// Layers are modules with a forward(In), or plain functions and lambdas of a tensor, in any mixture:
///     nn::Sequential net(nn::Linear(784, 256), relu, nn::Dropout(0.2), nn::Linear(256, 10));
/// They are copied in; as ever, copies of modules share tensors. Parameters are named by position: "0.weight", "3.bias". Of a name
/// with several functions, as tanh beside <cmath>'s, the Tensor(In) is taken, in up to 20 layers; else write nn::Tanh().
class Sequential : public Module {
    class Owned;

 public:
    Sequential() = default;
    template <class First, class... Rest>
        requires(!std::is_same_v<std::remove_cvref_t<First>, Sequential> || sizeof...(Rest) > 0)
    explicit Sequential(First first, Rest... rest) {
        push_back(std::move(first));
        (push_back(std::move(rest)), ...);
    }

    /// The same where not all types can be deduced, because a name is overloaded.
    explicit Sequential(Owned a, Owned b = {}, Owned c = {}, Owned d = {}, Owned e = {}, Owned f = {}, Owned g = {}, Owned h = {},
                        Owned i = {}, Owned j = {}, Owned k = {}, Owned l = {}, Owned m = {}, Owned n = {}, Owned o = {},
                        Owned p = {}, Owned q = {}, Owned r = {}, Owned s = {}, Owned t = {});

    template <class Layer>
    Sequential& push_back(Layer layer) {
        layers_.emplace_back(std::move(layer));
        return *this;
    }
    Sequential& push_back(Tensor (*function)(In)) {
        layers_.emplace_back(function);
        return *this;
    }
    std::size_t size() const noexcept { return layers_.size(); }
    /// The module at a position. Throws IndexError, and ValueError where there is a function.
    Module& at(std::size_t i, Loc loc = Loc::current());

    Tensor forward(In x) const;
    Tensor operator()(In x) const { return forward(x); }
    void members(Members& m) override;

 private:
    struct Base {
        virtual ~Base() = default;
        virtual Tensor call(In x) = 0;
        virtual Base* clone() const = 0;
        virtual Module* module() noexcept = 0;
    };
    template <class Layer>
    struct Holder final : Base {
        explicit Holder(Layer l) : layer(std::move(l)) {}
        Tensor call(In x) override {
            if constexpr (requires { layer.forward(x); }) {
                return layer.forward(x);
            } else if constexpr (requires { layer(x); }) {
                return layer(x);
            } else {
                return layer(x.tensor);
            }
        }
        Base* clone() const override { return new Holder(layer); }
        Module* module() noexcept override {
            if constexpr (std::is_base_of_v<Module, Layer>) {
                return &layer;
            } else {
                return nullptr;
            }
        }
        Layer layer;
    };
    // Owns one layer; a copy owns a copy.
    class Owned {
     public:
        Owned() noexcept = default;
        template <class Layer>
        Owned(Layer layer) : layer_(new Holder<Layer>(std::move(layer))) {}  // NOLINT: implicit by design
        Owned(Tensor (*function)(In)) : layer_(new Holder<Tensor (*)(In)>(function)) {}  // NOLINT: of an overloaded name this one
        Owned(const Owned& other) : layer_(other.layer_->clone()) {}
        Owned(Owned&& other) noexcept : layer_(std::exchange(other.layer_, nullptr)) {}
        Owned& operator=(Owned other) noexcept {
            std::swap(layer_, other.layer_);
            return *this;
        }
        ~Owned() { delete layer_; }
        explicit operator bool() const noexcept { return layer_; }
        Base& operator*() const noexcept { return *layer_; }

     private:
        Base* layer_ = nullptr;
    };

    std::vector<Owned> layers_;
};

}  // namespace tapir::nn
