// The emulator's devices: memory, streams, events, and kernels on CPU threads. See cuda_runtime.h.
//
// Note [Sanitizers]
// In a thread-sanitizer build each stream is a thread that is ordered with the rest as CUDA orders it, and by nothing else:
// what the emulator itself locks is hidden. So kernels of two streams that use the same memory without an event between
// them are reported, as is a host that reads a copy's target without waiting, whether or not it went well this time.
// (Blocks of one kernel run one after the other: races within a kernel are not seen. Stacks of kernels with barriers are
// wrong in reports but for the first line.)
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef TAPIR_HAVE_BOOST_CONTEXT
#include <boost/context/detail/fcontext.hpp>
#else
#include <ucontext.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace {

// Hides what this thread does from the thread sanitizer while it lives; ends_here() and goes_on_from() are how it is told
// what comes after what. See Note [Sanitizers].
class Hidden {
 public:
#ifdef __SANITIZE_THREAD__
    Hidden() {
        if (depth_++ == 0) begin();
    }
    ~Hidden() {
        if (--depth_ == 0) end();
    }
    static void ends_here(void* point) {
        if (depth_) end();
        __tsan_release(point);
        if (depth_) begin();
    }
    static void goes_on_from(void* point) {
        if (depth_) end();
        __tsan_acquire(point);
        if (depth_) begin();
    }

 private:
    static void begin() {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    }
    static void end() {
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
    static inline thread_local int depth_ = 0;
#else
    Hidden() {}
    ~Hidden() {}
    static void ends_here(void*) {}
    static void goes_on_from(void*) {}
#endif
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;
};

constexpr int kDevices = 2;
constexpr int kAllDevices = -2;
constexpr std::size_t kGuardBytes = 4096;

// Everything is leaked: worker threads run until the process ends.
struct Block {
    void* base;
    std::size_t mapped, bytes;
    int device;  // -1: page-locked host memory
};

struct Emulator {
    std::mutex mutex;
    std::map<const void*, Block> blocks;  // by first byte
    std::size_t used[kDevices] = {};
    std::size_t capacity = std::size_t{256} << 20;
    EmulatedStream* default_streams[kDevices] = {};
    std::vector<EmulatedStream*> streams;
    int key = -1;
    std::atomic<cudaError_t> sticky{cudaSuccess};
    std::atomic<cudaError_t> next_kernel{cudaSuccess}, next_launch{cudaSuccess}, next_graph{cudaSuccess};
    std::atomic<int> kernels{0}, queries{0}, graphs{0}, captured{0}, copies_to_host{0};
    std::atomic<std::int64_t> blocks_launched{0};
    std::atomic<bool> has_access[kDevices][kDevices] = {};
    // Whose memory can be touched, and by how many tasks it is at this moment: see Turn.
    std::condition_variable turns;
    int turn = kAllDevices, in_turn = 0;
};

Emulator& state() {
    static Emulator* const emulator = [] {
        auto* made = new Emulator;
        made->key = pkey_alloc(0, PKEY_DISABLE_ACCESS);  // -1 where the processor has none
        return made;
    }();
    return *emulator;
}

// The threads that stand for a device may touch its memory; no other thread may.
void allow_device_memory() {
    if (state().key >= 0) pkey_set(state().key, 0);
}

void protect(const Block& block, bool may_touch) {
    if (block.device >= 0) mprotect(block.base, block.mapped - kGuardBytes, may_touch ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// Unless TAPIR_EMULATOR_APART=0: tests in which two devices take turns all the time run several times as fast with it.
const bool are_apart = [] {
    const char* const wish = std::getenv("TAPIR_EMULATOR_APART");
    return !wish || std::strcmp(wish, "0") != 0;
}();

// While it lives, a task may touch the memory of this device, or of all, and nobody that of the others.
class Turn {
 public:
    explicit Turn(int device) {
        const Hidden hidden;
        if (!are_apart) device = kAllDevices;
        Emulator& e = state();
        std::unique_lock lock(e.mutex);
        e.turns.wait(lock, [&] { return e.in_turn == 0 || e.turn == device; });
        ++e.in_turn;
        if (std::exchange(e.turn, device) == device) return;
        for (const auto& [_, block] : e.blocks) protect(block, device == kAllDevices || block.device == device);
    }
    ~Turn() {
        const Hidden hidden;
        const std::lock_guard lock(state().mutex);
        --state().in_turn;
        state().turns.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
};

bool uses_host_page_tables(int device) { return device == 1; }

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) {
    last_error = error;
    return error;
}
#define TAPIR_RETURN_STICKY \
    if (const cudaError_t sticky = state().sticky; sticky != cudaSuccess) return failed(sticky)

using Task = std::function<void()>;

}  // namespace

// What was captured; a graph that is launched is the same.
struct EmulatedGraph {
    std::vector<Task> tasks;
    bool is_valid = true;
};

namespace {

thread_local EmulatedStream* captured_here = nullptr;  // by this thread
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

}  // namespace

struct EmulatedStream {
    int device;
    std::shared_ptr<EmulatedGraph> capture;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool busy = false, held = false;

    explicit EmulatedStream(int d) : device(d) {
        std::thread([this] { run(); }).detach();
    }
    void add(Task task) {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        if (capture) return capture->tasks.push_back(std::move(task));
        tasks.push_back(std::move(task));
        Hidden::ends_here(&tasks.back());
        changed.notify_all();
    }
    bool idle() {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        return is_idle();
    }
    void wait() {
        const Hidden hidden;
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return is_idle(); });
    }
    void hold(bool on) {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        held = on;
        changed.notify_all();
    }
    bool is_captured() {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        return capture != nullptr;
    }
    // True where that is so: then the capture comes to nothing.
    bool breaks_capture() {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        if (capture) capture->is_valid = false;
        return capture != nullptr;
    }
    bool is_held() {
        const Hidden hidden;
        const std::lock_guard lock(mutex);
        return held;
    }

 private:
    bool is_idle() {
        if (!tasks.empty() || busy) return false;
        Hidden::goes_on_from(this);
        return true;
    }
    void run() {
        allow_device_memory();
        for (;;) {
            Task task = next();
            task();
            finish(task);
        }
    }
    Task next() {
        const Hidden hidden;
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !tasks.empty() && !held; });
        Hidden::goes_on_from(&tasks.front());
        Task task = std::move(tasks.front());
        tasks.pop_front();
        busy = true;
        return task;
    }
    void finish(Task& task) {
        const Hidden hidden;
        task = nullptr;
        const std::lock_guard lock(mutex);
        busy = false;
        Hidden::ends_here(this);
        changed.notify_all();
    }
};

namespace {

std::mutex marks_mutex;
std::condition_variable marks_changed;

// What an event was recorded as; recording anew makes another one.
struct Mark {
    bool done = false;
    std::chrono::steady_clock::time_point time;

    void reach() {
        const Hidden hidden;
        const std::lock_guard lock(marks_mutex);
        done = true;
        time = std::chrono::steady_clock::now();
        Hidden::ends_here(this);
        marks_changed.notify_all();
    }
    bool is_reached() {
        const Hidden hidden;
        const std::lock_guard lock(marks_mutex);
        if (done) Hidden::goes_on_from(this);
        return done;
    }
    void wait() {
        const Hidden hidden;
        std::unique_lock lock(marks_mutex);
        marks_changed.wait(lock, [this] { return done; });
        Hidden::goes_on_from(this);
    }
};

}  // namespace

struct EmulatedEvent {
    int device;
    std::shared_ptr<Mark> mark;

    std::shared_ptr<Mark> last() const {
        const std::lock_guard lock(marks_mutex);
        return mark;
    }
    void set(const std::shared_ptr<Mark>& to) {
        const std::lock_guard lock(marks_mutex);
        mark = to;
    }
};

namespace {

EmulatedStream* stream_or_default(cudaStream_t stream) {
    if (stream) return stream;
    Emulator& e = state();
    const std::lock_guard lock(e.mutex);
    EmulatedStream*& own = e.default_streams[current_device];
    if (!own) {
        own = new EmulatedStream(current_device);
        e.streams.push_back(own);
    }
    return own;
}

// What a thread must not do while it captures.
bool is_unsafe_now() {
    if (!captured_here || capture_mode == cudaStreamCaptureModeRelaxed) return false;
    return captured_here->breaks_capture();
}
#define TAPIR_UNSAFE_IN_CAPTURE \
    if (is_unsafe_now()) return failed(cudaErrorStreamCaptureUnsupported)
#define TAPIR_NOT_IN_CAPTURE(stream) \
    if ((stream)->breaks_capture()) return failed(cudaErrorStreamCaptureUnsupported)

// Whether the memory is a device's, or page-locked, or (null) neither.
const Block* block_of(const void* pointer) {
    Emulator& e = state();
    const std::lock_guard lock(e.mutex);
    auto next = e.blocks.upper_bound(pointer);
    if (next == e.blocks.begin()) return nullptr;
    --next;
    const auto* first = static_cast<const std::byte*>(next->first);
    return static_cast<const std::byte*>(pointer) < first + next->second.bytes ? &next->second : nullptr;
}
// --- Blocks of threads ---------------------------------------------------------------------------------------------------
//
// The threads of a block run one after the other on fibers, each until it is done or has to wait for others. A fiber runs
// thread after thread; where one stops, another fiber goes on with those that have not begun.

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr unsigned kMostThreads = 1024;

// Where a stack goes on when it is switched to. leave() is back when the other side switches here: a fiber and the stack that runs it
// take turns.
#ifdef TAPIR_HAVE_BOOST_CONTEXT
using Place = boost::context::detail::fcontext_t;
void leave(Place&, Place& other) { other = boost::context::detail::jump_fcontext(other, nullptr).fctx; }
#else  // each switch is a system call, for the signal mask: small kernels take four times as long
using Place = ucontext_t;
void leave(Place& here, Place& other) { swapcontext(&here, &other); }
#endif

struct Fiber {
    Place place{};
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    void* fake_stack = nullptr;
};

enum class Wait : unsigned char { nothing, block, warp, done };

struct CudaThread {
    Wait wait;
    Fiber* fiber;  // that it stopped on
    unsigned mask, from_lane;
    std::uint64_t value, result;
    bool is_ballot;
};

struct Runner {
    const Task* kernel = nullptr;
    unsigned threads = 0, begun = 0, finished = 0, current = 0;
    CudaThread thread[kMostThreads];
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> spare;
    Fiber* running = nullptr;
    Place main{};
    void* main_fake_stack = nullptr;
    const void* main_stack = nullptr;
    std::size_t main_stack_bytes = 0;
};
thread_local std::unique_ptr<Runner> runner;

void set_thread(unsigned t) {
    runner->current = t;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
}

void switch_to(Fiber& fiber) {
    Runner& r = *runner;
    r.running = &fiber;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&r.main_fake_stack, fiber.stack.get(), kStackBytes);
#endif
    leave(r.main, fiber.place);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(r.main_fake_stack, nullptr, nullptr);
#endif
}

// Back from the running fiber; returns when that is switched to again.
void switch_back() {
    Runner& r = *runner;
    Fiber& fiber = *r.running;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&fiber.fake_stack, r.main_stack, r.main_stack_bytes);
#endif
    leave(fiber.place, r.main);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fiber.fake_stack, &r.main_stack, &r.main_stack_bytes);
#endif
}

void fiber_main() {
    Runner& r = *runner;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &r.main_stack, &r.main_stack_bytes);
#endif
    Fiber* const own = r.running;
    for (;;) {
        while (r.begun < r.threads) {
            const unsigned t = r.begun++;
            set_thread(t);
            r.thread[t].wait = Wait::nothing;
            (*r.kernel)();
            r.thread[r.current].wait = Wait::done;
            ++r.finished;
        }
        r.spare.push_back(own);
        switch_back();
    }
}

// The fiber's first switch begins fiber_main().
#ifdef TAPIR_HAVE_BOOST_CONTEXT
void begin_at(Fiber& made) {
    made.place = boost::context::detail::make_fcontext(made.stack.get() + kStackBytes, kStackBytes, [](boost::context::detail::transfer_t from) {
        runner->main = from.fctx;
        fiber_main();
    });
}
#else
void begin_at(Fiber& made) {
    getcontext(&made.place);
    made.place.uc_stack.ss_sp = made.stack.get();
    made.place.uc_stack.ss_size = kStackBytes;
    makecontext(&made.place, fiber_main, 0);
    made.place.uc_stack = {};  // not needed any more, and the address sanitizer would clean it at each switch
}
#endif

Fiber& spare_fiber() {
    Runner& r = *runner;
    if (r.spare.empty()) {
        r.fibers.push_back(std::make_unique<Fiber>());
        Fiber& made = *r.fibers.back();
        begin_at(made);
        r.spare.push_back(&made);
    }
    Fiber& fiber = *r.spare.back();
    r.spare.pop_back();
    return fiber;
}

// Lets those go on that all they wait for have come to. False when there are none.
bool release_block() {
    Runner& r = *runner;
    for (unsigned t = 0; t < r.threads; ++t) {
        if (r.thread[t].wait != Wait::block && r.thread[t].wait != Wait::done) return false;
    }
    for (unsigned t = 0; t < r.threads; ++t) {
        if (r.thread[t].wait == Wait::block) r.thread[t].wait = Wait::nothing;
    }
    return true;
}

bool release_warp(unsigned first) {
    Runner& r = *runner;
    const unsigned lanes = std::min(32u, r.threads - first);
    CudaThread* const warp = r.thread + first;
    unsigned waiting = 0, alive = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (warp[lane].wait == Wait::warp) waiting |= 1u << lane;
        if (warp[lane].wait != Wait::done) alive |= 1u << lane;
    }
    bool any = false;
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (warp[lane].wait != Wait::warp) continue;
        const unsigned group = warp[lane].mask & alive;
        if ((group & waiting) != group) continue;
        unsigned votes = 0;
        for (unsigned k = 0; k < lanes; ++k) {
            if (group >> k & 1 && warp[k].value) votes |= 1u << k;
        }
        for (unsigned k = 0; k < lanes; ++k) {
            if (!(group >> k & 1)) continue;
            const unsigned from = warp[k].from_lane % 32;
            warp[k].result = warp[k].is_ballot ? votes : group >> from & 1 ? warp[from].value : warp[k].value;
        }
        for (unsigned k = 0; k < lanes; ++k) {
            if (group >> k & 1) warp[k].wait = Wait::nothing;
        }
        waiting &= ~group;
        any = true;
    }
    return any;
}

void run_block(const Task& kernel) {
    Runner& r = *runner;
    r.kernel = &kernel;
    r.threads = blockDim.x * blockDim.y * blockDim.z;
    r.begun = r.finished = 0;
    while (r.begun < r.threads) switch_to(spare_fiber());
    while (r.finished < r.threads) {
        bool any = release_block();
        for (unsigned first = 0; first < r.threads; first += 32) any |= release_warp(first);
        if (!any) {
            std::fprintf(stderr, "emulator: threads of a block wait for others that do not come\n");
            std::abort();
        }
        for (unsigned t = 0; t < r.threads; ++t) {
            if (r.thread[t].wait != Wait::nothing) continue;
            set_thread(t);
            switch_to(*r.thread[t].fiber);
        }
    }
}

// The running thread of the block waits.
void stop(Wait wait) {
    CudaThread& own = runner->thread[runner->current];
    own.wait = wait;
    own.fiber = runner->running;
    switch_back();
}

void run_grid(const cudaLaunchConfig_t& config, const Task& kernel) {
    if (!runner) runner = std::make_unique<Runner>();
    blockDim = config.blockDim;
    gridDim = config.gridDim;
    for (unsigned z = 0; z < gridDim.z; ++z) {
        for (unsigned y = 0; y < gridDim.y; ++y) {
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                run_block(kernel);
            }
        }
    }
}

bool is_launchable(const cudaLaunchConfig_t& c) {
    const auto some = [](dim3 d) { return d.x > 0 && d.y > 0 && d.z > 0; };
    return some(c.gridDim) && some(c.blockDim) && c.gridDim.x <= 0x7fffffffu && c.gridDim.y <= 65535 && c.gridDim.z <= 65535 &&
        std::uint64_t{c.blockDim.x} * c.blockDim.y * c.blockDim.z <= kMostThreads;
}

}  // namespace

// --- Kernels -------------------------------------------------------------------------------------------------------------

namespace emulator {

void enqueue(cudaStream_t stream, Task task) {
    EmulatedStream* const s = stream_or_default(stream);
    s->add([device = s->device, task = std::move(task)] {
        const Turn turn(device);
        task();
    });
}

void enqueue_apart(cudaStream_t stream, Task task) { stream_or_default(stream)->add(std::move(task)); }
void with_all_memory(const Task& task) {
    const Turn turn(kAllDevices);
    task();
}
int device_of(cudaStream_t stream) { return stream_or_default(stream)->device; }
bool is_memory_of(int device, const void* first, std::size_t bytes) {
    const Block* const block = block_of(first);
    return block && block->device == device && block == block_of(static_cast<const std::byte*>(first) + bytes - 1);
}

// False after an error, and where the kernel is to be one.
static bool may_run() {
    const Hidden hidden;
    if (const cudaError_t error = state().next_kernel.exchange(cudaSuccess); error != cudaSuccess) state().sticky = error;
    return state().sticky == cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, Task kernel) {
    const Hidden hidden;
    TAPIR_RETURN_STICKY;
    if (const cudaError_t error = state().next_launch.exchange(cudaSuccess); error != cudaSuccess) return failed(error);
    if (!is_launchable(config)) return failed(cudaErrorInvalidConfiguration);
    if (stream_or_default(config.stream)->device != current_device) return failed(cudaErrorInvalidResourceHandle);
    ++(stream_or_default(config.stream)->is_captured() ? state().captured : state().kernels);
    state().blocks_launched += std::int64_t{config.gridDim.x} * config.gridDim.y * config.gridDim.z;
    enqueue(config.stream, [config, kernel = std::move(kernel)] {
        if (may_run()) run_grid(config, kernel);
    });
    return cudaSuccess;
}

void block_barrier() { stop(Wait::block); }

std::uint64_t exchange(unsigned mask, std::uint64_t value, unsigned from_lane) {
    CudaThread& own = runner->thread[runner->current];
    own.mask = mask;
    own.value = value;
    own.from_lane = from_lane;
    own.is_ballot = false;
    stop(Wait::warp);
    return own.result;
}

unsigned ballot(unsigned mask, bool value) {
    CudaThread& own = runner->thread[runner->current];
    own.mask = mask;
    own.value = value;
    own.is_ballot = true;
    stop(Wait::warp);
    return static_cast<unsigned>(own.result);
}

void hold(cudaStream_t stream) { stream_or_default(stream)->hold(true); }
void release(cudaStream_t stream) { stream_or_default(stream)->hold(false); }
void fail_next_launch(cudaError_t error) { state().next_launch = error; }
void fail_next_kernel(cudaError_t error) { state().next_kernel = error; }
void fail_next_graph(cudaError_t error) { state().next_graph = error; }
void clear_errors() {
    state().sticky = state().next_kernel = state().next_launch = state().next_graph = cudaSuccess;
    last_error = cudaSuccess;
}
void set_memory(std::size_t bytes) {
    const std::lock_guard lock(state().mutex);
    state().capacity = bytes;
}
int kernels_launched() { return state().kernels; }
int copies_to_host() { return state().copies_to_host; }
int graphs_launched() { return state().graphs; }
int kernels_captured() { return state().captured; }
std::int64_t blocks_launched() { return state().blocks_launched; }
int events_queried() { return state().queries; }
bool has_peer_access(int device, int peer) { return state().has_access[device][peer]; }

}  // namespace emulator

// --- Errors and devices --------------------------------------------------------------------------------------------------

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorLaunchFailure: return "unspecified launch failure";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        case cudaErrorNotReady: return "device not ready";
        default: return "an error";
    }
}
cudaError_t cudaGetLastError() {
    TAPIR_RETURN_STICKY;
    return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
    TAPIR_RETURN_STICKY;
    return last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
    state();
    *count = kDevices;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    TAPIR_RETURN_STICKY;
    if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
static std::vector<EmulatedStream*> streams_of(int device) {
    std::vector<EmulatedStream*> streams;
    const std::lock_guard lock(state().mutex);
    for (EmulatedStream* stream : state().streams) {
        if (stream->device == device) streams.push_back(stream);
    }
    return streams;
}
cudaError_t cudaDeviceSynchronize() {
    for (EmulatedStream* stream : streams_of(current_device)) TAPIR_NOT_IN_CAPTURE(stream);
    for (EmulatedStream* stream : streams_of(current_device)) stream->wait();
    TAPIR_RETURN_STICKY;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "emulated CUDA device");
    std::snprintf(properties->uuid.bytes, sizeof(properties->uuid.bytes), "emulated %d",
                  device);  // of any process: NCCL's stand-in knows this one alone
    properties->totalGlobalMem = state().capacity;
    properties->multiProcessorCount = 4;
    properties->major = 9;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
    if (device < 0 || device >= kDevices) return failed(cudaErrorInvalidDevice);
    *value = uses_host_page_tables(device);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
    if (peer < 0 || peer >= kDevices || peer == current_device) return failed(cudaErrorInvalidDevice);
    if (state().has_access[current_device][peer].exchange(true)) return failed(cudaErrorPeerAccessAlreadyEnabled);
    return cudaSuccess;
}

// --- Memory --------------------------------------------------------------------------------------------------------------

namespace {

// The block ends where its last page does, and the page after it cannot be touched. Fresh bytes are 0xff: nan; where there are
// more than most tests ask for, only the first of them, so that pages that nobody touches take no memory.
cudaError_t new_block(void** pointer, std::size_t bytes, int device) {
    TAPIR_RETURN_STICKY;
    Emulator& e = state();
    const std::size_t rounded = (bytes + 15) & ~std::size_t{15}, page = kGuardBytes;
    const std::size_t mapped = (rounded + page - 1) / page * page;
    const std::lock_guard lock(e.mutex);
    if (device >= 0 && e.used[device] + bytes > e.capacity) return failed(cudaErrorMemoryAllocation);
    void* base = mmap(nullptr, mapped + kGuardBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    std::memset(base, 0xff, std::min(mapped, std::size_t{1} << 30));
    mprotect(static_cast<std::byte*>(base) + mapped, kGuardBytes, PROT_NONE);
    if (device >= 0 && e.key >= 0) pkey_mprotect(base, mapped, PROT_READ | PROT_WRITE, e.key);
    *pointer = static_cast<std::byte*>(base) + (mapped - rounded);
    e.blocks[*pointer] = {base, mapped + kGuardBytes, bytes, device};
    protect(e.blocks[*pointer], e.turn == kAllDevices || e.turn == device);
    if (device >= 0) e.used[device] += bytes;
    return cudaSuccess;
}

cudaError_t free_block(void* pointer) {
    if (!pointer) return cudaSuccess;
    Emulator& e = state();
    const std::lock_guard lock(e.mutex);
    const auto found = e.blocks.find(pointer);
    if (found == e.blocks.end()) return failed(cudaErrorInvalidValue);
    if (found->second.device >= 0) e.used[found->second.device] -= found->second.bytes;
    munmap(found->second.base, found->second.mapped);
    e.blocks.erase(found);
    return cudaSuccess;
}

// -1: no device's.
int device_of(const void* pointer) {
    const Block* block = block_of(pointer);
    return block ? block->device : -1;
}
// Of a copy on a stream of this device.
int turn_of(const void* to, const void* from, int device) {
    const auto is_near = [&](const void* pointer) { return device_of(pointer) < 0 || device_of(pointer) == device; };
    return is_near(to) && is_near(from) ? device : kAllDevices;
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
    TAPIR_UNSAFE_IN_CAPTURE;
    return new_block(pointer, bytes, current_device);
}
cudaError_t cudaFree(void* pointer) {
    TAPIR_UNSAFE_IN_CAPTURE;
    const int device = device_of(pointer);
    const std::vector<EmulatedStream*> streams = streams_of(device < 0 ? current_device : device);
    if (std::none_of(streams.begin(), streams.end(), [](EmulatedStream* s) { return s->is_held(); })) {
        for (EmulatedStream* stream : streams) TAPIR_NOT_IN_CAPTURE(stream);
        for (EmulatedStream* stream : streams) stream->wait();  // as the real one does
        return free_block(pointer);
    }
    // That would be forever where a test holds a stream: the block goes when the last of them has come to this.
    const std::shared_ptr<void> last(pointer, free_block);
    for (EmulatedStream* stream : streams) stream->add([last] {});
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
    TAPIR_UNSAFE_IN_CAPTURE;
    return new_block(pointer, bytes, -1);
}
cudaError_t cudaFreeHost(void* pointer) { return free_block(pointer); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(state().mutex);
    *total = state().capacity;
    *free = state().capacity - std::min(state().used[current_device], state().capacity);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    const Block* block = block_of(pointer);
    *attributes = {!block ? cudaMemoryTypeUnregistered : block->device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice, block ? block->device : -1};
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    TAPIR_RETURN_STICKY;
    EmulatedStream* s = stream_or_default(stream);
    const Block *source = block_of(from), *target = block_of(to);
    if (!source || !target) TAPIR_NOT_IN_CAPTURE(s);
    if (!source && !uses_host_page_tables(s->device)) {  // pageable: taken over before the call returns
        const auto* first = static_cast<const std::byte*>(from);
        s->add([to, device = turn_of(to, to, s->device), staged = std::vector(first, first + bytes)] {
            const Turn turn(device);
            std::memcpy(to, staged.data(), staged.size());
        });
    } else {
        s->add([=, device = turn_of(to, from, s->device)] {
            const Turn turn(device);
            std::memmove(to, from, bytes);
        });
    }
    if (!target) {
        ++state().copies_to_host;
        s->wait();
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
    TAPIR_RETURN_STICKY;
    emulator::enqueue(stream, [=] { std::memset(to, value, bytes); });
    return cudaSuccess;
}

// --- Streams and events --------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = new EmulatedStream(current_device);
    const std::lock_guard lock(state().mutex);
    state().streams.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    TAPIR_NOT_IN_CAPTURE(stream_or_default(stream));
    stream_or_default(stream)->wait();
    TAPIR_RETURN_STICKY;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    TAPIR_RETURN_STICKY;
    TAPIR_NOT_IN_CAPTURE(stream_or_default(stream));
    return stream_or_default(stream)->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const Hidden hidden;
    TAPIR_RETURN_STICKY;
    TAPIR_NOT_IN_CAPTURE(stream_or_default(stream));
    const std::shared_ptr<Mark> mark = event->last();
    if (!mark) return cudaSuccess;
    stream_or_default(stream)->add([mark] { mark->wait(); });
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = new EmulatedEvent{current_device, nullptr};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Hidden hidden;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const Hidden hidden;
    TAPIR_RETURN_STICKY;
    TAPIR_NOT_IN_CAPTURE(stream_or_default(stream));
    if (stream_or_default(stream)->device != event->device) return failed(cudaErrorInvalidResourceHandle);
    const auto mark = std::make_shared<Mark>();
    event->set(mark);
    stream_or_default(stream)->add([mark] { mark->reach(); });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    const Hidden hidden;
    TAPIR_UNSAFE_IN_CAPTURE;
    ++state().queries;
    TAPIR_RETURN_STICKY;
    const std::shared_ptr<Mark> mark = event->last();
    return !mark || mark->is_reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const Hidden hidden;
    TAPIR_UNSAFE_IN_CAPTURE;
    if (const std::shared_ptr<Mark> mark = event->last()) mark->wait();
    TAPIR_RETURN_STICKY;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    const Hidden hidden;
    if (begin->device != end->device) return failed(cudaErrorInvalidResourceHandle);
    const std::lock_guard lock(marks_mutex);
    *milliseconds = std::chrono::duration<float, std::milli>(end->mark->time - begin->mark->time).count();
    return cudaSuccess;
}

// --- Graphs --------------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    TAPIR_RETURN_STICKY;
    if (!stream || captured_here) return failed(cudaErrorStreamCaptureUnsupported);  // the default stream cannot be
    const Hidden hidden;
    const std::lock_guard lock(stream->mutex);
    if (stream->capture) return failed(cudaErrorStreamCaptureUnsupported);
    stream->capture = std::make_shared<EmulatedGraph>();
    captured_here = stream;
    capture_mode = mode;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    *graph = nullptr;
    if (!stream || captured_here != stream) return failed(cudaErrorInvalidValue);
    const Hidden hidden;
    const std::lock_guard lock(stream->mutex);
    captured_here = nullptr;
    capture_mode = cudaStreamCaptureModeGlobal;
    const std::shared_ptr<EmulatedGraph> capture = std::move(stream->capture);
    stream->capture = nullptr;
    TAPIR_RETURN_STICKY;
    if (!capture->is_valid) return failed(cudaErrorStreamCaptureInvalidated);
    *graph = new EmulatedGraph(*capture);
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
    *count = graph->tasks.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    TAPIR_RETURN_STICKY;
    *exec = nullptr;
    if (const cudaError_t error = state().next_graph.exchange(cudaSuccess); error != cudaSuccess) return failed(error);
    *exec = new EmulatedGraph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    TAPIR_RETURN_STICKY;
    if (const cudaError_t error = state().next_launch.exchange(cudaSuccess); error != cudaSuccess) return failed(error);
    ++state().graphs;
    stream_or_default(stream)->add([tasks = exec->tasks] {
        for (const Task& task : tasks) task();
    });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete exec;
    return cudaSuccess;
}
