// The thread of a process that talks to other ranks. Calls of all groups wait in one line, in the order in which the program makes them: so ranks whose
// programs are alike never wait for each other in a circle. While it waits, the program computes on, as backward() does while gradients travel.
//
// Note [Collectives on devices]
// Each channel has a stream of its own on each CUDA device that it is called for. What the thread puts there comes after what the caller's stream had when
// it called, and the caller's stream goes on after it: nobody waits on the host, and the thread takes the next call while the device still works. As all
// ranks agree on each call before they put it on their streams, these have the same calls in the same order. The watchdog looks at the calls whose
// event has not happened yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tapir/core/stream.h"
#include "tapir/nn/parallel/on_device_impl.h"

namespace tapir::parallel {

/// What a rank calls, as messages tell it.
struct Call {
    const char* op;
    std::string of;  // what ranks compare beside the op: "float32 (3, 4), sum"
    Loc loc;
    std::string note{};      // for messages only: "bucket 3 of 5, step 118"
    std::int64_t bytes = 0;  // that this rank gives, for profiles
    bool yields = false;     // see Note [Calls that yield]

    std::string text() const;  // "all_reduce of float32 (3, 4), sum"
};

/// A number that stands for a text where ranks compare what they have.
std::uint64_t fingerprint_of(const std::string& text);

/// A call that waits in line, runs, or is done.
class Work {
 public:
    /// Throws CommError if it failed, once. What it has put on a CUDA device comes before what the thread's current stream there gets from here on.
    void wait();

 private:
    friend class Channel;
    void finish();
    const Channel* channel_ = nullptr;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_done_ = false;
    std::exception_ptr error_;
    Device device_;
    Event ended_;  // on a device
};

class Channel {
 public:
    using Make = std::function<std::unique_ptr<Engine>()>;
    /// Makes the first engine on the thread. Throws what that throws; CommError, which begins with op, for an EngineError.
    static std::shared_ptr<Channel> open(const char* op, const Make& make, const InitOptions& options, const Loc& loc);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    Engine& world() noexcept { return *engines_.front(); }
    const InitOptions& options() const noexcept { return options_; }
    /// Compares the call with those of the other ranks (not so messages between two ranks), and calls run() if they are alike. On a CUDA device, what
    /// run() puts on the current stream comes after what the caller's has now.
    std::shared_ptr<Work> post(Engine& engine, Call call, std::function<void()> run, bool compares = true, Device device = cpu);
    /// Of the thread, in run(): for tensors that lie on the call's device.
    Collectives& collectives(Engine& engine, Device device);
    /// Of the thread: makes an engine that lives as long as this.
    Engine& add(std::unique_ptr<Engine> engine);
    /// Of the thread, in a call that is not compared: what it waited for has come, so many bytes.
    void came(std::int64_t bytes);
    /// All calls from here on throw CommError, on all ranks.
    void abort(const std::string& reason);

 private:
    using Clock = std::chrono::steady_clock;
    struct Job {
        Engine* engine;
        Call call;
        std::function<void()> run;
        std::shared_ptr<Work> work;
        bool compares;
        bool has_overtaken = false;  // calls that yield
        Event may_begin{};           // on a device
    };
    struct OnDevice {  // a call that a device may still work on
        Engine* engine;
        DeviceCollectives* collectives;
        Call call;
        std::shared_ptr<Work> work;
        Clock::time_point began;
    };
    struct Made {
        Engine* engine;
        std::vector<int> devices;  // of its ranks
        std::unique_ptr<DeviceCollectives> collectives;
    };

    explicit Channel(const InitOptions& options) : options_(options) {}
    void serve();
    void watch();
    void wait_for_next(std::unique_lock<std::mutex>& lock);
    bool has_next() const;
    Job take_next();
    void fail_overtaken(const Job& job);
    bool do_job(Job& job);
    bool compare(const Job& job);
    void run_on_device(Job& job);
    void report(const Job& job, std::uint64_t profile, std::int64_t begin) noexcept;
    bool is_late() const { return current_ && Clock::now() - began_ >= std::chrono::duration<double>(options_.timeout); }
    void end(const std::string& reason);
    void end_on_devices();
    void look_at_devices(std::unique_lock<std::mutex>& lock);
    void look_at_current(std::unique_lock<std::mutex>& lock);
    [[noreturn]] void give_up(const Engine& engine, const Call& call, const std::string& awaited) const;
    static void introduce(Engine& engine);

    const InitOptions options_;
    std::vector<std::unique_ptr<Engine>> engines_;  // of the thread
    Engine* first_ = nullptr;                       // of them; for the watchdog
    std::string ended_;                             // of the thread: why there are no more calls
    std::int64_t came_at_ = 0, came_bytes_ = 0;     // of the thread, for profiles: what its call has waited for
    std::map<int, Stream> streams_;                 // of the thread, by device
    std::vector<Made> made_;                        // of the thread
    DeviceCollectives* used_ = nullptr;             // by the call that runs
    const int unwinding_ = std::uncaught_exceptions();

    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::deque<Job> line_;
    bool has_yielded_ = false;              // the first call in line, to one that does not yield
    bool closes_ = false, watched_ = true;  // the watchdog ends before the thread
    const Job* current_ = nullptr;          // for the watchdog
    Clock::time_point began_;
    std::deque<OnDevice> on_devices_;
    bool is_stuck_ = false;  // a device's
    bool ends_ = false;      // the watchdog has put an end in line

    std::thread thread_, watchdog_;
};

}  // namespace tapir::parallel
