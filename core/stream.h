// Devices, streams and events: where ops run, in what order, and how to wait for them.
//
//     DeviceScope scope(cuda(0));                  // tensors are made there from here on
//     Tensor y = model.forward(tree);              // puts kernels on the device's current stream and returns
//     float loss = y.item<float>();                // waits for what the value needs
//
// Ops on CUDA tensors run on the calling thread's current stream of the tensors' device, in the order of the calls. Work on
// different streams runs side by side; if one needs a result of the other, say so by waiting for it:
//
//     Stream side(cuda(0));
//     Tensor h;
//     {
//         StreamScope scope(side);
//         side.wait_stream(Stream::default_stream(cuda(0)));   // x was made there
//         h = tanh(x);
//     }
//     Stream::current(cuda(0)).wait_stream(side);              // before h is used here
//
// Backward runs each rule on the stream of its op, and waits by itself where gradients cross streams. Memory may be given up at
// any time: it is reused only when every stream that used the tensor is done with it.
//
// Tapir remembers the CUDA device that a thread selected, to avoid asking for it at each op. Other code that calls
// cudaSetDevice on a thread that uses Tapir must set it back.
#pragma once

#include <cstddef>
#include <string>

#include "tapir/core/device.h"
#include "tapir/core/error.h"

namespace tapir {

/// Returns the number of CUDA devices that can be used: 0 in a build without CUDA, without a driver and without a GPU.
int cuda_device_count() noexcept;
bool cuda_is_available() noexcept;
/// Returns a name like "NVIDIA H200". Throws DeviceError if there is no such device.
std::string cuda_device_name(int index = 0, Loc loc = Loc::current());
/// Returns "cpu", "cuda:1", ...
std::string name(Device device);

/// Returns the device for tensors that name none: cpu, or the innermost DeviceScope's.
Device default_device() noexcept;

/// While it lives, tensors that name no device are made on this one, on this thread. Tensors from a file or a pointer
/// (load_safetensors, from_blob) stay on the CPU. Throws DeviceError if the device is not there.
class DeviceScope {
 public:
    [[nodiscard]] explicit DeviceScope(Device device, Loc loc = Loc::current());
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

 private:
    Device previous_;
};

class Event;

/// A queue of work on a device. Copies of this handle are the same stream. The CPU has one stream, which is always done.
class Stream {
 public:
    /// Makes a stream beside the default one, which it does not wait for. Each device has 32 of them, handed out in turn.
    /// Throws DeviceError.
    explicit Stream(Device device, Loc loc = Loc::current());
    /// Returns the calling thread's current stream, where its ops go. Without a device it is the innermost StreamScope's, or else
    /// the default device's.
    static Stream current(Loc loc = Loc::current());
    static Stream current(Device device, Loc loc = Loc::current());
    /// Returns the stream that all threads begin with.
    static Stream default_stream(Device device = default_device(), Loc loc = Loc::current());

    Device device() const noexcept { return device_; }
    /// True if everything on it is done.
    bool query(Loc loc = Loc::current()) const;
    /// Waits until everything on it is done. Throws the errors that ops have met meanwhile.
    void synchronize(Loc loc = Loc::current()) const;
    /// Makes later work on this stream wait for the event; the caller does not wait.
    void wait_event(const Event& event, Loc loc = Loc::current()) const;
    /// Makes later work on this stream wait for everything that is on the other stream now.
    void wait_stream(const Stream& other, Loc loc = Loc::current()) const;
    Event record_event(Loc loc = Loc::current()) const;
    /// Returns the cudaStream_t, for code that puts its own work on it.
    void* native_handle() const noexcept;
    bool operator==(const Stream& other) const noexcept { return state_ == other.state_ && device_ == other.device_; }

    /// Internal.
    Stream(Device device, void* state) noexcept : device_(device), state_(state) {}
    void* state() const noexcept { return state_; }

 private:
    Device device_;
    void* state_ = nullptr;  // null: the CPU's
};

/// Makes a stream the thread's current one of its device while it lives.
class StreamScope {
 public:
    [[nodiscard]] explicit StreamScope(const Stream& stream) noexcept;
    ~StreamScope();
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;

 private:
    Stream previous_;
    const Stream* innermost_;
};

/// Marks a point on a stream.
class Event {
 public:
    /// enable_timing is needed for elapsed_time().
    explicit Event(bool enable_timing = false) noexcept : timing_(enable_timing) {}
    ~Event();
    Event(Event&& other) noexcept;
    Event& operator=(Event&& other) noexcept;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    /// Marks what is on the stream now. May be called again to mark anew.
    void record(const Stream& stream = Stream::current(), Loc loc = Loc::current());
    /// True if all before the mark is done, and for an event that was not recorded.
    bool query(Loc loc = Loc::current()) const;
    void synchronize(Loc loc = Loc::current()) const;
    /// Returns the milliseconds from this mark to that one. Throws ValueError unless both have timing, are recorded and done, and
    /// belong to one device.
    double elapsed_time(const Event& end, Loc loc = Loc::current()) const;

    /// Internal.
    void* native_handle() const noexcept { return event_; }

 private:
    void* event_ = nullptr;  // made when first recorded
    Device device_;
    bool timing_ = false;
};

/// Waits for everything on a device, or on all of them. Throws the errors that ops have met meanwhile.
void synchronize(Device device, Loc loc = Loc::current());
void synchronize(Loc loc = Loc::current());

/// While it lives, every op (on all threads) waits until it is done: for gdb, and to see which op an error belongs to.
/// TAPIR_SYNC=1 in the environment does it for the whole program.
class SyncScope {
 public:
    [[nodiscard]] SyncScope() noexcept;
    ~SyncScope();
    SyncScope(const SyncScope&) = delete;
    SyncScope& operator=(const SyncScope&) = delete;
};

/// While it lives, each op (on all threads) writes a line to stderr: "tree.cpp:42: matmul: cuda:0, float32 (2, 3)".
/// TAPIR_LOG_PLACEMENT=1 in the environment does it for the whole program.
class LogPlacementScope {
 public:
    [[nodiscard]] LogPlacementScope() noexcept;
    ~LogPlacementScope();
    LogPlacementScope(const LogPlacementScope&) = delete;
    LogPlacementScope& operator=(const LogPlacementScope&) = delete;
};

}  // namespace tapir
