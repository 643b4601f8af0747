// Devices, streams, events, copies, and the handling of errors. See context.h.
#include "tapir/cuda/context.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/stream.h"
#include "tapir/cuda/capture.h"
#include "tapir/cuda/thread_own.h"

namespace tapir::gpu {
namespace {

constexpr int kFaultSlots = 1024;

struct ThreadState {
    int device = -1;  // last device that the runtime was told of
    Stream* current[kMaxDevices] = {};
};
constinit thread_local ThreadState here;

struct Fault {  // what a slot stands for
    const char* op;
    Loc loc;
    Stream* stream;                // null: the slot is free
    const ThreadState* launching;  // the thread that may launch more kernels which report there; null: all are launched
    std::uint32_t given;           // if null: number of ops that the stream had been given, including the last of them
    bool is_index;
    const char* text;
    int dim;
    Shape shape;
};
struct KeptFault : Fault {       // of captured work: stream is null while it does not run
    bool is_given_back = false;  // it is given back as soon as it has run
};

// Made at first use and never destroyed: tensors may outlive every static object.
struct DeviceState {
    std::once_flag made;
    Stream streams[1 + kSideStreams];
    std::atomic<int> next_side{0};
    int multiprocessors = 1;
    bool reads_pageable = false;  // pageable host memory is read in place, when the copy's turn comes
    std::mutex faults_mutex;
    FaultSlot* slots = nullptr;  // page-locked; behind them as many of captured work
    std::vector<KeptFault> kept;
    std::vector<int> spare_kept;
    std::vector<Fault> faults;  // of the slots, in the order of their launches
};

struct Runtime {
    int count = 0;
    std::string problem;
    DeviceState* devices = nullptr;
};

// True in a child of a process that had begun to use CUDA: no call works there.
constinit bool is_forked = false;

Runtime probe() {
    pthread_atfork(nullptr, nullptr, [] {
        is_forked = true;
        here.device = -1;  // the next op selects its device and is told
    });
    Runtime r;
    const cudaError_t error = cudaGetDeviceCount(&r.count);
    if (error != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        r.count = 0;
        r.problem = error == cudaErrorNoDevice     ? "this machine has no CUDA device"
            : error == cudaErrorInsufficientDriver ? "this machine has no NVIDIA driver, or one that is too old"
                                                   : std::string("CUDA cannot be used: ") + cudaGetErrorString(error);
    }
    if (r.count > kMaxDevices) r.count = kMaxDevices;
    r.devices = new DeviceState[kMaxDevices];
    return r;
}

const Runtime& runtime() {
    static const Runtime* const made = new Runtime(probe());
    return *made;
}

std::atomic<int> waiting_for_each_op{0};

bool is_set(const char* variable) {
    const char* value = std::getenv(variable);
    return value && *value && std::strcmp(value, "0") != 0;
}
[[maybe_unused]] const int sync_from_environment = waiting_for_each_op += is_set("TAPIR_SYNC") ? 1 : 0;

DeviceState& device_state(int device) {
    DeviceState& state = runtime().devices[device];
    std::call_once(state.made, [&] {
        cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) state.multiprocessors = properties.multiProcessorCount;
        int reads_pageable = 0;
        if (cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccessUsesHostPageTables, device) == cudaSuccess) {
            state.reads_pageable = reads_pageable != 0;
        }
        for (int i = 0; i <= kSideStreams; ++i) {
            state.streams[i].device = device;
            state.streams[i].index = i;
        }
    });
    return state;
}

const char* op_name() { return detail::thread.op ? detail::thread.op : "CUDA"; }

void select_device(int device) {
    if (here.device == device) return;
    if (is_forked) {
        const detail::OwnLines own;  // whoever is waiting
        fail<DeviceError>(detail::thread.op_loc,
                          "{}: CUDA cannot be used in a forked process: its parent had begun to use it; fork before that, or "
                          "start a program of its own",
                          op_name());
    }
    const cudaError_t error = cudaSetDevice(device);
    if (error != cudaSuccess) fail_cuda(error, "cudaSetDevice");
    here.device = device;
}

// While it lives, calls go to another device than the selected one.
class DeviceGuard {
 public:
    explicit DeviceGuard(int device) : previous_(here.device) { select_device(device); }
    ~DeviceGuard() {
        if (previous_ >= 0 && previous_ != here.device && cudaSetDevice(previous_) == cudaSuccess) here.device = previous_;
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
    int previous_;
};

// --- Errors that come late -----------------------------------------------------------------------------------------------

// True if the error is about a kernel, not about the call that returned it.
bool is_late(cudaError_t error) {
    switch (static_cast<int>(error)) {
        case 214:               // uncorrectable memory error
        case 700:               // illegal address
        case 702:               // launch timeout
        case 710:               // assertion
        case 714:               // hardware stack error
        case 715:               // illegal instruction
        case 716:               // misaligned address
        case 717:               // invalid address space
        case 718:               // invalid program counter
        case 719: return true;  // launch failure
        default: return false;
    }
}

// Returns "log at tree.cpp:3, exp at tree.cpp:4 (7 times) and 12 more" for ops [begin, end); of(i) is a pair of name and line.
template <class Of>
std::string list_ops(std::uint32_t begin, std::uint32_t end, const Of& of) {
    constexpr std::size_t most = 8;
    std::vector<std::pair<std::string, int>> lines;  // and how often
    int more = 0;
    for (std::uint32_t i = begin; i < end; ++i) {
        const auto [name, loc] = of(i);
        const std::string line = fmt::format("{} at {}", name, tapir::detail::file_and_line(loc));
        const auto found = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == line; });
        if (found != lines.end()) {
            ++found->second;
        } else if (lines.size() < most) {
            lines.emplace_back(line, 1);
        } else {
            ++more;
        }
    }
    std::string list;
    for (const auto& [line, times] : lines) {
        list += (list.empty() ? "" : ", ") + line + (times == 1 ? "" : fmt::format(" ({} times)", times));
    }
    return more == 0 ? list : list + fmt::format(" and {} more", more);
}

// Throws the error of a slot that was written to.
[[noreturn]] void fail_fault(const Fault& fault, const FaultSlot& slot, const std::string& more) {
    const detail::OwnLines own;  // whoever is waiting
    if (!fault.is_index) {
        fail<ValueError>(fault.loc, "{}: {}{}", fault.op, fmt::vformat(fault.text, fmt::make_format_args(slot.value)), more);
    }
    const std::int64_t size = fault.shape[fault.dim];
    fail<IndexError>(fault.loc, "{}: {}{}", fault.op, fmt::vformat(fault.text, fmt::make_format_args(slot.index, fault.dim, fault.shape, size)),
                     more);
}

// Frees the slots of the first `given` ops of a stream, which are done, and throws the error of the first of these that was
// written to. Other slots belong to ops that may still run. The thread's own op, which has more to launch, keeps its slot.
// But in sync mode its launches so far are done: their errors are thrown as well.
void check_faults(Stream& stream, std::uint32_t given) {
    DeviceState& state = device_state(stream.device);
    const std::lock_guard lock(state.faults_mutex);
    std::vector<std::pair<Fault, FaultSlot>> found;
    std::uint32_t pending = 0;
    for (std::size_t i = 0; i < state.faults.size(); ++i) {
        Fault& fault = state.faults[i];
        FaultSlot& slot = state.slots[i];
        if (fault.stream != &stream) continue;
        const bool is_own = fault.launching == &here;
        const bool is_done = !fault.launching && static_cast<std::int32_t>(given - fault.given) >= 0;
        if ((is_own || is_done) && slot.is_set) {
            found.emplace_back(fault, slot);
            slot.is_set = false;
        }
        if (is_done) {
            fault.stream = nullptr;
        } else {
            ++pending;
        }
    }
    for (std::size_t i = 0; i < state.kept.size(); ++i) {
        KeptFault& fault = state.kept[i];
        FaultSlot& slot = state.slots[kFaultSlots + i];
        if (fault.stream != &stream) continue;
        if (static_cast<std::int32_t>(given - fault.given) < 0) {
            ++pending;
            continue;
        }
        if (slot.is_set) found.emplace_back(fault, slot);
        slot.is_set = false;
        fault.stream = nullptr;
        if (fault.is_given_back) state.spare_kept.push_back(static_cast<int>(i));
    }
    stream.faults_pending = pending;
    while (!state.faults.empty() && !state.faults.back().stream) state.faults.pop_back();
    if (found.empty()) return;
    std::string more;
    if (found.size() > 1) {
        const auto count = static_cast<std::uint32_t>(found.size());
        const auto of = [&](std::uint32_t i) { return std::pair(found[i].first.op, found[i].first.loc); };
        more = fmt::format("; and {} more op{}: {}", count - 1, count == 2 ? "" : "s", list_ops(1, count, of));
    }
    fail_fault(found[0].first, found[0].second, more);
}

// Throws an error that names the ops that it can belong to.
[[noreturn]] void fail_late(Stream& stream, cudaError_t error) {
    const detail::OwnLines own;  // whoever is waiting
    const std::uint32_t end = stream.given.load(), begin = stream.in_order.load();
    const std::uint32_t first = end - begin > Stream::kRemembered ? end - Stream::kRemembered : begin;
    const auto op = [&](std::uint32_t i) -> const Stream::Op& { return stream.ops[i % Stream::kRemembered]; };
    if (first == end) fail<DeviceError>(detail::thread.op_loc, "{}: CUDA error: {}", op_name(), cudaGetErrorString(error));
    const char* name = op(first).name.load();
    if (end - first == 1) fail<DeviceError>(op(first).loc.load(), "{}: CUDA error: {}", name, cudaGetErrorString(error));
    const std::string others = list_ops(first + 1, end, [&](std::uint32_t i) { return std::pair(op(i).name.load(), op(i).loc.load()); });
    fail<DeviceError>(op(first).loc.load(), "{}, or an op after it: CUDA error: {}; after it came {}; TAPIR_SYNC=1 tells which", name,
                      cudaGetErrorString(error), others);
}

// Called after waiting for the first `given` ops of a stream.
void finish(Stream& stream, std::uint32_t given, cudaError_t error) {
    if (error != cudaSuccess) fail_late(stream, error);
    if (static_cast<std::int32_t>(given - stream.in_order.load()) > 0) stream.in_order.store(given);
    if (stream.faults_pending.load(std::memory_order_relaxed)) check_faults(stream, given);
}

void wait_for(Stream& stream) {
    device_api::refuse_capture();
    const std::uint32_t given = stream.given.load();
    finish(stream, given, cudaStreamSynchronize(stream.handle));
}

}  // namespace

Stream& current() {
    Stream*& stream = here.current[here.device];
    if (!stream) [[unlikely]]
        stream = device_state(here.device).streams;
    return *stream;
}

int selected_device() noexcept { return here.device; }
Stream* exchange_current(int device, Stream* stream) noexcept {
    if (!here.current[device]) here.current[device] = device_state(device).streams;
    return std::exchange(here.current[device], stream);
}
int multiprocessors() noexcept { return device_state(here.device).multiprocessors; }

void fail_cuda(cudaError_t error, const char* call) {
    static_cast<void>(cudaGetLastError());
    if (is_late(error) && here.device >= 0) fail_late(current(), error);
    const detail::OwnLines own;  // whoever is waiting
    std::string_view name(call);
    name = name.substr(0, name.find('('));
    const Loc loc = detail::thread.op_loc;
    if (error == cudaErrorMemoryAllocation) fail<OutOfMemory>(loc, "{}: {}: {}", op_name(), name, cudaGetErrorString(error));
    fail<DeviceError>(loc, "{}: {}: {}", op_name(), name, cudaGetErrorString(error));
}

void launched(Stream& stream, cudaError_t error) {
    if (error != cudaSuccess) [[unlikely]]
        fail_cuda(error, "kernel launch");
    if (is_capturing()) return;  // it is noted when it runs
    const std::uint32_t i = stream.given.fetch_add(1, std::memory_order_relaxed);
    Stream::Op& op = stream.ops[i % Stream::kRemembered];
    op.name.store(op_name(), std::memory_order_relaxed);
    op.loc.store(detail::thread.op_loc, std::memory_order_relaxed);
    if (waiting_for_each_op.load(std::memory_order_relaxed)) [[unlikely]]
        wait_for(stream);
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
    Stream& stream = current();
    launched(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.handle));
}

namespace {

// Reports what a kernel found if the program ends without a call that would have thrown it.
void tell_at_exit() {
    if (is_forked) return;
    for (int device = 0; device < runtime().count; ++device) {
        for (Stream& stream : device_state(device).streams) {
            if (!stream.faults_pending) continue;
            try {
                const DeviceGuard guard(device);
                wait_for(stream);
            } catch (const std::exception& error) {
                std::fprintf(stderr, "%s; no call after it waited for %s\n", error.what(), name(cuda(device)).c_str());
            }
        }
    }
}

// Takes a slot that belongs to captured work.
FaultSlot* take_kept_slot(DeviceState& state, bool is_index, const char* text, int dim, const Shape& shape) {
    const std::lock_guard lock(state.faults_mutex);
    if (!state.slots || (state.spare_kept.empty() && state.kept.size() == kFaultSlots)) device_api::refuse_capture();
    if (state.spare_kept.empty()) {
        state.spare_kept.reserve(kFaultSlots);  // giving slots back allocates nothing
        state.kept.emplace_back();
        state.spare_kept.push_back(static_cast<int>(state.kept.size()) - 1);
    }
    const int kept = state.spare_kept.back();
    captured_faults().push_back(kept);
    state.spare_kept.pop_back();
    state.kept[static_cast<std::size_t>(kept)] = {{op_name(), detail::thread.op_loc, nullptr, nullptr, 0, is_index, text, dim, shape}};
    FaultSlot& slot = state.slots[kFaultSlots + kept];
    slot.is_set = false;
    return &slot;
}

FaultSlot* take_slot(Stream& stream, bool is_index, const char* text, int dim, const Shape& shape) {
    DeviceState& state = device_state(stream.device);
    if (is_capturing()) return take_kept_slot(state, is_index, text, dim, shape);
    for (;;) {
        {
            const std::lock_guard lock(state.faults_mutex);
            if (!state.slots) {
                TAPIR_CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&state.slots), 2 * kFaultSlots * sizeof(FaultSlot)));
                state.faults.reserve(kFaultSlots);
                static const int registered = std::atexit(tell_at_exit);
                static_cast<void>(registered);
            }
            if (state.faults.size() < kFaultSlots) {
                state.faults.push_back({op_name(), detail::thread.op_loc, &stream, &here, 0, is_index, text, dim, shape});
                ++stream.faults_pending;
                FaultSlot& slot = state.slots[state.faults.size() - 1];
                slot.is_set = false;
                return &slot;
            }
        }
        // All slots are in use: waiting for streams frees theirs.
        for (Stream& other : state.streams) {
            if (other.faults_pending) wait_for(other);
        }
    }
}

}  // namespace

OpenFault::OpenFault(int dim, const Shape& shape, const char* text) : stream_(&current()), slot_(take_slot(*stream_, true, text, dim, shape)) {}
OpenFault::OpenFault(const char* text) : stream_(&current()), slot_(take_slot(*stream_, false, text, 0, {})) {}
OpenFault::~OpenFault() {
    if (!slot_) return;
    DeviceState& state = device_state(stream_->device);
    const std::lock_guard lock(state.faults_mutex);
    if (slot_ - state.slots >= kFaultSlots) return;
    Fault& fault = state.faults[static_cast<std::size_t>(slot_ - state.slots)];
    fault.given = stream_->given.load();
    fault.launching = nullptr;
}

void kept_slots_run(Stream& stream, const std::vector<int>& slots) {
    if (slots.empty()) return;
    DeviceState& state = device_state(stream.device);
    const std::lock_guard lock(state.faults_mutex);
    for (const int kept : slots) {
        Fault& fault = state.kept[static_cast<std::size_t>(kept)];
        if (fault.stream != &stream) ++stream.faults_pending;
        fault.stream = &stream;
        fault.given = stream.given.load() + 1;  // the launch is noted next
    }
}

void give_kept_slots_back(int device, const std::vector<int>& slots) noexcept {
    if (slots.empty()) return;
    DeviceState& state = device_state(device);
    const std::lock_guard lock(state.faults_mutex);
    for (const int kept : slots) {
        KeptFault& fault = state.kept[static_cast<std::size_t>(kept)];
        if (fault.stream) {
            fault.is_given_back = true;
        } else {
            state.spare_kept.push_back(kept);
        }
    }
}

void launch_empty(int count);  // empty_launch.cu

}  // namespace tapir::gpu

// --- What the core asks for ----------------------------------------------------------------------------------------------

namespace tapir::device_api {

using namespace gpu;

int count() noexcept { return runtime().count; }
const char* problem() noexcept { return runtime().problem.c_str(); }

std::string name(int device) {
    cudaDeviceProp properties;
    TAPIR_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return properties.name;
}

void select(Device device) { select_device(device.index); }

// --- Copies ----------------------------------------------------------------------------------------------------------------

namespace {

// Enables direct copies between two devices, without the host, if the machine can.
void enable_peer_access(int a, int b) {
    static std::once_flag enabled[kMaxDevices][kMaxDevices];
    std::call_once(enabled[std::min(a, b)][std::max(a, b)], [&] {
        for (const auto& [device, peer] : {std::pair(a, b), std::pair(b, a)}) {
            const DeviceGuard guard(device);
            int can = 0;
            TAPIR_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
            // Other code may have enabled it, or for too many devices: copies work in any case.
            if (can && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess) static_cast<void>(cudaGetLastError());
        }
    });
}

bool is_page_locked(const void* address) {
    cudaPointerAttributes attributes;
    TAPIR_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
    return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, bool wait) {
    const Device device = to_device.type == DeviceType::cuda ? to_device : from_device;
    if (to_device != from_device) refuse_capture();
    select(device);
    gpu::Stream& stream = current();
    detail::CopyTold told(to_device, from_device, bytes);
    if (to_device.type == DeviceType::cuda && from_device.type == DeviceType::cuda && to_device != from_device) {
        enable_peer_access(to_device.index, from_device.index);
        // Runs on the target's stream, between the present and the later work of the source's stream.
        here.current[from_device.index] = here.current[from_device.index] ? here.current[from_device.index] : device_state(from_device.index).streams;
        gpu::Stream& source = *here.current[from_device.index];
        order_after(&stream, &source);
        launched(stream, cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, stream.handle));
        order_after(&source, &stream);
    } else {
        launched(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.handle));
        wait = wait || (device_state(stream.device).reads_pageable && from_device.type == DeviceType::cpu && !is_page_locked(from));
    }
    told.is_queued();
    if (wait) wait_for(stream);
}

bool can_use(Device device, const void* address) {
    select(device);
    cudaPointerAttributes attributes;
    TAPIR_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
    return attributes.type == cudaMemoryTypeManaged || (attributes.type == cudaMemoryTypeDevice && attributes.device == device.index);
}

void zero(void* to, Device device, std::size_t bytes) {
    select(device);
    gpu::Stream& stream = current();
    launched(stream, cudaMemsetAsync(to, 0, bytes, stream.handle));
}

void launch_empty(Device device, int count) {
    select(device);
    gpu::launch_empty(count);
}

// --- Streams ---------------------------------------------------------------------------------------------------------------

namespace {
gpu::Stream& stream_of(void* stream) { return *static_cast<gpu::Stream*>(stream); }

std::mutex making_streams;

bool is_made(const gpu::Stream& stream) {
    if (stream.index == 0) return true;
    const std::lock_guard lock(making_streams);
    return stream.handle;
}
}  // namespace

void* new_stream(int device) {
    DeviceState& state = device_state(device);
    gpu::Stream& stream = state.streams[1 + state.next_side.fetch_add(1) % kSideStreams];
    const std::lock_guard lock(making_streams);
    if (!stream.handle) {
        const DeviceGuard guard(device);
        TAPIR_CUDA_CHECK(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
    }
    return &stream;
}

void* default_stream(int device) { return device_state(device).streams; }

void* current_stream(int device) noexcept {
    gpu::Stream*& stream = here.current[device];
    if (!stream) stream = device_state(device).streams;
    return stream;
}

void set_current_stream(void* stream) noexcept { here.current[stream_of(stream).device] = &stream_of(stream); }
Device device_of(void* stream) noexcept { return cuda(stream_of(stream).device); }
void* native(void* stream) noexcept { return stream_of(stream).handle; }

bool is_done(void* stream) {
    refuse_capture();
    const DeviceGuard guard(stream_of(stream).device);
    return cudaStreamQuery(stream_of(stream).handle) != cudaErrorNotReady;
}

void wait(void* stream, const Loc& loc) {
    const CallerScope caller(loc);
    gpu::Stream& s = stream_of(stream);
    const DeviceGuard guard(s.device);
    wait_for(s);
}

void wait_for_all(int device, const Loc& loc) {
    const CallerScope caller(loc);
    const DeviceGuard guard(device);
    for (gpu::Stream& stream : device_state(device).streams) {
        if (is_made(stream)) wait_for(stream);
    }
}

namespace {
struct ThreadEvents {
    cudaEvent_t of[kMaxDevices];
};
}  // namespace

void order_after(void* stream, void* other) {
    if (stream == other) return;
    refuse_capture();
    // One event for each thread and device is enough: a wait applies to what the event marks now.
    gpu::Stream &later = stream_of(stream), &earlier = stream_of(other);
    cudaEvent_t& event = thread_own<ThreadEvents>().of[earlier.device];
    const DeviceGuard guard(earlier.device);
    if (!event) TAPIR_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    TAPIR_CUDA_CHECK(cudaEventRecord(event, earlier.handle));
    const DeviceGuard own(later.device);
    TAPIR_CUDA_CHECK(cudaStreamWaitEvent(later.handle, event, 0));
}

// --- Events ----------------------------------------------------------------------------------------------------------------

namespace {
struct EventState {
    cudaEvent_t handle;
    gpu::Stream* stream;  // it was recorded on last
    int device;
    std::uint32_t given;  // number of ops that the stream had been given
};
EventState& event_of(void* event) { return *static_cast<EventState*>(event); }
}  // namespace

void* new_event(int device, bool timing) {
    const DeviceGuard guard(device);
    cudaEvent_t handle;
    TAPIR_CUDA_CHECK(cudaEventCreateWithFlags(&handle, timing ? 0 : cudaEventDisableTiming));
    return new EventState{handle, nullptr, device, 0};
}
void free_event(void* event) noexcept {
    cudaEventDestroy(event_of(event).handle);
    delete &event_of(event);
}
void record_event(void* event, void* stream) {
    refuse_capture();
    const DeviceGuard guard(stream_of(stream).device);
    const std::uint32_t given = stream_of(stream).given.load();
    TAPIR_CUDA_CHECK(cudaEventRecord(event_of(event).handle, stream_of(stream).handle));
    event_of(event).stream = &stream_of(stream);
    event_of(event).given = given;
}
void order_after_event(void* stream, void* event) {
    refuse_capture();
    const DeviceGuard guard(stream_of(stream).device);
    TAPIR_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream).handle, event_of(event).handle, 0));
}
bool is_event_done(void* event) {
    refuse_capture();
    const DeviceGuard guard(event_of(event).device);
    return cudaEventQuery(event_of(event).handle) != cudaErrorNotReady;
}
void wait_event(void* event, const Loc& loc) {
    refuse_capture();
    const CallerScope caller(loc);
    const EventState& e = event_of(event);
    const DeviceGuard guard(e.device);
    const cudaError_t error = cudaEventSynchronize(e.handle);
    if (e.stream) return finish(*e.stream, e.given, error);
    TAPIR_CUDA_CHECK(error);
}
double milliseconds(void* begin, void* end) {
    float result = 0;
    TAPIR_CUDA_CHECK(cudaEventElapsedTime(&result, event_of(begin).handle, event_of(end).handle));
    return result;
}

// --- Ranges for Nsight -----------------------------------------------------------------------------------------------------

void begin_range(const char* name) noexcept { nvtxRangePushA(name); }
void end_range() noexcept { nvtxRangePop(); }

}  // namespace tapir::device_api

namespace tapir {

SyncScope::SyncScope() noexcept { gpu::waiting_for_each_op.fetch_add(1); }
SyncScope::~SyncScope() { gpu::waiting_for_each_op.fetch_sub(1); }

}  // namespace tapir
