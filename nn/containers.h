// Lists and dictionaries of layers of several types, which can be called. For layers of one type use a std::vector or a
// std::map; nn::Members takes both, and pointers to modules.
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
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/nn/any_module.h"

namespace tapir::nn {

/// A list of modules, or functions of a tensor. Parameters are named by position: "0.weight".
class ModuleList : public Module {
 public:
    ModuleList() = default;
    ModuleList(std::initializer_list<AnyModule> modules) : modules_(modules) {}

    ModuleList& push_back(AnyModule module) {
        modules_.push_back(std::move(module));
        return *this;
    }
    /// push_back() by PyTorch's name.
    ModuleList& append(AnyModule module) { return push_back(std::move(module)); }
    std::size_t size() const noexcept { return modules_.size(); }
    /// Negative positions count from the end. Throws IndexError.
    const AnyModule& at(IndexArg i) const { return modules_[detail::place(i, modules_.size(), "ModuleList", "module")]; }
    const AnyModule& operator[](IndexArg i) const { return at(i); }
    auto begin() const noexcept { return modules_.begin(); }
    auto end() const noexcept { return modules_.end(); }
    void members(Members& m) override;

 private:
    std::vector<AnyModule> modules_;
};

/// A dictionary of modules, in the order of insertion. Parameters are named by key: "mean.weight".
class ModuleDict : public Module {
 public:
    ModuleDict() = default;
    /// Throws ValueError as insert().
    ModuleDict(std::initializer_list<std::pair<std::string, AnyModule>> modules, Loc loc = Loc::current()) {
        for (const auto& [key, module] : modules) insert(key, module, loc);
    }

    /// Throws ValueError for a key that exists already, is empty or has a dot.
    ModuleDict& insert(const TextArg& key, AnyModule module, Loc loc = Loc::current());
    bool contains(const TextArg& key) const noexcept;
    std::size_t size() const noexcept { return modules_.size(); }
    /// Throws IndexError.
    const AnyModule& at(const TextArg& key, Loc loc = Loc::current()) const;
    const AnyModule& operator[](const NameArg& key) const { return at(key.value, key.loc); }
    /// Iterates over pairs of key and module.
    auto begin() const noexcept { return modules_.begin(); }
    auto end() const noexcept { return modules_.end(); }
    void members(Members& m) override;

 private:
    std::vector<std::pair<std::string, AnyModule>> modules_;
};

}  // namespace tapir::nn
