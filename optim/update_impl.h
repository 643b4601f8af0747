// Carrying an update rule to a parameter's elements: all of them, or the rows that a sparse gradient names.
#pragma once

#include <cstdint>
#include <vector>

#include "tapir/autograd/meta_impl.h"
#include "tapir/ops/kernels/optimizer.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

/// Sums up repeated rows: afterwards the indices ascend, without repeats. `rows` is the parameter's number of rows, from which
/// negative indices count. Works on contiguous values of float32 or float64.
SparseRows coalesce(const SparseRows& rows, std::int64_t row_count, const Loc& loc);

/// One parameter's update: elements, gradient and buffers, contiguous and of one dtype, float32 or float64.
struct Update {
    Tensor parameter;
    Tensor gradient;   // dense, or
    SparseRows rows;   // coalesced
    Tensor buffers[3];
    bool first = false;  // the buffers are fresh

    template <class Step>
    void apply(const Step& step) const {
        if (parameter.dtype() == DType::float64) {
            run<double>(step);
        } else {
            run<float>(step);
        }
    }

 private:
    template <class T, class Step>
    void run(const Step& step) const {
        T* p = static_cast<T*>(parameter.raw_data());
        T* base[3];
        for (int i = 0; i < 3; ++i) base[i] = buffers[i].defined() ? static_cast<T*>(buffers[i].raw_data()) : nullptr;
        const auto at = [&](std::int64_t offset, const T* g, std::int64_t n) {
            T* const moved[] = {base[0] ? base[0] + offset : nullptr, base[1] ? base[1] + offset : nullptr,
                                base[2] ? base[2] + offset : nullptr};
            kernels::step(step, n, p + offset, g, moved);
        };
        if (gradient.defined()) {
            const T* g = static_cast<const T*>(gradient.raw_data());
            parallel_for(parameter.numel(), 32 * 1024,
                         [&](std::int64_t begin, std::int64_t end) { at(begin, g + begin, end - begin); });
            return;
        }
        const std::int64_t count = rows.indices.numel(), width = count ? rows.values.numel() / count : 0;
        const auto* index = static_cast<const std::int64_t*>(rows.indices.raw_data());
        const T* g = static_cast<const T*>(rows.values.raw_data());
        parallel_for(count, 32 * 1024 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) at(index[r] * width, g + r * width, width);
        });
    }
};

}  // namespace tapir::optim
