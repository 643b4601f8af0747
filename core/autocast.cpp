#include "tapir/core/autocast.h"

#include "tapir/core/autocast_impl.h"
#include "tapir/core/fail_impl.h"

namespace tapir {

AutocastScope::AutocastScope(DType dtype, bool enabled, Loc loc) : outer_(detail::thread.autocast), dtype_(dtype), enabled_(enabled) {
    if (dtype != float16 && dtype != bfloat16) {
        fail<DTypeError>(loc, "AutocastScope: the dtype must be float16 or bfloat16, got {}", name(dtype));
    }
    detail::thread.autocast = enabled ? this : nullptr;
}

AutocastScope::~AutocastScope() {
    detail::thread.autocast = outer_;
    delete cache_;
}

}  // namespace tapir
