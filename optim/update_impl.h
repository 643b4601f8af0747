// Applies an update rule to a parameter's elements: all of them, or the rows that a sparse gradient names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "tapir/autograd/meta_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/ops/elementwise/elementwise_kernels.h"
#include "tapir/ops/kernels/optimizer.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/optim/optimizer.h"

namespace tapir::optim {

/// Converts a buffer after Module::to().
inline void follow(Tensor& buffer, Device device, DType compute) {
    if (buffer.dtype() != compute) buffer = buffer.to(compute);
    if (buffer.device() != device) buffer = buffer.to(device);
}

inline Tensor ready(const Tensor& t, DType compute) { return t.to(compute).contiguous(); }
/// Returns a parameter or a dense gradient as Update takes it: a device's kernels read the computed dtype only, the CPU converts part by
/// part.
inline Tensor taken(const Tensor& t, DType compute) { return on_gpu(t) ? ready(t, compute) : t.contiguous(); }

struct Update;

/// Updates on CUDA devices wait here until there are enough of them for a launch.
class StepQueue {
 public:
    explicit StepQueue(bool told = false) noexcept : is_told(told) {}
    const bool is_told;  // watchers want to be told of each update, so none may wait

    template <class Step>
    void add(const Step& step, const Update& work);
    void flush() {
        std::visit(
            [this]<class Steps>(Steps& batch) {
                if constexpr (!std::is_same_v<Steps, std::monostate>) flush(batch);
            },
            batch_);
    }

 private:
    template <class Step>
    void flush(kernels::GpuSteps<Step>& batch) {
        if (batch.count == 0) return;
        device_api::select(device_);
        for (const Tensor& t : tensors_) device_api::used_here(*t.impl()->storage);
        kernels::launch_steps(batch);
        batch.count = 0;
        tensors_.clear();
    }

#define TAPIR_STEP_BATCH(Step, name) , kernels::GpuSteps<kernels::Step>
    std::variant<std::monostate TAPIR_STEPS(TAPIR_STEP_BATCH)> batch_;  // of one rule
#undef TAPIR_STEP_BATCH
    Device device_;
    std::vector<Tensor> tensors_;  // they own the memory that the entries point to
};

/// Update of one parameter: elements, gradient and buffers, contiguous and of one dtype, float32 or float64. On the CPU the parameter and
/// a dense gradient may have other dtypes; they are converted part by part.
struct Update {
    Tensor parameter;
    Tensor gradient;  // dense, or
    SparseRows rows;  // coalesced
    Tensor buffers[3];
    bool first = false;          // the buffers are new
    StepQueue* queue = nullptr;  // for parameters on CUDA devices

    template <class Step>
    void apply(const Step& step) const {
        if (on_gpu(parameter)) return queue->add(step, *this);
        const DType compute = computed_in(parameter.dtype());
        if (parameter.dtype() != compute || (gradient.defined() && gradient.dtype() != compute)) {
            compute == DType::float64 ? run_converted<double>(step) : run_converted<float>(step);
        } else if (compute == DType::float64) {
            run<double>(step);
        } else {
            run<float>(step);
        }
    }

 private:
    template <class T, class Step>
    void run_converted(const Step& step) const {
        constexpr std::int64_t kPart = 1024;
        const DType own = parameter.dtype(), other = gradient.defined() ? gradient.dtype() : dtype_of<T>;
        const auto own_bytes = static_cast<std::int64_t>(itemsize(own)), other_bytes = static_cast<std::int64_t>(itemsize(other));
        auto* const p = static_cast<std::byte*>(parameter.raw_data());
        const auto* const g = static_cast<const std::byte*>(gradient.defined() ? gradient.raw_data() : rows.values.raw_data());
        T* base[3];
        for (int i = 0; i < 3; ++i) base[i] = buffers[i].defined() ? static_cast<T*>(buffers[i].raw_data()) : nullptr;
        // Loads n elements of the parameter, and the gradient's elements for them.
        const auto at = [&](std::int64_t offset, std::int64_t from, std::int64_t n) {
            alignas(64) T parameters[kPart], gradients[kPart];
            for (std::int64_t end = offset + n; offset < end; offset += kPart, from += kPart) {
                const std::int64_t part = std::min(kPart, end - offset);
                kernels::convert(own, p + offset * own_bytes, 1, dtype_of<T>, parameters, 1, part);
                kernels::convert(other, g + from * other_bytes, 1, dtype_of<T>, gradients, 1, part);
                T* const moved[] = {base[0] ? base[0] + offset : nullptr, base[1] ? base[1] + offset : nullptr, base[2] ? base[2] + offset : nullptr};
                kernels::step(step, part, parameters, gradients, moved);
                kernels::convert(dtype_of<T>, parameters, 1, own, p + offset * own_bytes, 1, part);
            }
        };
        if (gradient.defined()) {
            parallel_for(parameter.numel(), 32 * 1024, [&](std::int64_t begin, std::int64_t end) { at(begin, begin, end - begin); });
            return;
        }
        const std::int64_t count = rows.indices.numel(), width = count ? rows.values.numel() / count : 0;
        const auto* index = static_cast<const std::int64_t*>(rows.indices.raw_data());
        parallel_items(count, 32 * 1024 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) at(index[r] * width, r * width, width);
        });
    }

    template <class T, class Step>
    void run(const Step& step) const {
        T* p = static_cast<T*>(parameter.raw_data());
        T* base[3];
        for (int i = 0; i < 3; ++i) base[i] = buffers[i].defined() ? static_cast<T*>(buffers[i].raw_data()) : nullptr;
        const auto at = [&](std::int64_t offset, const T* g, std::int64_t n) {
            T* const moved[] = {base[0] ? base[0] + offset : nullptr, base[1] ? base[1] + offset : nullptr, base[2] ? base[2] + offset : nullptr};
            kernels::step(step, n, p + offset, g, moved);
        };
        if (gradient.defined()) {
            const T* g = static_cast<const T*>(gradient.raw_data());
            parallel_for(parameter.numel(), 32 * 1024, [&](std::int64_t begin, std::int64_t end) { at(begin, g + begin, end - begin); });
            return;
        }
        const std::int64_t count = rows.indices.numel(), width = count ? rows.values.numel() / count : 0;
        const auto* index = static_cast<const std::int64_t*>(rows.indices.raw_data());
        const T* g = static_cast<const T*>(rows.values.raw_data());
        parallel_items(count, 32 * 1024 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) at(index[r] * width, g + r * width, width);
        });
    }
};

template <class Step>
void StepQueue::add(const Step& step, const Update& work) {
    if (!std::holds_alternative<kernels::GpuSteps<Step>>(batch_)) {
        flush();
        batch_.template emplace<kernels::GpuSteps<Step>>();
    }
    auto& batch = std::get<kernels::GpuSteps<Step>>(batch_);
    const Device device = work.parameter.impl()->device;
    const DType dtype = work.parameter.dtype();
    if (batch.count == batch.most || batch.dtype != dtype || device_ != device) flush(batch);
    batch.dtype = dtype;
    device_ = device;
    auto& entry = batch.entry[batch.count++];
    const bool dense = work.gradient.defined();
    const Tensor& g = dense ? work.gradient : work.rows.values;
    entry = {step, work.parameter.raw_data(), g.raw_data(), {}, g.numel(), nullptr, 1};
    if (!dense) {
        entry.rows = static_cast<const std::int64_t*>(work.rows.indices.raw_data());
        entry.width = g.numel() / std::max<std::int64_t>(work.rows.indices.numel(), 1);
        tensors_.push_back(work.rows.indices);
    }
    tensors_.push_back(work.parameter);
    tensors_.push_back(g);
    for (int i = 0; i < 3; ++i) {
        entry.buffers[i] = work.buffers[i].raw_data();
        if (work.buffers[i].defined()) tensors_.push_back(work.buffers[i]);
    }
}

}  // namespace tapir::optim
