#include "tapir/nn/parallel/unchecked_writes.h"

#include "tapir/core/fail_impl.h"

namespace tapir::parallel {

UncheckedWrites::UncheckedWrites(const std::vector<Tensor>& tensors, Loc loc) {
    for (const Tensor& t : tensors) {
        if (!t.defined()) fail<ValueError>(loc, "UncheckedWrites: tensor {} is undefined", &t - tensors.data());
    }
    for (const Tensor& t : tensors) {
        bool& is_unchecked = t.impl()->storage->is_unchecked;
        if (is_unchecked) continue;  // by another of these
        is_unchecked = true;
        marked_.push_back(t.detach());
    }
}

UncheckedWrites::~UncheckedWrites() {
    for (const Tensor& t : marked_) t.impl()->storage->is_unchecked = false;
}

}  // namespace tapir::parallel
