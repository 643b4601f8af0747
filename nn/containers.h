// Lists and dictionaries of layers of several types, which know what to call. A list of one type is a std::vector, a dictionary of
// one type a std::map; nn::Members takes both, and pointers to modules.
//
//     struct Model : nn::Module {
//         nn::ModuleList layers{nn::Linear(3, 8), nn::ReLU(), nn::Linear(8, 3)};
//         nn::ModuleDict heads{{"mean", nn::Linear(3, 1)}, {"class", nn::Linear(3, 5)}};
//         void members(nn::Members& m) override { m("layers", layers)("heads", heads); }
//         Tensor forward(In x, const std::string& task) const {
//             Tensor y = x.tensor;
//             for (const nn::AnyModule& layer : layers) y = y + layer(y);
//             return heads[task](y);
//         }
//     };
#pragma once

#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/nn/module.h"

namespace tapir::nn {

/// Holds one module of any type. As of any module, a copy shares its tensors.
class AnyModule {
 public:
    template <class M>
        requires std::is_base_of_v<Module, M>
    AnyModule(M module) : held_(new Holder<M>(std::move(module))) {}  // NOLINT: implicit by design
    AnyModule(const AnyModule& other) : held_(other.held_->clone()) {}
    AnyModule(AnyModule&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    AnyModule& operator=(AnyModule other) noexcept {
        std::swap(held_, other.held_);
        return *this;
    }
    ~AnyModule() { delete held_; }

    /// forward(x), for modules that have it of one tensor. Throws ValueError for others.
    Tensor operator()(In x) const { return held_->call(x); }
    Module& module() const noexcept { return held_->module(); }
    operator Module&() const noexcept { return module(); }
    /// The module as what it is. Throws ValueError where it is something else.
    template <class M>
    M& as(Loc loc = Loc::current()) const {
        M* module = dynamic_cast<M*>(&held_->module());
        if (!module) fail_type(loc);
        return *module;
    }

 private:
    struct Base {
        virtual ~Base() = default;
        virtual Tensor call(const In& x) = 0;
        virtual Module& module() noexcept = 0;
        virtual Base* clone() const = 0;
    };
    template <class M>
    struct Holder final : Base {
        explicit Holder(M m) : held(std::move(m)) {}
        Tensor call(const In& x) override {
            if constexpr (requires { Tensor(held.forward(x)); }) {
                return held.forward(x);
            } else {
                fail_call(x.loc);
            }
        }
        Module& module() noexcept override { return held; }
        Base* clone() const override { return new Holder(held); }
        M held;
    };
    [[noreturn]] static void fail_type(const Loc& loc);
    [[noreturn]] static void fail_call(const Loc& loc);

    Base* held_;  // null only when moved from
};

/// Parameters are named by position: "0.weight".
class ModuleList : public Module {
    struct Position {  // with the caller's line
        template <class I>
            requires std::is_integral_v<I>
        Position(I i, Loc where = Loc::current()) : value(static_cast<std::size_t>(i)), loc(where) {}  // NOLINT: implicit by design
        std::size_t value;
        Loc loc;
    };

 public:
    ModuleList() = default;
    ModuleList(std::initializer_list<AnyModule> modules) : modules_(modules) {}

    ModuleList& push_back(AnyModule module) {
        modules_.push_back(std::move(module));
        return *this;
    }
    std::size_t size() const noexcept { return modules_.size(); }
    /// Throws IndexError.
    const AnyModule& at(std::size_t i, Loc loc = Loc::current()) const;
    const AnyModule& operator[](Position i) const { return at(i.value, i.loc); }
    auto begin() const noexcept { return modules_.begin(); }
    auto end() const noexcept { return modules_.end(); }
    void members(Members& m) override {
        for (std::size_t i = 0; i < modules_.size(); ++i) m("", i, modules_[i]);
    }

 private:
    std::vector<AnyModule> modules_;
};

/// In the order in which they were put in. Parameters are named by key: "mean.weight".
class ModuleDict : public Module {
    struct Key {  // with the caller's line
        template <class S>
            requires std::is_convertible_v<S, std::string>
        Key(const S& key, Loc where = Loc::current()) : value(key), loc(where) {}  // NOLINT: implicit by design
        std::string value;
        Loc loc;
    };

 public:
    ModuleDict() = default;
    /// Throws ValueError as insert().
    ModuleDict(std::initializer_list<std::pair<std::string, AnyModule>> modules, Loc loc = Loc::current()) {
        for (const auto& [key, module] : modules) insert(key, module, loc);
    }

    /// Throws ValueError for a key that is there, is empty or has a dot.
    ModuleDict& insert(const std::string& key, AnyModule module, Loc loc = Loc::current());
    bool contains(const std::string& key) const noexcept;
    std::size_t size() const noexcept { return modules_.size(); }
    /// Throws IndexError.
    const AnyModule& at(const std::string& key, Loc loc = Loc::current()) const;
    const AnyModule& operator[](Key key) const { return at(key.value, key.loc); }
    /// Of pairs of key and module.
    auto begin() const noexcept { return modules_.begin(); }
    auto end() const noexcept { return modules_.end(); }
    void members(Members& m) override { m("", modules_); }

 private:
    std::vector<std::pair<std::string, AnyModule>> modules_;
};

}  // namespace tapir::nn
