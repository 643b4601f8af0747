// The forms of the element-wise ops: how a graph runs them again.
#include "tapir/autograd/op_form.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/into_impl.h"

namespace tapir {
namespace {

// A record holds the parameters as doubles, one after the other.
template <double Default>
struct OneParam {
    double first = Default;
};
template <double First, double Second>
struct TwoParams {
    double first = First, second = Second;
};

ValueType types_of(Elementwise op, const TypeCall& t) {
    const ElementwiseOp& row = row_of(op);
    DType dtype = types::promoted(t, 0, row.operands);
    if (op == Elementwise::square && dtype == DType::boolean) dtype = DType::int64;  // computed as its product with itself
    return types::pointwise(t, row.to_bool ? DType::boolean : row.types == ElementTypes::Float ? types::floating(dtype) : dtype);
}

constexpr OpForm commutative(OpForm form) {
    form.is_commutative = true;
    return form;
}

}  // namespace

#define TAPIR_ROW_FORM(name, form) \
    detail::in_place(              \
        detail::with_into(form, [](const FormCall& x, const Tensor& out) { return elementwise::into(row_of(Elementwise::name), x, out); }))
#define TAPIR_PLAIN_FORM_OF(name, operands, call) \
    TAPIR_ROW_FORM(name, (OpForm TAPIR_FORM_OF(name, operands, detail::NoAttrs, types_of(Elementwise::name, t), call, static_cast<void>(f))))
#define TAPIR_INTO(name, form) TAPIR_ROW_FORM(name, form),
#define TAPIR_PLAIN(name, operands, call) TAPIR_PLAIN_FORM_OF(name, operands, call),
#define TAPIR_UNARY0(name, ...) TAPIR_PLAIN(name, 1, name(x[0]))
#define TAPIR_UNARY1(name, p0, d0, ...) \
    TAPIR_INTO(name, (OpForm TAPIR_FORM_OF(name, 1, OneParam<d0>, types_of(Elementwise::name, t), name(x[0], a.first), f(#p0, a.first))))
#define TAPIR_UNARY2(name, p0, d0, p1, d1, ...)                                                                                             \
    TAPIR_INTO(name,                                                                                                                        \
               (OpForm TAPIR_FORM_OF(name, 1, TAPIR_TYPE(TwoParams<d0, d1>), types_of(Elementwise::name, t), name(x[0], a.first, a.second), \
                                     f(#p0, a.first)(#p1, a.second))))
#define TAPIR_PREDICATE(name, ...) TAPIR_PLAIN(name, 1, name(x[0]))
#define TAPIR_BINARY(name, ...) TAPIR_PLAIN(name, 2, name(x[0], x[1]))
#define TAPIR_COMPARE(name, ...) TAPIR_BINARY(name, )
#define TAPIR_COMMUTATIVE(name, ...) commutative(TAPIR_PLAIN_FORM_OF(name, 2, name(x[0], x[1]))),
#define TAPIR_COMMUTATIVE_COMPARE(name, ...) TAPIR_COMMUTATIVE(name, )
#define TAPIR_TERNARY(name, ...) TAPIR_PLAIN(name, 3, name(x[0], x[1], x[2]))
const OpForm elementwise_forms[kElementwiseOps] = {
#define TAPIR_RULE_ROWS
#include "tapir/ops/elementwise/elementwise.def"
};

int elementwise_index(const OpForm& form) noexcept {
    for (int k = 0; k < kElementwiseOps; ++k) {
        if (&elementwise_forms[k] == &form) return k;
    }
    return -1;
}

}  // namespace tapir
