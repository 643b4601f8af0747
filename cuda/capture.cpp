// Captured work: CUDA Graphs and the memory that they use. See core/capture_impl.h.
//
// A capture uses its own stream, because the default stream cannot be captured and other threads may use the others meanwhile.
// It has the thread-local mode: work of other threads does not affect it.
#include "tapir/cuda/capture.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"

namespace tapir::gpu {

constinit thread_local device_api::CapturePool* capturing_into = nullptr;

namespace {

constexpr std::size_t kUnit = 512;
constexpr std::size_t kLeastChunk = std::size_t{64} << 10, kLargeChunk = std::size_t{32} << 20;

std::size_t rounded(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit; }

// Streams that captures use in turn; never destroyed.
struct CaptureStreams {
    std::mutex mutex;
    std::vector<Stream*> spare[kMaxDevices];

    Stream* take(int device) {
        {
            const std::lock_guard lock(mutex);
            if (!spare[device].empty()) {
                Stream* stream = spare[device].back();
                spare[device].pop_back();
                return stream;
            }
        }
        auto stream = std::make_unique<Stream>();
        stream->device = device;
        stream->index = -1;
        TAPIR_CUDA_CHECK(cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking));
        return stream.release();
    }
    void give_back(Stream* stream) {
        const std::lock_guard lock(mutex);
        spare[stream->device].push_back(stream);
    }
};
CaptureStreams& capture_streams() {
    static auto& streams = *new CaptureStreams;
    return streams;
}

// While it lives, the thread may make calls that a capture would forbid, and that are not part of it.
class RelaxedScope {
 public:
    RelaxedScope() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~RelaxedScope() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    RelaxedScope(const RelaxedScope&) = delete;
    RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace
}  // namespace tapir::gpu

namespace tapir::device_api {

using namespace gpu;

// Pieces of chunks; each chunk is a block of the caching allocator. Only one thread at a time may use it.
class CapturePool : public std::enable_shared_from_this<CapturePool> {
 public:
    explicit CapturePool(Device device) : device_(device) {}
    ~CapturePool() {
        for (const auto& chunk : chunks_) {
            if (chunk->release) chunk->release(chunk.get());
        }
    }
    CapturePool(const CapturePool&) = delete;
    CapturePool& operator=(const CapturePool&) = delete;

    Device device() const noexcept { return device_; }
    std::size_t bytes() const noexcept { return bytes_; }
    std::vector<int> faults;       // slots of the current capture
    gpu::Stream* outer = nullptr;  // the current stream when the capture began

    void take(Storage& storage, const Loc& loc);
    void give_back(std::size_t chunk, std::size_t begin, std::size_t bytes);
    // Notes that the thread's current stream uses the chunks.
    void used_here() {
        for (const auto& chunk : chunks_) device_api::used_here(*chunk);
    }

 private:
    struct Piece {
        std::size_t chunk, begin, bytes;
        auto key() const { return std::pair(chunk, begin); }
    };
    void grow(std::size_t bytes, const Loc& loc);

    Device device_;
    std::size_t bytes_ = 0;
    std::vector<std::unique_ptr<Storage>> chunks_;
    std::vector<Piece> free_;  // by chunk and place
};

namespace {

// What a storage of the pool keeps alive.
struct Held {
    std::shared_ptr<CapturePool> pool;
    std::size_t chunk, begin, bytes;
};

void release_captured(Storage* storage) {
    auto* held = static_cast<Held*>(storage->context);
    held->pool->give_back(held->chunk, held->begin, held->bytes);
    delete held;
}

}  // namespace

void CapturePool::take(Storage& storage, const Loc& loc) {
    const std::size_t bytes = rounded(storage.nbytes);
    const auto best = [&] {
        auto found = free_.end();
        for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
            if (piece->bytes >= bytes && (found == free_.end() || piece->bytes < found->bytes)) found = piece;
        }
        return found;
    };
    auto piece = best();
    if (piece == free_.end()) {
        grow(bytes, loc);
        piece = best();
    }
    storage.data = chunks_[piece->chunk]->data + piece->begin;
    storage.stream = nullptr;  // the one who runs the captured work orders the streams
    storage.context = new Held{shared_from_this(), piece->chunk, piece->begin, bytes};
    storage.release = release_captured;
    piece->begin += bytes;
    piece->bytes -= bytes;
    if (piece->bytes == 0) free_.erase(piece);
}

void CapturePool::give_back(std::size_t chunk, std::size_t begin, std::size_t bytes) {
    const auto joins = [](const Piece& a, const Piece& b) { return a.chunk == b.chunk && a.begin + a.bytes == b.begin; };
    const Piece fresh{chunk, begin, bytes};
    auto after = std::find_if(free_.begin(), free_.end(), [&](const Piece& piece) { return piece.key() > fresh.key(); });
    after = free_.insert(after, fresh);
    if (const auto next = after + 1; next != free_.end() && joins(*after, *next)) {
        after->bytes += next->bytes;
        free_.erase(next);
    }
    if (after == free_.begin()) return;
    if (const auto before = after - 1; joins(*before, *after)) {
        before->bytes += after->bytes;
        free_.erase(after);
    }
}

void CapturePool::grow(std::size_t bytes, const Loc& loc) {
    auto chunk = std::make_unique<Storage>();
    chunk->nbytes = std::max(bytes, rounded(std::clamp(bytes_, kLeastChunk, kLargeChunk)));
    chunk->device = device_;
    // Allocates as usual, as memory of the stream that the work will run on.
    CapturePool* const own = std::exchange(capturing_into, nullptr);
    gpu::Stream* const stream = exchange_current(device_.index, outer);
    const auto put_back = [&] {
        exchange_current(device_.index, stream);
        capturing_into = own;
    };
    try {
        const RelaxedScope relaxed;
        device_api::allocate(*chunk, loc);
    } catch (...) {
        put_back();
        throw;
    }
    put_back();
    bytes_ += chunk->nbytes;
    chunks_.push_back(std::move(chunk));
    give_back(chunks_.size() - 1, 0, chunks_.back()->nbytes);
}

std::shared_ptr<CapturePool> make_capture_pool(Device device) { return std::make_shared<CapturePool>(device); }
std::size_t bytes_of(const CapturePool& pool) noexcept { return pool.bytes(); }
bool is_of_capture_pool(const Storage& storage) noexcept { return storage.release == release_captured; }
void use_here(CapturePool& pool) { pool.used_here(); }
void refuse_capture() {
    if (is_capturing()) throw CannotCapture{};
}

class CapturedWork {
 public:
    CapturedWork(std::shared_ptr<CapturePool> pool, cudaGraphExec_t exec)
        : pool_(std::move(pool)), exec_(exec), faults_(std::exchange(pool_->faults, {})) {}
    ~CapturedWork() {
        cudaGraphExecDestroy(exec_);  // CUDA keeps it while it runs
        give_kept_slots_back(pool_->device().index, faults_);
    }
    CapturedWork(const CapturedWork&) = delete;
    CapturedWork& operator=(const CapturedWork&) = delete;

    void run() {
        select(pool_->device());
        pool_->used_here();
        gpu::Stream& stream = current();
        const cudaError_t error = cudaGraphLaunch(exec_, stream.handle);
        if (error == cudaSuccess) kept_slots_run(stream, faults_);
        launched(stream, error);
    }

 private:
    std::shared_ptr<CapturePool> pool_;
    cudaGraphExec_t exec_;
    std::vector<int> faults_;
};

void run_again(CapturedWork& work) { work.run(); }

CapturePoolScope::CapturePoolScope(CapturePool& pool) {
    select(pool.device());
    pool.outer = &current();
    capturing_into = &pool;
}
CapturePoolScope::~CapturePoolScope() { capturing_into = nullptr; }

struct CaptureScope::State {
    std::shared_ptr<CapturePool> pool;
    gpu::Stream* stream;
};

CaptureScope::CaptureScope(const std::shared_ptr<CapturePool>& pool) {
    select(pool->device());
    gpu::Stream* stream = capture_streams().take(pool->device().index);
    const cudaError_t error = cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) {
        capture_streams().give_back(stream);
        fail_cuda(error, "cudaStreamBeginCapture");
    }
    pool->outer = exchange_current(pool->device().index, stream);
    capturing_into = pool.get();
    state_ = std::make_unique<State>(State{pool, stream});
}

namespace {

// Ends the capture and restores the thread. Returns null if there is no graph.
cudaGraph_t end_capture(CapturePool& pool, gpu::Stream* stream) noexcept {
    capturing_into = nullptr;
    exchange_current(pool.device().index, pool.outer);
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream->handle, &graph) != cudaSuccess) static_cast<void>(cudaGetLastError());
    capture_streams().give_back(stream);
    return graph;
}

}  // namespace

std::shared_ptr<CapturedWork> CaptureScope::end() {
    constexpr std::size_t least = 2;  // nodes: one launch costs what one kernel does
    const std::unique_ptr<State> state = std::move(state_);
    cudaGraph_t graph = end_capture(*state->pool, state->stream);
    if (!graph) {
        give_kept_slots_back(state->pool->device().index, std::exchange(state->pool->faults, {}));
        return nullptr;
    }
    cudaGraphExec_t exec = nullptr;
    std::size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
    const bool is_worth = error == cudaSuccess && nodes >= least;
    if (is_worth) error = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    if (error == cudaSuccess && is_worth) return std::make_shared<CapturedWork>(state->pool, exec);
    give_kept_slots_back(state->pool->device().index, std::exchange(state->pool->faults, {}));
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    return nullptr;
}

CaptureScope::~CaptureScope() {
    if (!state_) return;
    give_kept_slots_back(state_->pool->device().index, std::exchange(state_->pool->faults, {}));
    if (cudaGraph_t graph = end_capture(*state_->pool, state_->stream)) cudaGraphDestroy(graph);
}

}  // namespace tapir::device_api

namespace tapir::gpu {

std::vector<int>& captured_faults() noexcept { return capturing_into->faults; }
void allocate_captured(Storage& storage, const Loc& loc) { capturing_into->take(storage, loc); }

}  // namespace tapir::gpu
