#include "tapir/autograd/trace/onnx/import_impl.h"
namespace tapir::detail {
std::span<const OnnxOp> onnx_sequence_ops() { return {}; }
}  // namespace tapir::detail
