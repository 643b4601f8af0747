// ONNX knows no gradients: the operand itself.
#include "tapir/autograd/onnx_form.h"

namespace tapir {

TAPIR_ONNX(detach, x[0]);
TAPIR_ONNX(custom_function, x[0]);
TAPIR_ONNX(no_grad_write, x[0]);

}  // namespace tapir
