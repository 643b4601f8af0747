// The arguments of one call of an op that are not tensors, by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tapir/autograd/op_form.h"
#include "tapir/autograd/sym_int.h"
#include "tapir/core/arguments.h"

namespace tapir {

class Graph;

/// An attribute of a node: a number, which may depend on named dimensions, a real number, a flag, a dtype, a device, numbers, one of
/// several names ("mean"), or a graph: a branch, the body of a loop.
using Attribute = std::variant<SymInt, double, bool, DType, Device, std::vector<SymInt>, std::string, std::shared_ptr<const Graph>>;
/// {1, 2}, true, 0.5, float32, "mean"
std::string to_string(const Attribute& attribute);

/// The attributes of one call of an op.
class Attributes {
 public:
    /// The op's default attributes.
    explicit Attributes(const OpForm& form);
    /// from: of the form's type.
    Attributes(const OpForm& form, const void* from);
    Attributes(const Attributes& other);
    Attributes(Attributes&& other) noexcept;
    Attributes& operator=(Attributes other) noexcept;
    ~Attributes();

    const OpForm& form() const noexcept { return *form_; }
    std::vector<std::pair<std::string, Attribute>> all() const;
    /// Visits the places of the attributes, in order.
    void each(const std::function<void(const Field&)>& visit);
    /// Throws ValueError if there is no attribute of this name.
    Attribute get(TextViewArg name, Loc loc = Loc::current()) const;
    /// Throws ValueError if there is no attribute of this name, or if it has another type than the value.
    void set(TextViewArg name, const Attribute& value, Loc loc = Loc::current());
    /// True if some depend on named dimensions.
    bool is_symbolic() const noexcept { return !symbolic_.empty(); }
    /// True if the op draws random numbers, or if an op in a graph that is an attribute does.
    bool is_random() const;
    /// True if an attribute is a graph: for branches and loops.
    bool has_graph() const;
    /// Returns a copy with numbers for the dimensions. Throws ValueError if a size is missing; with `partly`, what depends on it stays.
    Attributes with(const DimSizes& sizes, const Loc& loc, bool partly = false) const;
    /// The struct that the form's functions take. is_symbolic() must be false.
    const void* data() const noexcept { return data_; }

 private:
    friend struct gdb::GraphLayout;
    struct Symbolic {
        std::string name;
        int element;  // index in a list; -1: the attribute itself, -2: it is a graph in which some are symbolic
        SymInt value;
    };
    const OpForm* form_;
    void* data_ = nullptr;
    std::vector<Symbolic> symbolic_;
};

}  // namespace tapir
