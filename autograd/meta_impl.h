// The autograd data of a leaf: its gradient, its hooks, its number.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tapir/autograd/hook_impl.h"
#include "tapir/core/tensor.h"

namespace tapir {

class GradientReducer;

/// Rows of a gradient that is zero elsewhere: row indices[i] gets values[i]. Rows may repeat until coalesced.
struct SparseRows {
    Tensor indices;  // int64 (n,)
    Tensor values;   // (n, width...)
    bool defined() const noexcept { return indices.defined(); }
};

/// The first `rows` rows of two buffers, (capacity, out) and (capacity, in): they stand for g^T x, (out, in).
/// See Note [Collected gradients] in collected.cpp.
struct ProductRows {
    Tensor g, x;
    std::int64_t rows = 0;

    std::int64_t capacity() const noexcept { return g.defined() ? g.impl()->sizes[0] : 0; }
    /// Copies more rows into the buffers. They must fit into capacity().
    void append(const Tensor& more_g, const Tensor& more_x);
    void append(const ProductRows& more) noexcept;  // of the same widths and dtypes
    /// The rows as two matrices.
    std::pair<Tensor, Tensor> filled() const;
};

struct AutogradMeta {
    // The gradient is the sum of these three.
    Tensor grad;
    std::vector<SparseRows> rows;
    ProductRows products;
    /// For a leaf that is `sparse`: the rows of `grad` that are not zero, int64 (n,), repeats allowed; undefined: any may be.
    /// Reading grad() puts the collected rows there, and the optimizer finds them again (see optim/optimizer.h).
    Tensor used_rows;
    /// The version of grad's storage at which it was last known to be zero outside used_rows; -1: it may have been written to since.
    std::int64_t rows_version = -1;
    std::uint32_t leaf_number = 0;
    const char* name = nullptr;          // a parameter's name in its model, "encoder.cell.weight"; see nn::Module
    bool sparse = false;                 // a row-sparse gradient shall stay so for the optimizer (see optim/optimizer.h)
    GradientReducer* reducer = nullptr;  // makes its gradient one of several processes'; see reducer_impl.h
    std::uint32_t reducer_place = 0;
    std::vector<GradientHook> hooks;  // read and written with gradient_mutex() held; called without, from copies

    /// The name, or null. Another thread may be setting it.
    const char* name_now() const noexcept { return __atomic_load_n(&name, __ATOMIC_ACQUIRE); }
    bool has_gradient() const noexcept { return grad.defined() || !rows.empty() || products.rows > 0; }
    /// Forgets the hooks that were removed.
    void drop_removed_hooks() noexcept;
    void drop_gradient() noexcept {
        grad = Tensor();
        rows.clear();
        products = {};
        used_rows = Tensor();
        rows_version = -1;
    }
    /// True if `grad` is certainly zero outside used_rows, so that nobody needs to look.
    bool is_sure_of_rows() const noexcept { return used_rows.defined() && rows_version >= 0 && rows_version == grad_version(); }
    /// To be called after `grad` was replaced or written to here, with the earlier value of is_sure_of_rows(): a new storage may have
    /// the old one's version.
    void note_rows_version(bool is_sure) noexcept { rows_version = is_sure && used_rows.defined() ? grad_version() : -1; }
    /// -1 if writes to the gradient cannot be seen.
    std::int64_t grad_version() const noexcept {
        if (!grad.defined() || __atomic_load_n(&grad.impl()->storage->is_exposed, __ATOMIC_RELAXED)) return -1;
        return grad.impl()->storage->version_now();
    }
};

namespace detail {
AutogradMeta& meta_of(const Tensor& tensor);  // makes it at first use
/// Held while leaves' gradients are read or written: backward passes of several threads add to one leaf.
std::mutex& gradient_mutex() noexcept;
/// Prepares collected rows for being kept on a leaf beyond the tape: as one part, in memory of its own.
void own_rows(std::vector<SparseRows>& rows);
/// The row indices, in memory of their own.
Tensor indices_of(const std::vector<SparseRows>& rows);
/// Sums the rows of a leaf that has collected more than twice as many as it has itself.
void bound_rows(AutogradMeta& meta, const Shape& shape);
/// Computes what was collected: afterwards `grad` is the whole gradient, if there is one. shape: the leaf's.
void settle_gradient(AutogradMeta& meta, const Shape& shape);
/// Returns the gradient as one list of rows, if it consists only of rows and these are fewer than the leaf's; else undefined,
/// and settles the gradient.
SparseRows rows_or_settle(AutogradMeta& meta, const Shape& shape);
}  // namespace detail

}  // namespace tapir
