// Exchanges tensors with DLPack, both ways.
#include "tapir/ops/make/dlpack.h"

#include <algorithm>
#include <memory>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/make/make.h"

namespace tapir {
namespace {

constexpr std::int32_t kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
enum Code : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };

struct TypeCode {
    DType dtype;
    std::uint8_t code, bits;
};
constexpr TypeCode kTypeCodes[] = {{float32, kFloat, 32}, {float64, kFloat, 64}, {float16, kFloat, 16}, {bfloat16, kBFloat, 16},
                                   {int64, kInt, 64},     {int32, kInt, 32},     {uint8, kUInt, 8},     {bool_, kBool, 8}};

DType dtype_of_array(const dlpack::DataType& type, const Loc& loc) {
    for (const TypeCode& t : kTypeCodes) {
        if (t.code == type.code && t.bits == type.bits && type.lanes == 1) return t.dtype;
    }
    fail<DTypeError>(loc, "from_dlpack: tapir has no dtype of code {}, {} bits and {} lanes", type.code, type.bits, type.lanes);
}

Device device_of_array(const dlpack::Device& device, const Loc& loc) {
    if (device.device_type == kCpu || device.device_type == kCudaHost) return cpu;
    if (device.device_type != kCuda && device.device_type != kCudaManaged) {
        fail<DeviceError>(loc, "from_dlpack: an array on a device of type {}; tapir has the CPU and CUDA", device.device_type);
    }
    return cuda(device.device_id);
}

// Reads a shape and strides that from_blob() takes. A dimension of size 0 or 1 may have any stride.
// That holds for all dimensions of an empty array.
void read_layout(const dlpack::Array& array, Shape& shape, Shape& strides, const Loc& loc) {
    if (array.ndim < 0) fail<ValueError>(loc, "from_dlpack: the number of dimensions is negative: {}", array.ndim);
    if (array.ndim > kMaxRank) fail<ShapeError>(loc, "from_dlpack: {} dimensions, a tensor has at most {}", array.ndim, kMaxRank);
    if (array.ndim > 0 && !array.shape) fail<ValueError>(loc, "from_dlpack: the shape is null");
    shape = Shape(array.shape, array.ndim, loc);
    for (const std::int64_t size : shape) {
        if (size < 0) fail<ValueError>(loc, "from_dlpack: a size is negative: {}", shape);
    }
    strides = shape;
    std::int64_t step = 1;
    const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    for (int d = shape.rank(); d-- > 0;) {
        const bool matters = array.strides && shape[d] > 1 && !is_empty;
        strides[d] = matters ? array.strides[d] : is_empty ? 1 : step;
        if (strides[d] < 0) fail<ValueError>(loc, "from_dlpack: the stride {} of dimension {} is negative", strides[d], d);
        if (!is_empty && __builtin_mul_overflow(step, shape[d], &step)) {
            fail<ValueError>(loc, "from_dlpack: shape {} is larger than any memory", shape);
        }
    }
}

template <class Managed>
Tensor take_over(Managed* managed, bool is_read_only, const Loc& loc) {
    const dlpack::Array& array = managed->dl_tensor;
    const DType dtype = dtype_of_array(array.dtype, loc);
    const Device device = device_of_array(array.device, loc);
    Shape shape, strides;
    read_layout(array, shape, strides, loc);
    if (!array.data && std::find(shape.begin(), shape.end(), 0) == shape.end()) fail<ValueError>(loc, "from_dlpack: the data is null");
    auto* data = array.data ? static_cast<std::byte*>(array.data) + array.byte_offset : nullptr;
    if (reinterpret_cast<std::uintptr_t>(data) % itemsize(dtype) != 0) {
        fail<ValueError>(loc, "from_dlpack: the data is not aligned for {}", name(dtype));
    }
    if (is_read_only) {
        const Tensor copy = from_blob(data, shape, strides, nullptr, {dtype, device}, loc).clone(loc);
        if (device != cpu) copy.cpu(loc);  // waits until it has been read
        if (managed->deleter) managed->deleter(managed);
        return copy;
    }
    const auto give_back = [managed](void*) {
        if (managed->deleter) managed->deleter(managed);
    };
    return from_blob(data, shape, strides, give_back, {dtype, device}, loc);
}

// The struct for the other side, and the tensor that keeps the elements alive.
template <class Managed>
struct Export {
    Managed managed;
    Tensor tensor;
    std::int64_t shape[kMaxRank], strides[kMaxRank];
};

template <class Managed>
Managed* export_tensor(const In& x) {
    detail::check_defined(x, "to_dlpack");
    if (x.tensor.requires_grad()) {
        fail<ValueError>(x.loc, "to_dlpack: the tensor requires a gradient, which nobody else would add to; pass x.detach()");
    }
    detail::note_read("to_dlpack", x.tensor, x.loc);
    auto out = std::make_unique<Export<Managed>>();
    const TensorImpl* impl = x.tensor.impl();
    out->tensor = x.tensor.detach();
    impl->storage->mark_exposed();
    std::copy_n(impl->sizes, impl->rank, out->shape);
    std::copy_n(impl->strides, impl->rank, out->strides);
    dlpack::Array& array = out->managed.dl_tensor;
    array.data = impl->data;
    array.device = {impl->device.type == DeviceType::cpu ? kCpu : kCuda, impl->device.index};
    array.ndim = impl->rank;
    const auto* type = std::find_if(std::begin(kTypeCodes), std::end(kTypeCodes), [&](const TypeCode& t) { return t.dtype == impl->dtype; });
    array.dtype = {type->code, type->bits, 1};
    array.shape = out->shape;
    array.strides = out->strides;
    out->managed.manager_ctx = out.get();
    out->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
    return &out.release()->managed;
}

}  // namespace

Tensor from_dlpack(dlpack::ManagedTensor* managed, Loc loc) {
    if (!managed) fail<ValueError>(loc, "from_dlpack: the pointer is null");
    return take_over(managed, /*is_read_only=*/false, loc);
}

Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed, Loc loc) {
    if (!managed) fail<ValueError>(loc, "from_dlpack: the pointer is null");
    if (managed->version.major > 1) {  // the other fields may be elsewhere in it
        fail<ValueError>(loc, "from_dlpack: an array of DLPack {}.{}; versions up to 1 are known", managed->version.major, managed->version.minor);
    }
    return take_over(managed, (managed->flags & dlpack::kReadOnly) != 0, loc);
}

dlpack::ManagedTensor* detail::export_dlpack(const In& x) { return export_tensor<dlpack::ManagedTensor>(x); }
dlpack::ManagedTensorVersioned* detail::export_dlpack_versioned(const In& x) { return export_tensor<dlpack::ManagedTensorVersioned>(x); }

}  // namespace tapir
