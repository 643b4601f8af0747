// Reports to watchers.
#include "tapir/autograd/watch/watch_impl.h"

#include "tapir/core/device_impl.h"

namespace tapir {

constinit thread_local const OperandNames* OperandNames::current = nullptr;

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

}  // namespace tapir
