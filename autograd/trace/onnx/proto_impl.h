// Shared by reading and writing ONNX: protobuf's messages, and element types.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <onnx/onnx_pb.h>
#pragma GCC diagnostic pop

#include <optional>

#include "tapir/core/dtype.h"

namespace tapir::detail {

// Doc strings by which load_onnx() tells the kind of an initializer in a graph that save_onnx() wrote. Without one it is a parameter that
// requires gradients.
inline constexpr const char* kOnnxProducer = "Tapir";
inline constexpr const char* kOnnxConstant = "constant of the program";
inline constexpr const char* kOnnxBuffer = "parameter without gradients";

/// ONNX's TensorProto::DataType.
int onnx_type(DType dtype) noexcept;
/// nullopt for types that Tapir does not have: int8, strings, complex numbers ...
std::optional<DType> dtype_of_onnx(int type) noexcept;

}  // namespace tapir::detail
