// What reading and writing ONNX have in common: protobuf's messages, and element types.
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

/// ONNX's TensorProto::DataType.
int onnx_type(DType dtype) noexcept;
/// Nothing for those that Tapir has not: int8, strings, complex numbers ...
std::optional<DType> dtype_of_onnx(int type) noexcept;

}  // namespace tapir::detail
