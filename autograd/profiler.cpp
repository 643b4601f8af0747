// Taking a profile.
//
// An op is told of when it begins, once for each operand, and when it has run: the events of ops are made at their end. Rules and
// scopes hold others inside, so they are kept in open_ from their beginning, and what runs inside takes its time off theirs.
#include "tapir/autograd/profiler.h"

#include <atomic>
#include <chrono>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/profiler_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace tapir {
namespace {

std::int64_t ticks() noexcept {
#if defined(__x86_64__)
    return static_cast<std::int64_t>(__rdtsc());
#else
    return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

std::int64_t nanoseconds() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The profiler that runs, for scopes of other threads.
std::mutex running_mutex;
Profiler::Data* running = nullptr;
std::atomic<std::uint64_t> running_number{0};  // 0: none
std::uint64_t last_number = 0;

thread_local Profiler::Data* mine = nullptr;  // this thread is the one that it profiles

double bytes_of(const TensorImpl* x) noexcept { return static_cast<double>(x->numel) * static_cast<double>(itemsize(x->dtype)); }

std::int32_t thread_number() noexcept {
    static std::atomic<std::int32_t> next{1};
    thread_local const std::int32_t number = next++;
    return number;
}

}  // namespace

Profiler::Data::Data(const Loc& loc) {
    {
        const std::lock_guard lock(running_mutex);
        if (running) fail<ValueError>(loc, "Profiler: another one is running: stop() it first");
        running = this;
        run = ++last_number;
        running_number = run;
    }
    mine = this;
    watch_.emplace(*this);
    wall_first_ = nanoseconds();
    first = ticks();
}

void Profiler::Data::stop(const Loc&) {
    if (stopped) return;
    last = ticks();
    const std::int64_t wall = nanoseconds() - wall_first_;
    watch_.reset();
    mine = nullptr;
    {
        const std::lock_guard lock(running_mutex);
        running = nullptr;
        running_number = 0;
    }
    stopped = true;
    tick_ = static_cast<double>(wall) * 1e-9 / static_cast<double>(std::max<std::int64_t>(last - first, 1));
    device_seconds_.resize(marks_.size());
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        marks_[i].end.synchronize();
        device_seconds_[i] = marks_[i].begin.elapsed_time(marks_[i].end) * 1e-3;
    }
    marks_.clear();
}

ProfileEvent& Profiler::Data::append() {
    if (used_ == kChunk) {
        chunks_.push_back(std::make_unique<std::array<ProfileEvent, kChunk>>());
        used_ = 0;
    }
    return (*chunks_.back())[used_++];
}

std::int32_t Profiler::Data::begin_mark(Device device) {
    if (device.type == DeviceType::cpu) [[likely]]
        return -1;
    marks_.push_back({Event(true), Event(true), device});
    marks_.back().begin.record(Stream::current(device));
    return static_cast<std::int32_t>(marks_.size()) - 1;
}

// Fills in what all events have.
void Profiler::Data::finish(ProfileEvent& event, const Open& open) {
    if (open.mark >= 0) [[unlikely]] {
        Marks& marks = marks_[static_cast<std::size_t>(open.mark)];
        marks.end.record(Stream::current(marks.device));
    }
    event.begin = open.begin;
    event.inside = open.inside;
    event.bytes = open.bytes;
    event.module = detail::thread.module;
    event.thread = 0;
    event.mark = open.mark;
    event.end = ticks();
    if (!open_.empty()) open_.back().inside += event.end - event.begin;
}

// --- Ops ---------------------------------------------------------------------------------------------------------------------

void Profiler::Data::begin(const char*, Device operand, const Loc&) {
    if (op_.begin != 0) return;
    op_ = {ticks(), 0, detail::thread.flops, 0, begin_mark(operand)};
}

void Profiler::Data::end(const RecordArgs& ran) {
    if (op_.begin == 0) op_ = {ticks(), 0, detail::thread.flops, 0, -1};  // made of others that have been told of
    const TensorImpl* y = ran.outputs[0];
    double elements = static_cast<double>(y->numel);
    bool is_view = false;
    for (int i = 0; i < ran.input_count; ++i) {
        if (!ran.inputs[i]->defined()) continue;
        const TensorImpl* x = ran.inputs[i]->impl();
        is_view |= x != y && x->storage == y->storage;
        elements = std::max(elements, static_cast<double>(x->numel));
        op_.bytes += bytes_of(x);
    }
    for (int k = 0; k < ran.output_count; ++k) op_.bytes += bytes_of(ran.outputs[k]);
    ProfileEvent& event = append();
    event.kind = ProfileEvent::Kind::forward;
    event.name = ran.op.name;
    event.loc = detail::caller(ran.loc);
    event.flops = detail::thread.flops - op_.flops;
    if (is_view) {
        event.flops = op_.bytes = 0;
    } else if (event.flops == 0) {
        event.flops = elements;
    }
    event.dtype = y->dtype;
    event.rank = y->rank;
    for (int d = 0; d < std::min<int>(y->rank, 4); ++d) event.sizes[d] = y->sizes[std::max(y->rank - 4, 0) + d];
    finish(event, op_);
    op_.begin = 0;
}

// --- Rules -------------------------------------------------------------------------------------------------------------------

void Profiler::Data::begin_rule(Walk& walk, std::uint32_t index) {
    Record& record = *walk.log.records[index];
    open_.push_back({ticks(), 0, detail::thread.flops, 0, begin_mark(record.device)});
    Open& open = open_.back();
    for (std::uint32_t k = 0; k < record.output_count; ++k) {
        const Tensor& g = walk.slots[index + k].grad;
        if (g.defined()) open.bytes += bytes_of(g.impl());
    }
    for (int i = 0; i < record.saved_count; ++i) open.bytes += bytes_of(record.saved()[i].impl);
}

void Profiler::Data::give(Walk& walk, std::uint32_t index, int i, const Tensor& g, const Tensor* product, const Tensor*) {
    if (open_.empty()) return;
    Record& input = *walk.log.records[walk.log.records[index]->inputs()[i]];
    const double elements = static_cast<double>(input.shape().numel());
    open_.back().bytes += elements * static_cast<double>(itemsize(input.dtype));
    // The product itself may be computed later, together with others: it is counted here, where it belongs.
    if (product) detail::thread.flops += 2.0 * static_cast<double>(g.numel()) * static_cast<double>(product->shape().raw(product->dim() - 1));
}

void Profiler::Data::end_rule(Walk& walk, std::uint32_t index) {
    if (open_.empty()) return;
    const Open open = open_.back();
    open_.pop_back();
    Record& record = *walk.log.records[index];
    ProfileEvent& event = append();
    event.kind = ProfileEvent::Kind::backward;
    event.name = record.op->name;
    event.loc = record.loc;
    event.flops = detail::thread.flops - open.flops;
    const Shape shape = record.shape();
    if (event.flops == 0 && open.bytes > 0) event.flops = static_cast<double>(shape.numel());
    event.dtype = record.dtype;
    event.rank = record.rank;
    for (int d = 0; d < std::min<int>(record.rank, 4); ++d) event.sizes[d] = shape.raw(std::max(record.rank - 4, 0) + d);
    finish(event, open);
    op_.begin = 0;
}

// --- Scopes ------------------------------------------------------------------------------------------------------------------

void Profiler::Data::open_scope(std::int64_t now) {
    op_.begin = 0;
    open_.push_back({now, 0, detail::thread.flops, 0, -1});
}

void Profiler::Data::close_scope(const char* name, const Loc& loc, std::int64_t begin) {
    while (!open_.empty() && open_.back().begin > begin) open_.pop_back();  // rules that an error has ended
    if (open_.empty() || open_.back().begin != begin) return;
    const Open open = open_.back();
    open_.pop_back();
    ProfileEvent& event = append();
    event = {};
    event.kind = ProfileEvent::Kind::scope;
    event.name = name;
    event.loc = loc;
    finish(event, open);
    op_.begin = 0;
}

void Profiler::Data::add_from_other_thread(const char* name, const Loc& loc, std::int64_t begin, std::int64_t now) {
    const std::lock_guard lock(mutex_);
    ProfileEvent& event = others_.emplace_back();
    event.kind = ProfileEvent::Kind::scope;
    event.begin = begin;
    event.end = now;
    event.name = name;
    event.loc = loc;
    event.thread = thread_number();
    event.mark = -1;
}

ProfileScope::ProfileScope(const char* name, Loc loc) noexcept : name_(name), loc_(loc) {
    run_ = running_number.load(std::memory_order_relaxed);
    if (run_ == 0) return;
    begin_ = ticks();
    if (mine) mine->open_scope(begin_);
}

ProfileScope::~ProfileScope() {
    if (run_ == 0) return;
    const std::int64_t now = ticks();
    if (mine) {
        if (mine->run == run_) mine->close_scope(name_, loc_, begin_);
        return;
    }
    const std::lock_guard lock(running_mutex);
    if (running && running->run == run_) running->add_from_other_thread(name_, loc_, begin_, now);
}

// --- The profiler ------------------------------------------------------------------------------------------------------------

Profiler::Profiler(Loc loc) : data_(new Data(loc)) {}

Profiler::~Profiler() {
    try {
        data_->stop(Loc::current());
    } catch (...) {  // of a device's errors, which the next wait reports too
    }
    delete data_;
}

void Profiler::stop(Loc loc) { data_->stop(loc); }

}  // namespace tapir
