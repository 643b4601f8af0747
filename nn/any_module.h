// AnyModule: a layer of any type behind one type, what Sequential, ModuleList and ModuleDict hold.
#pragma once

#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tapir/core/arguments.h"
#include "tapir/nn/module.h"

namespace tapir::nn {

namespace detail {
/// Something that makes a tensor of a tensor.
template <class Layer>
constexpr bool kTakesTensor = requires(Layer& layer, const In& x) { Tensor(layer.forward(x)); } || requires(Layer& layer, const In& x) {
    Tensor(layer.forward(x.tensor));
} || requires(Layer& layer, const In& x) { Tensor(layer(x)); } || requires(Layer& layer, const In& x) { Tensor(layer(x.tensor)); };
}  // namespace detail

/// Holds one module of any type, or a function or lambda of a tensor (ValueError for a null one). As of any module, a copy shares its
/// tensors; clone() gives one that does not.
class AnyModule {
 public:
    AnyModule() noexcept = default;  ///< holds nothing
    template <class Layer>
        requires(!std::is_same_v<Layer, AnyModule> && (std::is_base_of_v<Module, Layer> || detail::kTakesTensor<Layer>))
    AnyModule(Layer layer, Loc loc = Loc::current()) {  // NOLINT: implicit by design
        tapir::detail::check_function("AnyModule", layer, loc);
        held_ = new Holder<Layer>(std::move(layer));
    }
    AnyModule(Tensor (*function)(In), Loc loc = Loc::current()) {  // NOLINT: of an overloaded name this one
        tapir::detail::check_function("AnyModule", function, loc);
        held_ = new Holder<Tensor (*)(In)>(function);
    }
    AnyModule(const AnyModule& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
    AnyModule(AnyModule&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    AnyModule& operator=(AnyModule other) noexcept {
        std::swap(held_, other.held_);
        return *this;
    }
    ~AnyModule() { delete held_; }

    /// forward(x), for modules that have it of one tensor, or the function of x. Throws ValueError for others.
    Tensor operator()(In x) const {
        if (!held_) fail_empty(x.loc);
        return held_->call(x);
    }
    /// Whether it holds a module or a function.
    bool has_value() const noexcept { return held_; }
    /// The module; null for a function, and where there is nothing.
    Module* get() const noexcept { return held_ ? held_->module() : nullptr; }
    /// The module. Throws ValueError for a function, and where there is nothing.
    Module& module(Loc loc = Loc::current()) const {
        Module* held = get();
        if (!held) fail_module(loc);
        return *held;
    }
    /// The module as what it is, or one of its bases. Throws ValueError where it is something else.
    template <class M>
    M& as(Loc loc = Loc::current()) const {
        M* module = dynamic_cast<M*>(get());
        if (!module) fail_type(typeid(M), loc);
        return *module;
    }

 private:
    struct Base {
        virtual ~Base() = default;
        virtual Tensor call(const In& x) = 0;
        virtual Module* module() noexcept = 0;
        virtual Base* copy() const = 0;
    };
    template <class Layer>
    struct Holder final : Base {
        explicit Holder(Layer l) : layer(std::move(l)) {}
        Tensor call(const In& x) override {
            if constexpr (std::is_base_of_v<Module, Layer>) {
                const ModuleScope scope(layer);
                return called(x);
            } else {
                return called(x);
            }
        }
        Tensor called(const In& x) {
            if constexpr (requires { Tensor(layer.forward(x)); }) {
                return layer.forward(x);
            } else if constexpr (requires { Tensor(layer.forward(x.tensor)); }) {
                return layer.forward(x.tensor);
            } else if constexpr (requires { Tensor(layer(x)); }) {
                return layer(x);
            } else if constexpr (requires { Tensor(layer(x.tensor)); }) {
                return layer(x.tensor);
            } else {
                fail_call(x.loc);
            }
        }
        Module* module() noexcept override {
            if constexpr (std::is_base_of_v<Module, Layer>) {
                return &layer;
            } else {
                return nullptr;
            }
        }
        Base* copy() const override { return new Holder(layer); }
        Layer layer;
    };
    [[noreturn]] void fail_module(const Loc& loc) const;  // there is none
    [[noreturn]] void fail_type(const std::type_info& wanted, const Loc& loc) const;
    [[noreturn]] static void fail_call(const Loc& loc);
    [[noreturn]] static void fail_empty(const Loc& loc);

    Base* held_ = nullptr;
};

/// A copy with tensors of its own: see clone() of a module.
AnyModule clone(const AnyModule& module, Loc loc = Loc::current());

namespace detail {
/// Where a container of `size` has what stands at i: negative positions count from the end. Throws IndexError, in which `container`
/// has no such `what`.
std::size_t place(const IndexArg& i, std::size_t size, const char* container, const char* what);
}  // namespace detail

}  // namespace tapir::nn
