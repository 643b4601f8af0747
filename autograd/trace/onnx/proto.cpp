// Element types of ONNX.
#include "tapir/autograd/trace/onnx/proto_impl.h"

namespace tapir::detail {
namespace {

constexpr struct {
    DType dtype;
    int onnx;
} kTypePairs[] = {
    {DType::float32, onnx::TensorProto::FLOAT},     {DType::float64, onnx::TensorProto::DOUBLE}, {DType::float16, onnx::TensorProto::FLOAT16},
    {DType::bfloat16, onnx::TensorProto::BFLOAT16}, {DType::int32, onnx::TensorProto::INT32},    {DType::int64, onnx::TensorProto::INT64},
    {DType::uint8, onnx::TensorProto::UINT8},       {DType::boolean, onnx::TensorProto::BOOL},
};

}  // namespace

int onnx_type(DType dtype) noexcept {
    for (const auto& type : kTypePairs) {
        if (type.dtype == dtype) return type.onnx;
    }
    return onnx::TensorProto::UNDEFINED;
}

std::optional<DType> dtype_of_onnx(int type) noexcept {
    for (const auto& known : kTypePairs) {
        if (known.onnx == type) return known.dtype;
    }
    return std::nullopt;
}

}  // namespace tapir::detail
