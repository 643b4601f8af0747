// OpForm: an op as a graph knows it: the names of its attributes, and how to run it again. Each op states its form with
// TAPIR_FORM, beside its row. Printing, saving, loading, exporting and running graphs rely on the forms.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "tapir/autograd/result_types.h"
#include "tapir/core/tensor.h"

namespace tapir {

class Graph;

/// One attribute of an op: its name, its type, and the place of its value.
struct Field {
    enum class Kind : std::uint8_t { integer, integer32, real, scalar, flag, dtype, device, sizes, integers, choice, graph };

    const char* name;
    Kind kind;
    void* place;               // int64_t, int, double, Scalar, bool, DType, Device, Shape, std::vector<int64_t>; for a choice its
                               // number; for a graph a std::shared_ptr<const Graph>
    const char* const* names;  // for a choice: the names of its values, in order
    int name_count;
};

/// Visits the attributes of an op, in order.
class Fields {
 public:
    virtual ~Fields() = default;

    Fields& operator()(const char* name, std::int64_t& v) { return tell({name, Field::Kind::integer, &v, nullptr, 0}); }
    Fields& operator()(const char* name, int& v) { return tell({name, Field::Kind::integer32, &v, nullptr, 0}); }
    Fields& operator()(const char* name, double& v) { return tell({name, Field::Kind::real, &v, nullptr, 0}); }
    Fields& operator()(const char* name, Scalar& v) { return tell({name, Field::Kind::scalar, &v, nullptr, 0}); }
    Fields& operator()(const char* name, bool& v) { return tell({name, Field::Kind::flag, &v, nullptr, 0}); }
    Fields& operator()(const char* name, DType& v) { return tell({name, Field::Kind::dtype, &v, nullptr, 0}); }
    Fields& operator()(const char* name, Device& v) { return tell({name, Field::Kind::device, &v, nullptr, 0}); }
    Fields& operator()(const char* name, Shape& v) { return tell({name, Field::Kind::sizes, &v, nullptr, 0}); }
    Fields& operator()(const char* name, std::vector<std::int64_t>& v) { return tell({name, Field::Kind::integers, &v, nullptr, 0}); }
    /// A subgraph that the op runs: a branch, the body of a loop.
    Fields& operator()(const char* name, std::shared_ptr<const Graph>& v) { return tell({name, Field::Kind::graph, &v, nullptr, 0}); }
    /// A value of an enum whose values are 0, 1, 2 ...: f("reduction", a.reduction, {"none", "mean", "sum"})
    template <class Enum>
        requires std::is_enum_v<Enum>
    Fields& operator()(const char* name, Enum& v, std::initializer_list<const char*> names) {
        auto number = static_cast<std::int64_t>(v);
        tell({name, Field::Kind::choice, &number, names.begin(), static_cast<int>(names.size())});
        v = static_cast<Enum>(number);
        return *this;
    }

 private:
    virtual void visit(const Field& field) = 0;
    Fields& tell(const Field& field) {
        visit(field);
        return *this;
    }
};

/// A call of an op: its operands and attributes.
struct FormCall {
    const Tensor* const* inputs;
    int count;
    const void* attrs;

    /// Throws ValueError if there is no input i: graphs that were built or loaded by hand may lack one.
    const Tensor& operator[](int i) const {
        if (i >= count) [[unlikely]]
            fail_input(i);
        return *inputs[i];
    }
    [[noreturn]] void fail_input(int i) const;
    std::vector<Tensor> list(int from = 0) const {
        std::vector<Tensor> tensors;
        for (int i = from; i < count; ++i) tensors.push_back(*inputs[i]);
        return tensors;
    }
};

/// The number of operands that calls of an op have. Passes, ONNX's forms and the parser of a graph's text rely on it.
struct Operands {
    int least, most;              // -1: any number
    bool are_moved_only = false;  // the results hold elements of operand 0, moved, repeated or left out, as copies: not for views
    bool are_in_order = false;    // the result holds the elements of operand 0 in their order, in another shape

    constexpr Operands(int count) : least(count), most(count) {}  // NOLINT: implicit by design
    constexpr Operands(int fewest, int utmost) : least(fewest), most(utmost) {}
    static constexpr Operands from(int least) { return {least, -1}; }
    constexpr Operands moved() const {
        Operands result = *this;
        result.are_moved_only = true;
        return result;
    }
    constexpr Operands in_order() const {
        Operands result = *this;
        result.are_in_order = true;
        return result;
    }
};

struct OpForm {
    const char* op;
    Operands operands;
    std::size_t attr_bytes;                    // 0: it has none
    void (*copy)(void* to, const void* from);  // from == null: the defaults
    void (*destroy)(void* attrs) noexcept;
    void (*fields)(Fields& f, void* attrs);
    void (*run)(const FormCall& x, Tensor* results);
#ifndef TAPIR_RUNTIME  // graphs were checked when they were made
    ResultTypes (*types)(const TypeCall& t, const void* attrs);
#endif
    bool is_random = false;  // it draws from the default generator
    /// Writes the result into a contiguous tensor of its shape and dtype without checks or records. Returns false if it cannot; null: never can.
    bool (*into)(const FormCall& x, const Tensor& out) = nullptr;
    bool is_in_place = false;  // into()'s tensor may be one of the inputs, of this shape and dtype
    /// For an op that returns operand 0 with one part replaced by the last operand, and whose into() writes that part alone if its tensor is
    /// operand 0: the op that returns the old part, with the same attributes and the operands before the last. Null: not such an op.
    const char* part = nullptr;
    /// Bitmap of the results whose dimension 0 has a size that depends on the elements of the inputs, like nonzero's. Null: none.
    std::uint64_t (*data_sized)(const void* attrs) = nullptr;
    /// An optimizer's update: result 0 is the next value of operand 0, a parameter; result k that of operand k + 1 (operand 1 is the gradient).
    /// into() takes a tensor for each result, which may be these operands.
    bool is_update = false;
    /// The results hold elements of operand 0, moved, repeated or left out, and share its memory if dtype and device allow it.
    bool is_view = false;
    bool is_commutative = false;  // its two operands may change places

    constexpr bool moves_elements() const noexcept { return is_view || operands.are_moved_only; }
};

/// Returns the form of this op, or null for ops that are never seen themselves (Composed) and for custom functions.
const OpForm* find_form(const char* op);

namespace detail {

struct NoAttrs {};

template <class A>
void copy_attrs(void* to, const void* from) {
    if (from) {
        ::new (to) A(*static_cast<const A*>(from));
    } else {
        ::new (to) A();
    }
}
template <class A>
void destroy_attrs(void* attrs) noexcept {
    static_cast<A*>(attrs)->~A();
}
template <class A>
constexpr std::size_t kAttrBytes = std::is_same_v<A, NoAttrs> ? 0 : sizeof(A);

constexpr OpForm random_form(OpForm form) {
    form.is_random = true;
    return form;
}

constexpr OpForm update_form(OpForm form, bool (*into)(const FormCall&, const Tensor&)) {
    form.is_update = true;
    form.into = into;
    return form;
}

constexpr OpForm view_form(OpForm form) {
    form.is_view = true;
    return form;
}

constexpr OpForm data_sized_form(OpForm form, std::uint64_t (*results)(const void*)) {
    form.data_sized = results;
    return form;
}

// Stores the results of a call.
inline void put_results(Tensor* to, Tensor from) { to[0] = static_cast<Tensor&&>(from); }
inline constexpr std::size_t kMostResults = 256;  // capacity of the callers' buffers
[[noreturn]] void fail_results(std::size_t count);
inline void put_results(Tensor* to, std::vector<Tensor> from) {
    if (from.size() > kMostResults) [[unlikely]]
        fail_results(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<Tensor&&>(from[i]);
}

}  // namespace detail
}  // namespace tapir

/// Defines the form of an op: the type of its attributes (copied from the argument of record(), or from what watchers are told), how
/// to call it again with inputs x[0], x[1] ... x.count and attributes a, and the attributes' names.
///     TAPIR_FORM(softmax, 1, SoftmaxAttrs, same(t[0]), softmax(x[0], a.dim), f("dim", a.dim));
/// `operands`: their number: 2, Operands(2, 3) or Operands::from(1).
/// `types`: the result types for the operand types t[0], t[1] ..., by the rules of result_types.h.
#define TAPIR_FORM(op, operands, Attrs, types, call, ...) \
    extern const ::tapir::OpForm op##_form;               \
    constexpr ::tapir::OpForm op##_form = TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__)
/// For an op that has no attributes.
#define TAPIR_PLAIN_FORM(op, operands, types, call) \
    TAPIR_FORM(op, TAPIR_TYPE(operands), ::tapir::detail::NoAttrs, TAPIR_TYPE(types), call, static_cast<void>(f))
/// For an op that draws random numbers.
#define TAPIR_RANDOM_FORM(op, operands, Attrs, types, call, ...) \
    extern const ::tapir::OpForm op##_form;                      \
    constexpr ::tapir::OpForm op##_form =                        \
        ::tapir::detail::random_form(TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__))
/// For an op whose results are views of operand 0, or look like views: see OpForm::is_view.
#define TAPIR_VIEW_FORM(op, operands, Attrs, types, call, ...) \
    extern const ::tapir::OpForm op##_form;                    \
    constexpr ::tapir::OpForm op##_form =                      \
        ::tapir::detail::view_form(TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__))
/// For an op with results whose sizes depend on the elements of its inputs. `results`: a bit for each whose dimension 0 does.
#define TAPIR_DATA_SIZED_FORM(op, operands, Attrs, types, results, call, ...)                                                                  \
    extern const ::tapir::OpForm op##_form;                                                                                                    \
    constexpr ::tapir::OpForm op##_form = ::tapir::detail::data_sized_form(                                                                    \
        TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__), [](const void* p) -> std::uint64_t { \
            [[maybe_unused]] const auto& a = *static_cast<const Attrs*>(p);                                                                    \
            return results;                                                                                                                    \
        })
/// Passes an argument that contains commas as one.
#define TAPIR_TYPE(...) __VA_ARGS__
#define TAPIR_FORM_OF(op, operands, Attrs, types, call, ...)                   \
    {#op,                                                                      \
     ::tapir::Operands(operands),                                              \
     ::tapir::detail::kAttrBytes<Attrs>,                                       \
     ::tapir::detail::copy_attrs<Attrs>,                                       \
     ::tapir::detail::destroy_attrs<Attrs>,                                    \
     []([[maybe_unused]] ::tapir::Fields& f, [[maybe_unused]] void* p) {       \
         [[maybe_unused]] auto& a = *static_cast<Attrs*>(p);                   \
         __VA_ARGS__;                                                          \
     },                                                                        \
     [](const ::tapir::FormCall& x, ::tapir::Tensor* results) {                \
         [[maybe_unused]] const auto& a = *static_cast<const Attrs*>(x.attrs); \
         ::tapir::detail::put_results(results, call);                          \
     } TAPIR_TYPES_OF(TAPIR_TYPE(Attrs), types)}
#ifdef TAPIR_RUNTIME
#define TAPIR_TYPES_OF(Attrs, ...)
#else
#define TAPIR_TYPES_OF(Attrs, ...)                                                                              \
    , []([[maybe_unused]] const ::tapir::TypeCall& t, [[maybe_unused]] const void* p) -> ::tapir::ResultTypes { \
        using namespace ::tapir::types;                                                                         \
        [[maybe_unused]] const auto& a = *static_cast<const Attrs*>(p);                                         \
        return __VA_ARGS__;                                                                                     \
    }
#endif
