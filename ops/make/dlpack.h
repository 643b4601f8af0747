// DLPack 1.0 (https://dmlc.github.io/dlpack): exchanges arrays with other libraries without a copy.
//
//     Tensor x = from_dlpack(managed);                    // takes it over, as from a PyCapsule of torch or numpy
//     dlpack::ManagedTensor* y = to_dlpack(x);            // whoever takes it calls y->deleter(y) once
//
// The structs have the layout of dlpack.h and names of their own. If that header is included, its structs are accepted as they are:
// from_dlpack(DLManagedTensor*), to_dlpack<DLManagedTensorVersioned>(x).
//
// Both sides share the same elements afterwards. The tape's checks do not see writes of the other side. Work on a stream must be
// waited for, or be on the stream that the other side uses, before an array changes hands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tapir/core/tensor.h"

namespace tapir {
namespace dlpack {

struct Version {
    std::uint32_t major = 1, minor = 0;
};
struct Device {
    std::int32_t device_type = 1;  ///< 1: CPU, 2: CUDA, 3: page-locked CPU memory, 13: CUDA managed memory
    std::int32_t device_id = 0;
};
struct DataType {
    std::uint8_t code = 2;  ///< 0: int, 1: uint, 2: float, 4: bfloat, 6: bool
    std::uint8_t bits = 32;
    std::uint16_t lanes = 1;
};
/// DLTensor
struct Array {
    void* data = nullptr;
    Device device;
    std::int32_t ndim = 0;
    DataType dtype;
    std::int64_t* shape = nullptr;
    std::int64_t* strides = nullptr;  ///< in elements; null: row-major
    std::uint64_t byte_offset = 0;
};
/// DLManagedTensor
struct ManagedTensor {
    Array dl_tensor;
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensor* self) = nullptr;  ///< null: nothing to give back
};
inline constexpr std::uint64_t kReadOnly = 1;
/// DLManagedTensorVersioned
struct ManagedTensorVersioned {
    Version version;
    void* manager_ctx = nullptr;
    void (*deleter)(ManagedTensorVersioned* self) = nullptr;
    std::uint64_t flags = 0;
    Array dl_tensor;
};

static_assert(sizeof(Array) == 48 && offsetof(Array, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, dl_tensor) == 32);

/// True for dlpack.h's struct, and for ours.
template <class T>
concept Managed = sizeof(T) == sizeof(ManagedTensor) && requires(T t) {
    t.dl_tensor.byte_offset;
    t.manager_ctx;
    t.deleter;
    requires !requires { t.version; };
};
template <class T>
concept ManagedVersioned = sizeof(T) == sizeof(ManagedTensorVersioned) && requires(T t) {
    t.version.major;
    t.flags;
    t.dl_tensor.byte_offset;
};

}  // namespace dlpack

/// Makes a tensor that owns the array from here on: the deleter runs when the last view is gone. An array that is read-only
/// is copied and given back at once, since tensors can be written to. Throws, and leaves the array to the caller: DTypeError for types
/// that tapir does not have, DeviceError for other devices and for ones that do not exist, ShapeError for more than 8 dimensions,
/// ValueError for null pointers, negative sizes or strides, data that is not aligned, and versions from 2 on.
Tensor from_dlpack(dlpack::ManagedTensor* managed, Loc loc = Loc::current());
Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed, Loc loc = Loc::current());

namespace detail {
dlpack::ManagedTensor* export_dlpack(const In& x);
dlpack::ManagedTensorVersioned* export_dlpack_versioned(const In& x);
}  // namespace detail

/// Returns the tensor for another library, with its strides and device; it keeps the elements alive until its deleter is called, from any
/// thread. Throws ValueError for a tensor that is undefined or requires a gradient: pass x.detach().
template <class T = dlpack::ManagedTensor>
    requires dlpack::Managed<T> || dlpack::ManagedVersioned<T>
T* to_dlpack(In x) {
    if constexpr (dlpack::Managed<T>) {
        return reinterpret_cast<T*>(detail::export_dlpack(x));
    } else {
        return reinterpret_cast<T*>(detail::export_dlpack_versioned(x));
    }
}

template <dlpack::Managed T>
    requires(!std::is_same_v<T, dlpack::ManagedTensor>)
Tensor from_dlpack(T* managed, Loc loc = Loc::current()) {
    return from_dlpack(reinterpret_cast<dlpack::ManagedTensor*>(managed), loc);
}
template <dlpack::ManagedVersioned T>
    requires(!std::is_same_v<T, dlpack::ManagedTensorVersioned>)
Tensor from_dlpack(T* managed, Loc loc = Loc::current()) {
    return from_dlpack(reinterpret_cast<dlpack::ManagedTensorVersioned*>(managed), loc);
}

}  // namespace tapir
