// Reports to watchers.
#include "tapir/autograd/watch/watch_impl.h"

#include "tapir/autograd/backward_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {

WatchScope::WatchScope(OpWatcher& watcher) noexcept : watcher_(watcher) {
    watcher.next_ = detail::thread.watchers;
    detail::thread.watchers = &watcher;
    detail::set_log(detail::thread.log);
    detail::watching_ops.add(1);
}

WatchScope::~WatchScope() {
    OpWatcher** place = &detail::thread.watchers;
    while (*place && *place != &watcher_) place = &(*place)->next_;
    if (*place) *place = watcher_.next_;
    watcher_.next_ = nullptr;
    detail::set_log(detail::thread.log);
    detail::watching_ops.add(-1);
}

void tell_watchers(const RecordArgs& recorded) {
    const RecordArgs& ran = recorded.told ? *recorded.told : recorded;
    if (OpWatcher* watcher = WatcherList::quiet()) return watcher->end(ran);
    WatcherList::each([&](OpWatcher& watcher) { watcher.end(ran); });
}

void detail::tell_begin(const char* op, Device operand, const Loc& loc) {
    if (OpWatcher* watcher = WatcherList::quiet()) return watcher->begin(op, operand, caller(loc));
    WatcherList::each([&](OpWatcher& watcher) { watcher.begin(op, operand, caller(loc)); });
}

void tell_written(const Tensor& self, const Loc& loc) {
    WatcherList::each([&](OpWatcher& watcher) { watcher.written(self, detail::caller(loc)); });
}

void detail::tell_failure() noexcept {
    WatcherList::each([](OpWatcher& watcher) { watcher.failed(); });
}

detail::CopyTold::CopyTold(Device to, Device from, std::size_t bytes) : is_told_(thread.watchers) {
    if (!is_told_) return;
    WatcherList::each([&](OpWatcher& watcher) { watcher.begin_copy(to, from, bytes); });
}
detail::CopyTold::~CopyTold() {
    if (!is_told_) return;
    WatcherList::each([](OpWatcher& watcher) { watcher.end_copy(); });
}
void detail::CopyTold::is_queued() {
    if (!is_told_) return;
    WatcherList::each([](OpWatcher& watcher) { watcher.copy_is_queued(); });
}

void detail::tell_read(const char* what, const Tensor& x, const Loc& loc) {
    WatcherList::each([&](OpWatcher& watcher) { watcher.read(what, x, caller(loc)); });
}

void tell_name(const Tensor& parameter, const std::string& name) {
    WatcherList::each([&](OpWatcher& watcher) { watcher.named(parameter, name); });
}

void detail::tell_write(const Tensor& self) {
    WatcherList::each([&](OpWatcher& watcher) { watcher.before_write(self); });
}

Tensor Contribution::summed(const Shape& shape, DType dtype) const {
    return product.defined() ? gradient_ops::cast(gradient_ops::product(g, product), dtype)
        : rows.defined()     ? gradient_ops::rows_to_dense(rows, gradient_ops::cast(g, dtype), shape)
                             : gradient_ops::cast(gradient_ops::sum_to(g, shape), dtype);
}

void Contribution::add_to(const Tensor& sum) const {
    if (product.defined() && g.dtype() == sum.dtype() && product.dtype() == sum.dtype()) return gradient_ops::product_into(sum, g, product);
    if (rows.defined()) return gradient_ops::rows_into(sum, rows, g);
    gradient_ops::add_into(sum, summed(sum.shape(), sum.dtype()));
}

Tensor rows_from(const Tensor& t, std::int64_t first, std::int64_t count) {
    Shape sizes = t.shape();
    sizes.raw(0) = count;
    return detail::make_view(t.impl(), sizes, t.strides(), first * t.strides().raw(0));
}

std::vector<Contribution> contributions_of_rows(const Log& log, const Log::ItemSpan& group, std::uint32_t value, const Contribution& all) {
    const std::int64_t count = group.count;
    const bool are_rows = all.product.defined() || all.rows.defined();
    const bool has_more_dims = all.g.dim() > log.records[value]->rank;
    if (all.g.dim() == 0 || all.g.size(0) % count != 0 || !(are_rows || has_more_dims)) return {};
    const std::int64_t each = all.g.size(0) / count;
    const auto part = [&](const Tensor& t, std::int64_t i) { return t.defined() ? rows_from(t, i * each, each) : t; };
    std::vector<Contribution> parts;
    for (std::int64_t i = 0; i < count; ++i) parts.push_back({part(all.g, i), part(all.product, i), part(all.rows, i)});
    return parts;
}

}  // namespace tapir
