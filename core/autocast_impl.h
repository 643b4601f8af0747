// The library's view of an AutocastScope.
#pragma once

#include <optional>
#include <vector>

#include "tapir/core/autocast.h"
#include "tapir/core/thread_impl.h"

namespace tapir {

// Leaves converted in this scope. A copy is valid as long as the leaf has not changed and, if the copy was recorded, the tape that
// recorded it is the thread's.
struct AutocastScope::Cache {
    struct Entry {
        Tensor leaf, copy;
        std::uint32_t version, tape;
    };
    std::vector<Entry> entries;
};

struct AutocastAccess {
    static DType dtype(const AutocastScope& scope) { return scope.dtype_; }
    static std::vector<AutocastScope::Cache::Entry>& entries(AutocastScope& scope) {
        if (!scope.cache_) scope.cache_ = new AutocastScope::Cache;
        return scope.cache_->entries;
    }
};

namespace detail {

/// Returns the dtype of the active scope; nullopt if there is none.
inline std::optional<DType> autocast_dtype() { return thread.autocast ? std::optional(AutocastAccess::dtype(*thread.autocast)) : std::nullopt; }

}  // namespace detail
}  // namespace tapir
