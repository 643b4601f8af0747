// What one call of an op is given beside tensors, by name.
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
    /// Those that the op has by default.
    explicit Attributes(const OpForm& form);
    /// from: of the form's type.
    Attributes(const OpForm& form, const void* from);
    Attributes(const Attributes& other);
    Attributes(Attributes&& other) noexcept;
    Attributes& operator=(Attributes other) noexcept;
    ~Attributes();

    const OpForm& form() const noexcept { return *form_; }
    std::vector<std::pair<std::string, Attribute>> all() const;
    /// Their places, one by one.
    void each(const std::function<void(const Field&)>& visit);
    /// Throws ValueError where there is none of this name.
    Attribute get(TextViewArg name, Loc loc = Loc::current()) const;
    /// Throws ValueError where there is none of this name, or the value is of another type than it.
    void set(TextViewArg name, const Attribute& value, Loc loc = Loc::current());
    /// Whether some depend on named dimensions.
    bool is_symbolic() const noexcept { return !symbolic_.empty(); }
    /// Whether the op draws random numbers, or one in a graph that is an attribute does.
    bool is_random() const;
    /// Whether one of them is a graph: those of branches and loops.
    bool has_graph() const;
    /// With numbers in their places. Throws ValueError where a size is missing; partly: what depends on it stays then.
    Attributes with(const DimSizes& sizes, const Loc& loc, bool partly = false) const;
    /// What the form takes; is_symbolic() to be false.
    const void* data() const noexcept { return data_; }

 private:
    friend struct gdb::GraphLayout;
    struct Symbolic {
        std::string name;
        int element;  // of several; -1: the attribute itself, -2: it is a graph in which some do
        SymInt value;
    };
    const OpForm* form_;
    void* data_ = nullptr;
    std::vector<Symbolic> symbolic_;
};

}  // namespace tapir
