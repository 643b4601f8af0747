// Mixed precision: the ops that convert their inputs, and the weights that were converted already.
#include "tapir/ops/autocast_impl.h"

#include "tapir/autograd/log_impl.h"
#include "tapir/core/autocast_impl.h"
#include "tapir/ops/make/copy.h"

namespace tapir {
namespace {

Tensor converted(AutocastScope& scope, const In& x) {
    const DType dtype = AutocastAccess::dtype(scope);
    if (!(x->flags & TensorImpl::kRequiresGrad)) return to(x, dtype);
    const std::uint32_t tape = detail::thread.log ? detail::thread.log->id : 0;
    auto& entries = AutocastAccess::entries(scope);
    for (auto& entry : entries) {
        if (!entry.leaf.is_same(x.tensor)) continue;
        const std::uint32_t version = x->storage->version_now();  // before another thread writes to it
        if (entry.version != version || entry.tape != tape) entry = {x.tensor, to(x, dtype), version, tape};
        return entry.copy;
    }
    const std::uint32_t version = x->storage->version_now();
    entries.push_back({x.tensor, to(x, dtype), version, tape});
    return entries.back().copy;
}

}  // namespace

namespace detail {

Tensor autocast_to_float32(const In& x) {
    if (!x.tensor.defined() || (x->dtype != float16 && x->dtype != bfloat16)) return {};
    return to(x, float32);
}

bool autocast_lowers(const Tensor& x) {
    return x.defined() && is_floating(x.dtype()) && x.dtype() != float64 && x.dtype() != AutocastAccess::dtype(*thread.autocast);
}

Tensor autocast_to_low(const In& x) { return autocast_lowers(x.tensor) ? converted(*thread.autocast, x) : x.tensor; }

bool wants_float32(Elementwise op) noexcept {
    switch (op) {
        case Elementwise::acos:
        case Elementwise::asin:
        case Elementwise::cosh:
        case Elementwise::erfinv:
        case Elementwise::exp:
        case Elementwise::expm1:
        case Elementwise::log:
        case Elementwise::log10:
        case Elementwise::log1p:
        case Elementwise::log2:
        case Elementwise::pow:
        case Elementwise::reciprocal:
        case Elementwise::rsqrt:
        case Elementwise::sinh:
        case Elementwise::softplus:
        case Elementwise::tan: return true;
        default: return false;
    }
}

}  // namespace detail
}  // namespace tapir
