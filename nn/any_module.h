// AnyModule: holds a layer of any type. Sequential, ModuleList and ModuleDict hold these.
#pragma once

#include <type_traits>
#include <typeinfo>
#include <utility>

#include "tapir/core/arguments.h"
#include "tapir/nn/module.h"

namespace tapir::nn {

namespace detail {
/// Satisfied by types that can be called with a tensor and return one.
template <class Layer>
constexpr bool kTakesTensor = requires(Layer& layer, const In& x) { Tensor(layer.forward(x)); } || requires(Layer& layer, const In& x) {
    Tensor(layer.forward(x.tensor));
} || requires(Layer& layer, const In& x) { Tensor(layer(x)); } || requires(Layer& layer, const In& x) { Tensor(layer(x.tensor)); };
}  // namespace detail

/// Holds one module of any type, or a function or lambda of a tensor (ValueError for a null one). As with any module, a copy shares its
/// tensors; clone() makes one that does not.
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

    /// Calls forward(x), for modules that have it for one tensor, or the function with x. Throws ValueError for others.
    Tensor operator()(In x) const {
        if (!held_) fail_empty(x.loc);
        return held_->call(x);
    }
    /// True if it holds a module or a function.
    bool has_value() const noexcept { return held_; }
    /// Returns the module; null for a function, and if it holds nothing.
    Module* get() const noexcept { return held_ ? held_->module() : nullptr; }
    /// Returns the module. Throws ValueError for a function, and if it holds nothing.
    Module& module(Loc loc = Loc::current()) const {
        Module* held = get();
        if (!held) fail_module(loc);
        return *held;
    }
    /// Returns the module as its own type, or as one of its bases. Throws ValueError if it has another type.
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
    [[noreturn]] void fail_module(const Loc& loc) const;  // it holds no module
    [[noreturn]] void fail_type(const std::type_info& wanted, const Loc& loc) const;
    [[noreturn]] static void fail_call(const Loc& loc);
    [[noreturn]] static void fail_empty(const Loc& loc);

    Base* held_ = nullptr;
};

/// Return a copy with tensors of its own: see clone() and alias() of a module.
AnyModule clone(const AnyModule& module, Loc loc = Loc::current());
AnyModule alias(const AnyModule& module, Loc loc = Loc::current());

namespace detail {
/// Returns where a container of `size` has element i; negative positions count from the end. Throws IndexError that says `container`
/// has no such `what`.
std::size_t place(const IndexArg& i, std::size_t size, const char* container, const char* what);
}  // namespace detail

}  // namespace tapir::nn
