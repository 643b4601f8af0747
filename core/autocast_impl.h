// What the library sees of an AutocastScope.
#pragma once

#include <optional>
#include <vector>

#include "tapir/core/autocast.h"
#include "tapir/core/thread_impl.h"

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
    static std::vector<AutocastScope::Cache::Entry>& entries(AutocastScope& scope) {
        if (!scope.cache_) scope.cache_ = new AutocastScope::Cache;
        return scope.cache_->entries;
    }
};

namespace detail {

/// The dtype of the scope that is on.
inline std::optional<DType> autocast_dtype() { return thread.autocast ? std::optional(AutocastAccess::dtype(*thread.autocast)) : std::nullopt; }

}  // namespace detail
}  // namespace tapir
