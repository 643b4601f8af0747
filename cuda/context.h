// CUDA runtime for the rest of cuda/: devices, the thread's current streams, and errors that name the op.
//
// Note [Errors of a stream]
// The error of a kernel is reported later, by a call that has nothing to do with it. So every stream remembers the ops it
// was given since it was last known to be in order. When an error comes, it can only belong to these, and the
// message names them (TAPIR_SYNC=1, or SyncScope, waits after each op and so names the one). Mistakes that a kernel finds by
// itself, an index out of range or a probability above 1, do not end the context: the kernel writes the number into a slot
// of page-locked memory that belongs to its op and goes on with a safe one, and the next call that waits for the stream
// throws the IndexError or ValueError of the first of these ops, and names the others. What is left at the program's end is
// written to stderr.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "tapir/core/shape.h"

namespace tapir::gpu {

inline constexpr int kMaxDevices = 16;
inline constexpr int kSideStreams = 32;

/// A stream of the pool; never destroyed.
struct Stream {
    cudaStream_t handle = nullptr;  // the default stream's is null
    int device = 0;
    int index = 0;  // 0: the default one

    /// One op that the stream was given.
    struct Op {
        std::atomic<const char*> name{nullptr};
        std::atomic<Loc> loc{Loc{}};
    };
    static constexpr std::uint32_t kRemembered = 64;
    Op ops[kRemembered];
    std::atomic<std::uint32_t> given{0};     // number of ops so far
    std::atomic<std::uint32_t> in_order{0};  // all was well up to this op
    std::atomic<std::uint32_t> faults_pending{0};
};

/// Returns the thread's current stream of the selected device.
Stream& current();
/// Return the device for the thread's calls, and its number of multiprocessors.
int selected_device() noexcept;
int multiprocessors() noexcept;

/// Throws DeviceError (OutOfMemory if memory is short) with the thread's op and line.
[[noreturn, gnu::cold, gnu::noinline]] void fail_cuda(cudaError_t error, const char* call);
inline void check(cudaError_t error, const char* call) {
    if (error != cudaSuccess) [[unlikely]]
        fail_cuda(error, call);
}
#define TAPIR_CUDA_CHECK(call) ::tapir::gpu::check(call, #call)

/// Must be called after every launch: notes the op, throws if the launch failed, and in sync mode waits.
void launched(Stream& stream, cudaError_t error);

/// Puts a copy within the selected device's memory on the current stream.
void copy_bytes(void* to, const void* from, std::size_t bytes);

/// A place where a kernel reports a number that its op does not accept.
struct FaultSlot {
    union {
        std::int64_t index;
        double value;
    };
    bool is_set;
};
inline constexpr char kIndexFault[] = "index {0} is out of range for dimension {1} of shape {2}";
/// A slot for the op that is being launched on the current stream. It must live until the last kernel that may report there
/// is launched. Before that the slot is not freed, even if another thread waits for the stream.
class OpenFault {
 public:
    OpenFault() = default;  // null: nothing is reported
    /// For an index (IndexError). In the text {0} becomes the index, {1} dim, {2} shape, {3} the size of dim.
    OpenFault(int dim, const Shape& shape, const char* text = kIndexFault);
    /// For a value (ValueError), which becomes {0}.
    explicit OpenFault(const char* text);
    ~OpenFault();
    OpenFault(const OpenFault&) = delete;
    OpenFault& operator=(const OpenFault&) = delete;
    FaultSlot* slot() const noexcept { return slot_; }

 private:
    Stream* stream_ = nullptr;
    FaultSlot* slot_ = nullptr;
};

}  // namespace tapir::gpu
