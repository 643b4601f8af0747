// ONNX has no gradients: writes an Identity, whose name tells load_onnx() that no gradient flows through it; other runtimes remove it.
#include "tapir/ops/onnx_form.h"

namespace tapir {
namespace {

OnnxValue stopped(const OnnxCall& x, const char* name) {
    if (x[0].is_number()) return x[0];
    x.builder().next_name = name;
    return x.node("Identity", {x[0]});
}

}  // namespace

TAPIR_ONNX(detach, stopped(x, "detach"));
TAPIR_ONNX(custom_function, stopped(x, "custom_function"));
TAPIR_ONNX(no_grad_write, stopped(x, "no_grad_write"));

}  // namespace tapir
