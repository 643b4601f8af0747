// How many operands the calls of an op have at least: what the passes and ONNX's forms count on, and a graph's text is asked for.
#pragma once

#include "tapir/autograd/op_form.h"

namespace tapir::detail {

/// As far as the form's own line says it (ops/op_list.cmake): 0 where it hands its operands on as they are.
int least_operands(const OpForm& form) noexcept;

}  // namespace tapir::detail
