// Caches device memory in the order of streams.
//
// Note [Memory and streams]
// Taking memory from CUDA stops the device, so what tensors give back is kept. A block belongs to the stream that it was
// allocated on; given back, it may at once be handed out again on that stream, since what uses it next comes after what used
// it last. Where an op on another stream used it (used_here), an event is recorded on that stream when the block is given back,
// and the block waits until the event has happened. Blocks are cut from segments: of 2 MiB for blocks up to 1 MiB, of
// 20 MiB up to 10 MiB, and whole segments above. Neighbours that are free are joined; but small blocks first go into bins of
// one size each, which costs a few nanoseconds, and are joined only when memory runs short.
// Memory is given back where there may be none of the host: by destructors, also while an OutOfMemory is on its way. So a block has what it takes
// to be kept, and to wait, before it is handed out: giving it back links it, and allocates nothing.
// TAPIR_ALLOCATOR=system (and address-sanitizer builds) take every block from CUDA and give it back.
#include "tapir/cuda/allocator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/stream.h"
#include "tapir/cuda/capture.h"

namespace tapir::gpu {
namespace {

constexpr std::size_t kUnit = 512;                    // blocks are multiples of it
constexpr std::size_t kBinned = 32 * 1024;            // up to this, blocks go into bins
constexpr std::size_t kSmall = std::size_t{1} << 20;  // up to this, they are cut from small segments
constexpr std::size_t kMedium = std::size_t{10} << 20;
constexpr std::size_t kSmallSegment = std::size_t{2} << 20, kMediumSegment = std::size_t{20} << 20;
constexpr std::size_t kBins = kBinned / kUnit;

bool caching() {
#if defined(__SANITIZE_ADDRESS__)
    return false;
#else
    static const bool on = [] {
        const char* wish = std::getenv("TAPIR_ALLOCATOR");
        return !wish || std::strcmp(wish, "system") != 0;
    }();
    return on;
#endif
}

struct Block;

struct BySize {
    static std::tuple<Stream*, std::size_t, std::byte*> key(const Block* b) noexcept;
    bool operator()(const Block* a, const Block* b) const;
};
using Blocks = std::set<Block*, BySize>;

// That a stream other than its own has used a block.
struct Use {
    Stream* stream = nullptr;
    Block* block = nullptr;
    cudaEvent_t event = nullptr;  // kept while the Use is; recorded when the block is given back
    Use* next = nullptr;          // of the block, of those that wait for the stream, or spare
};

struct Block {
    std::byte* data;
    std::size_t bytes;
    Stream* stream;
    Block *before = nullptr, *after = nullptr;  // neighbours in the segment
    bool is_small = false;
    Blocks::node_type node{};  // of the set of free blocks, while it is not in it
    Block* next_in_bin = nullptr;
    Use* uses = nullptr;  // by other streams
    int awaited = 0;      // how many of these a freed block waits for
    // Origin of blocks in use, for the report of who holds the memory.
    const char* op = nullptr;
    Loc loc{};
    Block *used_before = nullptr, *used_after = nullptr;
};

std::tuple<Stream*, std::size_t, std::byte*> BySize::key(const Block* b) noexcept { return {b->stream, b->bytes, b->data}; }
bool BySize::operator()(const Block* a, const Block* b) const { return key(a) < key(b); }

// Returns a block with its node.
std::unique_ptr<Block> new_block(std::byte* data, std::size_t bytes, Stream* stream) {
    auto block = std::make_unique<Block>(data, bytes, stream);
    Blocks one;
    block->node = one.extract(one.insert(block.get()).first);
    return block;
}

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string size_text(std::size_t bytes) {
    const bool is_large = bytes >= 100 << 10;
    return fmt::format("{:.1f} {}", static_cast<double>(bytes) / (is_large ? 1 << 20 : 1 << 10), is_large ? "MiB" : "KiB");
}

}  // namespace

// For gdb: addresses of each device's counters.
struct GdbDeviceMemory {
    const std::size_t *reserved, *live, *peak;
    const std::int64_t *allocations, *segments;
};
extern "C" {
[[gnu::used, gnu::retain]] constinit GdbDeviceMemory tapir_gdb_device_memory[kMaxDevices] = {};
[[gnu::used, gnu::retain]] constinit std::int32_t tapir_gdb_devices = kMaxDevices;
}

namespace {

class DeviceMemory {
 public:
    explicit DeviceMemory(int device) : device_(device) { tapir_gdb_device_memory[device] = {&reserved_, &live_, &peak_, &allocations_, &segments_}; }

    Block* allocate(std::size_t wanted, const Loc& loc);
    void free(Block* block) noexcept;
    void used_on(Block* block, Stream* stream);
    std::vector<Stream*> streams_of(const Block* block);

    MemoryStats stats();
    void reset_peak();
    void trim();
    void set_limit(std::size_t bytes);

 private:
    Block* find(std::size_t bytes, Stream* stream);
    Block* find_in(Blocks& blocks, std::size_t bytes, Stream* stream);
    Block* take(Blocks& blocks, Blocks::iterator place) noexcept;
    Block* cut(Block* block, std::size_t bytes);
    Block* new_segment(std::size_t bytes, Stream* stream);
    bool mark(Use* use) noexcept;
    void keep(Block* block) noexcept;
    void insert(Block* block) noexcept;
    void join_with(Block* block, Block* neighbour) noexcept;
    void reclaim(bool wait) noexcept;
    void empty_bins() noexcept;
    void give_segments_back() noexcept;
    std::string holders() const;

    Blocks& free_blocks(const Block* b) noexcept { return b->is_small ? small_ : large_; }

    int device_;
    std::mutex mutex_;
    Blocks small_, large_;
    // Of a stream: there from the first block that is allocated on it, or used on it, on.
    struct OfStream {
        std::array<Block*, kBins + 1> bins{};   // lists, the last one first
        Use *first = nullptr, *last = nullptr;  // a queue: the events on the stream happen in order
    };
    std::map<Stream*, OfStream> streams_;
    Stream* last_stream_ = nullptr;  // the last one looked up, and what belongs to it
    OfStream* of_last_ = nullptr;
    std::size_t waits_ = 0;  // number of uses that are waited for, on all streams
    Use* spare_ = nullptr;
    Block* used_ = nullptr;  // a list
    std::size_t limit_ = SIZE_MAX;
    std::size_t reserved_ = 0, live_ = 0, peak_ = 0;
    std::int64_t allocations_ = 0, segments_ = 0;

    OfStream& of(Stream* stream) {
        if (last_stream_ != stream) {
            of_last_ = &streams_[stream];
            last_stream_ = stream;
        }
        return *of_last_;
    }
    void spare(Use* use) noexcept { use->next = std::exchange(spare_, use); }
};

// Returns the user's line: within an op's parts, the line of the op that was called.
const Loc& user_line(const Loc& loc) {
    const bool is_part = detail::thread.op && (detail::thread.parts > 0 || loc.line() == 0);
    return is_part ? detail::thread.op_loc : detail::caller(loc);
}

Block* DeviceMemory::allocate(std::size_t wanted, const Loc& loc) {
    Stream* stream = &current();
    const std::size_t bytes = rounded(wanted, caching() ? kUnit : 16);
    const std::lock_guard lock(mutex_);
    of(stream);  // where the block will be kept
    if (waits_ > 0) reclaim(/*wait=*/false);
    Block* block = find(bytes, stream);
    if (!block) block = new_segment(bytes, stream);
    if (!block) {  // tries blocks that wait for other streams, and memory kept in pieces
        reclaim(/*wait=*/true);
        empty_bins();
        block = find(bytes, stream);
        if (!block) {
            give_segments_back();
            block = new_segment(bytes, stream);
        }
        if (!block) block = find_in(large_, bytes, stream);
    }
    if (!block) {
        const std::size_t spare = reserved_ - live_;
        const std::string kept = spare ? fmt::format(", {} are free in pieces or on other streams", size_text(spare)) : "";
        const std::string limit = limit_ == SIZE_MAX ? "" : " (limit: " + size_text(limit_) + ")";
        fail<OutOfMemory>(user_line(loc), "{}: {} cannot be had on cuda:{}: {} are in use{}{}{}",
                          detail::thread.op ? detail::thread.op : "allocation", size_text(wanted), device_, size_text(live_), kept, limit, holders());
    }
    block->op = detail::thread.op;
    block->loc = user_line(loc);
    block->used_before = nullptr;
    block->used_after = used_;
    if (used_) used_->used_before = block;
    used_ = block;
    live_ += block->bytes;
    peak_ = std::max(peak_, live_);
    ++allocations_;
    return block;
}

Block* DeviceMemory::find(std::size_t bytes, Stream* stream) {
    if (!caching()) return nullptr;
    if (bytes <= kBinned) {
        Block*& bin = of(stream).bins[bytes / kUnit];
        if (Block* const block = bin) {
            bin = block->next_in_bin;
            return block;
        }
    }
    return find_in(bytes <= kSmall ? small_ : large_, bytes, stream);
}

Block* DeviceMemory::find_in(Blocks& blocks, std::size_t bytes, Stream* stream) {
    Block wish{nullptr, bytes, stream};
    const auto found = blocks.lower_bound(&wish);
    if (found == blocks.end() || (*found)->stream != stream) return nullptr;
    return cut(take(blocks, found), bytes);
}

Block* DeviceMemory::take(Blocks& blocks, Blocks::iterator place) noexcept {
    Block* const block = *place;
    block->node = blocks.extract(place);
    return block;
}

// Gives the rest of a larger block back; all of it where the host has no memory for that, which is thrown on.
Block* DeviceMemory::cut(Block* block, std::size_t bytes) {
    const std::size_t rest = block->bytes - bytes;
    if (rest < (block->is_small ? kUnit : kSmall + 1)) return block;
    try {
        Block* const other = new_block(block->data + bytes, rest, block->stream).release();
        other->before = block;
        other->after = block->after;
        other->is_small = block->is_small;
        if (block->after) block->after->before = other;
        block->after = other;
        block->bytes = bytes;
        insert(other);
        return block;
    } catch (...) {
        insert(block);
        throw;
    }
}

Block* DeviceMemory::new_segment(std::size_t bytes, Stream* stream) {
    const std::size_t size = !caching() ? bytes : bytes <= kSmall ? kSmallSegment : bytes <= kMedium ? kMediumSegment : rounded(bytes, kSmallSegment);
    if (size > limit_ || reserved_ > limit_ - size) {
        // The limit may leave room for this block, though not for a whole segment.
        if (!caching() || bytes > limit_ || reserved_ > limit_ - bytes) return nullptr;
    }
    std::size_t take = size > limit_ || reserved_ > limit_ - size ? bytes : size;
    void* data = nullptr;
    std::unique_ptr<Block> block = new_block(nullptr, 0, stream);
    cudaError_t error = cudaMalloc(&data, take);
    if (error == cudaErrorMemoryAllocation && take > bytes) {
        static_cast<void>(cudaGetLastError());
        take = bytes;
        error = cudaMalloc(&data, take);
    }
    if (error == cudaErrorMemoryAllocation) {
        static_cast<void>(cudaGetLastError());
        return nullptr;
    }
    TAPIR_CUDA_CHECK(error);
    reserved_ += take;
    ++segments_;
    block->data = static_cast<std::byte*>(data);
    block->bytes = take;
    block->is_small = bytes <= kSmall;
    return cut(block.release(), bytes);
}

void DeviceMemory::used_on(Block* block, Stream* stream) {
    const std::lock_guard lock(mutex_);
    for (const Use* use = block->uses; use; use = use->next) {
        if (use->stream == stream) return;
    }
    of(stream);  // where the use will wait
    if (!spare_) spare_ = new Use;
    Use* const use = std::exchange(spare_, spare_->next);
    use->stream = stream;
    use->block = block;
    use->next = std::exchange(block->uses, use);
}

std::vector<Stream*> DeviceMemory::streams_of(const Block* block) {
    const std::lock_guard lock(mutex_);
    std::vector<Stream*> streams;
    for (const Use* use = block->uses; use; use = use->next) streams.push_back(use->stream);
    streams.push_back(block->stream);
    return streams;
}

void DeviceMemory::free(Block* block) noexcept {
    const std::lock_guard lock(mutex_);
    (block->used_before ? block->used_before->used_after : used_) = block->used_after;
    if (block->used_after) block->used_after->used_before = block->used_before;
    live_ -= block->bytes;
    if (!block->uses) return keep(block);
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(device_);
    for (Use* use = std::exchange(block->uses, nullptr); use;) {
        Use* const next = std::exchange(use->next, nullptr);
        if (mark(use)) {
            OfStream& queue = of(use->stream);
            (queue.last ? queue.last->next : queue.first) = use;
            queue.last = use;
            ++waits_;
            ++block->awaited;
        } else {
            spare(use);
        }
        use = next;
    }
    cudaSetDevice(before);
    if (block->awaited == 0) keep(block);
}

// Records an event for what is on the stream now. False for a stream of another device, whose copies this device's streams wait for,
// and after a fatal error, when nothing runs any more.
bool DeviceMemory::mark(Use* use) noexcept {
    if (use->stream->device != device_) return false;
    if (!use->event && cudaEventCreateWithFlags(&use->event, cudaEventDisableTiming) != cudaSuccess) {
        use->event = nullptr;
        return false;
    }
    return cudaEventRecord(use->event, use->stream->handle) == cudaSuccess;
}

// Takes in the blocks that other streams have finished using.
void DeviceMemory::reclaim(bool wait) noexcept {
    for (auto& [stream, queue] : streams_) {
        if (wait && queue.last) cudaEventSynchronize(queue.last->event);
        while (queue.first && cudaEventQuery(queue.first->event) != cudaErrorNotReady) {
            Use* const use = queue.first;
            queue.first = use->next;
            if (!queue.first) queue.last = nullptr;
            --waits_;
            if (--use->block->awaited == 0) keep(use->block);
            spare(use);
        }
    }
}

// Takes in a block that nothing uses any more.
void DeviceMemory::keep(Block* block) noexcept {
    if (!caching()) {
        cudaFree(block->data);
        reserved_ -= block->bytes;
        delete block;
    } else if (block->bytes <= kBinned) {
        block->next_in_bin = std::exchange(of(block->stream).bins[block->bytes / kUnit], block);
    } else {
        insert(block);
    }
}

// Makes a block findable and joins it with its free neighbours.
void DeviceMemory::insert(Block* block) noexcept {
    join_with(block, block->before);
    join_with(block, block->after);
    free_blocks(block).insert(std::move(block->node));
}

void DeviceMemory::join_with(Block* block, Block* neighbour) noexcept {
    if (!neighbour || free_blocks(block).erase(neighbour) == 0) return;  // in use, or in a bin
    if (neighbour == block->before) {
        block->data = neighbour->data;
        block->before = neighbour->before;
        if (block->before) block->before->after = block;
    } else {
        block->after = neighbour->after;
        if (block->after) block->after->before = block;
    }
    block->bytes += neighbour->bytes;
    delete neighbour;
}

void DeviceMemory::empty_bins() noexcept {
    for (auto& [stream, of_stream] : streams_) {
        for (Block*& bin : of_stream.bins) {
            while (Block* const block = bin) {
                bin = block->next_in_bin;
                insert(block);
            }
        }
    }
}

void DeviceMemory::give_segments_back() noexcept {
    for (auto* blocks : {&small_, &large_}) {
        for (auto i = blocks->begin(); i != blocks->end();) {
            Block* block = *i;
            if (block->before || block->after) {
                ++i;
                continue;
            }
            i = blocks->erase(i);
            cudaFree(block->data);  // waits for the device
            reserved_ -= block->bytes;
            delete block;
        }
    }
}

void DeviceMemory::trim() {
    const std::lock_guard lock(mutex_);
    reclaim(/*wait=*/true);
    empty_bins();
    give_segments_back();
}

void DeviceMemory::set_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes == 0 ? SIZE_MAX : bytes;
}

MemoryStats DeviceMemory::stats() {
    const std::lock_guard lock(mutex_);
    MemoryStats stats;
    stats.live_bytes = static_cast<std::int64_t>(live_);
    stats.peak_bytes = static_cast<std::int64_t>(peak_);
    stats.cached_bytes = static_cast<std::int64_t>(reserved_ - live_);
    stats.allocations = allocations_;
    stats.system_calls = segments_;
    return stats;
}

void DeviceMemory::reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
}

// Returns the lines of the program that hold the most.
std::string DeviceMemory::holders() const {
    struct Line {
        std::size_t bytes = 0, blocks = 0;
        const char* op = nullptr;
    };
    std::map<std::pair<std::string, unsigned>, Line> lines;
    for (const Block* block = used_; block; block = block->used_after) {
        Line& line = lines[{block->loc.file_name(), block->loc.line()}];
        line.bytes += block->bytes;
        ++line.blocks;
        line.op = block->op;
    }
    std::vector<std::pair<std::pair<std::string, unsigned>, Line>> most(lines.begin(), lines.end());
    std::sort(most.begin(), most.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
    std::string text = most.empty() ? "" : ", held by";
    constexpr std::size_t shown = 10;
    for (std::size_t i = 0; i < most.size() && i < shown; ++i) {
        const auto& [where, line] = most[i];
        const std::string file = where.first.substr(where.first.rfind('/') + 1);
        const std::string place = where.second == 0 ? "the library" : fmt::format("{}:{}", file, where.second);
        text += fmt::format("\n  {:>12} in {} tensor{} made at {}{}{}", size_text(line.bytes), line.blocks, line.blocks == 1 ? "" : "s", place,
                            line.op ? " by " : "", line.op ? line.op : "");
    }
    if (most.size() > shown) text += fmt::format("\n  and {} more lines", most.size() - shown);
    return text;
}

DeviceMemory& memory_of(int device) {
    static DeviceMemory* const all = [] {
        auto* made = static_cast<DeviceMemory*>(::operator new(sizeof(DeviceMemory) * kMaxDevices));
        for (int i = 0; i < kMaxDevices; ++i) new (made + i) DeviceMemory(i);
        return made;
    }();
    return all[device];
}

void release(Storage* storage) { memory_of(storage->device.index).free(static_cast<Block*>(storage->context)); }

}  // namespace

Scratch::Scratch(std::size_t bytes) {
    storage_.nbytes = bytes;
    storage_.device = cuda(selected_device());
    if (bytes > 0) device_api::allocate(storage_, Loc{});
}
Scratch::~Scratch() {
    if (storage_.release) storage_.release(&storage_);
}

}  // namespace tapir::gpu

namespace tapir::device_api {

using namespace gpu;

void allocate(Storage& storage, const Loc& loc) {
    if (is_capturing()) [[unlikely]]
        return allocate_captured(storage, loc);
    Block* block = memory_of(storage.device.index).allocate(storage.nbytes, loc);
    storage.data = block->data;
    storage.stream = block->stream;
    storage.context = block;
    storage.release = release;
}

void used_here(Storage& user) {
    Storage& storage = allocated(user);
    gpu::Stream* stream = &current();
    if (is_capturing()) return;  // the one who runs the captured work does it
    if (storage.stream == stream || !storage.stream) return;
    memory_of(storage.device.index).used_on(static_cast<Block*>(storage.context), stream);
}

void after_other_streams(const Storage& user, bool wait_for_them, const Loc& loc) {
    const Storage& storage = allocated(user);
    if (!storage.stream) return;
    if (is_capturing()) return wait_for_them ? refuse_capture() : void();
    gpu::Stream* stream = &current();
    for (gpu::Stream* other : memory_of(storage.device.index).streams_of(static_cast<Block*>(storage.context))) {
        if (other != stream) wait_for_them ? wait(other, loc) : order_after(stream, other);
    }
}

MemoryStats memory_stats(int device) { return memory_of(device).stats(); }
void reset_peak_memory(int device) { memory_of(device).reset_peak(); }
void empty_cache(int device) {
    select(cuda(device));
    memory_of(device).trim();
}
void set_memory_limit(std::size_t bytes, int device) { memory_of(device).set_limit(bytes); }

}  // namespace tapir::device_api
