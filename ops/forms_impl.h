// Declares the forms of all ops by name, transpose_form or mul_form: passes compare a node's op with them.
#pragma once

#include "tapir/autograd/op_form.h"
#include "tapir/ops/elementwise/elementwise_impl.h"

namespace tapir {

#define TAPIR_FORM_NAME(name) extern const OpForm name##_form;
#include "tapir/ops/op_list.inc"
#undef TAPIR_FORM_NAME

#define TAPIR_UNARY0(name, ...) inline constexpr const OpForm& name##_form = elementwise_forms[static_cast<int>(Elementwise::name)];
#define TAPIR_UNARY1(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_UNARY2(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_PREDICATE(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_BINARY(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_COMPARE(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_TERNARY(name, ...) TAPIR_UNARY0(name, )
#define TAPIR_RULE_ROWS
#include "tapir/core/elementwise_rows.inc"

}  // namespace tapir
