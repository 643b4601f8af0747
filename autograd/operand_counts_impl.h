// How many operands the calls of an op have: what the passes and ONNX's forms count on, and a graph's text is asked for.
#pragma once

#include "tapir/autograd/op_form.h"

namespace tapir::detail {

struct OperandCounts {
    int least, most;  ///< most: -1: any number
};
/// As far as the form's own line says it (ops/op_list.cmake): any number where it hands its operands on as they are.
OperandCounts operand_counts(const OpForm& form) noexcept;

}  // namespace tapir::detail
