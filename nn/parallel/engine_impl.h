// What moves bytes between ranks: MPI, Gloo, or threads of one process. Each is in one .cpp; nothing else sees its headers.
//
// All calls but answer(), missing() and failure_of_others() come from the channel's thread (channel_impl.h), for all groups of a process in one order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapir/core/dtype.h"
#include "tapir/nn/parallel/group.h"

namespace tapir::parallel {

struct SurvivorsOptions;

/// What the ranks found when they compared their calls.
struct Agreement {
    bool all_alike = true, any_failed = false;
    /// Unless all is well: what each rank calls, or why it failed.
    std::vector<std::string> texts;
    std::vector<bool> failed;
};

/// A connection that broke, as an engine tells it. The channel makes a CommError of it, with the user's line.
struct EngineError : std::exception {
    explicit EngineError(std::string text) : message(std::move(text)) {}
    const char* what() const noexcept override { return message.c_str(); }
    std::string message;
};

/// Numbers in each rank's memory that all ranks read and add to, without help of the rank whose memory it is. All functions are called on the channel's
/// thread.
class Window {
 public:
    virtual ~Window() = default;
    /// Reads `count` numbers of a rank's from `first` on. Each is one that was there, though not all of the same moment.
    virtual void get(int rank, std::int64_t first, void* to, std::int64_t count) = 0;
    /// Adds to them; no two additions to one number are lost. Returns when they are there.
    virtual void add(int rank, std::int64_t first, const void* numbers, std::int64_t count) = 0;
    /// Ends it; of all ranks. One that is not closed stays until the process ends.
    virtual void close() {}
};

/// Where a watchdog has found another rank.
enum class Found : std::uint8_t { nowhere, outside, in_other_call, in_this_call };  // nowhere: it does not answer. outside: of any call

/// Which ranks the others wait for. Those in an earlier call are not meant, unless there is nobody else: they wait themselves.
std::vector<int> missing_of(const std::vector<Found>& by_rank);

/// What ranks compute together, of bytes in the host's memory or (on_device_impl.h) a device's.
class Collectives {
 public:
    virtual ~Collectives() = default;
    /// Every rank gets the sum, product, least or greatest of all ranks' numbers: the same bits. `reduce` is not mean.
    virtual void all_reduce(void* data, std::int64_t count, DType dtype, Reduce reduce) = 0;
    virtual void broadcast(void* data, std::int64_t bytes, int root) = 0;
    /// out: the ranks' parts behind each other, of so many bytes each. `in` is not in `out`.
    virtual void all_gather(const void* in, void* out, const std::vector<std::int64_t>& bytes) = 0;
    /// in: a part for each rank, of `count` numbers each; out: this rank's, reduced. `in` may be overwritten.
    virtual void reduce_scatter(void* in, void* out, std::int64_t count, DType dtype, Reduce reduce) = 0;
    /// Part i of `in`, of so many bytes, goes to rank i, and becomes part rank() of its `out`.
    virtual void all_to_all(const void* in, void* out, std::int64_t bytes) = 0;
};

class Engine : public Collectives {
 public:
    virtual int rank() const noexcept = 0;
    virtual int size() const noexcept = 0;
    virtual const char* name() const noexcept = 0;
    std::vector<std::string> hosts;      // of the ranks, for messages; set by the channel
    std::atomic<int> waits_for{-1};      // the rank without which this one does not go on, where it is one; the watchdog then asks no other
    std::atomic<bool> is_called{false};  // of the first engine: this process is in a call of one of them; set by the channel

    /// Waits for a call of all ranks, and compares the calls. All collectives follow one of these that found all alike, and split(), too.
    virtual Agreement agree(std::uint64_t fingerprint, const std::string& text) = 0;
    /// Does not wait for the receiver: the bytes are kept until they are sent.
    virtual void send(const std::vector<std::byte>& bytes, int to) = 0;
    virtual std::vector<std::byte> receive(int from) = 0;
    /// The ranks of one color become an engine of their own, in the order of their keys; alike keys in the order of ranks here.
    virtual std::unique_ptr<Engine> split(int color, int key) = 0;
    /// Makes a window of so many zeros of this rank: float32, float64 or int64; of all ranks. Null: this engine has none.
    virtual std::unique_ptr<Window> window(std::int64_t count, DType dtype) {
        (void)count, (void)dtype;
        return nullptr;
    }
    /// Of the first engine, between calls: answers what other ranks want of this one's windows. Returns false where that is not needed.
    virtual bool serve_windows() { return false; }
    /// Throws EngineError if a rank has failed, which agree() and receive() find by themselves.
    virtual void check_nobody_failed() {}
    /// Tells the ranks of all engines of this process that this one calls nothing any more: agree() and receive() of the others end, with any_failed or
    /// EngineError. Returns when they know, or after so many seconds.
    virtual void abort(const std::string& reason, double seconds) = 0;
    /// Ends all connections in an orderly way; the last call, of the first engine.
    virtual void finish() {}
    /// Of the first engine, from the watchdog's thread and every few tenths of a second: answers the other ranks' missing().
    virtual void answer() {}
    /// Finds out, within three seconds, which ranks have not come to the call that this rank waits in; nothing: that cannot be known. From the watchdog's
    /// thread.
    virtual std::optional<std::vector<int>> missing() { return {}; }
    /// From the watchdog's thread: why another rank has called abort(), where an engine can know that outside of a call; empty: none has.
    virtual std::string failure_of_others() { return {}; }
    /// From the watchdog's thread: the call that waits throws EngineError with this text. false: that cannot be done.
    virtual bool give_up(const std::string&) { return false; }
    /// Why the ranks that are left cannot go on when one has gone; null: they can.
    virtual const char* why_no_survivors() const noexcept = 0;
    /// Of the first engine, after abort(), from the thread of another channel: makes an engine of the ranks that are left.
    virtual std::unique_ptr<Engine> survivors(const SurvivorsOptions&) { throw EngineError(why_no_survivors()); }
};

/// While it lives, an engine waits for one rank.
class WaitsFor {
 public:
    WaitsFor(Engine& engine, int rank) : engine_(engine) { engine_.waits_for = rank; }
    ~WaitsFor() { engine_.waits_for = -1; }
    WaitsFor(const WaitsFor&) = delete;
    WaitsFor& operator=(const WaitsFor&) = delete;

 private:
    Engine& engine_;
};

/// dst[i] = dst[i] op src[i]
void reduce_into(void* dst, const void* src, std::int64_t count, DType dtype, Reduce reduce);

/// Throw EngineError if the others cannot be reached, and where Tapir was built without it. timeout: in seconds.
std::unique_ptr<Engine> mpi_engine(int* argc, char*** argv);
std::unique_ptr<Engine> gloo_engine(double timeout);
/// One for each of so many threads.
std::vector<std::unique_ptr<Engine>> thread_engines(int ranks);

}  // namespace tapir::parallel
