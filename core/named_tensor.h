// Tensors with names, in order: the type of a module's state_dict() and of the contents of a weight file.
//
//     NamedTensors state = load_safetensors("model.safetensors");
//     Tensor weight = state["encoder.weight"];
//     for (const auto& [name, tensor] : state) ...
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"

namespace tapir {

struct NamedTensor {
    std::string name;
    Tensor tensor;
};

/// Argument of operator[]: a name, with the caller's line.
struct NameArg {
    template <class S>
        requires std::is_convertible_v<const S&, std::string_view>
    NameArg(const S& name, Loc line = Loc::current()) : value(name, line), loc(line) {}  // NOLINT: implicit by design
    TextViewArg value;
    Loc loc;
};

/// A std::vector of named tensors that can also be searched by name.
class NamedTensors : public std::vector<NamedTensor> {
 public:
    using std::vector<NamedTensor>::vector;
    NamedTensors(std::vector<NamedTensor> list) : std::vector<NamedTensor>(static_cast<std::vector<NamedTensor>&&>(list)) {}  // NOLINT
    using std::vector<NamedTensor>::operator[];
    using std::vector<NamedTensor>::at;

    /// Returns the first tensor of that name. Throws IndexError, with names that are nearly right.
    const Tensor& operator[](const NameArg& name) const { return at(name.value, name.loc); }
    Tensor& operator[](const NameArg& name) { return const_cast<Tensor&>(at(name.value, name.loc)); }
    const Tensor& at(TextViewArg name, Loc loc = Loc::current()) const;
    bool contains(TextViewArg name) const noexcept { return find(name) != end(); }
    /// Returns end() if there is none.
    const_iterator find(TextViewArg name) const noexcept;
    iterator find(TextViewArg name) noexcept;
};

}  // namespace tapir
