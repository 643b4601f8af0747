// The user's operations on a leaf: backward() from it, its gradient, hooks.
#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/own_lines_impl.h"

namespace tapir {

namespace {

void drop(HookState* state) noexcept {
    if (state && detail::drop_ref(state->refs)) delete state;
}

}  // namespace

GradientHook::GradientHook(const GradientHook& other) noexcept : state_(other.state_) { detail::add_ref(state_->refs); }
GradientHook::~GradientHook() { drop(state_); }

void GradientHook::apply(Tensor& grad) const {
    if (is_removed()) return;
    const std::function<Tensor(const Tensor&)> call = state_->fn;  // the hook may remove itself
    const Loc loc = state_->loc;
    Tensor g;
    {
        const detail::OwnLines own;
        g = call(grad);
    }
    if (!g.defined()) return;
    const detail::Muted library(true);
    if (grad.defined() && g.shape() != grad.shape()) {
        const detail::OwnLines own;
        fail<ShapeError>(loc, "register_hook: the hook returned a gradient of shape {} for one of shape {}", g.shape(), grad.shape());
    }
    grad = grad.defined() && g.dtype() != grad.dtype() ? gradient_ops::cast(g, grad.dtype()) : g;
}

RemovableHandle::RemovableHandle(const RemovableHandle& other) noexcept : state_(other.state_) {
    if (state_) detail::add_ref(state_->refs);
}

RemovableHandle::~RemovableHandle() { drop(state_); }

void RemovableHandle::remove() noexcept {
    if (!state_) return;
    const auto last = std::exchange(state_->fn, nullptr);  // the function may own this handle
}

void AutogradMeta::drop_removed_hooks() noexcept {
    std::erase_if(hooks, [](const GradientHook& hook) { return hook.is_removed(); });
}

void Tensor::backward(Loc loc) const { backward(Tensor(), loc); }

void Tensor::backward(const Tensor& gradient, Loc loc) const {
    Tape* tape = Tape::current();
    if (!tape) fail_without_tape("backward", *this, loc);
    tape->backward(*this, {.gradient = gradient}, loc);
}

namespace detail {
// autograd/trace/tracer.cpp
void trace_reset(const Tensor& leaf);
void trace_grad(const Tensor& leaf);
}  // namespace detail

Tensor Tensor::grad(Loc loc) const {
    if (impl_ && impl_->meta) {
        if (detail::thread.trace != 0) [[unlikely]]
            detail::trace_grad(*this);
        const std::lock_guard lock(detail::gradient_mutex());
        if (detail::watching_ops) [[unlikely]]
            detail::name_op("grad", loc);
        detail::at_line(loc, [&] { detail::settle_gradient(*impl_->meta, shape()); });
        if (impl_->meta->grad.defined()) return impl_->meta->grad;
    }
    detail::thread.left_out = "a grad(), that is undefined until a backward has reached its tensor";
    detail::thread.left_out_at = detail::caller(loc);
    return {};
}

void Tensor::set_grad(const Tensor& grad, Loc loc) {
    if (!impl_) detail::fail_undefined("set_grad", loc);
    if (!is_floating(dtype())) fail<DTypeError>(loc, "set_grad: a tensor of {} has no gradient", name(dtype()));
    if (grad.defined() && grad.shape() != shape()) {
        fail<ShapeError>(loc, "set_grad: a gradient of shape {} for a tensor of shape {}", grad.shape(), shape());
    }
    if (grad.defined() && grad.dtype() != dtype()) {
        fail<DTypeError>(loc, "set_grad: a gradient of {} for a tensor of {}", name(grad.dtype()), name(dtype()));
    }
    if (grad.defined()) detail::check_same_device("set_grad", *this, grad, loc);
    AutogradMeta& meta = detail::at_line(loc, [&]() -> AutogradMeta& { return detail::meta_of(*this); });
    if (detail::thread.trace != 0) [[unlikely]]
        detail::trace_reset(*this);
    const std::lock_guard lock(detail::gradient_mutex());
    meta.drop_gradient();
    meta.grad = grad;
}

void Tensor::zero_grad() {
    if (!impl_ || !impl_->meta) return;
    if (detail::thread.trace != 0) [[unlikely]]
        detail::trace_reset(*this);
    const std::lock_guard lock(detail::gradient_mutex());
    impl_->meta->drop_gradient();
}

void Tensor::retain_grad(Loc loc) const {
    if (!impl_) detail::fail_undefined("retain_grad", loc);
    if (impl_->flags & TensorImpl::kRequiresGrad) return;
    Log* log = detail::thread.log;
    if (!log || !tracked(impl_, *log, loc)) {
        fail<TapeError>(loc, "retain_grad: this tensor is neither a leaf with requires_grad_() nor recorded on a tape");
    }
    const CallerScope caller(loc);
    const std::uint32_t value = log->value_of(impl_, loc);
    if (value & Log::kOuter) {
        fail<TapeError>(loc, "retain_grad: this tensor was recorded outside of this thread's TapeScope; call retain_grad on the tape's thread");
    }
    for (const auto& [retained, tensor] : log->retained) {
        if (retained == value) return;
    }
    detail::meta_of(*this);
    log->retained.emplace_back(value, *this);
}

RemovableHandle Tensor::add_hook(std::function<Tensor(const Tensor&)> hook, const Loc& loc) const {
    if (!impl_) detail::fail_undefined("register_hook", loc);
    if (!hook) fail<ValueError>(loc, "register_hook: the function is empty");
    const bool is_leaf_of_gradients = impl_->flags & TensorImpl::kRequiresGrad;
    Log* log = detail::thread.log;
    if (!is_leaf_of_gradients && (!log || !log->knows(impl_))) {
        fail<TapeError>(loc, "register_hook: this tensor is neither a leaf with requires_grad_() nor recorded on a tape");
    }
    const std::uint32_t value = is_leaf_of_gradients ? kNoValue : log->value_of(impl_, loc);
    if (value != kNoValue && (value & Log::kOuter)) {
        fail<TapeError>(loc, "register_hook: this tensor was recorded outside of this thread's TapeScope; register the hook on the tape's thread");
    }
    const CallerScope caller(loc);
    RemovableHandle handle(new HookState{1, std::move(hook), loc});
    detail::add_ref(handle.state_->refs);
    GradientHook held(handle.state_);
    if (is_leaf_of_gradients) {
        const std::lock_guard lock(detail::gradient_mutex());
        impl_->meta->drop_removed_hooks();
        impl_->meta->hooks.push_back(std::move(held));
    } else {
        log->hooks.emplace(value, std::move(held));
        log->records[value]->flags |= Record::kHooked;
    }
    return handle;
}

}  // namespace tapir
