// Ops that join tensors.
#pragma once

#include <initializer_list>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// Takes several tensors as one argument, with the line of the call.
struct TensorList {
    TensorList(const std::vector<Tensor>& list, Loc line = Loc::current()) noexcept  // NOLINT: implicit by design
        : data(list.data()), size(list.size()), loc(line) {}
    TensorList(std::initializer_list<Tensor> list, Loc line = Loc::current()) noexcept  // NOLINT
        : data(list.end() - list.size()), size(list.size()), loc(line) {}
    TensorList(const Tensor* first, std::size_t count, Loc line) noexcept : data(first), size(count), loc(line) {}
    const Tensor* begin() const noexcept { return data; }
    const Tensor* end() const noexcept { return data + size; }
    const Tensor& operator[](std::size_t i) const noexcept { return data[i]; }
    const Tensor* data;
    std::size_t size;
    Loc loc;
};
/// Joins along an existing dimension; other sizes must agree (ShapeError). Dtypes promote. 1-d tensors of size 0 are
/// skipped, as in PyTorch.
Tensor cat(TensorList tensors, Dim dim = 0);
inline Tensor concat(TensorList tensors, Dim dim = 0) { return cat(tensors, dim); }  ///< another name for cat()
/// Joins along a new dimension; shapes must be equal.
Tensor stack(TensorList tensors, Dim dim = 0);

}  // namespace tapir
