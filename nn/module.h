// Module: a part of a model that owns parameters. A model is a struct with its parts as members and one function that
// names them:
//
//     struct Model : nn::Module {
//         nn::Linear a{10, 20}, b{20, 5};
//         void members(nn::Members& m) override { m("a", a)("b", b); }
//         Tensor forward(const Tensor& x) const { return b(relu(a(x))); }
//     };
//     Model model;
//     optim::SGD sgd(model.parameters(), {.lr = 0.1});
//     std::cout << model;                                 // its tree, with shapes
//     nn::save(model, "model.safetensors");
//
// A module is a value, made of handles: a copy has its own members, which share the tensors of the original, just as
// copies of a Tensor share elements. So one layer in two places (a copy, a reference, or `b.weight = a.weight`) is trained
// as one, and its tensors appear once in parameters(); nn::clone() makes a copy with tensors of its own. There is no registry:
// members() is asked each time, so no copy, move or assignment can leave a dangling pointer.
//
// The price is that Tapir cannot tell what members() forgets: C++ has no list of a class's members, and a module does not know how
// large the object is that contains it. A forgotten layer is not trained, saved or moved, and a forgotten Dropout goes on
// dropping after eval(). So name every layer, also those without parameters, and check once what `std::cout << model` lists.
// check_members(model, tape) finds parameters that were used but are not named (nn/check_members.h).
// A name that is given twice throws. So does saving, loading or optimizing a module that names no tensors at all.
#pragma once

#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/module_name.h"
#include "tapir/core/named_tensor.h"
#include "tapir/core/rename.h"
#include "tapir/core/std_function.h"

namespace tapir::nn {

class Module;
class AnyModule;
class ModuleScope;

namespace detail {
template <class Map>
constexpr bool kHasKeys = !std::is_base_of_v<Module, Map> && requires(Map& map) {
    std::string(map.begin()->first);
    map.begin()->second;
};
/// Gives the copy of a module, made by a function of this name, tensors of its own: with elements of their own, or the original's.
void own_tensors(const char* name, const Module& original, Module& copy, bool shares_elements, const Loc& loc);
}  // namespace detail

/// A parameter, as PyTorch's nn.Parameter: a leaf that shares the elements of `data` and, unless told otherwise, requires
/// a gradient.
///
///     struct Scale : nn::Module {
///         nn::Parameter scale{ones({3})};
///         void members(nn::Members& m) override { m("scale", scale); }
///     };
///
/// Throws ValueError for an undefined tensor, DTypeError for one of integers.
class Parameter : public Tensor {
 public:
    Parameter() = default;  ///< undefined, for example an optional bias
    explicit Parameter(const Tensor& data, bool requires_grad = true, Loc loc = Loc::current());
    Parameter(const Parameter&) = default;
    Parameter(Parameter&&) = default;
    Parameter& operator=(const Parameter&) & = default;
    Parameter& operator=(Parameter&&) & = default;
    /// layer.weight = randn({2, 2}) keeps it a parameter that shares the elements of `data`. It requires a gradient unless this one was
    /// frozen. A leaf that requires a gradient (another parameter), a recorded tensor and an undefined tensor (none) are assigned
    /// unchanged. An optimizer that was made before still updates the previous tensor. Throws DTypeError for integers.
    Parameter& operator=(In data) &;
};

/// Collects the names of a module's members, in Module::members(). Undefined tensors are left out. Throws ValueError, with the line
/// there, for a name that a module gives twice.
class Members {
 public:
    /// Names a parameter. It is trained if it was made so: `nn::Parameter scale{ones({3})};` or `Tensor scale = ones({3}).requires_grad_();`.
    Members& operator()(const char* name, Tensor& parameter, Loc loc = Loc::current()) {
        on_tensor(name, -1, parameter, false, loc);
        return *this;
    }
    /// Names a tensor that belongs to the state but is not trained.
    Members& buffer(const char* name, Tensor& tensor, Loc loc = Loc::current()) {
        on_tensor(name, -1, tensor, true, loc);
        return *this;
    }
    Members& operator()(const char* name, Module& submodule, Loc loc = Loc::current()) {
        on_module(name, -1, submodule, loc);
        return *this;
    }
    /// Names the module that it holds; does nothing for a function of a tensor, and if it holds nothing.
    Members& operator()(const char* name, AnyModule& submodule, Loc loc = Loc::current()) {
        one_of(name, -1, submodule, loc);
        return *this;
    }
    /// Names a list of parameters or of submodules name.0, name.1, ...
    template <class T>
        requires(!detail::kHasKeys<std::vector<T>>)
    Members& operator()(const char* name, std::vector<T>& list, Loc loc = Loc::current()) {
        for (std::size_t i = 0; i < list.size(); ++i) one_of(name, static_cast<std::int64_t>(i), list[i], loc);
        return *this;
    }
    /// Names one element of a list.
    Members& operator()(const char* name, std::size_t index, Module& submodule, Loc loc = Loc::current()) {
        on_module(name, static_cast<std::int64_t>(index), submodule, loc);
        return *this;
    }
    /// Names parameters or submodules by their keys, name.key: a std::map, or a list of pairs. Keys have no dots.
    template <class Map>
        requires detail::kHasKeys<Map>
    Members& operator()(const char* name, Map& map, Loc loc = Loc::current()) {
        for (auto& [key, value] : map) one_of(key_name(name, key, loc).c_str(), -1, value, loc);
        return *this;
    }
    /// Names the submodule behind a std::unique_ptr, std::shared_ptr or std::optional, if there is one. They may also be the elements
    /// of a list or map, which then holds modules of several types. A copy of the module shares what a std::shared_ptr holds.
    template <class Pointer>
        requires requires(Pointer& pointer) {
            static_cast<bool>(pointer);
            static_cast<Module&>(*pointer);
        }
    Members& operator()(const char* name, Pointer& pointer, Loc loc = Loc::current()) {
        one_of(name, -1, pointer, loc);
        return *this;
    }

 protected:
    Members() = default;
    ~Members() = default;
    virtual void on_tensor(const char* name, std::int64_t index, Tensor& tensor, bool is_buffer, const Loc& loc) = 0;
    virtual void on_module(const char* name, std::int64_t index, Module& module, const Loc& loc) = 0;

 private:
    template <class Key>
    static std::string key_name(const char* name, const Key& key, const Loc& loc) {
        TextArg text(name, loc);
        if (!text.empty()) text += '.';
        return text.append(key);
    }
    void one_of(const char* name, std::int64_t index, Tensor& t, const Loc& loc) { on_tensor(name, index, t, false, loc); }
    void one_of(const char* name, std::int64_t index, Module& m, const Loc& loc) { on_module(name, index, m, loc); }
    void one_of(const char* name, std::int64_t index, AnyModule& module, const Loc& loc);  // in any_module.cpp
    template <class Pointer>
        requires requires(Pointer& pointer) {
            static_cast<bool>(pointer);
            static_cast<Module&>(*pointer);
        }
    void one_of(const char* name, std::int64_t index, Pointer& pointer, const Loc& loc) {
        if (pointer) on_module(name, index, *pointer, loc);
    }
};

struct NamedModule {
    std::string name;  // "" for the module itself
    Module* module;
};

/// Names that a module and the loaded state do not share, as returned by PyTorch's load_state_dict().
struct IncompatibleKeys {
    std::vector<std::string> missing_keys;     ///< names of the module that the state lacks: their tensors were not changed
    std::vector<std::string> unexpected_keys;  ///< names of the state that the module lacks
};

class Module {
 public:
    virtual ~Module() = default;

    /// Names the members. List every parameter, buffer and submodule here, and nothing else.
    virtual void members(Members&) {}
    /// Returns the text that printing shows between the brackets: "10, 20".
    virtual std::string describe() const { return {}; }

    /// Returns the parameters of this module and all below it, each tensor once, in the order of members().
    std::vector<Tensor> parameters() const;
    /// Returns the parameters with their names: "encoder.cell.weight".
    NamedTensors named_parameters() const;
    std::vector<Tensor> buffers() const;
    NamedTensors named_buffers() const;
    /// Returns this module and all below it, parents first.
    std::vector<Module*> modules();
    std::vector<NamedModule> named_modules();
    /// Returns how many numbers the parameters hold.
    std::int64_t parameter_count() const;

    /// Sets training mode for this module and all below it (dropout acts only while training).
    void train(bool on = true);
    void eval() { train(false); }
    bool is_training() const noexcept { return training_; }

    /// Freezes or unfreezes the parameters.
    void requires_grad_(bool on = true, Loc loc = Loc::current());
    void zero_grad();
    /// Converts the floating parameters and buffers, or moves all of them to a device. They stay the same tensors: optimizers
    /// made before, copies of the module and tied weights keep using them. Their gradients are converted too, and the
    /// optimizer's buffers follow in its next step. Views of them, also those in a state_dict(), keep their old elements.
    /// Throws DTypeError for a dtype that is not floating, DeviceError for a device that is not there, TapeError for a
    /// parameter that this thread's tape has recorded; then nothing changes. No other thread may use the module
    /// meanwhile, nor have it on a tape.
    void to(DType dtype, Loc loc = Loc::current());
    void to(Device device, Loc loc = Loc::current());
    /// Calls fn for every module below, then for this one. Throws ValueError for an empty function.
    void apply(const std::function<void(Module&)>& fn, Loc loc = Loc::current());

    /// Returns all parameters and buffers under all their names; they share the module's elements.
    NamedTensors state_dict(Loc loc = Loc::current()) const;
    /// Copies the tensors into those of the same names, converting dtypes. Throws ValueError, and changes nothing, when
    /// names are missing or unexpected (unless strict is false) or shapes differ; it lists them, with names that are nearly right.
    /// A name may be missing if another name of the same tensor is there. Returns the names that strict would have refused.
    IncompatibleKeys load_state_dict(const NamedTensors& state, bool strict = true, Loc loc = Loc::current());

    /// Returns the tree of modules with the shapes of their tensors. `out << module` writes a newline after it.
    std::string str() const;
    /// Returns an inventory with a line for each parameter and buffer: name, shape, dtype, device, count, bytes and whether it is trained,
    /// frozen, a buffer, or another name of one above. The sums follow, of each tensor once. It ends with a newline.
    std::string parameter_table() const;

 protected:
    Module() = default;
    Module(const Module&) = default;
    Module(Module&&) = default;
    Module& operator=(const Module&) = default;
    Module& operator=(Module&&) = default;

 private:
    friend class ModuleScope;
    /// Stores this module's path. A known path is kept if this one is a part at its end.
    friend void note_place(const Module& module, const std::string& path);
    const ModuleName* name_without_place() const;

    mutable const ModuleName* place_ = nullptr;
    bool training_ = true;
};

/// While it lives, ops belong to this module in errors, the tape, profiles and drawings. The library's layers have one, and so do
/// the layers of a Sequential. In your own module make it the first line of forward():
///     nn::ModuleScope scope(*this);
/// A module gets its path ("encoder.cell") from the model, whenever the model is asked for its parameters, trained, saved, ...; until
/// then it is shown by its type.
class [[nodiscard]] ModuleScope {
 public:
    explicit ModuleScope(const Module& module);
    ~ModuleScope();
    ModuleScope(const ModuleScope&) = delete;
    ModuleScope& operator=(const ModuleScope&) = delete;

 private:
    const ModuleName* outer_;
    std::uint32_t outer_call_;
};

std::ostream& operator<<(std::ostream& out, const Module& module);

/// Returns a copy with parameters and buffers of its own, as PyTorch's copy.deepcopy(model):
///     std::vector<nn::Linear> layers;
///     for (int i = 0; i < 3; ++i) layers.push_back(nn::clone(layer));
/// A tensor with several names stays one tensor in the copy. is_training() and requires_grad() are copied; gradients and
/// hooks are not. Tensors that members() does not name stay shared. Throws ValueError, with its name, for a member that copies
/// share because a pointer holds it, and for a module whose class is derived from M.
template <class M>
    requires std::is_base_of_v<Module, M> && std::is_copy_constructible_v<M>
M clone(const M& module, Loc loc = Loc::current()) {
    M copy(module);
    detail::own_tensors("clone", module, copy, false, loc);
    return copy;
}

/// Returns a copy like clone(), whose parameters and buffers have the original's elements: both see what a step of either changes, and each has
/// gradients of its own. For threads that train one model together, see parallel::UncheckedWrites. Throws ValueError as clone().
template <class M>
    requires std::is_base_of_v<Module, M> && std::is_copy_constructible_v<M>
M alias(const M& module, Loc loc = Loc::current()) {
    M copy(module);
    detail::own_tensors("alias", module, copy, true, loc);
    return copy;
}

/// Writes state_dict() as a safetensors file, atomically. Throws FileError, and ValueError for a module whose members() names
/// no tensors.
void save(const Module& module, const TextArg& path, Loc loc = Loc::current());
/// Loads a safetensors file by load_state_dict(). Throws FileError, also if the file does not fit the module, and ValueError for a
/// module without tensors.
///     for (const std::string& name : nn::load(model, "backbone.safetensors", /*strict=*/false).missing_keys) ...
IncompatibleKeys load(Module& module, const TextArg& path, bool strict = true, Loc loc = Loc::current());

struct LoadOptions {
    bool strict = true;
    Rename rename = {};  ///< maps the file's names to the module's: strip_prefix("module."), or a function; see core/rename.h
};
IncompatibleKeys load(Module& module, const TextArg& path, const LoadOptions& options, Loc loc = Loc::current());

}  // namespace tapir::nn
