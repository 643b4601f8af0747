// What a leaf carries for autograd: its gradient, its hooks, its number.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tapir/core/tensor.h"

namespace tapir {

/// Rows of a gradient that is zero elsewhere: row indices[i] gets values[i]. Rows may repeat until coalesced.
struct SparseRows {
    Tensor indices;  // int64 (n,)
    Tensor values;   // (n, width...)
    bool defined() const noexcept { return indices.defined(); }
};

struct AutogradMeta {
    Tensor grad;
    SparseRows sparse_grad;  // at most one of the two is defined
    std::uint32_t leaf_number = 0;
    bool sparse = false;     // wants row-sparse gradients from embedding()
    std::vector<std::function<Tensor(const Tensor&)>> hooks;
};

namespace detail {
AutogradMeta& meta_of(const Tensor& tensor);  // makes it at first use
void destroy_meta(AutogradMeta* meta) noexcept;
}  // namespace detail

}  // namespace tapir
