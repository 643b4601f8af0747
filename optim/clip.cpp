// Clips gradients.
#include "tapir/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/coalesce_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

// Visits the parameters that may have a gradient; a shared parameter counts once.
template <class Visit>
void each_leaf(const char* op, const std::vector<Tensor>& parameters, const Loc& loc, const Visit& visit) {
    std::unordered_set<const TensorImpl*> seen;
    for (const Tensor& p : parameters) {
        detail::check_defined(In(p, loc), op);
        AutogradMeta* meta = p.impl()->meta;
        if (meta && seen.insert(p.impl()).second) visit(p, *meta);
    }
}

// Returns the elements of each gradient, dense or only its rows, contiguous. A gradient that is not contiguous is replaced by
// one that is.
std::vector<Tensor> gradients(const char* op, const std::vector<Tensor>& parameters, const Loc& loc) {
    std::vector<Tensor> result;
    each_leaf(op, parameters, loc, [&](const Tensor& p, AutogradMeta& meta) {
        const std::lock_guard lock(detail::gradient_mutex());
        if (const SparseRows rows = detail::rows_or_settle(meta, p.shape()); rows.defined()) {
            const DType dtype = rows.values.dtype();
            SparseRows made = tapir::detail::coalesce({rows.indices, rows.values.to(computed_in(dtype)).contiguous()}, p.shape()[0], loc);
            made.values = made.values.to(dtype);
            meta.rows = {made};
            result.push_back(made.values);
        } else if (meta.grad.defined()) {
            const bool is_sure = meta.is_sure_of_rows();
            meta.grad = meta.grad.contiguous();
            meta.note_rows_version(is_sure);
            result.push_back(meta.grad);
        }
    });
    return result;
}

std::vector<Device> cuda_devices(const std::vector<Tensor>& grads) {
    std::vector<Device> devices;
    for (const Tensor& g : grads) {
        if (on_gpu(g) && std::find(devices.begin(), devices.end(), g.device()) == devices.end()) devices.push_back(g.device());
    }
    return devices;
}

// Returns the gradients on one device, as its kernels take them; they are changed in place.
std::vector<kernels::GpuGradient> on_device(Device device, const std::vector<Tensor>& grads, const char* op, bool writes, const Loc& loc) {
    std::vector<kernels::GpuGradient> result;
    for (const Tensor& g : grads) {
        if (g.device() != device) continue;
        if (result.empty()) detail::begin_op(op, g.impl(), loc);
        result.push_back({g.dtype(), g.numel(), on_stream(g), on_stream(g)});
        if (writes) mark_written(g, loc);
    }
    return result;
}

// Computes a float64 on the device; nobody waits for it.
Tensor norm_on(Device device, const std::vector<Tensor>& grads, double p, const Loc& loc) {
    const auto list = on_device(device, grads, "clip_grad_norm_", /*writes=*/false, loc);
    const Tensor norm = detail::make_empty({}, float64, device, loc);
    gpu::gradient_norm(list, p, on_stream<double>(norm));
    return norm;
}

// Calls work(elements, count) with float or double elements, for reading; 16-bit floats go through a float32 copy.
template <class Work>
void with_elements(const Tensor& t, const Loc& loc, const Work& work) {
    if (t.dtype() == float64) {
        work(static_cast<double*>(t.raw_data()), t.numel());
    } else {
        const Tensor wide = t.to(float32, loc);
        work(static_cast<float*>(wide.raw_data()), t.numel());
    }
}

// Calls work(elements, count) for each gradient on the CPU, to change them. 16-bit floats go through one float32 copy as large as the
// largest of them. Allocates all memory before it changes the first gradient: if clipping throws, none has changed.
template <class Work>
void change_elements(const std::vector<Tensor>& grads, const Loc& loc, const Work& work) {
    const auto is_narrow = [](const Tensor& g) { return read_in(g) != g.dtype(); };
    std::int64_t most = 0;
    for (const Tensor& g : grads) most = std::max(most, is_narrow(g) ? g.numel() : 0);
    const Tensor room = most > 0 ? detail::make_empty({most}, float32, cpu, loc) : Tensor();
    std::vector<Tensor> wide;  // for each gradient: itself, or its part of the room
    for (const Tensor& g : grads) wide.push_back(is_narrow(g) ? detail::make_view(room.impl(), g.dim(), g.impl()->sizes, nullptr, 0) : g);
    for (std::size_t i = 0; i < grads.size(); ++i) {
        const Tensor &g = grads[i], &w = wide[i];
        if (on_gpu(g)) continue;
        if (!w.is_same(g)) copy_elements(w, g);
        if (w.dtype() == float64) {
            work(static_cast<double*>(w.raw_data()), w.numel());
        } else {
            work(static_cast<float*>(w.raw_data()), w.numel());
        }
        if (!w.is_same(g)) copy_elements(g, w);
        mark_written(g, loc);
    }
}

// Adds sums of powers, or takes the larger if p is infinite.
double joined(double total, double part, double p) { return !std::isinf(p) ? total + part : std::isnan(part) || part > total ? part : total; }

constexpr std::int64_t kBlock = 4096;       // elements that are summed at once
constexpr std::int64_t kGrain = 64 * 1024;  // elements for a thread

// Returns sum |x|^p, or the largest |x| for infinity. Blocks are summed separately and added in order, so that the result does not
// depend on the number of threads.
template <class T>
double power_sum(const T* x, std::int64_t n, double p) {
    const std::int64_t blocks = (n + kBlock - 1) / kBlock;
    const auto of_block = [&](std::int64_t i) { return kernels::power_sum(std::min(kBlock, n - i * kBlock), x + i * kBlock, p); };
    double total = 0;
    if (n < 2 * kGrain) {
        for (std::int64_t i = 0; i < blocks; ++i) total = joined(total, of_block(i), p);
        return total;
    }
    std::vector<double> sums(static_cast<std::size_t>(blocks));
    parallel_for(blocks, kGrain / kBlock, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) sums[static_cast<std::size_t>(i)] = of_block(i);
    });
    for (const double sum : sums) total = joined(total, sum, p);
    return total;
}

// Returns the norm of gradients on several devices, or on the CPU.
double total_norm(const std::vector<Tensor>& grads, const std::vector<Device>& devices, double p, const Loc& loc) {
    double total = 0;
    const auto add = [&](double part) { total = joined(total, part, p); };
    std::vector<Tensor> norms;
    for (const Device device : devices) norms.push_back(norm_on(device, grads, p, loc));
    for (const Tensor& norm : norms) add(std::isinf(p) ? norm.item() : std::pow(norm.item(), p));
    for (const Tensor& g : grads) {
        if (!on_gpu(g)) with_elements(g, loc, [&](const auto* x, std::int64_t n) { add(power_sum(x, n, p)); });
    }
    if (std::isinf(p)) return total;
    if (total > 1e-290 && total < std::numeric_limits<double>::infinity()) return std::pow(total, 1 / p);
    // The powers overflowed or underflowed float64: repeats this with gradients divided by about their largest element.
    const double largest = total_norm(grads, devices, std::numeric_limits<double>::infinity(), loc);
    if (std::isnan(total) || !(largest > 0 && std::isfinite(largest)) || (largest >= 0.5 && largest <= 2)) return std::pow(total, 1 / p);
    const int exponent = std::clamp(std::ilogb(largest), -1022, 1022);
    std::vector<Tensor> scaled;
    for (const Tensor& g : grads) scaled.push_back(g.to(float64, loc) * std::ldexp(1.0, -exponent));
    return std::ldexp(total_norm(scaled, devices, p, loc), exponent);
}

// --- By ops, which a graph that is traced holds ----------------------------------------------------------------------------------

// Returns the gradients that the trace itself has made: earlier ones would be constants of the graph.
std::vector<Tensor> traced_gradients(const char* op, const std::vector<Tensor>& parameters, const Loc& loc) {
    std::vector<Tensor> result;
    each_leaf(op, parameters, loc, [&](const Tensor& p, AutogradMeta& meta) {
        Tensor grad;
        bool was_there = false;
        {
            const std::lock_guard lock(detail::gradient_mutex());
            if (!meta.has_gradient()) return;
            grad = meta.grad;
            was_there = !grad.defined() || !meta.rows.empty() || meta.products.rows > 0 || grad.impl()->trace != detail::thread.trace;
        }
        if (was_there) {
            const char* name = meta.name_now();
            fail<TapeError>(loc,
                            "{}: the gradient of {} was there before the trace, and a graph would clip it again in each run: "
                            "zero_grad() first",
                            op, name ? name : fmt::format("a parameter of shape {}", p.shape()));
        }
        if (!grad.is_contiguous()) {
            grad = grad.contiguous();
            const std::lock_guard lock(detail::gradient_mutex());
            meta.grad = grad;
        }
        result.push_back(grad);
    });
    return result;
}

Tensor clip_norm_by_ops(const std::vector<Tensor>& parameters, double max_norm, double p, const Loc& loc) {
    const CallerScope caller(loc);
    const NoGradScope plain;
    const detail::PauseAutocast exact;
    const std::vector<Tensor> grads = traced_gradients("clip_grad_norm_", parameters, loc);
    if (grads.empty()) return full({}, 0, {float64, cpu});
    const auto is_beside_first = [&](const Tensor& g) { return g.device() == grads[0].device(); };
    const Device device = std::all_of(grads.begin(), grads.end(), is_beside_first) ? grads[0].device() : cpu;
    std::vector<Tensor> norms;
    for (const Tensor& g : grads) {
        if (g.numel() > 0) norms.push_back(norm(g.to(float64), p).to(device));  // in float64, as their squares may be beyond float
    }
    if (norms.empty()) return full({}, 0, {float64, device});
    const Tensor total = norms.size() == 1 ? norms[0] : norm(stack(norms), p);
    const Tensor factor = clamp_max(max_norm / (total + 1e-6), 1);
    for (Tensor g : grads) g.mul_(factor.to(g.device()));
    return total;
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, double norm_type, Loc loc) {
    const CallerScope caller(loc);
    if (!(max_norm >= 0)) fail<ValueError>(loc, "clip_grad_norm_: max_norm must not be negative, got {}", max_norm);
    if (!(norm_type > 0)) fail<ValueError>(loc, "clip_grad_norm_: norm_type must be above 0, got {}", norm_type);
    const ProfileScope scope("clip_grad_norm_", loc);
    if (detail::is_tracing() && detail::is_watched()) return clip_norm_by_ops(parameters, max_norm, norm_type, loc);
    const detail::PauseRecording pause;
    const std::vector<Tensor> grads = gradients("clip_grad_norm_", parameters, loc);
    const std::vector<Device> devices = cuda_devices(grads);
    const auto gradients_on = [&](Device device) { return on_device(device, grads, "clip_grad_norm_", /*writes=*/true, loc); };
    if (devices.size() == 1 && std::all_of(grads.begin(), grads.end(), [](const Tensor& g) { return on_gpu(g); })) {
        const Tensor norm = norm_on(devices[0], grads, norm_type, loc);
        gpu::clip_gradients(gradients_on(devices[0]), on_stream<double>(norm), max_norm);
        return norm;
    }
    const double norm = total_norm(grads, devices, norm_type, loc), factor = max_norm / (norm + 1e-6);
    const Tensor result = full({}, norm, {float64, cpu}, loc);
    if (!(factor >= 1)) {
        for (const Device device : devices) gpu::scale_gradients(gradients_on(device), factor, nullptr);
        change_elements(grads, loc, [&](auto* x, std::int64_t n) {
            parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) { kernels::scale(end - begin, x + begin, factor); });
        });
    }
    return result;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double bound, Loc loc) {
    const CallerScope caller(loc);
    if (!(bound >= 0)) fail<ValueError>(loc, "clip_grad_value_: the bound must not be negative, got {}", bound);
    const ProfileScope scope("clip_grad_value_", loc);
    if (detail::is_tracing() && detail::is_watched()) {
        const NoGradScope plain;
        for (Tensor g : traced_gradients("clip_grad_value_", parameters, loc)) g.clamp_(-bound, bound);
        return;
    }
    const detail::PauseRecording pause;
    const std::vector<Tensor> grads = gradients("clip_grad_value_", parameters, loc);
    for (const Device device : cuda_devices(grads)) {
        gpu::limit_gradients(on_device(device, grads, "clip_grad_value_", /*writes=*/true, loc), bound);
    }
    change_elements(grads, loc, [&](auto* x, std::int64_t n) {
        parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) { kernels::limit(end - begin, x + begin, bound); });
    });
}

}  // namespace tapir::optim
