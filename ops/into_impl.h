// Forms of ops that can write their results into given places (OpForm::into), which planned memory needs.
#pragma once

#include "tapir/autograd/op_form.h"
#include "tapir/core/device.h"

namespace tapir::detail {

constexpr OpForm with_into(OpForm form, bool (*into)(const FormCall&, const Tensor&)) {
    form.into = into;
    return form;
}

constexpr OpForm in_place(OpForm form) {
    form.is_in_place = true;
    return form;
}

constexpr OpForm of_part(OpForm form, const char* part) {
    form.part = part;
    return in_place(form);
}

/// True if a kernel of this dtype can be given the tensor as it is.
inline bool is_plain(const TensorImpl* x, DType dtype) noexcept {
    return x->is_contiguous() && x->device.type == DeviceType::cpu && x->dtype == dtype;
}

}  // namespace tapir::detail

/// As TAPIR_FORM, with a function bool (const FormCall&, const Tensor& out). If the op has several results, `out` is the first of as
/// many that follow each other. They do not overlap with the operands.
#define TAPIR_INTO_FORM(op, operands, Attrs, types, call, into, ...) \
    extern const ::tapir::OpForm op##_form;                          \
    constexpr ::tapir::OpForm op##_form =                            \
        ::tapir::detail::with_into(TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__), into)
/// As TAPIR_INTO_FORM, but `out` may be one of the operands, of its shape and dtype.
#define TAPIR_IN_PLACE_FORM(op, operands, Attrs, types, call, into, ...) \
    extern const ::tapir::OpForm op##_form;                              \
    constexpr ::tapir::OpForm op##_form = ::tapir::detail::in_place(     \
        ::tapir::detail::with_into(TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__), into))
/// As TAPIR_INTO_FORM, for an op that replaces a part: see OpForm::part.
#define TAPIR_PART_FORM(op, operands, Attrs, types, call, into, part, ...) \
    extern const ::tapir::OpForm op##_form;                                \
    constexpr ::tapir::OpForm op##_form = ::tapir::detail::of_part(        \
        ::tapir::detail::with_into(TAPIR_FORM_OF(op, TAPIR_TYPE(operands), TAPIR_TYPE(Attrs), TAPIR_TYPE(types), call, __VA_ARGS__), into), part)
