// Clipping gradients.
#include "tapir/optim/clip.h"

#include <algorithm>
#include <cmath>

#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/elementwise_impl.h"
#include "tapir/ops/indexing.h"
#include "tapir/ops/reduce.h"
#include "tapir/optim/update_impl.h"

namespace tapir::optim {
namespace {

// The elements of each gradient, dense or of the rows that there are, contiguous. A gradient that is not so is replaced by
// one that is; a shared parameter counts once.
std::vector<Tensor> gradients(const char* op, const std::vector<Tensor>& parameters, const Loc& loc) {
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& p = parameters[i];
        detail::check_defined(In(p, loc), op);
        AutogradMeta* meta = p.impl()->meta;
        const auto same = [&](const Tensor& other) { return other.is_same(p); };
        if (!meta || std::any_of(parameters.begin(), parameters.begin() + static_cast<std::ptrdiff_t>(i), same)) continue;
        const std::lock_guard lock(detail::gradient_mutex());
        if (const SparseRows rows = detail::rows_or_settle(*meta, p.shape()); rows.defined()) {
            const DType dtype = rows.values.dtype();
            SparseRows made = coalesce({rows.indices, rows.values.to(dtype == float64 ? float64 : float32).contiguous()},
                                       p.shape()[0], loc);
            made.values = made.values.to(dtype);
            meta->rows = {made};
            result.push_back(made.values);
        } else if (meta->grad.defined()) {
            meta->grad = meta->grad.contiguous();
            result.push_back(meta->grad);
        }
    }
    return result;
}

// The norm of the gradients that are on CUDA devices, in float64 inside; one wait for all of them.
double norm_on_gpu(const std::vector<Tensor>& grads, double p) {
    std::vector<Tensor> norms;
    for (const Tensor& g : grads) {
        if (!on_gpu(g)) continue;
        const Tensor one = norm(g.dtype() == float64 ? g : g.to(float32), p).to(float64);
        norms.push_back(norms.empty() ? one : one.to(norms.front().device()));
    }
    return norms.empty() ? 0 : norm(stack(norms), p).item();
}

// Calls work(elements, count) with float or double elements; 16-bit floats go through a float32 copy.
template <class Work>
void with_elements(const Tensor& t, bool writes, const Loc& loc, const Work& work) {
    if (t.dtype() == float64) {
        work(static_cast<double*>(t.raw_data()), t.numel());
    } else {
        const Tensor wide = t.to(float32);
        work(static_cast<float*>(wide.raw_data()), t.numel());
        if (writes && !wide.is_same(t)) copy_elements(t, wide);
    }
    if (writes) mark_written(t, loc);
}

// sum |x|^p, or the largest |x| for infinity
template <class T>
double power_sum(const T* x, std::int64_t n, double p) {
    if (p == 2) return kernels::sum_squares(n, x);
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const double a = std::abs(static_cast<double>(x[i]));
        if (std::isinf(p)) {
            sum = std::isnan(a) || a > sum ? a : sum;
        } else {
            sum += p == 1 ? a : std::pow(a, p);
        }
        if (std::isnan(sum)) break;
    }
    return sum;
}

}  // namespace

double clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, double norm_type, Loc loc) {
    if (!(max_norm >= 0)) fail<ValueError>(loc, "clip_grad_norm_: max_norm must not be negative, got {}", max_norm);
    if (!(norm_type > 0)) fail<ValueError>(loc, "clip_grad_norm_: norm_type must be above 0, got {}", norm_type);
    const detail::PauseRecording pause;
    const std::vector<Tensor> grads = gradients("clip_grad_norm_", parameters, loc);
    const bool is_largest = std::isinf(norm_type);
    double total = is_largest ? norm_on_gpu(grads, norm_type) : std::pow(norm_on_gpu(grads, norm_type), norm_type);
    for (const Tensor& g : grads) {
        if (on_gpu(g)) continue;
        with_elements(g, false, loc, [&](const auto* x, std::int64_t n) {
            const double part = power_sum(x, n, norm_type);
            total = !is_largest ? total + part : std::isnan(part) || part > total ? part : total;
        });
    }
    const double norm = is_largest ? total : std::pow(total, 1 / norm_type);
    const double factor = max_norm / (norm + 1e-6);
    if (factor >= 1) return norm;
    for (Tensor g : grads) {
        if (on_gpu(g)) {
            g.mul_(factor, loc);
        } else {
            with_elements(g, true, loc, [&](auto* x, std::int64_t n) { kernels::scale(n, x, factor); });
        }
    }
    return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double bound, Loc loc) {
    if (!(bound >= 0)) fail<ValueError>(loc, "clip_grad_value_: the bound must not be negative, got {}", bound);
    const detail::PauseRecording pause;
    for (Tensor g : gradients("clip_grad_value_", parameters, loc)) {
        if (on_gpu(g)) {
            g.clamp_(-bound, bound, loc);
            continue;
        }
        with_elements(g, true, loc, [&](auto* x, std::int64_t n) { kernels::limit(n, x, bound); });
    }
}

}  // namespace tapir::optim
