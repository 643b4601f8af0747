// Devices, streams and events for users, built on device_impl.h; and the current op of a thread.
#include "tapir/core/stream.h"
#include "tapir/core/thread_words_impl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/tensor.h"

namespace tapir {

// --- Devices -------------------------------------------------------------------------------------------------------------

int cuda_device_count() noexcept { return device_api::count(); }
bool cuda_is_available() noexcept { return device_api::count() > 0; }

std::string cuda_device_name(int index, Loc loc) {
    detail::check_device("cuda_device_name", cuda(index), loc);
    return device_api::name(index);
}

std::string name(Device device) {
    if (device.type == DeviceType::cpu) return "cpu";
    return device.index == Device::kNone ? "cuda with a number out of range" : fmt::format("cuda:{}", device.index);
}

void detail::check_device(const char* op, Device device, const Loc& loc) {
    if (device.type == DeviceType::cpu) return;
    const int count = device_api::count();
    if (device.index < count) return;
    if (count == 0) fail<DeviceError>(loc, "{}: {}: {}", op, name(device), device_api::problem());
    fail<DeviceError>(loc, "{}: {}: there {} {} CUDA device{}, the first is cuda:0", op, name(device), count == 1 ? "is" : "are", count,
                      count == 1 ? "" : "s");
}

Device default_device() noexcept { return detail::thread.device; }

DeviceScope::DeviceScope(Device device, Loc loc) : previous_(detail::thread.device) {
    detail::check_device("DeviceScope", device, loc);
    detail::thread.device = device;
}
DeviceScope::~DeviceScope() { detail::thread.device = previous_; }

// --- Streams -------------------------------------------------------------------------------------------------------------

Stream::Stream(Device device, Loc loc) : device_(device) {
    detail::check_device("Stream", device, loc);
    if (device.type != DeviceType::cpu) state_ = device_api::new_stream(device.index);
}

Stream Stream::current(Loc loc) {
    return current(detail::thread_words.scoped_stream ? detail::thread_words.scoped_stream->device() : default_device(), loc);
}

Stream Stream::current(Device device, Loc loc) {
    detail::check_device("Stream::current", device, loc);
    return {device, device.type == DeviceType::cpu ? nullptr : device_api::current_stream(device.index)};
}

Stream Stream::default_stream(Device device, Loc loc) {
    detail::check_device("Stream::default_stream", device, loc);
    return {device, device.type == DeviceType::cpu ? nullptr : device_api::default_stream(device.index)};
}

bool Stream::query(Loc loc) const {
    if (!state_) return true;
    const bool done = device_api::is_done(state_);
    if (done) device_api::wait(state_, loc);  // throws errors of its work
    return done;
}

void Stream::synchronize(Loc loc) const {
    if (state_) device_api::wait(state_, loc);
}

void Stream::wait_event(const Event& event, Loc) const {
    if (state_ && event.native_handle()) device_api::order_after_event(state_, event.native_handle());
}

void Stream::wait_stream(const Stream& other, Loc) const {
    if (state_ && other.state_ && state_ != other.state_) device_api::order_after(state_, other.state_);
}

Event Stream::record_event(Loc loc) const {
    Event event;
    event.record(*this, loc);
    return event;
}

void* Stream::native_handle() const noexcept { return state_ ? device_api::native(state_) : nullptr; }

StreamScope::StreamScope(const Stream& stream) noexcept : previous_(stream), innermost_(detail::thread_words.scoped_stream) {
    detail::thread_words.scoped_stream = &previous_;  // its device is what counts
    if (!stream.state()) return;
    previous_ = Stream(stream.device(), device_api::current_stream(stream.device().index));
    device_api::set_current_stream(stream.state());
}
StreamScope::~StreamScope() {
    detail::thread_words.scoped_stream = innermost_;
    if (previous_.state()) device_api::set_current_stream(previous_.state());
}

// --- Events --------------------------------------------------------------------------------------------------------------

Event::~Event() {
    if (event_) device_api::free_event(event_);
}
Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)), device_(other.device_), timing_(other.timing_) {}
Event& Event::operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    std::swap(timing_, other.timing_);
    return *this;
}

void Event::record(const Stream& stream, Loc loc) {
    if (!stream.state()) return;
    if (event_ && device_ != stream.device()) {
        fail<DeviceError>(loc, "Event::record: the event belongs to {}, the stream to {}", name(device_), name(stream.device()));
    }
    if (!event_) event_ = device_api::new_event(stream.device().index, timing_);
    device_ = stream.device();
    device_api::record_event(event_, stream.state());
}

bool Event::query(Loc loc) const {
    if (!event_) return true;
    const bool done = device_api::is_event_done(event_);
    if (done) device_api::wait_event(event_, loc);
    return done;
}

void Event::synchronize(Loc loc) const {
    if (event_) device_api::wait_event(event_, loc);
}

double Event::elapsed_time(const Event& end, Loc loc) const {
    if (!timing_ || !end.timing_) {
        fail<ValueError>(loc, "elapsed_time: both events must be made with enable_timing: Event begin(true)");
    }
    if (event_ && end.event_ && device_ != end.device_) {
        fail<ValueError>(loc, "elapsed_time: one event belongs to {}, the other to {}", name(device_), name(end.device_));
    }
    if (!query(loc) || !end.query(loc) || !event_ || !end.event_) {
        fail<ValueError>(loc, "elapsed_time: both events must be recorded and done; synchronize() the second one first");
    }
    return device_api::milliseconds(event_, end.event_);
}

// --- Waiting for all -----------------------------------------------------------------------------------------------------

void synchronize(Device device, Loc loc) {
    detail::check_device("synchronize", device, loc);
    if (device.type != DeviceType::cpu) device_api::wait_for_all(device.index, loc);
}

void synchronize(Loc loc) {
    for (int i = 0; i < device_api::count(); ++i) device_api::wait_for_all(i, loc);
}

// --- Memory --------------------------------------------------------------------------------------------------------------

MemoryStats memory_stats(Device device, Loc loc) {
    detail::check_device("memory_stats", device, loc);
    return device.type == DeviceType::cpu ? memory_stats() : device_api::memory_stats(device.index);
}

void reset_peak_memory(Device device, Loc loc) {
    detail::check_device("reset_peak_memory", device, loc);
    device.type == DeviceType::cpu ? reset_peak_memory() : device_api::reset_peak_memory(device.index);
}

void empty_cache(Device device, Loc loc) {
    detail::check_device("empty_cache", device, loc);
    device.type == DeviceType::cpu ? empty_cache() : device_api::empty_cache(device.index);
}

void set_memory_limit(std::size_t bytes, Device device, Loc loc) {
    detail::check_device("set_memory_limit", device, loc);
    if (device.type == DeviceType::cpu) fail<DeviceError>(loc, "set_memory_limit: CPU memory has no limit of its own");
    device_api::set_memory_limit(bytes, device.index);
}

// --- The op that a thread is at ------------------------------------------------------------------------------------------

namespace {

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value && std::strcmp(value, "0") != 0;
}

// Applies the environment's settings for the whole program, before main.
[[maybe_unused]] const bool from_environment = [] {
    detail::logging_placement.add(is_set("TAPIR_LOG_PLACEMENT"));
    detail::logging_ops = is_set("TAPIR_LOG_OPS");
    detail::watching_ops.add(detail::logging_placement + detail::logging_ops);
    return true;
}();

}  // namespace

constinit detail::SharedCount detail::watching_ops;
constinit detail::SharedCount detail::logging_placement;
constinit detail::SharedCount detail::watching_memory;
constinit bool detail::logging_ops = false;

void detail::begin_watched_op(const char* op, Device device, const Loc& loc) {
    name_op(op, loc);
    if (logging_ops) log_ops_of_thread();
    if (gdb::is_watching()) [[unlikely]]
        gdb::begin(op, nullptr, loc);
    if (is_watched()) tell_begin(op, device, loc);
}

void detail::begin_watched_op(const char* op, const TensorImpl* operand, const Loc& loc) {
    if (operand->device.type == DeviceType::cpu && !are_ops_watched()) return;
    name_op(op, loc);
    if (logging_ops) log_ops_of_thread();
    if (gdb::is_watching()) [[unlikely]]
        gdb::begin(op, operand, loc);
    if (is_watched()) tell_begin(op, operand->device, loc);
    if (operand->device.type == DeviceType::cpu) return;
    device_api::select(operand->device);
    device_api::used_here(*operand->storage);
}

void detail::log_placement(const TensorImpl* result) {
    if (gdb::is_watching()) [[unlikely]]
        gdb::result(result);
    if (thread.is_placed) return;
    const std::string line = fmt::format("{}: {}: {}, {} {}\n", file_and_line(thread.op_loc), thread.op, name(result->device), name(result->dtype),
                                         Shape(result->sizes, result->rank));
    std::fputs(line.c_str(), stderr);
    thread.is_placed = true;
}

LogPlacementScope::LogPlacementScope() noexcept {
    detail::logging_placement.add(1);
    detail::watching_ops.add(1);
}
LogPlacementScope::~LogPlacementScope() {
    detail::watching_ops.add(-1);
    detail::logging_placement.add(-1);
}

}  // namespace tapir
