// Records a profile.
//
// An op is reported when it begins, once for each operand, and when it has run: events of ops are made at their end. Rules and
// scopes contain others, so they are kept in open_ from their beginning, and the time of what runs inside is subtracted from theirs.
// The profiler's own work comes after the time of an op is taken, so it counts only for the scope around the op.
#include "tapir/autograd/watch/profiler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/profiler_impl.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/memory_timeline_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#if defined(__x86_64__)
#include <x86intrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sys/mman.h>
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

// The running profiler, for scopes of other threads.
std::mutex running_mutex;
Profiler::Data* running = nullptr;
std::atomic<std::uint64_t> running_number{0};  // 0: none
std::uint64_t last_number = 0;
std::atomic<bool> has_devices{false};  // asked when the first profiler is made: scopes are ranges for Nsight, too

thread_local Profiler::Data* mine = nullptr;  // set if this thread is the one that it profiles
// The profiler of this thread. Frees one that was left to the thread.
Profiler::Data* profiled_here() {
    if (mine && mine->is_left.load(std::memory_order_acquire)) [[unlikely]]
        delete mine;  // sets mine to null
    return mine;
}

// For a thread that ends while it is profiled: its profiler stays, and any other thread may stop it.
struct EndOfThread {
    ~EndOfThread() {
        if (Profiler::Data* const data = profiled_here()) data->lose_thread();
    }
};

thread_local std::int64_t inside_of_scope = 0;  // on other threads: the time of scopes that ended inside the innermost one

double bytes_of(const TensorImpl* x) noexcept { return static_cast<double>(x->numel) * static_cast<double>(itemsize(x->dtype)); }

double elements_of(const Record& record) noexcept {
    double elements = 1;
    for (int d = 0; d < record.rank; ++d) elements *= static_cast<double>(record.sizes()[d]);
    return elements;
}

std::int32_t thread_number() noexcept {
    static std::atomic<std::int32_t> next{1};
    thread_local const std::int32_t number = next++;
    return number;
}

// The thread's name. The first thread's name does not count, since threads inherit it.
std::string thread_name(std::int32_t number) {
#if defined(__linux__)
    char name[32] = {}, first[32] = {};
    if (std::FILE* file = std::fopen("/proc/self/comm", "r")) {
        if (std::fgets(first, sizeof(first), file)) first[std::strcspn(first, "\n")] = 0;
        std::fclose(file);
    }
    if (pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && *name && std::strcmp(name, first) != 0) return name;
#endif
    return fmt::format("thread {}", number);
}

// The tape that ops are recorded on, also while calls of several watchers have paused it.
const Log* log_of_thread() noexcept {
    if (detail::thread.log) return detail::thread.log;
    const Tape* tape = Tape::current();
    return tape ? &tape->log() : nullptr;
}

}  // namespace

bool detail::is_profiling() noexcept { return running_number.load(std::memory_order_relaxed) != 0; }

void ProfileEvents::grow() {
    chunks_.reserve(chunks_.size() + 1);
    void* chunk = std::aligned_alloc(kBytes, kBytes);
    if (!chunk) detail::fail_no_memory(detail::thread.caller);
#if defined(__linux__)
    static_cast<void>(madvise(chunk, kBytes, MADV_HUGEPAGE));
#if defined(MADV_POPULATE_WRITE)
    static_cast<void>(madvise(chunk, kBytes, MADV_POPULATE_WRITE));
#endif
#endif
    chunks_.push_back(static_cast<ProfileEvent*>(chunk));
    used_ = 0;
}

ProfileEvents::~ProfileEvents() {
    for (ProfileEvent* chunk : chunks_) std::free(chunk);
}

Profiler::Data::Data(const Loc& loc) : OpWatcher(/*calls_ops=*/false) {
    if (device_api::count() > 0) has_devices.store(true, std::memory_order_relaxed);
    thread_local const EndOfThread end_of_thread;
    static_cast<void>(profiled_here());  // no memory is needed from here on
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

Profiler::Data::~Data() {
    if (mine == this) mine = nullptr;
}

void Profiler::Data::lose_thread() {
    const std::lock_guard lock(running_mutex);
    mine = nullptr;
    if (is_left.load(std::memory_order_relaxed)) {
        delete this;
        return;
    }
    watch_.reset();
    has_thread_ = false;
}

bool Profiler::Data::is_of_other_thread() const {
    const std::lock_guard lock(running_mutex);
    return has_thread_ && !stopped && mine != this;
}

bool Profiler::Data::leave() {
    const std::lock_guard lock(running_mutex);
    if (!has_thread_ || stopped || mine == this) return false;
    running = nullptr;
    running_number = 0;
    is_left.store(true, std::memory_order_release);
    return true;
}

void Profiler::Data::stop() {
    if (stopped) return;
    last = ticks();
    const std::int64_t wall = nanoseconds() - wall_first_;
    watch_.reset();
    if (mine == this) mine = nullptr;
    {
        const std::lock_guard lock(running_mutex);
        running = nullptr;
        running_number = 0;
        stopped = true;
    }
    find_hidden();
    tick_ = static_cast<double>(wall) * 1e-9 / static_cast<double>(std::max<std::int64_t>(last - first, 1));
    drop_op();
    while (!open_.empty()) {  // scopes that were open at stop()
        const Open open = open_.back();
        open_.pop_back();
        if (open.name) append_scope(open, last);
    }
    for (const auto& [time, bytes] : detail::memory_timeline(wall_first_, wall_first_ + wall)) {
        memory.emplace_back(static_cast<double>(time - wall_first_) * 1e-9, bytes);
    }
    device_times_.resize(marks_.size());
    std::vector<std::ptrdiff_t> before(streams.size(), -1);  // the last mark of each stream
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        const Marks& marks = marks_[i];
        if (marks.number < 0) continue;  // its end was not reached
        marks.end.synchronize();
        // Times between events are floats, exact over short times only: each is measured from the one before.
        std::ptrdiff_t& previous = before[static_cast<std::size_t>(marks.number)];
        DeviceTime& time = device_times_[i];
        if (previous < 0) {
            const auto zero = std::find_if(zeros_.begin(), zeros_.end(), [&](const Zero& z) { return z.device == marks.stream.device(); });
            time.begin = seconds_of(zero->ticks - first) + zero->event.elapsed_time(marks.begin) * 1e-3;
        } else {
            const auto k = static_cast<std::size_t>(previous);
            time.begin = device_times_[k].begin + marks_[k].begin.elapsed_time(marks.begin) * 1e-3;
        }
        time.seconds = marks.begin.elapsed_time(marks.end) * 1e-3;
        time.stream = marks.number;
        previous = static_cast<std::ptrdiff_t>(i);
    }
    marks_.clear();
    zeros_.clear();
}

// --- Devices -----------------------------------------------------------------------------------------------------------------

int Profiler::Data::number_of(const Stream& stream) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
        if (streams[i].state == stream.state() && streams[i].device == stream.device()) return static_cast<int>(i);
    }
    int others = 0;
    for (const UsedStream& used : streams) others += used.device == stream.device() && used.name != "default stream";
    const bool is_default = stream == Stream::default_stream(stream.device());
    streams.push_back({stream.device(), stream.state(), is_default ? "default stream" : fmt::format("stream {}", others + 1)});
    return static_cast<int>(streams.size()) - 1;
}

std::int32_t Profiler::Data::begin_mark(Device device) {
    if (device.type == DeviceType::cpu) [[likely]]
        return -1;
    const Stream stream = Stream::current(device);
    if (std::none_of(zeros_.begin(), zeros_.end(), [&](const Zero& zero) { return zero.device == device; })) {
        synchronize(device);  // so that the event is reached at once
        zeros_.push_back({device, Event(true), 0});
        zeros_.back().event.record(stream);
        zeros_.back().event.synchronize();
        zeros_.back().ticks = ticks();
    }
    marks_.push_back({Event(true), Event(true), stream, -1});
    marks_.back().begin.record(stream);
    return static_cast<std::int32_t>(marks_.size()) - 1;
}

void Profiler::Data::end_mark(std::int32_t mark) {
    Marks& marks = marks_[static_cast<std::size_t>(mark)];
    marks.end.record(marks.stream);
    marks.number = number_of(marks.stream);
}

void Profiler::Data::begin_copy(Device to, Device from, std::size_t bytes) {
    const char* name = to.type == DeviceType::cpu ? "copy device to host"
        : from.type == DeviceType::cpu            ? "copy host to device"
                                                  : "copy device to device";
    copy_ = {ticks(), 0, 0, static_cast<double>(bytes), begin_mark(to.type == DeviceType::cpu ? from : to), name, detail::thread.op_loc};
}

void Profiler::Data::copy_is_queued() {
    if (copy_.mark >= 0) end_mark(copy_.mark);
}

void Profiler::Data::end_copy() {
    const std::int64_t now = ticks();
    ProfileEvent& event = events_.append();
    event = {};
    event.kind = ProfileEvent::Kind::copy;
    event.name = copy_.name;
    event.loc = copy_.loc;
    event.begin = copy_.begin;
    event.end = now;
    event.bytes = copy_.bytes;
    event.module = detail::thread.module;
    event.module_call = detail::thread.module_call;
    event.mark = copy_.mark;
    if (op_.begin != 0) {
        op_.inside += now - event.begin;
        if (std::strcmp(op_.name, "at") == 0) drop_op();  // reading an element begins like an op, but does not end like one
    } else if (!open_.empty()) {
        open_.back().inside += now - event.begin;
    }
}

// Fills in the fields that all events have.
void Profiler::Data::finish(ProfileEvent& event, const Open& open, std::int64_t end) {
    if (open.mark >= 0) [[unlikely]]
        end_mark(open.mark);
    event.begin = open.begin;
    event.end = end;
    event.inside = open.inside;
    event.bytes = open.bytes;
    event.module = detail::thread.module;
    event.module_call = detail::thread.module_call;
    event.thread = 0;
    event.mark = open.mark;
    if (!open_.empty()) open_.back().inside += end - open.begin;
}

// --- Ops ---------------------------------------------------------------------------------------------------------------------

// Drops the op that has begun: it failed, or others are recorded in its place.
void Profiler::Data::drop_op() {
    if (op_.begin == 0) return;
    op_.begin = 0;
    if (op_.mark >= 0) device_api::end_range();
    if (!open_.empty()) open_.back().inside += op_.inside;
}

void Profiler::Data::begin(const char* op, Device operand, const Loc& loc) {
    if (is_left.load(std::memory_order_relaxed)) [[unlikely]] {
        static_cast<void>(profiled_here());
        return;
    }
    if (op_.begin != 0) {
        const bool is_same = op_.loc.line() == loc.line() && (op_.name == op || std::strcmp(op_.name, op) == 0);
        if (is_same && (op_.mark >= 0 || operand.type == DeviceType::cpu)) return;  // another operand
        drop_op();
    }
    op_.begin = ticks();
    op_.inside = 0;
    op_.flops = detail::thread.flops;
    op_.bytes = 0;
    op_.mark = -1;
    op_.name = op;
    op_.loc = loc;
    if (operand.type == DeviceType::cpu) [[likely]]
        return;
    op_.mark = begin_mark(operand);
    device_api::begin_range(op);
}

void Profiler::Data::failed() noexcept {
    if (!is_left.load(std::memory_order_relaxed)) drop_op();
}

void Profiler::Data::end(const RecordArgs& ran) {
    const std::int64_t now = ticks();
    if (op_.begin == 0) op_ = {now, 0, detail::thread.flops, 0, -1, nullptr, {}};  // made of others that were reported
    const TensorImpl* y = ran.outputs[0];
    double elements = static_cast<double>(y->numel), bytes = 0;
    bool is_view = false;
    for (int i = 0; i < ran.input_count; ++i) {
        if (!ran.inputs[i]->defined()) continue;
        const TensorImpl* x = ran.inputs[i]->impl();
        is_view |= x != y && x->storage == y->storage;
        elements = std::max(elements, static_cast<double>(x->numel));
        bytes += bytes_of(x);
    }
    for (int k = 0; k < ran.output_count; ++k) bytes += bytes_of(ran.outputs[k]);
    ProfileEvent& event = events_.append();
    event.kind = ProfileEvent::Kind::forward;
    event.name = ran.op.name;
    event.loc = detail::caller(ran.loc);
    event.flops = detail::thread.flops - op_.flops;
    if (is_view) {
        event.flops = bytes = 0;
    } else if (event.flops == 0) {
        event.flops = elements;
    }
    op_.bytes = bytes;
    event.dtype = y->dtype;
    event.rank = y->rank;
    for (int d = 0; d < std::min<int>(y->rank, 4); ++d) event.sizes[d] = y->sizes[std::max(y->rank - 4, 0) + d];
    const Log* log = log_of_thread();
    event.tape = log ? log->id : 0;
    event.record = log ? static_cast<std::uint32_t>(log->records.size()) : 0;
    finish(event, op_, now);
    op_.begin = 0;
    if (op_.mark >= 0) device_api::end_range();
}

// --- Rules -------------------------------------------------------------------------------------------------------------------

void Profiler::Data::begin_rule(Walk& walk, std::uint32_t index) {
    drop_op();
    const Record& record = *walk.log.records[index];
    open_.push_back({ticks(), 0, detail::thread.flops, 0, -1, nullptr, {}});
    Open& open = open_.back();
    if (record.device.type != DeviceType::cpu) [[unlikely]] {
        char name[64];
        std::snprintf(name, sizeof(name), "%s backward", record.op->name);
        open.mark = begin_mark(record.device);
        device_api::begin_range(name);
    }
    for (std::uint32_t k = 0; k < record.output_count; ++k) {
        const Tensor& g = walk.slots[index + k].grad;
        if (g.defined()) open.bytes += bytes_of(g.impl());
    }
    for (int i = 0; i < record.saved_count; ++i) open.bytes += bytes_of(record.saved()[i].impl);
}

void Profiler::Data::give(Walk& walk, std::uint32_t index, int i, const Tensor&, const Tensor*, const Tensor*) {
    if (open_.empty()) return;
    const Record& input = *walk.log.records[walk.log.records[index]->inputs()[i]];
    open_.back().bytes += elements_of(input) * static_cast<double>(itemsize(input.dtype));
}

void Profiler::Data::end_rule(Walk& walk, std::uint32_t index) {
    const std::int64_t now = ticks();
    if (open_.empty() || open_.back().name) return;
    drop_op();
    const Open open = open_.back();
    open_.pop_back();
    const Record& record = *walk.log.records[index];
    ProfileEvent& event = events_.append();
    event.kind = ProfileEvent::Kind::backward;
    event.name = record.op->name;
    event.loc = record.loc;
    event.flops = detail::thread.flops - open.flops;
    if (event.flops == 0 && open.bytes > 0) event.flops = elements_of(record);
    event.dtype = record.dtype;
    event.rank = record.rank;
    for (int d = 0; d < std::min<int>(record.rank, 4); ++d) event.sizes[d] = record.sizes()[std::max(record.rank - 4, 0) + d];
    event.tape = walk.log.id;
    event.record = index;
    finish(event, open, now);
    if (open.mark >= 0) device_api::end_range();
}

// --- Scopes ------------------------------------------------------------------------------------------------------------------

void Profiler::Data::open_scope(const char* name, const Loc& loc, std::int64_t now) {
    drop_op();
    open_.push_back({now, 0, detail::thread.flops, 0, -1, name, loc});
}

void Profiler::Data::close_scope(std::int64_t begin, std::int64_t now) {
    drop_op();
    if (std::none_of(open_.begin(), open_.end(), [&](const Open& open) { return open.begin == begin; })) return;
    for (bool is_closed = false; !is_closed;) {
        const Open open = open_.back();
        open_.pop_back();
        is_closed = open.begin == begin;
        if (open.name) {  // also for a scope that began inside and ends later: its time ends here
            append_scope(open, now);
        } else if (open.mark >= 0) {  // a rule that an error has ended
            device_api::end_range();
        }
    }
}

void Profiler::Data::append_scope(const Open& open, std::int64_t end) {
    ProfileEvent& event = events_.append();
    event = {};
    event.kind = ProfileEvent::Kind::scope;
    event.name = open.name;
    event.loc = open.loc;
    event.flops = detail::thread.flops - open.flops;
    finish(event, open, end);
}

void Profiler::Data::add_from_other_thread(const char* name, const Loc& loc, std::int64_t begin, std::int64_t now, std::int64_t inside) {
    ProfileEvent& event = others_.emplace_back();
    event.kind = ProfileEvent::Kind::scope;
    event.begin = begin;
    event.end = now;
    event.inside = inside;
    event.name = name;
    event.loc = loc;
    event.thread = thread_number();
    event.mark = -1;
    name_this_thread();
}

void Profiler::Data::name_this_thread() {
    const std::int32_t number = thread_number();
    if (std::none_of(threads.begin(), threads.end(), [&](const auto& thread) { return thread.first == number; })) {
        threads.emplace_back(number, thread_name(number));
    }
}

ProfileScope::ProfileScope(const char* name, Loc loc) : name_(detail::given_view(name, loc).data()), loc_(loc) {
    run_ = running_number.load(std::memory_order_acquire);
    if (run_ == 0) [[likely]]
        return;
    loc_ = detail::caller(loc);
    if (has_devices.load(std::memory_order_relaxed)) device_api::begin_range(name);
    begin_ = ticks();
    if (Profiler::Data* const here = profiled_here()) {
        here->open_scope(name, loc_, begin_);
    } else {
        inside_ = std::exchange(inside_of_scope, 0);
    }
}

ProfileScope::~ProfileScope() {
    if (run_ == 0) [[likely]]
        return;
    const std::int64_t now = ticks();
    if (has_devices.load(std::memory_order_relaxed)) device_api::end_range();
    if (Profiler::Data* const here = profiled_here()) {
        if (here->run == run_) here->close_scope(begin_, now);
        return;
    }
    const std::int64_t inside = std::exchange(inside_of_scope, inside_ + (now - begin_));
    const std::lock_guard lock(running_mutex);
    if (running && running->run == run_) running->add_from_other_thread(name_, loc_, begin_, now, inside);
}

// --- Calls to other ranks ----------------------------------------------------------------------------------------------------

void Profiler::Data::add_communication(detail::CommunicationCall call) {
    communication.push_back({std::move(call), thread_number()});
    name_this_thread();
}

void Profiler::Data::add_communication_wait(const void* channel, std::int64_t begin, std::int64_t end) { waits_.push_back({channel, begin, end}); }

// Takes from each call's time that in which the program waited. Waits of several threads may overlap.
void Profiler::Data::find_hidden() {
    std::sort(waits_.begin(), waits_.end(), [](const Wait& a, const Wait& b) { return a.begin < b.begin; });
    std::map<const void*, std::vector<Wait>> waits;  // by channel; apart from each other
    for (const Wait& wait : waits_) {
        std::vector<Wait>& apart = waits[wait.channel];
        if (apart.empty() || apart.back().end < wait.begin) {
            apart.push_back(wait);
        } else {
            apart.back().end = std::max(apart.back().end, wait.end);
        }
    }
    for (auto& [call, thread, hidden] : communication) {
        const std::vector<Wait>& apart = waits[call.channel];
        hidden = call.end - call.begin;
        auto wait = std::partition_point(apart.begin(), apart.end(), [&](const Wait& w) { return w.end <= call.begin; });
        for (; wait != apart.end() && wait->begin < call.end; ++wait) hidden -= std::min(wait->end, call.end) - std::max(wait->begin, call.begin);
    }
}

std::uint64_t detail::profile_run() noexcept { return running_number.load(std::memory_order_relaxed); }

std::int64_t detail::profile_ticks() noexcept { return ticks(); }

void detail::note_communication(std::uint64_t run, CommunicationCall call) {
    const std::lock_guard lock(running_mutex);
    if (running && running->run == run) running->add_communication(std::move(call));
}

void detail::note_communication_wait(std::uint64_t run, const void* channel, std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(running_mutex);
    if (running && running->run == run) running->add_communication_wait(channel, begin, end);
}

// --- The profiler ------------------------------------------------------------------------------------------------------------

static Profiler::Data* new_data(const Loc& loc) {
    const detail::CallLine call(loc);
    return new Profiler::Data(loc);
}
Profiler::Profiler(Loc loc) : data_(new_data(loc)) {}

Profiler::~Profiler() {
    if (data_->leave()) return;  // left to its thread, which still reports to it until it looks
    try {
        data_->stop();
    } catch (...) {  // a device's errors, which the next wait reports too
    }
    delete data_;
}

void Profiler::stop(Loc loc) {
    if (data_->is_of_other_thread()) fail<ValueError>(loc, "Profiler::stop: it was made on another thread: stop() it there");
    const CallerScope caller(loc);
    data_->stop();
}

}  // namespace tapir
