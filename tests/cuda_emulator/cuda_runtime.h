// A stand-in for CUDA's runtime, so that cuda/ can be tested on machines without a GPU: its sources are compiled as C++
// against this header, kernels run on CPU threads, and "device" memory is memory that only they may touch.
//
// What is kept: every stream is a queue with a thread of its own, so work runs while the caller goes on, and in any order
// unless an event says otherwise; the threads of a block stop at __syncthreads() and exchange values in warps; copies from
// and to pageable memory return when CUDA's would (device 1 reads it through the host's page tables); errors of a kernel show up later. Reading device memory from the host
// ends the program where the processor has protection keys. There are two devices: a kernel that reads the other one's memory ends the program, even
// where copies may go from peer to peer, as kernels of theirs do not run at the same time. What is not: timing, memory models, textures; of graphs,
// those that are captured from one stream.
//
// Only what cuda/ uses is here. Names and meanings are those of the CUDA Runtime API reference, version 13.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3() = default;
    constexpr dim3(unsigned a, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};
inline constexpr int warpSize = 32;

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
};
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

// --- Devices -------------------------------------------------------------------------------------------------------------

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    std::size_t totalGlobalMem;
    int multiProcessorCount;
    int major, minor;
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
enum cudaDeviceAttr { cudaDevAttrPageableMemoryAccessUsesHostPageTables = 100 };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);

// --- Memory --------------------------------------------------------------------------------------------------------------

enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
struct EmulatedStream;
struct EmulatedEvent;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;

cudaError_t cudaMalloc(void** pointer, std::size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
};
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);

// --- Streams and events --------------------------------------------------------------------------------------------------

inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

// --- Graphs ----------------------------------------------------------------------------------------------------------------
// While a stream is captured, what it is given is kept and not done. What CUDA does not allow meanwhile ends the capture, as there: to wait,
// to ask, events, host memory that is not page-locked, and memory calls of a thread that has not said that it knows what it does.

struct EmulatedGraph;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
struct EmulatedNode;
using cudaGraphNode_t = EmulatedNode*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

// --- Kernels -------------------------------------------------------------------------------------------------------------

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    std::size_t dynamicSmemBytes;
    cudaStream_t stream;
    void* attrs;
    unsigned numAttrs;
};

// Of kernels that were compiled while the program runs (nvrtc.cpp): their one parameter is a struct of whole words of 8 bytes.
struct EmulatedKernel;
using cudaKernel_t = EmulatedKernel*;
using cudaLibrary_t = void*;
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, void* jit_options, void* jit_values, unsigned jit_count,
                                void* library_options, void* library_values, unsigned library_count);
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** parameters);

namespace emulator {

/// Queues a task on a stream (null: the current device's default one). It sees the memory of the stream's device.
void enqueue(cudaStream_t stream, std::function<void()> task);
/// For work of several devices: it sees no memory until it calls with_all_memory().
void enqueue_apart(cudaStream_t stream, std::function<void()> task);
void with_all_memory(const std::function<void()>& task);
int device_of(cudaStream_t stream);
/// Whether so many bytes there are memory of the device.
bool is_memory_of(int device, const void* first, std::size_t bytes);
cudaError_t launch(const cudaLaunchConfig_t& config, std::function<void()> kernel);
void block_barrier();
std::uint64_t exchange(unsigned mask, std::uint64_t value, unsigned from_lane);
unsigned ballot(unsigned mask, bool value);

// For tests.
/// The stream does nothing while it is held.
void hold(cudaStream_t stream);
void release(cudaStream_t stream);
/// The next launch fails with this error, as for a bad configuration.
void fail_next_launch(cudaError_t error);
/// The next kernel that runs on the device ends with this error, which every call after it returns.
void fail_next_kernel(cudaError_t error);
/// So does the next graph that is instantiated.
void fail_next_graph(cudaError_t error);
void clear_errors();
/// How much memory each device has (256 MiB at first).
void set_memory(std::size_t bytes);
int kernels_launched();
/// Copies into memory that is not of a device, nor page-locked: the caller waits for each.
int copies_to_host();
/// Graphs that were launched, and kernels that were captured rather than launched.
int graphs_launched();
int kernels_captured();
/// Of all of these.
std::int64_t blocks_launched();
/// How often an event was asked for whether it has happened.
int events_queried();
/// Whether the device has been given access to the peer's memory.
bool has_peer_access(int device, int peer);

}  // namespace emulator

// A call of its own, so that what an op costs can be counted without it (bench/instructions.sh).
template <class... Parameters, class... Arguments>
[[gnu::noinline]] cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Arguments&&... arguments) {
    return emulator::launch(*config, [kernel, ... values = Parameters(std::forward<Arguments>(arguments))]() mutable { kernel(values...); });
}

// --- What kernels call ---------------------------------------------------------------------------------------------------

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::exchange(mask, 0, 0); }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    const unsigned own = threadIdx.x % 32, base = own / static_cast<unsigned>(width) * static_cast<unsigned>(width);
    bits = emulator::exchange(mask, bits, base + static_cast<unsigned>(lane) % static_cast<unsigned>(width));
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % static_cast<unsigned>(width)) ^ lanes, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned own = threadIdx.x % static_cast<unsigned>(width);
    return __shfl_sync(mask, value, static_cast<int>(own + delta < static_cast<unsigned>(width) ? own + delta : own), width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    const unsigned own = threadIdx.x % static_cast<unsigned>(width);
    return __shfl_sync(mask, value, static_cast<int>(own >= delta ? own - delta : own), width);
}
inline unsigned __ballot_sync(unsigned mask, int value) { return emulator::ballot(mask, value != 0); }

template <class T>
T __ldg(const T* p) {
    return *p;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
__extension__ typedef unsigned __int128 EmulatorWide;
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<EmulatorWide>(a) * b >> 64);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }

namespace emulator {
template <class T, class Fn>
T update(T* place, Fn change) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    T seen;
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    auto* bits = reinterpret_cast<Bits*>(place);
    Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED), wanted;
    do {
        std::memcpy(&seen, &old, sizeof(T));
        const T next = change(seen);
        std::memcpy(&wanted, &next, sizeof(T));
    } while (!__atomic_compare_exchange_n(bits, &old, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return seen;
}
}  // namespace emulator

template <class T>
T atomicAdd(T* place, T value) {
    return emulator::update(place, [value](T x) { return static_cast<T>(x + value); });
}
template <class T>
T atomicMax(T* place, T value) {
    return emulator::update(place, [value](T x) { return x < value ? value : x; });
}
template <class T>
T atomicMin(T* place, T value) {
    return emulator::update(place, [value](T x) { return value < x ? value : x; });
}
template <class T>
T atomicCAS(T* place, T expected, T wanted) {
    return emulator::update(place, [=](T x) { return x == expected ? wanted : x; });
}
template <class T>
T atomicExch(T* place, T value) {
    return emulator::update(place, [value](T) { return value; });
}
template <class T>
T atomicOr(T* place, T value) {
    return emulator::update(place, [value](T x) { return static_cast<T>(x | value); });
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
