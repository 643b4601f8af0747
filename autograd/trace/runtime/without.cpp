// Stubs for what the sources of Tapir::runtime call and it does not have: nobody records, watches, profiles or uses gdb.
#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/memory_timeline_impl.h"

namespace tapir {

GdbState tapir_gdb_state;
void gdb::begin(const char*, const TensorImpl*, const Loc&) {}
void gdb::forget() noexcept {}
void gdb::result(const TensorImpl*) {}
void detail::log_ops_of_thread() {}
void detail::tell_failure() noexcept {}
void detail::note_memory(Storage*, const Loc&) {}
void detail::note_released(const Storage*) noexcept {}
void detail::destroy_meta(AutogradMeta*) noexcept {}
std::uint32_t Log::value_of(TensorImpl*, const Loc&) { return kNoValue; }
Tensor Tensor::detach(Loc) const { return impl_ ? detail::alias(impl_) : Tensor(); }
Tensor& Tensor::requires_grad_(bool on, Loc loc) {
    if (on) fail<TapeError>(loc, "requires_grad_: Tapir::runtime has no gradients");
    return *this;
}

}  // namespace tapir
