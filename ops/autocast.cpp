// Mixed precision: which ops convert their inputs, and the weights that were converted already.
#include "tapir/ops/autocast_impl.h"

#include <vector>

#include "tapir/autograd/log_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/ops/copy.h"

namespace tapir {

// Leaves converted in this scope. A copy counts as long as the leaf has not changed and, where it was recorded, the tape that
// it was recorded on is the thread's.
struct AutocastScope::Cache {
    struct Entry {
        Tensor leaf, copy;
        std::uint32_t version, tape;
    };
    std::vector<Entry> entries;
};

struct AutocastAccess {
    static DType dtype(const AutocastScope& scope) { return scope.dtype_; }
    static bool enabled(const AutocastScope& scope) { return scope.enabled_; }

    static Tensor converted(AutocastScope& scope, const In& x) {
        if (!(x->flags & TensorImpl::kRequiresGrad)) return to(x, scope.dtype_);
        if (!scope.cache_) scope.cache_ = new AutocastScope::Cache;
        const std::uint32_t tape = detail::thread.log ? detail::thread.log->id : 0;
        auto& entries = scope.cache_->entries;
        for (auto& entry : entries) {
            if (!entry.leaf.is_same(x.tensor)) continue;
            if (entry.version != x->storage->version || entry.tape != tape) {
                entry = {x.tensor, to(x, scope.dtype_), x->storage->version, tape};
            }
            return entry.copy;
        }
        entries.push_back({x.tensor, to(x, scope.dtype_), x->storage->version, tape});
        return entries.back().copy;
    }
};

AutocastScope::AutocastScope(DType dtype, bool enabled, Loc loc)
    : outer_(detail::thread.autocast), dtype_(dtype), enabled_(enabled) {
    if (dtype != float16 && dtype != bfloat16) {
        fail<DTypeError>(loc, "AutocastScope: the dtype must be float16 or bfloat16, got {}", name(dtype));
    }
    detail::thread.autocast = enabled ? this : nullptr;
}

AutocastScope::~AutocastScope() {
    detail::thread.autocast = outer_;
    delete cache_;
}

namespace detail {

Tensor autocast_to_float32(const In& x) {
    if (!x.tensor.defined() || (x->dtype != float16 && x->dtype != bfloat16)) return {};
    return to(x, float32);
}

bool autocast_lowers(const Tensor& x) {
    return x.defined() && is_floating(x.dtype()) && x.dtype() != float64 && x.dtype() != AutocastAccess::dtype(*thread.autocast);
}

Tensor autocast_to_low(const In& x) {
    return autocast_lowers(x.tensor) ? AutocastAccess::converted(*thread.autocast, x) : x.tensor;
}

bool wants_float32(Elementwise op) noexcept {
    switch (op) {
        case Elementwise::acos:
        case Elementwise::asin:
        case Elementwise::cosh:
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
