// The weight of one convolution in a graph, as an algorithm wants it.
#pragma once

#include <any>
#include <cstdint>
#include <mutex>

#include "tapir/core/storage.h"
#include "tapir/core/tensor.h"

namespace tapir {

/// Kept from run to run until somebody writes to the weight. Several threads may use it.
class KeptWeight {
 public:
    /// The elements of this weight in a layout; undefined if they are not kept, or if the weight was written to since.
    template <class Layout>
    Tensor find(const Tensor& weight, std::uint32_t version, const Layout& layout) {
        if (may_change_unseen(weight)) return {};
        const std::lock_guard lock(mutex_);
        const auto* const kept = std::any_cast<Layout>(&layout_);
        return weight.is_same(weight_) && version == version_ && kept && *kept == layout ? elements_ : Tensor();
    }
    template <class Layout>
    void keep(const Tensor& weight, std::uint32_t version, const Layout& layout, const Tensor& elements) {
        if (may_change_unseen(weight)) return;
        const std::lock_guard lock(mutex_);
        weight_ = weight;
        version_ = version;
        layout_ = layout;
        elements_ = elements;
    }

 private:
    // Without a new version.
    static bool may_change_unseen(const Tensor& weight) noexcept {
        const Storage& storage = *weight.impl()->storage;
        return __atomic_load_n(&storage.is_exposed, __ATOMIC_RELAXED) || storage.is_unchecked;
    }

    std::mutex mutex_;
    Tensor weight_, elements_;  // the weight is held: no other can take its address
    std::uint32_t version_ = 0;
    std::any layout_;
};

}  // namespace tapir
